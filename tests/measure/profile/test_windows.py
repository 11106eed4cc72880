"""What windows of launches show: made-up launches with known sums, and the records' own windows that were profiled."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.profile import summaries
from medddpm.measure.profile.windows import (
    COUNTERS,
    WINDOW,
    convolutions,
    costs,
    first_step,
    from_every_start,
    known_share,
    moving,
    phases,
    profiled,
    step_times,
)
from study.profile import tables as kernel_tables

CUPTI_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::add<float> >(int, at::native::add<float>)"
NCU_ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::add<float>>(int, T2)"


def trace(*rows: tuple[str, str | None, float, str | None]) -> pd.DataFrame:
    """Launches of kernel, grid, duration and phase."""
    table = pd.DataFrame(rows, columns=["kernel", "grid", "duration_ns", "phase"]).astype({"grid": object})
    return table.assign(index=range(len(table)), block=table["grid"].notna().map({True: "(128, 1, 1)"}), stream=7)


def counted(*rows: tuple[str, str, float, float, float]) -> pd.DataFrame:
    """Profiled launches of kernel, grid, duration, cycles and instructions."""
    return pd.DataFrame(rows, columns=["kernel", "grid", "duration_ns", "cycles_active", "instructions"]).assign(
        block="(128, 1, 1)"
    )


TRACE = trace(
    ("copy", "(2, 1, 1)", 10.0, None),
    ("Memset (Device)", None, 3.0, "forward"),
    ("conv", "64x1x1", 100.0, "forward"),
    (CUPTI_ADD, "(8, 1, 1)", 20.0, "forward"),
    ("conv", "(64, 1, 1)", 100.0, "backward"),
    ("unseen", "(8, 1, 1)", 70.0, "backward"),
    ("adam", "(1, 1, 1)", 40.0, "update"),
    ("conv", "(64, 1, 1)", 100.0, "forward"),
    ("adam", "(1, 1, 1)", 60.0, "update"),
)
COUNTS = counted(
    ("copy", "(2, 1, 1)", 10.0, 30.0, 20.0),
    ("conv", "(64, 1, 1)", 100.0, 1000.0, 4000.0),
    (NCU_ADD, "[8,1,1]", 20.0, 60.0, 40.0),
    ("adam", "(1, 1, 1)", 40.0, 200.0, 80.0),
)


def test_each_launch_costs_what_its_profiled_like_does() -> None:
    """Fills are left out; names and shapes are joined however they are spelt; what precedes the first step is named."""
    cost = costs(TRACE, COUNTS)
    assert list(cost.columns) == ["phase", *COUNTERS]
    assert cost["phase"].tolist() == ["convert", *["forward"] * 2, *["backward"] * 2, "update", "forward", "update"]
    assert cost["duration_ns"].tolist() == [10, 100, 20, 100, 70, 40, 100, 60]
    np.testing.assert_allclose(cost["cycles_active"], [30, 1000, 60, 1000, np.nan, 200, 1000, 300])
    np.testing.assert_allclose(cost["instructions"], [20, 4000, 40, 4000, np.nan, 80, 4000, 120])
    assert known_share(cost) == pytest.approx(430 / 500)


def test_what_is_carried_over_is_the_counters_a_nanosecond() -> None:
    """One kernel, grid and block at two lengths: 10 cycles a nanosecond in both, whatever a launch's own length."""
    two = counted(("conv", "(8, 1, 1)", 100.0, 1000.0, 500.0), ("conv", "(8, 1, 1)", 300.0, 3000.0, 700.0))
    cost = costs(trace(*[("conv", "(8, 1, 1)", length, "forward") for length in (100.0, 200.0, 300.0)]), two)
    assert cost["cycles_active"].tolist() == pytest.approx([1000, 2000, 3000])
    assert cost["instructions"].tolist() == pytest.approx([300, 600, 900]), "not 1200 instructions in 400 ns"


def test_another_grid_or_block_is_another_launch() -> None:
    other = pd.concat([COUNTS.assign(grid="(9, 9, 9)"), COUNTS.assign(block="(64, 1, 1)")])
    assert costs(TRACE, other)["cycles_active"].isna().all()


def test_time_without_counters_does_not_thin_the_rates() -> None:
    """A step's table may hold a launch that ncu did not see, and a window's table the same one with its counters."""
    unseen = counted(("conv", "(64, 1, 1)", 900.0, np.nan, np.nan), ("unseen", "(8, 1, 1)", 70.0, np.nan, np.nan))
    pd.testing.assert_frame_equal(costs(TRACE, pd.concat([unseen, COUNTS])), costs(TRACE, COUNTS))


def test_every_window_is_summed_by_its_start() -> None:
    sums = moving(costs(TRACE, COUNTS), width=3)
    assert sums.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert sums.index.name == "start"
    assert sums["duration_ns"].tolist() == pytest.approx([130, 220, 190, 210, 210, 200])
    assert sums["cycles_active"].tolist() == pytest.approx([1090, 2060, 1060, 1200, 1200, 1500])
    assert sums["instructions"].tolist() == pytest.approx([4060, 8040, 4040, 4080, 4080, 4200])
    assert len(moving(costs(TRACE, COUNTS))) == 0, "no window of a hundred fits"


def test_phases_are_stretches() -> None:
    stretches = phases(costs(TRACE, COUNTS))
    assert stretches.to_numpy().tolist() == [
        ["convert", 0, 1], ["forward", 1, 3], ["backward", 3, 5], ["update", 5, 6], ["forward", 6, 7],
        ["update", 7, 8],
    ]  # fmt: skip


