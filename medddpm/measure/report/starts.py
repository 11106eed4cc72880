"""Compares what a window of launches says of a step with what the step itself says, from every start of the window.

A profile of a window (Nsight Compute's --launch-skip and --launch-count) is cheap, and its answer depends on where the
window begins: it holds launches, not a share of the work. Here each launch of a step gets the counters of the distinct
launch that was profiled in its place (`windows.costs`), so that every window's answer is known beside the step's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medddpm.errors import BadArgument, BadInput
from medddpm.measure.profile import windows
from medddpm.measure.profile.families import families_of
from medddpm.measure.report.folder import Profile
from medddpm.measure.schemas import Column, Schema

RULE = "Never compare two programs by the same number of launches: a window holds launches, not a share of the work."
CLOSE = 0.1
"""The distance from the step's answer within which a window's answer counts as right: a tenth, a choice."""
SUMS = {
    "duration_ns": "time", "cycles_active": "SM cycles", "instructions": "instructions",
    "stall_long_scoreboard": "stalls: memory", "stall_math_pipe": "stalls: busy pipe", "stall_branch": "stalls: branch",
    "dram_read_bytes": "DRAM bytes read", "dram_written_bytes": "DRAM bytes written",
}  # fmt: skip
"""Counters that add up over launches, in words; a window's answer is the mean of a launch."""
RATES = {
    "tensor_pct": "Tensor Core pipe, %", "fma_pct": "FP32 pipe, %", "alu_pct": "integer pipe, %",
    "sm_throughput_pct": "SM throughput, %", "l1_hit_pct": "L1 hits, %", "l2_hit_pct": "L2 hits, %",
    "dram_pct": "DRAM bandwidth, %", "warps_per_cycle": "active warps",
}  # fmt: skip
"""Counters that are means of a launch, in words; an answer is their mean, by launches or by time."""
TITLES = {**SUMS, "ipc": "instructions a cycle", **RATES}
UNMARKED = "outside any phase"
Values = NDArray[np.float64]
CURVE = Schema(
    {
        "start": Column("int64", "the launch that the window begins with, from 0"),
        **{
            name: Column("float64", f"{title}: the window's answer divided by the step's", nullable=True)
            for name, title in TITLES.items()
        },
    }
)
"""The table of `curve`."""


@dataclass(frozen=True)
class Ordered:
    """A profile's launches in order, with their counters.

    Args:
        step: a row for each kernel launch of the step: kernel, family, phase, `SUMS` and `RATES` (NaN where unknown).
        run: the same of the stretch that starts are counted in: the program's first step from its first launch on
            where that was traced, else `step`.
    """

    step: pd.DataFrame
    run: pd.DataFrame


def ordered(profile: Profile) -> Ordered:
    """Joins a profile's launches with its counters.

    Raises:
        BadInput: the step launches no kernel, only fills and copies.
    """
    step = _counted(windows.in_order(profile.launches), profile.by_launch)
    if step.empty:
        raise BadInput(profile.path, "the step launches no kernel", "profile a step that computes on the GPU")
    if profile.run is None:
        return Ordered(step, step)
    counts = profile.by_launch if profile.counted.empty else profile.counted
    return Ordered(step, _counted(windows.first_step(profile.run), counts))


