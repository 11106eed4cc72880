"""The study's pictures: their data, and their looks against stored images."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle

from medddpm.study.claims.paper import PAPER_CARDS, PAPER_SETTINGS
from medddpm.study.figures.mixes import CLASS_COLOURS, by_kind, kind_of, stack_figure, stacked
from medddpm.study.figures.settings import (
    CARD_MARKERS,
    OFFSETS,
    VIEW_MARKERS,
    Panel,
    caption,
    panel,
    priority_figure,
    settings_figure,
    spread_figure,
)  # fmt: skip
from medddpm.study.figures.style import KIND_COLOURS, SETTING_COLOURS, new_figure
from medddpm.study.figures.windows import PHASE_COLOURS, STARTS, phases_figure, starts_figure
from medddpm.study.profile.families import FAMILIES, OTHER
from medddpm.study.profile.instructions import CLASSES
from medddpm.study.profile.windows import WINDOW

drawn = pytest.mark.mpl_image_compare(style="default", tolerance=5, savefig_kwargs={"dpi": 80})
WHITE = "#ffffff"


def texts(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# one number a setting


def measured(gpus: tuple[str, ...] = ("H200", "A10")) -> pd.DataFrame:
    """Two runs of every machine, view and setting, in no order that a figure may keep; the numbers tell them apart.

    A machine's tens, the step's five, the setting's place from the last, the run's tenths; OPT12 has no second run.
    """
    rows = {}
    for run in (2, 1):
        for g, gpu in enumerate(gpus, 1):
            for view in ("step", "window"):
                for s, config in enumerate(("OPT12", "OPT1", "BASE", "OPT2")):
                    if (run, config) != (2, "OPT12"):
                        rows[gpu, run, view, config] = 10 * g + 5 * (view == "step") + s + run / 10
    index = pd.MultiIndex.from_tuples(rows, names=["gpu", "run", "view", "config"])
    return pd.DataFrame({"x": rows.values()}, index=index).assign(y=lambda t: t["x"] / 16)


def papers_values() -> pd.DataFrame:
    table = pd.DataFrame(np.nan, index=pd.Index(PAPER_CARDS, name="gpu"), columns=list(PAPER_SETTINGS))
    table.loc["A100"] = [20.0, 10.0, 5.0, 2.5]
    table.loc["H100", ["BASE", "OPT1"]] = [30.0, 0.0]
    return table


def test_a_panel_has_the_papers_cards_and_then_the_machines_in_their_order() -> None:
    shown = panel("heat, %", papers_values(), measured(), "x")
    groups = ["V100\npaper", "A100\npaper", "H100\npaper", "H200\nwindow", "H200\nstep", "A10\nwindow", "A10\nstep"]
    assert list(shown.values.index) == groups
    assert list(shown.values.columns) == ["BASE", "OPT1", "OPT2", "OPT12"]
    assert shown.of_paper == tuple(groups[:3])
    np.testing.assert_array_equal(shown.values.iloc[:3], papers_values())
    np.testing.assert_allclose(shown.values.loc["H200\nwindow"], [12.15, 11.15, 13.15, 10.1])
    np.testing.assert_allclose(shown.values.loc["H200\nstep"], [17.15, 16.15, 18.15, 15.1])
    np.testing.assert_allclose(shown.low.loc["A10\nstep"], [27.1, 26.1, 28.1, 25.1])
    np.testing.assert_allclose(shown.high.loc["A10\nstep"], [27.2, 26.2, 28.2, 25.1])
    assert shown.low.iloc[:3].isna().all(axis=None)
    assert shown.high.iloc[:3].isna().all(axis=None)


def test_a_machine_without_a_setting_is_blank() -> None:
    few = measured().drop(("H200", 1, "step", "OPT12")).drop("BASE", level="config")
    shown = panel("heat", papers_values(), few, "x")
    assert shown.values.loc["H200\nstep"].isna().tolist() == [True, False, False, True]
    more = pd.concat([few, few.xs("OPT1", level="config", drop_level=False).rename(index={"OPT1": "FAST"})])
    assert list(panel("heat", papers_values(), more, "x").values.columns) == list(SETTING_COLOURS)


def bars_of(axis: Axes) -> list[Rectangle]:
    return [patch for patch in axis.patches if isinstance(patch, Rectangle) and patch.get_width() < 1]


def dots_of(axis: Axes) -> list[Line2D]:
    return [line for line in axis.get_lines() if len(line.get_xdata()) == 1]


@pytest.mark.parametrize("log", [False, True])
def test_dots_lie_at_their_numbers(log: bool) -> None:
    """In the row of their setting and in its colour; the paper's are hollow, the second card's pale."""
    shown = panel("heat, %", papers_values(), measured(), "y" if log else "x")
    axis = settings_figure([shown], columns=1, log=log).axes[0]
    settings = [name for name in shown.values if not log or name != "BASE"]
    assert [label.get_text() for label in axis.get_yticklabels()] == settings
    values = shown.values[settings]
    values = values.where(values > 0) if log else values
    expected = [
        (place, name, label, value)
        for place, name in enumerate(settings)
        for label, value in values[name].dropna().items()
    ]
    dots = dots_of(axis)
    assert len(dots) == len(expected) == (15 if log else 22), "a ratio of 0 has no place on a log axis"
    for dot, (place, name, label, value) in zip(dots, expected, strict=True):
        card, view = str(label).split("\n")
        assert dot.get_xdata()[0] == value
        assert dot.get_ydata()[0] == pytest.approx(place + OFFSETS[view])
        assert to_hex(dot.get_color()) == SETTING_COLOURS[name].lower()
        assert (to_hex(dot.get_markerfacecolor()) == WHITE) == (view == "paper")
        assert dot.get_marker() == (CARD_MARKERS[card] if view == "paper" else VIEW_MARKERS[view])
        assert (dot.get_alpha() == 0.45) == (card == "A10"), "the second card measured"
    assert axis.get_xscale() == ("log" if log else "linear")
    low, high = axis.get_xlim()
    assert low < values.min(axis=None) if log else low == 0
    assert high > values.max(axis=None)


def test_the_runs_extremes_are_drawn_where_runs_differ() -> None:
    shown = panel("heat, %", papers_values(), measured(("H200",)), "x")
    axis = settings_figure([shown], columns=1).axes[0]
    black = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_color() == "black"]
    np.testing.assert_allclose(
        sorted(tuple(line.get_xdata()) for line in black),
        [(11.1, 11.2), (12.1, 12.2), (13.1, 13.2), (16.1, 16.2), (17.1, 17.2), (18.1, 18.2)],
    )
    assert all(line.get_ydata()[0] == line.get_ydata()[1] for line in black)


def test_a_line_joins_the_papers_value_and_our_windows_on_one_card() -> None:
    shown = panel("heat, %", papers_values(), measured(("H100", "A10")), "x")
    axis = settings_figure([shown], columns=1).axes[0]
    coloured = {
        line.get_color(): tuple(line.get_xdata())
        for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_color() != "black"
    }  # fmt: skip
    stated = shown.values.loc["H100\npaper"].dropna()
    ours = shown.values.loc["H100\nwindow"]
    assert coloured == {SETTING_COLOURS[str(n)]: (value, ours[n]) for n, value in stated.items()}


def test_the_legend_names_the_cards_and_views_that_occur() -> None:
    shown = panel("heat, %", papers_values(), measured(), "x")
    named = ["H200, window", "H200, step", "A10, window", "A10, step"]
    assert legend(settings_figure([shown])) == ["paper, A100", "paper, H100", *named], "nothing is known of a V100"
    figure = settings_figure([shown, shown, shown], columns=2)
    assert [axis.axison for axis in figure.axes] == [True, True, True, False]


def test_the_caption_tells_what_is_blank() -> None:
    shown = panel("heat, %", papers_values(), measured(), "x")
    said = caption([shown])
    assert said.endswith(
        "because not stated or not measured: V100 paper: heat (BASE, OPT1, OPT2, OPT12); "
        "H100 paper: heat (OPT2, OPT12)."
    )
    assert "*Paper* hollow, *measured* filled" in said
    whole = Panel("heat", *(t.loc[["A100\npaper"]] for t in (shown.values, shown.low, shown.high)), shown.of_paper)
    assert caption([whole]).endswith("not measured: nothing.")
    cold = Panel("cold", shown.values, shown.low, shown.high, shown.of_paper)
    assert "H100 paper: heat (OPT2, OPT12), cold (OPT2, OPT12)." in caption([whole, shown, cold])


def test_what_is_not_the_papers_is_neither_drawn_nor_missed() -> None:
    by_run = measured()
    fast = by_run.xs("OPT1", level="config", drop_level=False).rename(index={"OPT1": "FAST"})
    shown = panel("heat, %", papers_values(), pd.concat([by_run, fast.drop("A10", level="gpu")]), "x")
    assert "FAST" in shown.values
    assert "FAST" not in caption([shown])
    axis = settings_figure([shown], columns=1).axes[0]
    assert SETTING_COLOURS["FAST"] not in {line.get_color() for line in axis.get_lines()}


@drawn
def test_settings_look_as_stored() -> Figure:
    by_run = measured(("H200",))
    shown = [panel("heat, %", papers_values(), by_run, "x"), panel("cold, %", papers_values() / 7, by_run, "y")]
    return settings_figure(shown)


@drawn
def test_ratios_look_as_stored() -> Figure:
    """Down to a hundredth of BASE and up to four times it."""
    ratios = 3.0 ** (measured(("H200",))[["x"]] % 5 - 2)
    ratios /= ratios.xs("BASE", level="config").reindex(ratios.index.droplevel("config")).to_numpy()
    paper = papers_values().div([20.0, 100.0, 500.0, 250.0], axis="columns")
    return settings_figure([panel("cycles, relative to BASE", paper, ratios, "x")], columns=1, log=True)


# priorities and the spread


def scores() -> pd.DataFrame:
    rows = {
        ("H200", "window", "OPT1"): [2.0, np.nan, 6.0, 0.01],
        ("H200", "window", "BASE"): [8.0, 1.0, 4.0, np.nan],
        ("H200", "step", "BASE"): [80.0, 10.0, 40.0, 0.7],
    }
    index = pd.MultiIndex.from_tuples(rows, names=["gpu", "view", "config"])
    return pd.DataFrame(rows.values(), index=index, columns=["convolution", "reduction", "normalization", "update"])


def test_priorities_are_bars_by_kind_with_the_papers_ranks() -> None:
    figure = priority_figure(scores(), {"normalization": 1, "convolution": 2})
    window, step = figure.axes
    kinds = ["convolution\n(paper: 2.)", "reduction", "normalization\n(paper: 1.)"]
    assert [label.get_text() for label in window.get_yticklabels()] == kinds, "update is too small to be seen"
    assert [(to_hex(bar.get_facecolor()), bar.get_width()) for bar in window.patches] == [
        *((SETTING_COLOURS["BASE"].lower(), width) for width in (8, 1, 4)),
        *((SETTING_COLOURS["OPT1"].lower(), width) for width in (2, 0, 6)),
    ]
    assert [bar.get_width() for bar in step.patches] == [80, 10, 40]
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["H200, window", "H200, step"]
    assert window.yaxis_inverted()
    assert legend(figure) == ["BASE", "OPT1"]


@drawn
def test_priorities_look_as_stored() -> Figure:
    return priority_figure(scores(), {"normalization": 1, "convolution": 2, "pointwise": 3})


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


@drawn
def test_the_spread_looks_as_stored() -> Figure:
    names = ["cycles", "instructions", "duration_ns", "ipc_total", "tensor_pct", "fma_pct", "dram_pct", "stall_branch"]
    rng = np.random.default_rng(0)
    return spread_figure(pd.DataFrame(0.05 * rng.random((3, 8)), index=distances().index, columns=names))


# stacks


def mix() -> pd.DataFrame:
    """Shares of families: a row of only large parts, one with small ones, and the paper's."""
    rows = {
        "H100 BASE, paper": {"convolution, forward": 0.78},
        "H200 BASE": {
            "convolution, forward": 0.6,
            "convolution, weight gradient": 0.25,
            "pointwise": 0.12,
            "other": 0.03,
        },
        "H200 OPT1": {"convolution, forward": 0.2, "normalization": 0.3, "layout": 0.5},
    }
    shuffled = ["layout", "pointwise", "other", "normalization", "convolution, weight gradient", "convolution, forward"]
    return pd.DataFrame(rows.values(), index=list(rows))[shuffled]


