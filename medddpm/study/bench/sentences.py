"""What the bench's record comes to, in sentences that the README, the site and the notebooks repeat."""

from __future__ import annotations

import pandas as pd

from medddpm.study.bench.networks import NETWORKS
from medddpm.study.bench.settings import BENCH_SETTINGS, ORDINARY
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
    count, known = int(times.reindex(list(ORDINARY)).notna().sum()), len(ORDINARY)
    tools = f"{count if count == known else f'{count} of the {known}'} ordinary tools"
    names = {
        "best ordinary": f"the best of {tools}" if count else "any ordinary tool",
        "PyTorch": "PyTorch out of the box",
        "BASE": "the paper's FP32",
    }
    found = against(table, network, measure)
    said: list[str] = []
    for opponent, row in found.dropna(subset="ms").iterrows():
        which = f"{BENCH_SETTINGS[row['setting']].change}: " if opponent == "best ordinary" else ""
        said.append(f"{exact(row['ratio'])} times as fast as {names[str(opponent)]} ({which}{three(row['ms'])} ms)")
    how = "with `accelerate(model)` in an ordinary loop" if called == "accelerate" else "under FAST in one CUDA graph"
    text = f"On one {gpu} {work} takes {exact(times[called])} ms {how}"
    sentences = [f"{text}: {', '.join(said)}." if said else f"{text}."]
    ways = {"graphed_step": "with `graphed_step`", "FAST": "in the package's own training", EAGER: "without graphs"}
    beside = [(how, exact(times[row])) for row, how in ways.items() if row != called and row in times]
    if beside:
        (how, first), *rest = beside
        more = "".join(f", {how} {value} ms" for how, value in rest)
        sentences.append(f"{how[0].upper()}{how[1:]} it takes {first} ms{more}.")
    if missing := [names[str(opponent)] for opponent in found.index[found["ms"].isna()]]:
        sentences.append(f"Not measured there: {', '.join(missing)}.")
    return " ".join(sentences)


def exact(value: float) -> str:
    """A number to three digits, zeros too: 2.00 says more than 2."""
    return f"{value:#.3g}".rstrip(".")


def three(value: float) -> str:
    """A number to three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
