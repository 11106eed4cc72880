"""What the bench's record comes to, in sentences that the README, the site and the notebooks repeat."""

from __future__ import annotations

import pandas as pd

from medddpm.study.bench.networks import NETWORKS
from medddpm.study.bench.settings import BENCH_SETTINGS, ORDINARY
from medddpm.study.bench.tables import OURS, against, eager_of, rows_of

_WORK = {"step": "a training step", "forward": "a forward pass"}


def headline(table: pd.DataFrame, gpu: str, network: str = OURS, measure: str = "step") -> str:
    """FAST against the best ordinary tool, then PyTorch out of the box, then the paper's FP32; says what is missing.

    Args:
        table: schema `BENCH`, of one machine.
        gpu: its name, as H200.
        network, measure: as in that table; "step" or "forward".
    """
    times = rows_of(table, network, measure)["median_ms"]
    work = f"{_WORK[measure]} of {NETWORKS[network].title}"
    if "FAST" not in times.index:
        return f"On one {gpu} {work} was not measured under FAST."
    found = against(table, network, measure)
    count, known = int(times.reindex(list(ORDINARY)).notna().sum()), len(ORDINARY)
    tools = f"{count if count == known else f'{count} of the {known}'} ordinary tools"
    names = {
        "best ordinary": f"the best of {tools}" if count else "any ordinary tool",
        "PyTorch": "PyTorch out of the box",
        "BASE": "the paper's FP32",
    }
    said: list[str] = []
    for opponent, row in found.dropna(subset="ms").iterrows():
        which = f"{BENCH_SETTINGS[row['setting']].change}: " if opponent == "best ordinary" else ""
        said.append(f"{exact(row['ratio'])} times as fast as {names[str(opponent)]} ({which}{three(row['ms'])} ms)")
    missing = [names[str(opponent)] for opponent in found.index[found["ms"].isna()]]
    eager = times.get(eager_of(times))
    own, without = times.get("accelerate"), "" if eager is None else f"{three(eager)} ms without graphs"
    loop = "" if own is None else f"{exact(own)} ms by `accelerate` in an ordinary loop"
    beside = ", ".join(part for part in (loop, without) if part)
    called = f" in one CUDA graph ({beside})" if beside else ""
    text = f"On one {gpu} {work} takes {three(times['FAST'])} ms under FAST{called}"
    text += f": {', '.join(said)}." if said else "."
    return text + (f" Not measured there: {', '.join(missing)}." if missing else "")


def exact(value: float) -> str:
    """A number to three digits, zeros too: 2.00 says more than 2."""
    return f"{value:#.3g}".rstrip(".")


def three(value: float) -> str:
    """A number to three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