def _counted(launches: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Returns launches with their counters; of equal launches in several tables the mean by time."""
    by_time = {name: kernels[name] * kernels["duration_ns"] for name in RATES}
    cost = windows.costs(launches, kernels.assign(**by_time), [*SUMS, *RATES])
    time = cost["duration_ns"].where(cost["duration_ns"] > 0)
    rates = {name: cost[name] / time for name in RATES}
    rates["l2_hit_pct"] = rates["l2_hit_pct"].clip(upper=100.0)  # as `summaries` counts it
    kernel = launches["kernel"].reset_index(drop=True)
    phase = cost["phase"].replace("convert", UNMARKED)
    return cost.assign(**rates, kernel=kernel, family=families_of(kernel), phase=phase)


def check(start: int, count: int, order: Ordered) -> None:
    """Checks that a window lies within the launches.

    Raises:
        BadArgument: it does not.
    """
    there = len(order.run)
    if start + count > there:
        problem = f"a window of {count} launches from {start} on ends after the last of {there}"
        raise BadArgument("count", problem, "give a smaller --start or --count")


def held(order: Ordered, start: int, count: int, by: str) -> pd.DataFrame:
    """Counts what a window holds of a step, by phase or family.

    Args:
        order: of `ordered`.
        start, count: the window's first launch, and how many it has.
        by: "phase" or "family".

    Returns:
        a row for each, those with most of the step's time first: launches of the window and of the step, the share of
        the window's time and of the step's, and the part of the step's time there that the window holds.
    """
    window = order.run.iloc[start : start + count]
    sums = {
        name: table.groupby(by, sort=False)["duration_ns"].agg(["size", "sum"])
        for name, table in (("window", window), ("step", order.step))
    }
    table = pd.concat(sums, axis="columns").fillna(0.0)
    time = {name: table[name, "sum"] for name in sums}
    shares = pd.DataFrame(
        {
            "launches": table["window", "size"].astype("int64"),
            "of_launches": table["step", "size"].astype("int64"),
            "share": time["window"] / max(window["duration_ns"].sum(), 1e-300),
            "of_share": time["step"] / order.step["duration_ns"].sum(),
            "part": time["window"] / time["step"].where(time["step"] > 0),
        }
    )
    return shares.sort_values("of_share", ascending=False, kind="stable")


def answers(order: Ordered, start: int, count: int) -> pd.DataFrame:
    """Sets a window's answers beside the step's.

    Returns:
        a row for each counter that was measured; columns part (of the step's sum; `SUMS` only), window and step (the
        mean of a launch, each launch alike), ratio of the two, and the same weighted by time (window_by_time …,
        `RATES` and ipc only).
    """
    window, step = order.run.iloc[start : start + count], order.step
    rows: dict[str, dict[str, float]] = {}
    for name in TITLES:
        row = {"part": over(window[name].sum(), step[name].sum()) if name in SUMS else np.nan}
        for weight in ("",) if name in SUMS else ("", "_by_time"):
            pair = [over(*map(np.sum, _parts(table, name, bool(weight)))) for table in (window, step)]
            row |= {f"window{weight}": pair[0], f"step{weight}": pair[1], f"ratio{weight}": over(*pair)}
        rows[name] = row
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("counter")
    return table[table["step"].notna()]


def _parts(table: pd.DataFrame, name: str, by_time: bool) -> tuple[Values, Values]:
    """Returns what a counter's mean is a ratio of: two sums over launches, each a value a launch."""
    if name == "ipc":
        both = table["instructions"].notna() & table["cycles_active"].notna()
        return table["instructions"].where(both, 0.0).to_numpy(), table["cycles_active"].where(both, 0.0).to_numpy()
    values = table[name].to_numpy()
    known = ~np.isnan(values)
    weights = np.where(known, table["duration_ns"].to_numpy() if by_time else 1.0, 0.0)
    return np.where(known, values, 0.0) * weights, weights


def over(value: float, by: float) -> float:
    """Divides two sums; NaN where the second is zero or missing."""
    return float(value) / float(by) if by > 0 else np.nan


def curve(order: Ordered, count: int) -> pd.DataFrame:
    """Divides the answer of the window at every start by the step's: schema `CURVE`.

    Sums are compared by the mean of a launch, `RATES` by their means over time, as a step's are in the figures.
    """
    ratios: dict[str, Any] = {}
    for name in TITLES:
        whole = over(*map(np.sum, _parts(order.step, name, name in RATES)))
        # Clipped, as a rolling sum of large numbers may leave a little less than nothing.
        value, by = (
            pd.Series(part).rolling(count).sum().clip(lower=0.0).to_numpy()[count - 1 :]
            for part in _parts(order.run, name, name in RATES)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios[name] = np.where(by > 0, value / by, np.nan) / (whole if whole > 0 else np.nan)
    return pd.DataFrame({"start": np.arange(len(order.run) - count + 1), **ratios})


def spread(ratios: pd.DataFrame, wanted: float | pd.Series[float] = 1.0) -> pd.DataFrame:
    """Summarizes ratios over all starts: least, median and most with their starts, and the share that is right.

    Args:
        ratios: column start, then a ratio a counter, as of `curve`.
        wanted: the step's own ratio, or one for each counter; a start within `CLOSE` of it is right.

    Returns:
        a row for each counter with a ratio; columns least, least_at, median, most, most_at, right (a share).
    """
    table = ratios.set_index("start").dropna(axis="columns", how="all")
    right = (table / wanted - 1).abs() <= CLOSE
    return pd.DataFrame(
        {
            "least": table.min(), "least_at": table.idxmin(), "median": table.median(),
            "most": table.max(), "most_at": table.idxmax(), "right": right.sum() / table.notna().sum(),
        }
    ).rename_axis("counter")  # fmt: skip


def against(order: Ordered, base: Ordered, count: int) -> tuple[pd.DataFrame, pd.Series[float]]:
    """Divides a program by another, window by window and as whole steps.

    Returns:
        the ratio of the two windows that begin with the same launch, for every start: column start, then
        `windows.COUNTERS`; and the ratio of the steps' sums (`SUMS`), NaN where either has no counters.
    """
    columns = ["phase", *windows.COUNTERS]
    every = windows.from_every_start(order.run[columns], base.run[columns], count)
    whole = [table[list(windows.COUNTERS)].sum(min_count=1) for table in (order.step, base.step)]
    return every.dropna(axis="columns", how="all").reset_index(), whole[0] / whole[1].where(whole[1] > 0)
