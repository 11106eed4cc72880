"""Sums, means and ratios of made-up tables, against answers computed by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from medddpm.measure import schemas
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.profile.summaries import (
    MEANS,
    averages,
    family_shares,
    instruction_mix,
    ipc_stacks,
    priorities,
    relative,
    summary,
    totals,
    windows_by_time,
)

CONV, ADD, COPY, NORM = "sm80_xmma_fprop_implicit", "elementwise_kernel", "copy", "RowwiseMomentsCUDAKernel"


def kernels(view: str, *rows: tuple[str, str, int, float, float, float]) -> pd.DataFrame:
    """Rows of config, family, count, duration_ns, cycles and instructions; every other number follows from these."""
    table = pd.DataFrame(rows, columns=["config", "family", "count", "duration_ns", "cycles_active", "instructions"])
    table = table.assign(view=view, ipc=table["instructions"] / table["cycles_active"], est_speedup_pct=50.0)
    table["priority"] = table["count"] * table["duration_ns"] / 2
    table = table.assign(**dict.fromkeys(CLASSES, 0.0))
    table["inst_fp"], table["inst_int"] = table["instructions"] * 0.75, table["instructions"] * 0.25
    for place, name in enumerate(MEANS):
        table[name] = table["cycles_active"] / 100 + place
    for place, name in enumerate(("stall_long_scoreboard", "stall_math_pipe", "stall_branch"), 1):
        table[name] = table["cycles_active"] * place
    return table


WINDOW = kernels(
    "window",
    ("BASE", CONV, 1, 800.0, 1000.0, 4000.0),
    ("BASE", ADD, 1, 100.0, 400.0, 400.0),
    ("BASE", ADD, 1, 100.0, 100.0, 200.0),
    ("OPT1", CONV, 1, 300.0, 300.0, 600.0),
    ("OPT1", NORM, 1, 100.0, 200.0, 100.0),
)
STEP = kernels("step", ("BASE", CONV, 2, 300.0, 1000.0, 4000.0), ("BASE", ADD, 10, 20.0, 100.0, 100.0))


def test_a_window_counts_every_launch_alike() -> None:
    base = summary(WINDOW).loc[("window", "BASE")]
    assert (base["launches"], base["duration_ns"], base["cycles"], base["instructions"]) == (3, 1000, 1500, 4600)
    assert base["ipc_total"] == pytest.approx(4600 / 1500)
    assert base["ipc_geometric"] == pytest.approx(2.0)  # of 4, 1 and 2
    assert base["tensor_pct"] == pytest.approx((10 + 4 + 1) / 3)
    assert base["warps_per_cycle"] == pytest.approx(5 + 7)
    assert base[["stall_long_scoreboard", "stall_math_pipe", "stall_branch"]].tolist() == [1500, 3000, 4500]


def test_a_step_counts_a_launch_as_often_and_as_long_as_it_runs() -> None:
    base = summary(STEP).loc[("step", "BASE")]
    assert (base["launches"], base["duration_ns"], base["cycles"], base["instructions"]) == (12, 800, 3000, 9000)
    assert base["ipc_total"] == pytest.approx(3.0)
    assert base["ipc_geometric"] == pytest.approx(4 ** (600 / 800))  # IPC 4 for 600 ns, 1 for 200 ns
    assert base["tensor_pct"] == pytest.approx(10 * 0.75 + 1 * 0.25)
    assert base["stall_branch"] == 9000


def test_a_window_by_time_weighs_its_launches_as_a_step_does() -> None:
    base = windows_by_time(pd.concat([WINDOW, STEP])).loc[("window, by time", "BASE")]
    assert base["tensor_pct"] == pytest.approx(10 * 0.8 + 4 * 0.1 + 1 * 0.1)
    assert base["warps_per_cycle"] == pytest.approx(10 * 0.8 + 4 * 0.1 + 1 * 0.1 + 7)
    assert set(windows_by_time(STEP).index) == set()


def test_ratios_are_against_base_of_the_same_view() -> None:
    both = pd.concat([WINDOW, STEP, STEP.assign(config="OPT1", cycles_active=STEP["cycles_active"] / 4)])
    ratios = relative(summary(both))
    assert ratios.loc[("window", "BASE")].tolist() == [1.0] * len(ratios.columns)
    assert ratios.loc[("window", "OPT1"), "cycles"] == pytest.approx(500 / 1500)
    assert ratios.loc[("window", "OPT1"), "instructions"] == pytest.approx(700 / 4600)
    assert ratios.loc[("window", "OPT1"), "ipc_geometric"] == pytest.approx(0.5)
    assert ratios.loc[("step", "OPT1"), "cycles"] == pytest.approx(0.25)
    assert ratios.loc[("step", "OPT1"), "instructions"] == 1
    alone = WINDOW[WINDOW["config"] == "OPT1"]
    assert relative(summary(pd.concat([alone, STEP]))).index.tolist() == [("step", "BASE")]
    assert relative(summary(alone)).empty


def test_shares_of_time_by_family_group_and_paper() -> None:
    shares = family_shares(WINDOW)
    assert shares.columns[0] == CONV
    assert shares.loc[("window", "BASE")].to_dict() == pytest.approx({CONV: 0.8, ADD: 0.2, NORM: 0.0})
    assert shares.loc[("window", "OPT1")].to_dict() == pytest.approx({CONV: 0.75, ADD: 0.0, NORM: 0.25})
    step = pd.concat([STEP, STEP.tail(1).assign(family=COPY)])
    assert family_shares(step).loc[("step", "BASE")].to_dict() == pytest.approx({CONV: 0.6, ADD: 0.2, COPY: 0.2})
    groups = family_shares(step, "group").loc[("step", "BASE")].to_dict()
    assert groups == pytest.approx({"convolution": 0.6, "pointwise": 0.2, "layout": 0.2})
    assert family_shares(step, "paper").loc[("step", "BASE")].to_dict() == pytest.approx({"KN1": 0.6, "KN4": 0.4})


def test_instruction_mix_weighs_by_what_was_executed() -> None:
    table = STEP.copy()
    table.loc[1, ["inst_fp", "inst_int", "inst_ldst"]] = [0.0, 50.0, 50.0]  # 10 launches of the elementwise kernel
    mix = instruction_mix(table).loc[("step", "BASE")]
    assert mix[["inst_fp", "inst_int", "inst_ldst"]].tolist() == pytest.approx([6000 / 9000, 2500 / 9000, 500 / 9000])
    assert mix.sum() == pytest.approx(1)
    assert instruction_mix(table, ["family"]).loc[("step", "BASE", ADD), "inst_ldst"] == 0.5


def test_ipc_stacks_add_up_to_the_ipc() -> None:
    stacks = ipc_stacks(WINDOW)
    assert stacks.loc[("window", "BASE", CONV), ["inst_fp", "inst_int"]].tolist() == pytest.approx([3.0, 1.0])
    assert stacks.loc[("window", "BASE", ADD)].sum() == pytest.approx(600 / 500)


def test_priorities_are_summed_by_family() -> None:
    found = priorities(WINDOW)
    assert found.loc[("window", "BASE"), [CONV, ADD]].tolist() == [400, 100]
    assert found.columns.tolist() == [CONV, ADD, NORM]
    assert np.isnan(found.loc[("window", "BASE"), NORM])
    assert priorities(STEP, "group").loc[("step", "BASE")].to_dict() == {"convolution": 300, "pointwise": 100}
    assert priorities(WINDOW.assign(priority=np.nan)).isna().all(axis=None)


def test_what_was_not_measured_takes_no_part() -> None:
    table = STEP.copy()
    table.loc[1, ["cycles_active", "instructions", "ipc", "tensor_pct", *CLASSES, "stall_branch"]] = np.nan
    table["dram_pct"] = np.nan
    base = summary(table).loc[("step", "BASE")]
    assert (base["launches"], base["duration_ns"]) == (12, 800)
    assert (base["cycles"], base["ipc_geometric"], base["tensor_pct"]) == pytest.approx((2000, 4.0, 10.0))
    assert np.isnan(base["dram_pct"])
    assert instruction_mix(table).loc[("step", "BASE"), "inst_fp"] == 0.75
    assert totals(table.assign(stall_branch=np.nan))["stall_branch"].isna().all()
    assert averages(table.assign(ipc=0.0))["ipc_geometric"].isna().all()


def test_the_tables_here_have_the_columns_of_the_schema() -> None:
    assert set(WINDOW.columns) <= set(schemas.KERNELS.columns)
    assert list(CLASSES) == [name for name in schemas.KERNELS.columns if name.startswith("inst_")]


def test_a_launch_hits_no_more_than_all() -> None:
    """A rate of the L2 above 100%, as ncu gives for short launches, counts as 100%; the record keeps it."""
    rates = [50.0, *[250.0] * (len(WINDOW) - 1)]
    found = averages(WINDOW.assign(l2_hit_pct=rates))["l2_hit_pct"]
    assert found.between(50.0, 100.0, inclusive="right").all()
    assert averages(WINDOW.assign(l2_hit_pct=250.0))["l2_hit_pct"].eq(100.0).all()
