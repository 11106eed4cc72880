"""A window beside its step: made-up launches with known answers, and the book's own finding from the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.profiles import ADD, SUM, Launch, write_profile
from helpers.repository import ROOT

from medddpm.errors import BadArgument, BadInput
from medddpm.measure.profile import summaries
from medddpm.measure.report import starts
from medddpm.measure.report.folder import read_profile

RECORDS = ROOT / "figures" / "records" / "H100"
# 4 convolutions of 100 µs and 4 additions of 20 µs forward, 2 sums of 260 µs backward: 1000 µs
STEP = [
    *[Launch(us=100.0, tensor=40.0)] * 4,
    *[Launch(ADD, 20.0, tensor=0.0, cycles=100.0, instructions=400.0)] * 4,
    *[Launch(SUM, 260.0, "backward", tensor=10.0, cycles=3000.0, instructions=300.0)] * 2,
]


@pytest.fixture
def order(tmp_path: Path) -> starts.Ordered:
    return starts.ordered(read_profile(write_profile(tmp_path, STEP)))


def test_what_a_window_holds(order: starts.Ordered) -> None:
    held = starts.held(order, 2, 4, "phase")
    assert held.index.tolist() == ["backward", "forward"]
    assert held["launches"].tolist() == [0, 4]
    assert held["of_launches"].tolist() == [2, 8]
    assert held["of_share"].tolist() == pytest.approx([0.52, 0.48])
    assert held["share"].tolist() == pytest.approx([0, 1])
    assert held["part"].tolist() == pytest.approx([0, 0.5])
    families = starts.held(order, 2, 4, "family")
    assert families.loc["vectorized_elementwise_kernel", ["share", "part"]].tolist() == pytest.approx([1 / 6, 0.5])


def test_a_windows_answers_stand_beside_the_steps(order: starts.Ordered) -> None:
    """Sums by the mean of a launch; rates each launch alike, and by time; IPC as instructions by cycles."""
    table = starts.answers(order, 2, 4)
    time, cycles, tensor, ipc = (table.loc[name] for name in ("duration_ns", "cycles_active", "tensor_pct", "ipc"))
    assert time[["part", "window", "step", "ratio"]].tolist() == pytest.approx([0.24, 60e3, 100e3, 0.6])
    assert cycles[["window", "step"]].tolist() == pytest.approx([550, 1040])
    assert tensor[["window", "step"]].tolist() == pytest.approx([20, 18])
    assert tensor[["window_by_time", "step_by_time"]].tolist() == pytest.approx([8000 / 240, 21_200 / 1000])
    assert ipc[["window", "step"]].tolist() == pytest.approx([4800 / 2200, 10_200 / 10_400])
    assert np.isnan(time["ratio_by_time"])
    assert np.isnan(tensor["part"])
    assert "dram_read_bytes" not in table.index, "which no launch has"


def test_the_curve_is_the_answer_of_every_window(order: starts.Ordered) -> None:
    ratios = starts.curve(order, 4)
    assert ratios["start"].tolist() == list(range(7))
    for start in range(7):
        answer = starts.answers(order, start, 4)
        row = ratios.set_index("start").loc[start]
        for name in ("duration_ns", "instructions", "ipc"):
            assert row[name] == pytest.approx(answer.loc[name, "ratio"])
        assert row["tensor_pct"] == pytest.approx(answer.loc["tensor_pct", "ratio_by_time"])
    told = starts.spread(ratios).loc["duration_ns"]
    assert told[["least", "least_at", "most", "most_at"]].tolist() == pytest.approx([0.2, 4, 1.4, 6])
    assert told["median"] == pytest.approx(0.8)
    assert told["right"] == pytest.approx(1 / 7), "from launch 0 on: 100 µs a launch, as the step has"


def test_the_whole_step_as_a_window_says_what_the_step_says(order: starts.Ordered) -> None:
    table = starts.answers(order, 0, len(STEP))
    assert table["ratio"].tolist() == pytest.approx([1] * len(table))
    assert table["part"].dropna().tolist() == pytest.approx([1] * table["part"].notna().sum())


def test_a_steps_answers_are_those_of_the_figures() -> None:
    """Means by time are `summaries.averages`, and sums `summaries.totals`, of the same step."""
    profile = read_profile(RECORDS, "fast")
    order = starts.ordered(profile)
    table = starts.answers(order, 10, 100)["step_by_time"]
    means = summaries.averages(profile.kernels).iloc[0]
    for name in starts.RATES:
        assert table[name] == pytest.approx(means[name], rel=1e-4)
    sums = summaries.totals(profile.kernels).iloc[0]
    assert order.step["instructions"].sum() == pytest.approx(sums["instructions"], rel=1e-6)


def test_the_books_finding() -> None:
    """On the H100 windows of channels-last have from 1/99 to 126 times BASE's cycles, a step 1.17 times."""
    other, base = (starts.ordered(read_profile(RECORDS, name)) for name in ("opt2", "base"))
    ratios, whole = starts.against(other, base, 100)
    told = starts.spread(ratios, whole).loc["cycles_active"]
    assert (round(1 / told["least"]), round(told["most"]), len(ratios)) == (99, 126, 1130)
    assert round(whole["cycles_active"], 2) == 1.17
    assert told["right"] < 0.05
    assert round(ratios.set_index("start").loc[10, "cycles_active"], 2) == 1.28


def test_a_window_beyond_the_step_is_refused(order: starts.Ordered) -> None:
    starts.check(6, 4, order)
    with pytest.raises(BadArgument, match="a window of 4 launches from 7 on ends after the last of 10"):
        starts.check(7, 4, order)


def test_without_counters_only_time_is_told(tmp_path: Path) -> None:
    order = starts.ordered(read_profile(write_profile(tmp_path, STEP, counted=False)))
    assert starts.answers(order, 0, 5).index.tolist() == ["duration_ns"]
    assert starts.spread(starts.curve(order, 5)).index.tolist() == ["duration_ns"]
    ratios, whole = starts.against(order, order, 5)
    assert ratios.columns.tolist() == ["start", "duration_ns"]
    assert whole["duration_ns"] == 1
    assert np.isnan(whole["cycles_active"])


def test_a_step_of_fills_alone_has_no_window(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, [Launch("Memset (Device)", 5.0, None, None, counted=False)])
    with pytest.raises(BadInput, match="the step launches no kernel"):
        starts.ordered(read_profile(folder))
