"""Compares samplers in the parity records, each with all timesteps, and recommends one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from study.parity.plans import FULL, SAMPLERS
from study.parity.tables import MARGINS, METRIC, NOT_MEASURED, Metric, badness

SECONDS: Metric = ("seconds_a_volume", "all")
SAMPLER_NAMES = {"ddpm": "DDPM", "ddim": "DDIM", "dpm++": "DPM-Solver++", "sde-dpm++": "SDE-DPM-Solver++"}


def samplers(quality: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each sampler and number of steps, in `SAMPLERS`' order, a column for each metric and tissue.

    `SECONDS` is one of the columns.
    """
    rows = quality[(quality["plan"] == "samplers") & (quality["sampler_steps"] > 0)]
    if not len(rows):
        return pd.DataFrame()
    table = rows.pivot_table(index=["sampler", "sampler_steps"], columns=METRIC, values="value")
    places = [SAMPLERS.index(row) if row in SAMPLERS else len(SAMPLERS) for row in table.index]
    return table.rename_axis(index=["sampler", "steps"]).iloc[np.argsort(places, kind="stable")]


def shortfall(table: pd.DataFrame) -> pd.DataFrame:
    """Counts the margins by which each row of `samplers` is worse than all timesteps, by metric; negative if better.

    Raises:
        BadInput: the row of all timesteps, `FULL`, is not in the table.
    """
    if FULL not in table.index:
        raise BadInput("samplers", f"no {named(FULL)} to compare with", "measure it too")
    columns = {}
    for name in [name for name in MARGINS if name in table]:
        worse = badness(table, name)
        columns[name] = (worse - worse[FULL]) / MARGINS[name].of(float(table[name][FULL]))
    return pd.DataFrame(columns)


def advice(table: pd.DataFrame) -> str:
    """Recommends the quickest sampler that is no more than a margin worse than all timesteps by any metric."""
    if FULL not in table.index or len(table) < 2:
        return NOT_MEASURED
    worst: dict[Any, float] = shortfall(table).max(axis="columns").to_dict()
    seconds: dict[Any, float] = table[SECONDS].to_dict()
    others = [row for row in seconds if row != FULL]
    good = [row for row in others if worst[row] <= 1]
    if not good:
        best = min(others, key=worst.__getitem__)
        return (
            f"{named(FULL)}: nothing shorter stays within the margins; the nearest is {named(best)}, {worst[best]:.1f} "
            f"margins worse on its worst metric, in {seconds[best]:.3g} s instead of {seconds[FULL]:.3g} s"
        )
    best = min(good, key=seconds.__getitem__)
    return (
        f"{named(best)}: {seconds[best]:.3g} s per volume instead of {seconds[FULL]:.3g} s, "
        f"{seconds[FULL] / seconds[best]:.0f} times as fast, and in the mean of the masks (one model, untested) no "
        "more than a margin worse on any metric"
    )


def named(row: tuple[str, int]) -> str:
    """Names a sampler and its number of steps for a reader."""
    return f"{SAMPLER_NAMES[row[0]]}, {row[1]} steps"
