"""The smallest step, that of `UNet` with batch norm, in each recorded run: its ratio depends on the host."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from study.bench import repeats, tables
from study.numbers.bench import recorded
from study.numbers.texts import in_words, span

_CARDS = ("H100", "H200")
_COMPILED = "FAST reduce-overhead"


@cache
def _runs(root: Path) -> dict[str, pd.DataFrame]:
    return {card: repeats.every_run(root, card) for card in _CARDS}


@cache
def _on_other_hosts(root: Path) -> dict[str, list[pd.DataFrame]]:
    return {card: repeats.on_other_hosts(root, card) for card in _CARDS}


def rows(root: Path) -> list[str]:
    """Returns two rows a card, of all runs and of those with `max-autotune`: their number, both times, both ratios.

    Of each the median, and behind it the least and the most.
    """
    columns = ["accelerate_ms", "ratio", "step_ms", "step_ratio"]
    lines = []
    for card, runs in _runs(root).items():
        for which, some in (("all", runs), ("with `max-autotune`", runs[runs["searched"]])):
            cells = "|".join(f"{some[column].median():.2f} ({span(some[column])})" for column in columns)
            lines.append(f"|{card}, {which}|{len(some)}|{cells}|")
    return lines


def ratio(root: Path, column: str) -> str:
    """Returns the least and the most of the ratios (column ratio or step_ratio) of all runs: "0.80 to 1.26"."""
    return span(pd.concat(_runs(root).values())[column])


def percentiles_ms(root: Path, card: str) -> str:
    """Returns a step with `accelerate` in `bench.csv`, from its 10th to its 90th percentile, ms: "3.26 to 5.67"."""
    row = tables.rows_of(recorded(root)[card], tables.HOST_BOUND, "step").loc["accelerate"]
    return f"{row['p10_ms']:.2f} to {row['p90_ms']:.2f}"


def runs(root: Path) -> str:
    """Returns how many runs there are: "21"."""
    return in_words(sum(map(len, _runs(root).values())))


def launch(root: Path) -> str:
    """Returns how long the host launches a step with `accelerate`, ms: "2.40 to 4.99"."""
    return span(pd.concat(_runs(root).values())["launch_ms"])


def gpu_ms(root: Path) -> str:
    """Returns how long the GPU runs it, with `graphed_step`: "2.4".

    Raises:
        BadInput: this differs between the runs.
    """
    took = {f"{ms:.1f}" for ms in pd.concat(_runs(root).values())["step_ms"].dropna()}
    if len(took) != 1:
        raise BadInput("bench.csv", f"takes {', '.join(sorted(took))} ms", "give the page the least and the most")
    return took.pop()


def compiled(root: Path, card: str) -> str:
    """Returns a step of `torch.compile(accelerate(model))` in `reduce-overhead` divided by `accelerate`'s: "1.51"."""
    took = next(rows["median_ms"] for rows in _on_other_hosts(root)[card] if _COMPILED in rows.index)
    return f"{took[_COMPILED] / took['accelerate']:.2f}"