def parts_of(axis: Axes, row: int) -> list[Rectangle]:
    return [bar for bar in axis.patches if bar.get_width() > 0 and abs(bar.get_y() + bar.get_height() / 2 - row) < 1e-9]


def test_every_family_has_a_kind_with_a_colour() -> None:
    assert {kind_of(family.name) for family in FAMILIES} | {kind_of(OTHER)} == set(KIND_COLOURS)
    assert kind_of("sm80_xmma_fprop_implicit") == kind_of("sm90_xmma_fprop_implicit") == "convolution, forward"
    assert kind_of("xmma_dgrad") == "convolution, input gradient"
    assert kind_of("xmma_wgrad") == "convolution, weight gradient"
    assert kind_of("other convolution") == "convolution, other"
    assert kind_of("copy") == "layout"
    assert list(CLASS_COLOURS) == list(CLASSES)
    assert len({*CLASS_COLOURS.values()}) == len(CLASSES)
    assert len({*KIND_COLOURS.values()}) == len(KIND_COLOURS)


def test_families_add_up_to_kinds_in_the_legends_order() -> None:
    families = {
        "copy": 0.1, "xmma_wgrad": 0.3, "sm90_xmma_fprop_implicit": 0.2, "cat": 0.15, "elementwise_kernel": 0.05,
        "sm80_xmma_fprop_implicit": 0.2,
    }  # fmt: skip
    shares = pd.DataFrame([families, dict.fromkeys(families, 1 / 6)], index=["a", "b"])
    kinds = by_kind(shares)
    assert list(kinds.columns) == ["convolution, forward", "convolution, weight gradient", "pointwise", "layout"]
    np.testing.assert_allclose(kinds.loc["a"], [0.4, 0.3, 0.05, 0.25])
    np.testing.assert_allclose(kinds.sum(axis="columns"), 1)


