"""The study's pictures: their data, and their looks against stored images."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.figures import legend, readable, texts
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from medddpm.measure.profile.families import FAMILIES, OTHER
from medddpm.measure.profile.windows import WINDOW
from study.figures.mixes import kind_of, largest
from study.figures.settings import spread_figure
from study.figures.style import KIND_COLOURS, PHASE_COLOURS, SETTING_COLOURS, new_figure
from study.figures.windows import STRIDE, mark_starts, phases_figure

compares_picture = pytest.mark.mpl_image_compare(style="default", tolerance=5, savefig_kwargs={"dpi": 80})


# the spread


def distances() -> pd.DataFrame:
    rows = {
        ("H200", "step", "OPT2"): [0.05, 0.001],
        ("H200", "window", "OPT1"): [0.02, 0.0],
        ("H200", "window", "BASE"): [0.01, np.nan],
    }
    index = pd.MultiIndex.from_tuples(rows, names=["gpu", "view", "config"])
    return pd.DataFrame(rows.values(), index=index, columns=["cycles", "instructions"])


def test_the_spread_is_a_point_a_setting_in_percent() -> None:
    figure = spread_figure(distances())
    window, step = figure.axes
    assert (window.get_title(), step.get_title()) == ("window", "step")
    points = {line.get_label(): (line.get_color(), list(line.get_xdata())) for line in window.get_lines()}
    assert points["OPT1"] == (SETTING_COLOURS["OPT1"], [2.0, 0.0])
    assert points["BASE"][1][0] == 1.0
    assert [list(line.get_xdata()) for line in step.get_lines()] == [[5.0, 0.1]]
    assert [label.get_text() for label in window.get_yticklabels()] == ["cycles", "instructions"]
    assert window.yaxis_inverted()
    assert legend(figure) == ["BASE", "OPT1", "OPT2"], "a setting of one view only is missing"


def test_a_second_cards_spread_is_hollow_and_lies_beneath() -> None:
    both = pd.concat([distances().rename({"H200": gpu}) for gpu in ("H100", "H200")])
    figure = spread_figure(both)
    _, step = figure.axes
    assert [line.get_fillstyle() for line in step.get_lines()] == ["none", "full"]
    assert [handle.get_fillstyle() for handle in figure.legends[0].legend_handles] == ["full"] * 3


@compares_picture
def test_the_spread_looks_as_stored() -> Figure:
    names = ["cycles", "instructions", "duration_ns", "ipc_total", "tensor_pct", "fma_pct", "dram_pct", "stall_branch"]
    rng = np.random.default_rng(0)
    return readable(spread_figure(pd.DataFrame(0.05 * rng.random((3, 8)), index=distances().index, columns=names)))


# kinds and stacks


def test_every_family_has_a_kind_with_a_colour() -> None:
    assert {kind_of(family.name) for family in FAMILIES} | {kind_of(OTHER)} == set(KIND_COLOURS)
    assert kind_of("sm80_xmma_fprop_implicit") == kind_of("sm90_xmma_fprop_implicit") == "convolution, forward"
    assert kind_of("xmma_dgrad") == "convolution, input gradient"
    assert kind_of("xmma_wgrad") == "convolution, weight gradient"
    assert kind_of("other convolution") == "convolution, other"
    assert kind_of("copy") == "layout"


def test_a_rows_largest_kernels_are_named_by_their_share_of_its_time() -> None:
    names = ["void at::native::norm<4>(int)", "void at::native::norm<2>(float)", "sgemm", "copy"]
    kernels = pd.DataFrame({"gpu": "H100", "view": "step", "kernel": names})
    kernels = kernels.assign(count=[1, 2, 1, 1], duration_ns=[10, 20, 49, 1])
    assert largest(kernels, ["a", "a", "a", "b"], count=2) == {
        ("H100", "step", "a"): "51% norm, 49% sgemm",
        ("H100", "step", "b"): "100% copy",
    }
    kernels["duration_ns"] = [1000, 1000, 1, 1]
    assert largest(kernels, ["a", "a", "a", "a"])["H100", "step", "a"] == "100% norm", "a thousandth is not named"


# windows


def launches(first: int, seed: int) -> pd.DataFrame:
    """Two steps: `first` conversions, then 300 launches forward, 400 backward and 100 of the update, and fills."""
    phase = [None] * first + 2 * (["forward"] * 300 + ["backward"] * 400 + ["update"] * 100)
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"phase": phase, "duration_ns": 10 ** rng.uniform(3, 7, len(phase))}).astype({"phase": object})
    table = table.assign(kernel="conv", grid="(1, 1, 1)", block="(32, 1, 1)", stream=7, index=range(len(phase)))
    fill = table.iloc[[first]].assign(grid=None, duration_ns=1e12)
    return pd.concat([table.iloc[: first + 1], fill, table.iloc[first + 1 :]], ignore_index=True)


TRACES = {"H200": {"BASE": launches(0, 1), "OPT2": launches(50, 2)}}


def spans(axis: Axes) -> list[tuple[str, float, float]]:
    """Of what is shaded or framed across an axis: colour, begin and end."""
    wide = [patch for patch in axis.patches if isinstance(patch, Rectangle) and not patch.get_gid()]
    return [(to_hex(p.get_facecolor(), keep_alpha=False), p.get_x(), p.get_x() + p.get_width()) for p in wide]


def test_the_first_steps_launches_are_drawn_in_order() -> None:
    """Every launch of the step by its duration in ms; no fill; phases shaded up to its end; the window framed."""
    figure = phases_figure(TRACES)
    for axis, (name, first) in zip(figure.axes, (("BASE", 0), ("OPT2", 50)), strict=True):
        (points,) = axis.collections
        offsets = np.asarray(points.get_offsets())
        end = first + 800
        assert offsets[:, 0].tolist() == list(range(end))
        kernels = TRACES["H200"][name].dropna(subset="grid")["duration_ns"]
        np.testing.assert_allclose(offsets[:, 1], kernels[:end] / 1e6)
        assert to_hex(points.get_facecolor()[0]) == SETTING_COLOURS[name].lower()
        shaded = [span for span in spans(axis) if span[2] - span[1] != WINDOW or span[1] != 10]
        ends = [first, first + 300, first + 700, first + 800]
        expected = [(PHASE_COLOURS["forward"], ends[0], ends[1]), (PHASE_COLOURS["backward"], ends[1], ends[2]),
                    (PHASE_COLOURS["update"], ends[2], ends[3])]  # fmt: skip
        expected = ([(PHASE_COLOURS["convert"], 0, 50)] if first else []) + expected
        assert shaded == [(colour.lower(), begin, end) for colour, begin, end in expected]
        (frame,) = (p for p in axis.patches if (p.get_x(), p.get_width()) == (10, WINDOW))
        assert frame.get_facecolor()[3] == 0
        assert name in axis.get_title(loc="left")
    assert {*PHASE_COLOURS} <= set(legend(figure))


@compares_picture
def test_phases_look_as_stored() -> Figure:
    return readable(phases_figure(TRACES))


def moved() -> Figure:
    """A curve of 700 starts, and its marks."""
    start = np.arange(700)
    ratios = pd.Series(10 ** np.cos(start / 100))
    stretches = pd.DataFrame(
        {"phase": ["forward", "backward", "update"], "begin": [0, 300, 720], "end": [300, 720, 800]}
    )
    figure = new_figure(height=2.3)
    axis = figure.subplots()
    axis.plot(ratios, color=SETTING_COLOURS["OPT2"])
    mark_starts(axis, "SM cycles", ratios, 1.1, stretches, (0.01, 0.02))
    return figure


def test_phases_the_papers_range_and_a_step_are_named_and_each_start_says_its_ratio() -> None:
    (axis,) = moved().axes
    assert {"paper: 0.01 to 0.02", "a whole step: 1.10", "forward", "backward"} <= set(texts(axis))
    said = [str(patch.get_gid()) for patch in axis.patches if patch.get_gid()]
    assert len(said) == 700 / STRIDE
    assert said[0] == "says: window from launch 0: SM cycles 10 times BASE's"
    assert spans(axis) == [
        (PHASE_COLOURS["forward"].lower(), 0, 300), (PHASE_COLOURS["backward"].lower(), 300, 699),
    ]  # fmt: skip
    assert (axis.get_yscale(), axis.get_title()) == ("log", "SM cycles, OPT2 divided by BASE")


@compares_picture
def test_starts_look_as_stored() -> Figure:
    return readable(moved())
