"""How long a record took to measure, as far as it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.store import CALLS
from medddpm.measure.tables import read_meta, table_file

SITTING = 1800.0
"""Seconds between two rows of one sitting at most: after so long the bench gives a row up."""


@dataclass(frozen=True)
class Took:
    """The time that records took.

    Args:
        seconds: as far as it is known.
        whole: whether all of it is.
    """

    seconds: float = 0.0
    whole: bool = True

    def __add__(self, other: Took) -> Took:
        return Took(self.seconds + other.seconds, self.whole and other.whole)

    def __str__(self) -> str:
        """Returns minutes: "12", "at least 12", "0.5" or "not recorded"."""
        if not self.whole and not self.seconds:
            return "not recorded"
        minutes = self.seconds / 60
        return f"{'' if self.whole else 'at least '}{minutes:.{0 if minutes >= 1 else 1}f}"


def took(path: Path) -> Took:
    """Returns how long the table at `path` took to measure.

    In this order: what its description says (`calls` of the harness, `seconds` of a profile or of tests, the trainings
    in its `runs`), the sum of its steps' times, and the time between neighbouring rows of a sitting, which leaves out
    the first row of each, and what failed. A table whose first rows are older than `calls` took longer than these.
    """
    meta = _described(path)
    if CALLS in meta:
        return Took(sum(meta[CALLS].values()), _all_name_a_host(path))
    if isinstance(seconds := meta.get("seconds"), int | float):
        return Took(float(seconds))
    if runs := meta.get("runs"):
        times = [[run.get(part) for part in ("training_s", "judging_s")] for run in runs.values()]
        known = [part for run in times for part in run if part is not None]
        return Took(math.fsum(known), all(part is not None for run in times for part in run))
    table = _columns(path, ("step_ms", "step", "date"))
    if {"step_ms", "step"} <= set(table):
        return Took(table["step_ms"].sum() / 1e3, whole=False)
    if "date" in table:
        gaps = pd.to_datetime(table["date"].dropna(), utc=True, format="ISO8601").sort_values().diff()
        apart = gaps.dt.total_seconds()
        return Took(float(apart[apart <= SITTING].sum()), whole=False)
    return Took(whole=False)


def _described(path: Path) -> dict[str, Any]:
    try:
        return read_meta(path)
    except BadInput:  # a file beside a table, as slices of volumes
        return {}


def _all_name_a_host(path: Path) -> bool:
    """Returns whether no row is older than the columns of host and card, which came with `calls`."""
    table = _columns(path, ("host", "date"))
    return "date" not in table or ("host" in table and bool(table["host"].notna().all()))


def _columns(path: Path, names: tuple[str, ...]) -> pd.DataFrame:
    if path.suffix not in (".csv", ".gz"):
        return pd.DataFrame()
    return pd.read_csv(table_file(path), usecols=lambda name: name in names)
