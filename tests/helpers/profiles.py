"""Profiles that no card made: folders of records with known launches and counters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.profile.families import family_of
from medddpm.measure.schemas import KERNELS, TRACE
from medddpm.measure.tables import write_table

CONV, ADD, SUM = "sm80_xmma_fprop_implicit_gemm_f32f32", "void at::native::vectorized_elementwise_kernel<4>", "my_sum"


@dataclass(frozen=True)
class Launch:
    """A launch and its counters, of which `counted` says whether there are any; times in µs."""

    kernel: str = CONV
    us: float = 100.0
    phase: str | None = "forward"
    grid: str | None = "(640, 1, 1)"
    counted: bool = True
    tensor: float = 10.0
    dram: float = 10.0
    sm: float = 10.0
    warps: float = 32.0
    cycles: float = 1000.0
    instructions: float = 2000.0


def counters(launch: Launch) -> dict[str, float]:
    if not launch.counted:
        return {}
    classes = {"inst_fp": launch.instructions / 2, "inst_int": launch.instructions / 2}
    zero = ("ldst", "move", "pred", "uniform", "control", "conv", "misc")
    return {
        "cycles_active": launch.cycles, "instructions": launch.instructions,
        "ipc": launch.instructions / launch.cycles, **classes, **{f"inst_{name}": 0.0 for name in zero},
        "tensor_pct": launch.tensor, "fma_pct": 5.0, "alu_pct": 5.0, "sm_throughput_pct": launch.sm,
        "l1_hit_pct": 50.0, "l2_hit_pct": 50.0, "dram_pct": launch.dram, "warps_per_cycle": launch.warps,
        "stall_long_scoreboard": 100.0, "stall_math_pipe": 10.0, "stall_branch": 1.0,
    }  # fmt: skip


def trace_of(launches: Sequence[Launch]) -> pd.DataFrame:
    rows = [
        {"index": place, "kernel": x.kernel, "grid": x.grid, "block": x.grid and "(128, 1, 1)",
         "duration_ns": 1000 * x.us, "phase": x.phase, "stream": 7}
        for place, x in enumerate(launches)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(TRACE.columns)).astype({"grid": object, "block": object, "phase": object})


def kernels_of(launches: Sequence[Launch], view: str = "step") -> pd.DataFrame:
    """A row for each distinct launch; those of equal kernel and grid are taken to have equal counters."""
    distinct: dict[tuple[str, str | None], Launch] = {}
    for launch in launches:
        distinct.setdefault((launch.kernel, launch.grid), launch)
    rows = []
    for (kernel, grid), launch in distinct.items():
        alike = [x for x in launches if (x.kernel, x.grid) == (kernel, grid)]
        row: dict[str, Any] = dict.fromkeys(KERNELS.columns, math.nan)
        row |= {"config": "OWN", "view": view, "launch_index": launches.index(alike[0]), "kernel": kernel}
        row |= {"family": family_of(kernel).name, "grid": grid, "block": grid and "(128, 1, 1)", "count": len(alike)}
        rows.append(row | {"duration_ns": 1000 * sum(x.us for x in alike) / len(alike)} | counters(launch))
    return pd.DataFrame(rows).astype({"grid": object, "block": object})


def write_profile(
    folder: Path,
    launches: Sequence[Launch],
    label: str = "own",
    run: int = 1,
    program: Mapping[str, Any] | None = None,
    starts: Sequence[float] | None = None,
    counted: bool = True,
) -> Path:
    """Writes the tables of a step, as records; returns the folder.

    Args:
        folder: where to.
        launches: of the step, in order.
        label: of the profile.
        run: its number.
        program: what the description says of the program.
        starts: when each launch began, µs.
        counted: whether there is a table of kernels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meta = {"gpu": "NVIDIA Toy", "torch": "2.11.0", **({} if program is None else {"program": program})}
    table = trace_of(launches)
    written = write_table(table, folder / f"launches_{label}_step_run{run}.csv", TRACE, meta)
    if starts is not None:
        text = pd.read_csv(written).assign(start_ns=[1000 * us for us in starts])
        text.to_csv(written, index=False)
    if counted:
        write_table(kernels_of(launches), folder / f"kernels_{label}_step_run{run}.csv", KERNELS, meta)
    return folder
