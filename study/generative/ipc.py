"""Computes the IPC of a training step, from ncu's counters of its distinct launches and a plain trace as weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.profile.kernel_names import function_name, launch_keys, same_name
from medddpm.measure.profile.ncu_csv import numbers, open_page
from medddpm.measure.schemas import TRACE
from medddpm.measure.tables import read_table

CYCLES, INSTRUCTIONS = "sm__cycles_active.sum", "smsp__inst_executed.sum"
_SHAPE = ["Kernel Name", "Grid Size", "Block Size"]


@dataclass(frozen=True)
class StepIpc:
    """The IPC of a step.

    Args:
        ipc_geometric: geometric mean of the launches' IPC, weighted by their time in the trace.
        ipc_total: all instructions divided by all active cycles of the SMs.
        step_ms: time of all launches, ms.
        launches: number of launches, fills and copies included.
        matched: share of the time whose launches have counters.
    """

    ipc_geometric: float
    ipc_total: float
    step_ms: float
    launches: int
    matched: float


def step_ipc(raw: Path, trace: Path) -> StepIpc:
    """Joins the counters of distinct launches with a trace of the step.

    Launches are the same if kernel, grid and block agree; if only a name's template arguments are spelled differently,
    the bare function decides, as in `medddpm parse`.

    Args:
        raw: ncu's raw page as CSV, with `CYCLES` and `INSTRUCTIONS` in base units; launches that are not of this step
            do not count.
        trace: table `TRACE`.

    Raises:
        BadInput: a file cannot be read, lacks a metric, or the two have no launch in common.
    """
    counters = _counters(raw)
    steps = read_table(trace, TRACE)
    if steps.empty:
        raise BadInput(trace, "holds no launch", "trace on a GPU")
    exact, near = (
        counters.groupby(launch_keys(counters, reduced))[["cycles", "instructions"]]
        .mean()
        .reindex(launch_keys(steps, reduced))
        .to_numpy()
        for reduced in (same_name, function_name)
    )
    cycles, instructions = np.where(np.isnan(exact), near, exact).T
    time = steps["duration_ns"].to_numpy()
    counted = (cycles > 0) & (instructions > 0)
    if not counted.any():
        raise BadInput(trace, f"no launch of it is in {raw.name}", "trace and profile the same step")
    logs = np.log(instructions[counted] / cycles[counted])
    return StepIpc(
        ipc_geometric=float(np.exp(np.average(logs, weights=np.maximum(time[counted], 1e-9)))),
        ipc_total=float(instructions[counted].sum() / cycles[counted].sum()),
        step_ms=float(time.sum() / 1e6),
        launches=len(steps),
        matched=float(time[counted].sum() / max(time.sum(), 1e-9)),
    )


def _counters(raw: Path) -> pd.DataFrame:
    """Reads the columns kernel, grid, block, cycles, instructions; a row for each profiled launch."""
    page = open_page(raw, "raw")
    columns = [*_SHAPE, CYCLES, INSTRUCTIONS]
    if missing := [name for name in columns if name not in page.header]:
        raise BadInput(raw, f"lacks the column {missing[0]}", f"profile again with --metrics {CYCLES},{INSTRUCTIONS}")
    if odd := [name for name in (CYCLES, INSTRUCTIONS) if page.units[name] not in ("cycle", "inst", "")]:
        raise BadInput(raw, f"{odd[0]} is in {page.units[odd[0]]}", "export it anew with --print-units base")
    rows = [row for batch in page.batches(columns) for row in batch]
    kernels, grids, blocks, cycles, instructions = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "kernel": kernels,
            "grid": grids,
            "block": blocks,
            "cycles": numbers(cycles, CYCLES, raw),
            "instructions": numbers(instructions, INSTRUCTIONS, raw),
        }
    )
