"""What the bench's record comes to, in sentences that the README, the site and the notebooks repeat."""

from __future__ import annotations

import pandas as pd

from medddpm.study.bench.networks import NETWORKS
from medddpm.study.bench.settings import BENCH_SETTINGS, ORDINARY, BenchSetting
from medddpm.study.bench.tables import EAGER, OURS, against, called_of, rows_of

_WORK = {"step": "a training step", "forward": "a forward pass"}


def headline(table: pd.DataFrame, gpu: str, network: str = OURS, measure: str = "step") -> str:
    """The fast path against the best ordinary tool, PyTorch out of the box and the paper's FP32; says what is missing.

    Args:
        table: schema `BENCH`, of one machine.
        gpu: its name, as H200.
        network, measure: as in that table; "step" or "forward".
    """
    times = rows_of(table, network, measure)["median_ms"]
    work, called = f"{_WORK[measure]} of {NETWORKS[network].title}", called_of(times)
    if called not in times.index:
        return f"On one {gpu} {work} was not measured on the fast path."
    known = times.reindex(list(ORDINARY))
    names = {"best ordinary": "the best ordinary tool", "PyTorch": "PyTorch out of the box", "BASE": "the paper's FP32"}
    found = against(table, network, measure)
    said: list[str] = []
    for opponent, row in found.dropna(subset="ms").iterrows():
        which = f"{tool(BENCH_SETTINGS[row['setting']])}: " if opponent == "best ordinary" else ""
        where = " measured there" if opponent == "best ordinary" and known.isna().any() else ""
        name = f"{names[str(opponent)]}{where} ({which}{three(row['ms'])} ms)"
        said.append(f"{exact(row['ratio'])} times as fast as {name}")
    how = "with `accelerate(model)` in an ordinary loop" if called == "accelerate" else "under FAST in one CUDA graph"
    sentences = [f"On one {gpu} {work} takes {exact(times[called])} ms {how}."]
    if said:
        sentences.append(f"That is {_listed(said)}.")
    own = "it" if called == "FAST" else "FAST"
    ways = {
        "graphed_step": "With `graphed_step` it takes",
        "FAST": "FAST, the package's own training, takes",
        EAGER: f"Without CUDA graphs {own} takes",
    }
    sentences += [f"{how} {exact(times[row])} ms." for row, how in ways.items() if row != called and row in times]
    missing = [names[str(opponent)] for opponent in found.index[found["ms"].isna()]]
    if known.isna().all():
        missing[0] = "any ordinary tool"
    elif known.isna().any():
        few = f"{known.isna().sum()} of the {len(known)} ordinary tools"
        with_pytorch = names["PyTorch"] in missing
        missing = [name for name in missing if name != names["PyTorch"]]
        missing.insert(0, f"{few}, {names['PyTorch']} among them" if with_pytorch else few)
    if missing:
        sentences.append(f"Not measured on the {gpu}: {', '.join(missing)}.")
    return " ".join(sentences)


def tool(setting: BenchSetting) -> str:
    """What a user would say that this ordinary setting is, as in "BF16 autocast with `cudnn.benchmark`"."""
    if setting.untouched:
        return "PyTorch out of the box"
    compiled = (
        "`torch.compile`" if setting.compiled == "default" else f"`torch.compile` in its mode `{setting.compiled}`"
    )
    added = [compiled] if setting.compiled else []
    added += ["`cudnn.benchmark`"] if setting.search and not setting.replays else []
    kind = "BF16 autocast" if setting.autocast else "TF32"
    text = f"{kind} with {' and '.join(added)}" if added else kind
    return f"{text}, in channels-last" if setting.switches.channels_last else text


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def exact(value: float) -> str:
    """A number to three digits, zeros too: 2.00 says more than 2."""
    return f"{value:#.3g}".rstrip(".")


def three(value: float) -> str:
    """A number to three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
