"""Pages of Nsight Compute that no card made: what the parser and what stands on it are tested with."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from medddpm.measure import schemas
from medddpm.measure.profile.counters import INSTRUCTIONS, METRICS
from medddpm.measure.tables import write_table

CONV = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8"
ADD = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, "
    "std::array<char *, (unsigned long)3>>(int, T2, T3)"
)
NORM = "void at::native::<unnamed>::RowwiseMomentsCUDAKernel<float>(long, T1, const T1 *, T1 *, T1 *)"
CUPTI_ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
CUPTI_NORM = "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long, float, float const*)"
LEAD = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
        "Device", "CC")  # fmt: skip
LOG = (
    "==PROF== Connected to process 812 (/usr/bin/python3.11)\nstep 1, loss 0.8\n"
    "==WARNING== Note: Running with uncontrolled GPU\n"
)
CLASS_CELL = "2,000 (Floating Point: 1,000; Integer: 600; Load/Store: 250; Control: 100; Movement: 30; Predicate: 20)"
UNITS = {"byte": "byte", "ns": "ns", "cycle": "cycle", "inst": "inst", "%": "%", "warp": "warp"}


def page(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


@dataclass
class Raw:
    """A raw page in the making: three launches of known values, to be varied by a test."""

    kernels: list[str] = field(default_factory=lambda: [CONV, ADD, NORM])
    units: dict[str, str] = field(default_factory=dict)
    cells: dict[str, Sequence[str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)
    log: str = LOG

    def text(self) -> str:
        count = len(self.kernels)
        columns: dict[str, tuple[str, Sequence[str]]] = {}
        for place, (column, metric) in enumerate(METRICS.items()):
            value = {"duration_ns": "1,000", "cycles_active": "4,000", "instructions": "2,000"}.get(
                column, f"{place}.5"
            )
            columns[metric.names[0]] = (UNITS[metric.unit], [value] * count)
        columns[INSTRUCTIONS[0]] = ("inst", [CLASS_CELL] * count)
        columns |= {name: ("inst", cells) for name, cells in self.more.items()}
        for name, cells in self.cells.items():
            columns[name] = (columns[name][0], cells)
        columns = {
            name: (self.units.get(name, unit), cells)
            for name, (unit, cells) in columns.items()
            if name not in self.left_out
        }
        rows = [
            (str(i), "812", "python3", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)", f"({64 << i}, 1, 1)", "0", "9.0",
             *(cells[i] for _, cells in columns.values()))
            for i, kernel in enumerate(self.kernels)
        ]  # fmt: skip
        units = [*[""] * len(LEAD), *(unit for unit, _ in columns.values())]
        return self.log + page([[*LEAD, *columns], units, *rows])

    def write(self, folder: Path, name: str = "ncu_raw.csv") -> Path:
        path = folder / name
        path.write_text(self.text(), encoding="utf-8")
        return path


def duration(*cells: str) -> dict[str, Sequence[str]]:
    return {METRICS["duration_ns"].names[0]: cells}


# the estimated speedup


def details(rules: Sequence[tuple[int, str, str]], kernels: Sequence[str] = (CONV, ADD, NORM)) -> str:
    """A details page: two metrics a launch, and rules (launch, type, estimate)."""
    header = [*LEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
              "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]  # fmt: skip
    rows = []
    for i, kernel in enumerate(kernels):
        lead = [str(i), "9", "python3.11", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0"]
        rows += [
            [*lead, "SpeedOfLight", m, "cycle", "1,234", "", "", "", "", ""] for m in ("Elapsed Cycles", "SM Freq")
        ]
        rows += [
            [*lead, "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", 'a "quoted", long text', kind, value]
            for launch, kind, value in rules
            if launch == i
        ]
    return LOG + page([header, *rows])


# the step


def trace(folder: Path, launches: Sequence[tuple[str, str, float]]) -> Path:
    table = pd.DataFrame(launches, columns=["kernel", "grid", "duration_ns"])
    table = table.assign(index=range(len(table)), block="(128, 1, 1)", phase="forward", stream=7)
    return write_table(table, folder / "trace.csv", schemas.TRACE, {})
