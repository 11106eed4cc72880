"""The model that draws heads: how many of its samples pass, and how long it was trained, on an H200."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from study.brains import tables

_FOLDER = "joint"  # of the samples that are shown


@cache
def _record(root: Path) -> tables.BrainsRecord:
    return tables.recorded(root, "H200")


def _samples(root: Path) -> pd.DataFrame:
    """Returns the verdicts on the model's samples as wholes."""
    wholes = _record(root).wholes
    return wholes[(wholes["folder"] == _FOLDER) & (wholes["samples"] != "heads")]


def passed(root: Path, group: str) -> str:
    """Returns how many samples pass for heads by a group of numbers, or by each ("all"): "20" by the anatomy."""
    rows = _samples(root)
    asked = rows if group == "all" else rows[rows["group"] == group]
    return str(int(asked.groupby("subject")["passes"].min().sum()))


def drawn(root: Path) -> str:
    """Returns how many samples were judged: "24"."""
    return str(_samples(root)["subject"].nunique())


def minutes(root: Path) -> str:
    """Returns the minutes of the model's training: "5.6"."""
    (model,) = tables.sampled(_samples(root))["model"].unique()
    arm, *_, steps, seed = model.split("_")
    trained = _record(root).trainings
    trained = trained[(trained["arm"] == arm) & (trained["seed"] == int(seed[1:]))]
    (seconds,) = trained.loc[trained["steps"] == int(steps.removesuffix("steps")), "seconds"].unique()
    return f"{seconds / 60:.1f}"