def test_parts_lie_end_to_end_in_the_colours_order_and_sum_to_one() -> None:
    axis = stacked(new_figure(2).subplots(), mix(), KIND_COLOURS, hollow=["H100 BASE, paper"])
    for row, name in enumerate(mix().index):
        bars = parts_of(axis, row)
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        np.testing.assert_allclose([bar.get_x() for bar in bars], [0, *ends[:-1]])
        assert ends[-1] == pytest.approx(1)
        present = [kind for kind in KIND_COLOURS if mix().loc[name].get(kind, 0) > 0]
        if row:
            np.testing.assert_allclose([bar.get_width() for bar in bars], mix().loc[name, present])
            assert [to_hex(bar.get_facecolor()) for bar in bars] == [KIND_COLOURS[k].lower() for k in present]
    assert [label.get_text() for label in axis.get_yticklabels()] == list(mix().index)
    assert axis.yaxis_inverted()
    assert texts(axis) == ["78", "not stated", "60", "25", "12", "20", "30", "50"], "of 3% there is no label"


def test_the_papers_parts_are_outlined_and_the_rest_is_dotted() -> None:
    axis = stacked(new_figure(2).subplots(), mix(), KIND_COLOURS, hollow=["H100 BASE, paper"])
    part, rest = parts_of(axis, 0)
    assert to_hex(part.get_facecolor()) == WHITE
    assert to_hex(part.get_edgecolor()) == KIND_COLOURS["convolution, forward"].lower()
    assert (rest.get_x(), rest.get_width()) == pytest.approx((0.78, 0.22))
    assert rest.get_linestyle() == ":"
    assert rest.get_facecolor()[3] == 0
    assert all(bar.get_linestyle() == "solid" for row in (1, 2) for bar in parts_of(axis, row))


