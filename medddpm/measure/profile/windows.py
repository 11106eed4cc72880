"""Computes the counters of any window of a hundred launches, wherever in the run it begins.

The paper profiles launches 10 to 110 (ICPE '26, arXiv:2606.19365, Section 3.2). Profiling every launch of a step takes
hours; but each *distinct* launch has been profiled (view "step", and the windows), and a plain trace gives their order.
Joined, they give the counters of any window; windows that were really profiled check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from medddpm.measure.profile.families import family_of
from medddpm.measure.profile.kernel_names import launch_keys

WINDOW, PAPERS_START = 100, 10  # launches, and the one that the paper's window begins with (P056, P055)
COUNTERS = ("cycles_active", "instructions", "duration_ns")


def costs(launches: pd.DataFrame, kernels: pd.DataFrame, counters: Sequence[str] = COUNTERS) -> pd.DataFrame:
    """Returns the counters of each launch of a run, in order.

    Args:
        launches: schema `TRACE`, from the run's first on; fills and copies, which ncu does not count, are left out.
        kernels: every table (schema `KERNELS`) of the same machine and setting. Launches of equal kernel, grid and
            block may still differ in their number of loops, so their counters are carried over per nanosecond.
        counters: columns of `kernels` that add up over launches, duration_ns among them.

    Returns:
        a row for each kernel launch: phase ("convert" before the first step), then `counters`; of a launch that no
        table has, only the duration is known, from the trace.
    """
    ran = in_order(launches)
    counted = kernels[kernels["cycles_active"].notna()]  # else the time of launches without counters thins the rates
    known = counted.groupby(launch_keys(counted))[list(counters)].sum(min_count=1)
    rates = known.div(known["duration_ns"], axis="index")
    cost = rates.reindex(launch_keys(ran)).reset_index(drop=True).mul(ran["duration_ns"], axis="index")
    cost["duration_ns"] = ran["duration_ns"]
    return cost.assign(phase=ran["phase"])[["phase", *counters]]


def in_order(launches: pd.DataFrame) -> pd.DataFrame:
    """Returns a trace's kernel launches, numbered as ncu numbers them; outside a step the phase is "convert"."""
    kernels = launches[launches["grid"].notna()].reset_index(drop=True)
    return kernels.assign(phase=kernels["phase"].fillna("convert"))


def moving(cost: pd.DataFrame, width: int = WINDOW) -> pd.DataFrame:
    """Returns the sums of every window of `width` launches, by the launch it begins with.

    Args:
        cost: as `costs` returns it.
        width: launches.

    Returns:
        index start, columns `COUNTERS`; a launch without counters adds nothing.
    """
    summed = cost[list(COUNTERS)].fillna(0.0).rolling(width).sum().dropna()
    return summed.set_axis(pd.RangeIndex(len(summed), name="start"))


def convolutions(launches: pd.DataFrame) -> pd.Series[bool]:
    """Marks the launches of a table `TRACE` that are convolutions or their helpers, but not copies between layouts."""
    is_convolution = {name: family_of(name).group == "convolution" for name in launches["kernel"].unique()}
    return launches["kernel"].map(is_convolution)


def step_times(steps: Mapping[str, pd.DataFrame], base: str) -> pd.DataFrame:
    """Sums the launches and times of whole steps, without counters; fills and copies of memory are left out.

    Args:
        steps: tables `TRACE` of one step each, by setting.
        base: the setting that the others are divided by.

    Returns:
        index setting; launches, convolutions (how many of them are), time_ms (the sum of their times), ratio (divided
        by that of `base`) and convolution_pct (the convolutions' share of it, percent).
    """
    rows: dict[str, dict[str, float]] = {}
    for name, step in steps.items():
        kernels = in_order(step)
        time, chosen = kernels["duration_ns"], convolutions(kernels)
        total = float(time.sum())
        rows[name] = {
            "launches": len(kernels),
            "convolutions": int(chosen.sum()),
            "time_ms": total / 1e6,
            "convolution_pct": 100 * float(time[chosen].sum()) / total,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("setting")
    table.insert(3, "ratio", table["time_ms"] / rows[base]["time_ms"])
    return table.astype({"launches": "int64", "convolutions": "int64"})


def from_every_start(cost: pd.DataFrame, base: pd.DataFrame, width: int = WINDOW) -> pd.DataFrame:
    """Divides every window of one setting by another setting's window that begins with the same launch.

    Args:
        cost, base: as `costs` returns them.
        width: launches of a window.

    Returns:
        index start, columns `COUNTERS`, for windows that end within the first step's backward pass of `base` (without
        a backward pass, within `base`); where `base` has no counters there is none.
    """
    against = moving(base, width)
    return (moving(cost, width) / against.where(against > 0)).loc[: _first_end(base, "backward") - width]


def known_share(cost: pd.DataFrame) -> float:
    """Returns the share of the run's time in launches that have counters."""
    return float(cost.loc[cost["cycles_active"].notna(), "duration_ns"].sum() / cost["duration_ns"].sum())


def phases(cost: pd.DataFrame) -> pd.DataFrame:
    """Returns the stretches of launches of one phase, in order: columns phase, begin, end (launch number, excluded)."""
    begins = np.flatnonzero(cost["phase"].ne(cost["phase"].shift()).to_numpy())
    ends = [*begins[1:].tolist(), len(cost)]
    return pd.DataFrame({"phase": cost["phase"].to_numpy()[begins], "begin": begins, "end": ends})


def first_step(launches: pd.DataFrame) -> pd.DataFrame:
    """Returns the kernel launches of the run's first step in a table `TRACE`, conversions before it included.

    A run without an update is one step.
    """
    kernels = in_order(launches)
    return kernels.iloc[: _first_end(kernels, "update")]


def _first_end(cost: pd.DataFrame, phase: str) -> int:
    """Returns where the first stretch of a phase ends (launch number, excluded); without any, where `cost` ends."""
    stretches = phases(cost)
    ends = stretches.loc[stretches["phase"] == phase, "end"]
    return int(ends.iloc[0]) if len(ends) else len(cost)


def profiled(kernels: pd.DataFrame, setting: str, base: str) -> pd.DataFrame:
    """Divides the profiled windows of a setting by another setting's; index start, columns `COUNTERS`.

    Args:
        kernels: one machine's, as `tables.kernels` returns them; parts other than windows are left out.
        setting, base: the two settings; windows that only one of them has are left out.
    """
    chosen = kernels[kernels["part"].str.fullmatch(r"window(-\d+)?")]
    start = chosen["part"].str.extract(r"-(\d+)$")[0].astype(float).fillna(PAPERS_START).astype(int).rename("start")
    sums = chosen.groupby([start, chosen["config"], chosen["run"]])[list(COUNTERS)].sum()
    means = sums.groupby(level=["start", "config"]).mean()
    shown, against = (pd.DataFrame(means.xs(name, level="config")) for name in (setting, base))
    return (shown / against).dropna()
