"""Estimates the counters of a whole step from a few profiled launches and the durations of a plain trace.

ncu profiles the first launch of each kind in a step; a kind is a kernel, grid and block. Other launches of that kind
may do more or less work: another input of the same grid, another number of loops. A plain trace gives the duration of
every launch, and a kind's work is taken as proportional to its time: counters that add up (cycles, instructions,
stalls) are multiplied by a ratio of durations in the trace, the mean of the kind's launches divided by the profiled
launch. Rates, shares and percentages stay those of the profiled launch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.profile.counters import METRICS
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.profile.kernel_names import dimensions, function_name, launch_keys
from medddpm.measure.schemas import KERNELS, TRACE
from medddpm.measure.tables import read_table

KNOWN_LEAST = 0.5  # share of a trace's time in profiled launches; with less, trace and profile are not of one step
COUNTERS = [c for c in KERNELS.columns if c in METRICS and c != "duration_ns"] + ["ipc", *CLASSES]
EXTENSIVE = [c for c in COUNTERS if c in CLASSES or (c in METRICS and METRICS[c].names[0].endswith(".sum"))]
"""The columns that add up over launches."""
SCALED = (
    f"{', '.join(EXTENSIVE)}: those of the profiled launch, by the mean duration in the trace of all launches of its "
    "row and by the inverse of its own there (medddpm.measure.profile.step_weights)"
)
_MEASURED = "measured_ns"


def weighed(profiled: pd.DataFrame, raw: Path, trace: Path, notes: list[str]) -> tuple[pd.DataFrame, float]:
    """Joins profile and trace: a row for every distinct launch, with count, mean duration in the trace, mean counters.

    Launches are the same if kernel (as `same_name` spells it), grid and block agree; ncu's values are the mean over its
    rows of that launch, `_scaled`. If a name still differs between the two, the bare function, grid and block decide. A
    launch that ncu has not profiled keeps its count and time and has no counters.

    Args:
        profiled: as `medddpm.measure.profile.parse.read_launches` returns it, with est_speedup_pct.
        raw: the file it was read from, for messages.
        trace: table `TRACE` of the same step.
        notes: gains sentences for a reader of the table.

    Returns:
        the table, and the share of the trace's time that has counters.

    Raises:
        BadInput: the trace is empty, or of another step.
    """
    every = read_table(trace, TRACE)
    if every.empty:
        raise BadInput(trace, "holds no launch", "trace a step again: medddpm profile --view step")
    launches = grouped(every)
    full, bare = launch_keys(profiled), launch_keys(profiled, function_name)
    measured = profiled[[*COUNTERS, "est_speedup_pct"]].assign(**{_MEASURED: _durations(full, bare, every)})
    by_full, by_bare = measured.groupby(full).mean(), measured.groupby(bare).mean()
    step_full, step_bare = launch_keys(launches), launch_keys(launches, function_name)
    exact = step_full.isin(by_full.index)
    near = ~exact & step_bare.isin(by_bare.index)
    counters = by_full.reindex(step_full)
    counters[near.to_numpy()] = by_bare.reindex(step_bare[near]).to_numpy()
    counters.index = launches.index
    time = launches["count"] * launches["duration_ns"]
    total = max(float(time.sum()), 1e-300)
    matched = exact | near
    known = float(time[matched].sum() / total)
    if known < KNOWN_LEAST:
        problem = f"only {known:.1%} of its time is in launches of {raw.name}"
        raise BadInput(trace, problem, "trace and profile the same step, under one setting")
    if near.any():
        notes.append(f"{time[near].sum() / total:.1%} of the step's time is matched by function, grid and block only")
    if not matched.all():
        longest = str(launches["kernel"].iloc[int(time.where(~matched).argmax())])[:120]
        notes.append(f"{time[~matched].sum() / total:.1%} of the step's time has no counters, most of it {longest}")
    if unused := int((~full.isin(step_full) & ~bare.isin(step_bare[near])).sum()):
        notes.append(f"{unused} launches of {raw.name} are not in {trace.name} and are left out")
    step = pd.concat([launches, counters], axis="columns")
    return _scaled(step, every, step.pop(_MEASURED)), known


def _scaled(step: pd.DataFrame, trace: pd.DataFrame, measured_ns: pd.Series[float]) -> pd.DataFrame:
    """Scales the `EXTENSIVE` counters of `step` from the profiled launch to a mean launch.

    Args:
        step: a row for each distinct launch, as `weighed` makes them: kernel, grid, block, count, counters as profiled.
        trace: schema `TRACE`, of that step.
        measured_ns: the duration in `trace` of each row's profiled launch.
    """
    mean = trace["duration_ns"].groupby(launch_keys(trace)).mean()
    factor = (launch_keys(step).map(mean) / measured_ns).where(measured_ns > 0, 1.0)
    return step.assign(**{name: (step[name] * factor).round(3) for name in EXTENSIVE})


def _durations(full: pd.Series[str], bare: pd.Series[str], trace: pd.DataFrame) -> list[float]:
    """Returns the duration in the trace of each profiled launch, ns; NaN if the trace lacks the launch.

    ncu profiles the first launch of a kind in the step. It profiles the same name, grid and block again if the kernel
    is another one (as Triton's are): that launch comes after the one profiled before it.

    Args:
        full, bare: the profiled launches' keys with the whole name and the function's only, in ncu's order.
        trace: schema `TRACE`.
    """
    by_full, by_bare = (
        {key: np.sort(places) for key, places in trace.groupby(keys).indices.items()}
        for keys in (launch_keys(trace), launch_keys(trace, function_name))
    )
    durations, earlier, last = [], set(), -1
    for whole, function in zip(full, bare, strict=True):
        places = by_full.get(whole, by_bare.get(function))
        if places is None:
            durations.append(np.nan)
            continue
        later = places[places > last]
        last = int(later[0] if whole in earlier and len(later) else places[0])
        earlier.add(whole)
        durations.append(float(trace["duration_ns"].iloc[last]))
    return durations


def grouped(trace: pd.DataFrame) -> pd.DataFrame:
    """Groups a trace into distinct launches, in order: first launch_index, kernel, grid, block, count, duration_ns."""
    trace = trace.fillna({"grid": "", "block": ""})
    for column in ("grid", "block"):
        trace[column] = trace[column].map({text: dimensions(text) for text in trace[column].unique()})
    groups = trace.groupby(launch_keys(trace), sort=False)
    return (
        groups.agg(
            launch_index=("index", "first"),
            kernel=("kernel", "first"),
            grid=("grid", "first"),
            block=("block", "first"),
            count=("index", "size"),
            duration_ns=("duration_ns", "mean"),
        )
        .round(3)
        .reset_index(drop=True)
    )
