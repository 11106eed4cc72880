"""What a whole step does, from one profiled launch of each kind and a plain trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from helpers.ncu_pages import ADD, CONV, CUPTI_ADD, METRICS, Raw

from medddpm.measure import schemas
from medddpm.measure.profile.parse import parse
from medddpm.measure.profile.step_weights import COUNTERS, EXTENSIVE
from medddpm.measure.tables import write_table

CYCLES = METRICS["cycles_active"].names[0]
OTHER_ADD = CUPTI_ADD.replace("CUDAFunctor_add<float>", "opmath_add<c10::BFloat16>")


def trace_of(launches: Sequence[tuple[str, float]]) -> pd.DataFrame:
    """Schema `TRACE`, of kernels by name and duration, ns."""
    table = pd.DataFrame(launches, columns=["kernel", "duration_ns"])
    table = table.assign(index=range(len(table)), grid="(64, 1, 1)", block="(128, 1, 1)", phase="forward", stream=7)
    return table.reindex(columns=list(schemas.TRACE.columns))


def parsed(folder: Path, kernels: list[str], cycles: list[str], launches: Sequence[tuple[str, float]]) -> pd.DataFrame:
    """The step's table, of profiled launches that are all of the trace's grid."""
    text = Raw(kernels=kernels, cells={CYCLES: cycles}).text()
    for place in range(1, len(kernels)):
        text = text.replace(f'({64 << place}, 1, 1)","0"', '(64, 1, 1)","0"')
    (folder / "raw.csv").write_text(text)
    write_table(trace_of(launches), folder / "trace.csv", schemas.TRACE, {})
    return parse(folder / "raw.csv", "BASE", "step", trace=folder / "trace.csv").table


def test_what_adds_up_is_scaled_and_rates_are_not() -> None:
    assert {name for name in COUNTERS if name not in EXTENSIVE} == {
        "ipc", "tensor_pct", "fma_pct", "alu_pct", "sm_throughput_pct", "l1_hit_pct", "l2_hit_pct", "dram_pct",
        "warps_per_cycle",
    }  # fmt: skip
    assert len(EXTENSIVE) == 2 + 2 + 3 + 9


def test_work_goes_by_time_within_a_kind(tmp_path: Path) -> None:
    launches = [(CONV, 100.0), (CONV, 900.0), (CUPTI_ADD, 50.0), (CUPTI_ADD, 50.0), (CONV, 200.0)]
    step = parsed(tmp_path, [CONV, ADD], ["1,000", "300"], launches)
    assert step["cycles_active"].tolist() == [4000, 300]
    assert (step["count"] * step["cycles_active"]).tolist() == [1000 * 1200 / 100, 600]


def test_a_kernel_under_another_name_is_scaled_by_the_launch_that_was_profiled(tmp_path: Path) -> None:
    """By its default ncu profiles the first of one function, grid and block, whatever its template arguments."""
    launches = [(CUPTI_ADD, 100.0), (OTHER_ADD, 400.0), (CUPTI_ADD, 300.0), (OTHER_ADD, 600.0)]
    step = parsed(tmp_path, [ADD], ["1,000"], launches)
    assert step["cycles_active"].tolist() == [2000, 5000]


def test_one_name_profiled_twice_is_found_in_order(tmp_path: Path) -> None:
    """Two of Triton's kernels of one name: the second comes after the launch that was profiled between them."""
    launches = [(CONV, 100.0), (CONV, 120.0), (CUPTI_ADD, 10.0), (CONV, 20.0), (CONV, 20.0)]
    step = parsed(tmp_path, [CONV, ADD, CONV], ["1,000", "50", "200"], launches).set_index("kernel")
    assert step.loc[CONV, "cycles_active"] == pytest.approx(600 * 65 / 60, abs=1e-3)
    assert step.loc[CUPTI_ADD, "cycles_active"] == 50


def test_a_launch_of_no_time_is_left_as_it_is(tmp_path: Path) -> None:
    assert parsed(tmp_path, [CONV], ["1,000"], [(CONV, 0.0), (CONV, 10.0)])["cycles_active"].tolist() == [1000]
