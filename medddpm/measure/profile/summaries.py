"""Summarizes tables of the schema `KERNELS` for the figures; ICPE '26, arXiv:2606.19365, Sections 3.2, 4 and 6.

In a *window* every launch counts alike: its mean is the paper's unweighted one. In a *step*, sums weight a launch by
its count, and means by its total time (count times duration). Launches without a counter take no part in that
counter's sum or mean. If Nsight Compute gives an L2 hit rate above 100% (it may count hits and accesses in different
passes), it counts as 100%. Results are by view and setting, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from medddpm.measure.profile.families import family_named
from medddpm.measure.profile.instructions import CLASSES

VIEW_AND_SETTING = ["view", "config"]
BASE = "BASE"
UTILIZATION = ("tensor_pct", "fma_pct", "alu_pct", "sm_throughput_pct")  # Figure 10
MEMORY = ("l1_hit_pct", "l2_hit_pct", "dram_pct")  # Figure 11
STALLS = ("stall_long_scoreboard", "stall_math_pipe", "stall_branch")  # Figure 13
MEANS = (*UTILIZATION, *MEMORY, "warps_per_cycle")
BY_TIME = "window, by time"  # a window whose launches are weighted as a step's are


def summary(kernels: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each view and setting, with all values that Figures 8 and 10 to 13 compare.

    Columns: launches; duration_ns, cycles, instructions and the three `STALLS`, summed; ipc_geometric, the geometric
    mean of the kernels' IPC (Section 3.2); ipc_total, all instructions divided by all cycles; the `MEANS`.
    """
    return pd.concat([totals(kernels), averages(kernels)], axis="columns")


def totals(kernels: pd.DataFrame) -> pd.DataFrame:
    """Sums launches, duration_ns, cycles, instructions and the `STALLS` by view and setting; adds ipc_total."""
    count = kernels["count"]
    summed = kernels[VIEW_AND_SETTING].assign(
        launches=count,
        duration_ns=count * kernels["duration_ns"],
        cycles=count * kernels["cycles_active"],
        instructions=count * kernels["instructions"],
        **{name: count * kernels[name] for name in STALLS},
    )
    # A sum without a measured value is unknown, not zero.
    sums = summed.groupby(VIEW_AND_SETTING, sort=False).sum(min_count=1)
    return sums.assign(ipc_total=sums["instructions"] / sums["cycles"])


def averages(kernels: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Returns means by view and setting: ipc_geometric and the `MEANS`; weighted as the module says.

    Args:
        kernels: schema `KERNELS`.
        by: further columns to group the rows by, as ["family"].
    """
    logs = kernels.assign(
        ipc_geometric=np.log(kernels["ipc"].where(kernels["ipc"] > 0)),
        l2_hit_pct=kernels["l2_hit_pct"].clip(upper=100.0),
    )
    weights, keys = _weights(kernels), [*VIEW_AND_SETTING, *by]
    means = pd.DataFrame({name: _means(logs, name, weights, keys) for name in ("ipc_geometric", *MEANS)})
    return means.assign(ipc_geometric=np.exp(means["ipc_geometric"]))


def windows_by_time(kernels: pd.DataFrame) -> pd.DataFrame:
    """Returns the means of the windows as `averages` gives them, but weighted by time; the view is named `BY_TIME`.

    Beside a step's means they show how much of a difference between the two views comes from the weights.
    """
    return averages(kernels[kernels["view"] == "window"].assign(view=BY_TIME))


def relative(summaries: pd.DataFrame) -> pd.DataFrame:
    """Divides every number of a summary by that of BASE in the same view.

    Views without BASE are left out, as of a run in which only another setting was profiled anew.
    """
    bases = summaries[summaries.index.get_level_values("config") == BASE].droplevel("config")
    summaries = summaries[summaries.index.get_level_values("view").isin(bases.index)]
    return summaries / bases.loc[summaries.index.get_level_values("view")].set_axis(summaries.index)


def family_shares(kernels: pd.DataFrame, by: str = "family") -> pd.DataFrame:
    """Returns the families' shares of the time, a row for each view and setting; a row sums to 1 (Figures 6, 8).

    Args:
        kernels: schema `KERNELS`.
        by: "family", "group" (the kind of work) or "paper" (Table 2's abbreviation; "" for a family that it lacks).
    """
    time = (kernels["count"] * kernels["duration_ns"]).rename("time")
    table = time.groupby(_keys(kernels, by), sort=False).sum().unstack().fillna(0.0)
    shares = table.div(table.sum(axis="columns"), axis="index")
    return shares[shares.sum().sort_values(ascending=False, kind="stable").index]


def instruction_mix(kernels: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Returns the shares of the `CLASSES` in all executed instructions; a row sums to 1 (Figures 7 and 9).

    Args:
        kernels: schema `KERNELS`.
        by: further columns to group the rows by, as ["family"].
    """
    executed = kernels[list(CLASSES)].mul(kernels["count"], axis="index")
    keys = [kernels[name] for name in (*VIEW_AND_SETTING, *by)]
    summed = executed.groupby(keys, sort=False).sum(min_count=1)
    return summed.div(summed.sum(axis="columns"), axis="index")


def ipc_stacks(kernels: pd.DataFrame) -> pd.DataFrame:
    """Splits a family's IPC over the instruction classes, a row for each view, setting and family (Figure 4).

    Columns: those of `CLASSES`, which sum to the family's instructions divided by its cycles.
    """
    mix = instruction_mix(kernels, ["family"])
    count = kernels["count"]
    summed = kernels[[*VIEW_AND_SETTING, "family"]].assign(
        i=count * kernels["instructions"], c=count * kernels["cycles_active"]
    )
    sums = summed.groupby([*VIEW_AND_SETTING, "family"], sort=False).sum(min_count=1)
    return mix.mul(sums["i"] / sums["c"], axis="index")


def priorities(kernels: pd.DataFrame, by: str = "family") -> pd.DataFrame:
    """Sums priority scores (Equation 1), ns: a row for each view and setting, a column for each family (Figure 5).

    The family with the largest sum comes first.

    Args:
        kernels: schema `KERNELS`, parsed with ncu's details page.
        by: "family", "group" or "paper", as for `family_shares`.
    """
    table = kernels["priority"].groupby(_keys(kernels, by), sort=False).sum(min_count=1).unstack()
    return table[table.sum().sort_values(ascending=False, kind="stable").index]


def _keys(kernels: pd.DataFrame, by: str) -> list[pd.Series[str]]:
    kind = kernels["family"] if by == "family" else kernels["family"].map(lambda name: getattr(family_named(name), by))
    return [*(kernels[name] for name in VIEW_AND_SETTING), kind.rename(by)]


def _weights(kernels: pd.DataFrame) -> pd.Series[float]:
    time = kernels["count"] * kernels["duration_ns"]
    return time.where(kernels["view"].isin(("step", BY_TIME)), 1.0)


def _means(kernels: pd.DataFrame, name: str, weights: pd.Series[float], by: list[str]) -> pd.Series[float]:
    measured = kernels[name].notna()
    keys = [kernels[key] for key in by]
    products = (kernels[name] * weights).groupby(keys, sort=False).sum(min_count=1)
    means: pd.Series[float] = products / weights.where(measured).groupby(keys, sort=False).sum(min_count=1)
    return means