def test_a_whole_row_of_the_papers_leaves_nothing_open() -> None:
    shares = [0.7, 0.1, 0.1, 0.1]
    assert 0.99 < sum(shares) < 1, "a sum that is short of 1 by rounding is wanted here"
    rows = pd.DataFrame([shares], index=["paper"], columns=list(CLASSES)[:4])
    axis = stacked(new_figure(2).subplots(), rows, CLASS_COLOURS, hollow=["paper"])
    assert "not stated" not in texts(axis)


def test_stacks_in_their_own_unit_end_at_their_sum() -> None:
    rows = pd.DataFrame({"inst_fp": [2.0, 0.5], "inst_int": [1.0, np.nan]}, index=["conv", "add"])
    axis = stacked(new_figure(2).subplots(), rows, CLASS_COLOURS, percent=False, hollow=["add"])
    assert [sum(bar.get_width() for bar in parts_of(axis, row)) for row in (0, 1)] == [3.0, 0.5]
    assert texts(axis) == ["2.00", "1.00", "0.50"]


def test_the_legend_holds_what_occurs_under_its_name() -> None:
    panels = {"window": mix().iloc[1:], "step": mix().iloc[[0]]}
    figure = stack_figure(panels, KIND_COLOURS, "share of time, %", hollow=["H100 BASE, paper"])
    assert legend(figure) == [
        "convolution, forward", "convolution, weight gradient", "normalization", "pointwise", "layout", "other",
    ]  # fmt: skip
    colours = [to_hex(handle.get_facecolor()) for handle in figure.legends[0].legend_handles]
    assert colours == [KIND_COLOURS[name].lower() for name in legend(figure)]
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["window", "step"]
    assert figure.axes[1].get_xlabel() == "share of time, %"
    assert texts(figure.axes[1]) == ["78", "not stated"]
    named = stack_figure({"a": mix().iloc[[2]]}, KIND_COLOURS, "", names={"layout": "copies"})
    assert legend(named) == ["convolution, forward", "normalization", "copies"]


