"""The smallest step, that of `UNet` with batch norm, in every run on either card: its ratio depends on the host."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from study.bench import tables
from study.numbers.texts import in_words, span

_CARDS = ("H100", "H200")
_BY_HAND = "compile graph channels-last"
_COMPILED = "FAST reduce-overhead"


@cache
def _runs(root: Path) -> dict[str, pd.DataFrame]:
    return {card: tables.every_run(root, card) for card in _CARDS}


@cache
def _on_other_hosts(root: Path) -> dict[str, list[pd.DataFrame]]:
    return {card: tables.on_other_hosts(root, card) for card in _CARDS}


def rows(root: Path) -> list[str]:
    """Returns a row a card: how many runs, then the least and the most of both times and both ratios."""
    columns = ["accelerate_ms", "ratio", "step_ms", "step_ratio"]
    return [
        f"|{card}|{len(runs)}|{'|'.join(span(runs[column]) for column in columns)}|"
        for card, runs in _runs(root).items()
    ]


def ratio(root: Path, column: str) -> str:
    """Returns the ratios (column ratio or step_ratio) of all runs but README's own: "0.80 to 1.26"."""
    runs = _runs(root)
    return span(pd.concat([runs["H100"].iloc[:-1], runs["H200"]])[column])  # README has the H100's last


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


def searched(root: Path) -> str:
    """Returns how many runs include `max-autotune`: "eight"."""
    elsewhere = [rows for runs in _on_other_hosts(root).values() for rows in runs]
    count = sum(bool(rows.index.str.startswith("max-autotune").any()) for rows in elsewhere)
    return in_words(count + len(_CARDS))


def searched_apart(root: Path) -> str:
    """Returns how many hours the one search lies from `accelerate` that was timed by itself: "six"."""
    every = pd.concat(_runs(root).values())
    hours = every["apart_h"][every["best"].str.startswith("max-autotune") & every["apart_h"].gt(1)]
    (apart,) = hours
    return in_words(apart)


def without_graphed_step(root: Path) -> str:
    """Returns how many runs lack `graphed_step`: "four"."""
    return in_words(pd.concat(_runs(root).values())["step_ms"].isna().sum())


def captured_by_hand_ms(root: Path) -> str:
    """Returns a compiled step that was captured by hand on an H200: "3.09"."""
    return f"{_captured_by_hand(root)[_BY_HAND]:.2f}"


def captured_by_hand(root: Path) -> str:
    """Returns the faster such step divided by `graphed_step`: "1.29"."""
    took = _captured_by_hand(root)
    return f"{took[[_BY_HAND, 'compile graph']].min() / took['graphed_step']:.2f}"


def compiled(root: Path, card: str) -> str:
    """Returns a step of `torch.compile(accelerate(model))` in `reduce-overhead` divided by `accelerate`'s: "1.51"."""
    took = next(rows["median_ms"] for rows in _on_other_hosts(root)[card] if _COMPILED in rows.index)
    return f"{took[_COMPILED] / took['accelerate']:.2f}"


def _captured_by_hand(root: Path) -> pd.Series[float]:
    return next(rows["median_ms"] for rows in _on_other_hosts(root)["H200"] if _BY_HAND in rows.index)
