"""The pictures of chapter 18, of the cards that were measured and of one more."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.figures import readable
from helpers.repository import ROOT

from study.convnext import ledger, tables
from study.figures.convnext import LETTER, number_places, roofline_figure, shares_figure, versions_figure

KERNELS = tables.recorded(ROOT, "convnext_kernels")["H200"]
LIMITS = {"copy": 3000.0, "fp32": 50.0, "tf32": 400.0, "bf16": 800.0}


def test_machines_dots_lie_apart_where_they_measured_the_same() -> None:
    report = ledger.table_of(ledger.reported(ROOT), "Table I")
    figure = shares_figure(report, {name: {**report, "gelu": 50.0} for name in ("H100's host", "H200's host")})
    (axis,) = readable(figure).axes
    stated, one, other = (np.asarray(line.get_ydata()) for line in axis.lines)
    assert stated.tolist() == list(range(len(stated)))
    assert other - one == pytest.approx(0.3)
    assert one + other == pytest.approx(2 * stated)


def test_versions_of_both_batches_can_be_read() -> None:
    for batch in (1, 64):
        parts = {name: tables.times(KERNELS, name, batch) for name in ("conv2d", "layer_norm", "block")}
        readable(versions_figure(parts, "H100"))


@pytest.mark.parametrize("spread", [1.0, 30.0])  # all versions at one intensity; each at its own
def test_every_number_of_the_roofline_can_be_read(spread: float) -> None:
    counted = KERNELS[KERNELS["how"] == "graph"].rename(columns={"median_us": "duration_us"}).reset_index(drop=True)
    on_tensor_cores = counted["version"].str.contains("TF32|BF16|tensor|Triton")
    moved = counted["least_mb"] * np.geomspace(1, spread, len(counted))
    counters = counted.drop(columns="gflop").assign(dram_mb=moved, tensor_pct=30.0 * on_tensor_cores, launches=1)
    points = tables.roofline(counters, KERNELS, LIMITS)
    points = points[(points["batch"] == 64) & (points["stride"] == 1)]
    axis, beside = readable(roofline_figure(points, LIMITS, "H100")).axes
    assert len(beside.get_legend().get_texts()) == len(points) > 0
    dots = [line.get_xydata()[0].tolist() for line in axis.lines if line.get_marker() == "o"]
    assert dots == points[["intensity", "tflops"]].to_numpy().tolist()


def test_numbers_are_beside_their_points_and_apart() -> None:
    x, y = np.array([1.0, 1.1, 100.0]), np.array([5.0, 5.0, 5.0])
    (right, low), (same, high), (alone, there) = number_places(x, y, LETTER)
    assert right == same == pytest.approx(1.43)
    assert abs(np.log10(high / low)) == pytest.approx(LETTER, rel=0.02)
    assert np.log10(high * low) == pytest.approx(2 * np.log10(5))
    assert (alone, there) == (130, pytest.approx(5))