@drawn
def test_mixes_look_as_stored() -> Figure:
    return stack_figure(
        {"window": mix(), "step": mix().iloc[:0:-1]}, KIND_COLOURS, "share of time, %", hollow=["H100 BASE, paper"]
    )


@drawn
def test_ipc_stacks_look_as_stored() -> Figure:
    amounts = 1.5 / 2 ** np.arange(9.0)
    rows = pd.DataFrame([amounts, amounts[::-1] / 2], index=["sm80_xmma_fprop_implicit", "elementwise_kernel"])
    rows.columns = list(CLASSES)
    return stack_figure({"H200, window": rows}, CLASS_COLOURS, "IPC", percent=False)


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
    wide = [patch for patch in axis.patches if isinstance(patch, Rectangle) and not isinstance(patch, Polygon)]
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
    assert {"forward", "backward", "update"} <= set(texts(figure.axes[0]))


@drawn
def test_phases_look_as_stored() -> Figure:
    return phases_figure(TRACES)


def moved() -> Figure:
    start = np.arange(700)
    ratios = pd.DataFrame({"cycles_active": 10 ** np.cos(start / 100), "instructions": 10 ** np.sin(start / 100)})
    ratios.index.name = "start"
    whole = {"cycles_active": 1.1, "instructions": 1.3}
    stretches = pd.DataFrame(
        {"phase": ["forward", "backward", "update"], "begin": [0, 300, 720], "end": [300, 720, 800]}
    )
    papers = {"cycles_active": (0.01, 0.02), "instructions": (0.01, 0.01)}
    return starts_figure(ratios, ratios.loc[[10, 300]], whole, stretches, papers)


def test_ratios_are_drawn_by_the_windows_start() -> None:
    figure = moved()
    for axis, counter, whole, said in zip(
        figure.axes, STARTS, (1.1, 1.3), ("paper: 0.01 to 0.02", "paper: 0.01"), strict=True
    ):
        line, dots, step = axis.get_lines()
        turn = np.cos if counter == "cycles_active" else np.sin
        np.testing.assert_allclose(line.get_ydata(), 10 ** turn(np.arange(700) / 100))
        assert (dots.get_xdata().tolist(), dots.get_marker()) == ([10, 300], "o")
        np.testing.assert_allclose(dots.get_ydata(), 10 ** turn(np.array([0.1, 3.0])))
        assert set(step.get_ydata()) == {whole}
        assert said in texts(axis)
        assert f"a whole step: {whole:.2f}" in texts(axis)
        assert axis.get_title().startswith(STARTS[counter])
        low, high = (0.01, 0.02) if counter == "cycles_active" else (0.01, 0.01)
        band = axis.patches[0]
        assert band.get_y() < low
        assert band.get_y() + band.get_height() > high
        assert spans(axis)[1:] == [
            (PHASE_COLOURS["forward"].lower(), 0, 300), (PHASE_COLOURS["backward"].lower(), 300, 699),
        ]  # fmt: skip
        assert line.get_color() == SETTING_COLOURS["OPT2"]
    assert len(legend(figure)) == 4


@drawn
def test_starts_look_as_stored() -> Figure:
    return moved()