def test_the_first_step_ends_with_its_update() -> None:
    first = first_step(TRACE)
    assert first["kernel"].tolist() == ["copy", "conv", CUPTI_ADD, "conv", "unseen", "adam"]
    assert first["duration_ns"].sum() == 340
    pd.testing.assert_frame_equal(
        first_step(TRACE[TRACE["phase"].notna()]).reset_index(drop=True), first[1:].reset_index(drop=True)
    )


def test_profiled_windows_are_divided_by_their_starts() -> None:
    """Sums of a window, the mean of its runs, one setting by the other; of other parts and lone windows nothing."""
    rows = [
        ("window", "BASE", 1, 60.0), ("window", "BASE", 1, 40.0), ("window", "BASE", 2, 300.0),
        ("window", "OPT2", 1, 20.0), ("window-300", "BASE", 1, 50.0), ("window-300", "OPT2", 1, 5.0),
        ("window-640", "OPT2", 1, 9.0), ("window-cpu", "BASE", 1, 7.0), ("window-cpu", "OPT2", 1, 7.0),
        ("step", "BASE", 1, 8.0), ("step", "OPT2", 1, 8.0), ("window", "OPT1", 1, 70.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["part", "config", "run", "cycles_active"])
    table = table.assign(instructions=table["cycles_active"] * 2, duration_ns=1.0)
    ratios = profiled(table, "OPT2", "BASE")
    assert ratios.index.tolist() == [10, 300]
    assert ratios["cycles_active"].tolist() == [0.1, 0.1]
    assert ratios["duration_ns"].tolist() == pytest.approx([1 / 1.5, 1.0])


def test_windows_are_divided_by_those_that_begin_with_the_same_launch() -> None:
    """To the end of the base's first backward pass; without counters there is no ratio."""
    lasting = [("forward", 60), ("backward", 60), ("update", 5)]
    base = costs(
        trace(*[("conv", "(64, 1, 1)", 10.0, phase) for phase, count in lasting for _ in range(count)]), COUNTS
    )
    other = base.assign(duration_ns=base["duration_ns"] * np.arange(len(base)), cycles_active=3 * base["cycles_active"])
    ratios = from_every_start(other, base.assign(instructions=np.nan))
    assert ratios.index.tolist() == list(range(120 - WINDOW + 1))
    np.testing.assert_allclose(ratios["duration_ns"], ratios.index + (WINDOW - 1) / 2)
    np.testing.assert_allclose(ratios["cycles_active"], 3)
    assert ratios["instructions"].isna().all()


def test_a_step_costs_what_its_kernels_do() -> None:
    """Fills are no kernels; a copy into cuDNN's layout is no convolution."""
    plain = trace(
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "(64, 1, 1)", 3e6, "forward"),
        ("Memset (Device)", None, 5e6, "forward"),
        (CUPTI_ADD, "(8, 1, 1)", 1e6, "update"),
    )
    other = trace(
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float>(int)", "(8, 1, 1)", 6e6, "forward"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "(64, 1, 1)", 2e6, "forward"),
    )
    assert convolutions(other).tolist() == [False, True]
    times = step_times({"OPT2": other, "BASE": plain}, base="BASE")
    assert times.loc["BASE"].to_dict() == {
        "launches": 2, "convolutions": 1, "time_ms": 4.0, "ratio": 1.0, "convolution_pct": 75.0,
    }  # fmt: skip
    assert times.loc["OPT2", ["time_ms", "ratio", "convolution_pct"]].tolist() == [8.0, 2.0, 25.0]


# the repository's own


@functools.cache
def recorded() -> tuple[pd.DataFrame, Mapping[str, pd.DataFrame]]:
    """The H200's kernels tables of every part, and what each launch costs by setting."""
    parts = tuple({record.part for record in kernel_tables.records(ROOT)})
    tables = kernel_tables.kernels(ROOT, parts).query("gpu == 'H200'")
    launches = kernel_tables.launches(ROOT, "H200")
    return tables, {name: costs(launches[name], tables[tables["config"] == name]) for name in ("BASE", "OPT2")}


@pytest.mark.parametrize("config", ["BASE", "OPT2"])
def test_joined_windows_agree_with_those_profiled(config: str) -> None:
    tables, cost = recorded()
    sums = moving(cost[config])
    seen = tables[(tables["config"] == config) & tables["part"].str.fullmatch(r"window(-\d+)?")]
    compared = {}
    for (part, run), window in seen.groupby(["part", "run"]):
        assert len(window) == WINDOW
        start = int(part.partition("-")[2] or 10)
        compared[start, run] = sums.loc[start, "cycles_active"] / window["cycles_active"].sum()
    assert {start for start, _ in compared} >= {0, 10, 160, 300, 640}
    assert {key: ratio for key, ratio in compared.items() if not 0.8 < ratio < 1.2} == {}


def test_a_window_later_in_the_step_shows_what_the_paper_has_and_a_whole_step_does_not() -> None:
    """Channels-last takes a fiftieth of BASE's cycles from launch 300 on, and more than BASE's over a step."""
    tables, cost = recorded()
    ratios = moving(cost["OPT2"]) / moving(cost["BASE"])
    assert ratios.loc[300, "cycles_active"] < 0.05
    measured = profiled(tables, "OPT2", "BASE")
    assert measured.loc[300, "cycles_active"] < 0.05
    assert measured.loc[10, "cycles_active"] > 1
    first = tables[(tables["part"] == "step") & (tables["run"] == 1)]  # not each setting has as many runs
    step = summaries.relative(summaries.totals(first))
    assert step.loc[("step", "OPT2"), "cycles"] > 1
    assert step.loc[("step", "OPT2"), "instructions"] > 1


@pytest.mark.parametrize("config", ["BASE", "OPT2"])
def test_nearly_all_of_the_time_has_counters(config: str) -> None:
    assert known_share(recorded()[1][config]) > 0.99
