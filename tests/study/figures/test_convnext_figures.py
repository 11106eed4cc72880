"""The pictures of chapter 18, of the cards that were measured and of one more."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.figures import readable
from helpers.repository import ROOT

from study.convnext import ledger, tables
from study.figures.convnext import NAMED, roofline_figure, shares_figure, versions_figure

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


def test_a_roofline_has_a_dot_for_each_version_and_names_eight() -> None:
    counted = KERNELS[KERNELS["how"] == "graph"].rename(columns={"median_us": "duration_us"}).reset_index(drop=True)
    on_tensor_cores = counted["version"].str.contains("TF32|BF16|tensor|Triton")
    moved = counted["least_mb"] * np.geomspace(1, 30, len(counted))
    counters = counted.drop(columns="gflop").assign(dram_mb=moved, tensor_pct=30.0 * on_tensor_cores, launches=1)
    points = tables.roofline(counters, KERNELS, LIMITS)
    points = points[(points["batch"] == 64) & (points["stride"] == 1)]
    (axis,) = roofline_figure(points, LIMITS, "H100").axes
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert [dot.get_xydata()[0].tolist() for dot in dots] == points[["intensity", "tflops"]].to_numpy().tolist()
    assert all(str(dot.get_gid()).startswith("says: ") for dot in dots)
    named = [text.get_text() for text in axis.texts if "/s" not in text.get_text()]
    assert len(named) == len(set(named)) == sum(map(len, NAMED.values())) == 8
