"""The pictures of scaling show the table's numbers."""

from __future__ import annotations

from helpers.scaling_records import record

from study.figures.scaling import efficiency_figure, estimates_figure
from study.scaling.estimates import Cluster, DataSet, Rate, table
from study.scaling.tables import efficiency


def test_each_step_has_its_row() -> None:
    times = {"step_2_1_fp32": 50, "step_4_1_fp32": 64, "step_2_2_bf16": 100}
    steps = efficiency(record(step_1_1_none=40, step_1_2_none=80, **times))
    weak, strong = efficiency_figure(steps).axes
    assert [points.get_offsets().tolist() for points in weak.collections] == [[[80, 0], [80, 1]], [[62.5, 0]]]
    assert strong.collections[0].get_offsets()[0].tolist() == [80, 0]
    labels = [label.get_text() for label in weak.get_yticklabels()]
    assert labels == ["FAST, 1 volume, FP32 gradients", "FAST, 2 volumes, BF16 gradients"]
    (legend,) = weak.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["2 GPUs", "4 GPUs"]


def test_crosses_are_where_something_else_sets_the_pace() -> None:
    rates = [Rate("med-ddpm", setting, ms, "bench") for setting, ms in (("BASE", 1000.0), ("FAST", 40.0))]
    estimates = table(rates, [DataSet("many", "med-ddpm", 10**6, 1)], [1, 8, 64], Cluster(storage_gbs=1.0))
    (axis,) = estimates_figure(estimates).axes
    lines = [(list(line.get_xdata()), line.get_marker()) for line in axis.lines]
    assert lines == [([1, 8, 64], "."), ([], "x"), ([1, 8, 64], "."), ([8, 64], "x")]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["BASE", "FAST"]
