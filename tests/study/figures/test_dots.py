"""Dots: the paper's values beside ours, where they lie and what tells them apart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.figures import legend, readable
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.claims.paper import PAPER_CARDS, PAPER_SETTINGS, Stated
from study.figures.dots import (
    CARD_MARKERS,
    INK,
    OFFSETS,
    VIEW_MARKERS,
    Panel,
    caption,
    dots_figure,
    panel,
)  # fmt: skip
from study.figures.style import SETTING_COLOURS

compares_picture = pytest.mark.mpl_image_compare(style="default", tolerance=5, savefig_kwargs={"dpi": 80})


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


def stated() -> Stated:
    """A100: numbers; H100: a number, nothing at all, a range, and a bound; V100: nothing."""
    low = pd.DataFrame(np.nan, index=pd.Index(PAPER_CARDS, name="gpu"), columns=list(PAPER_SETTINGS))
    low.loc["A100"] = [20.0, 10.0, 5.0, 2.5]
    low.loc["H100", ["BASE", "OPT2", "OPT12"]] = [30.0, 1.0, 8.0]
    high = low.copy()
    high.loc["H100", ["OPT2", "OPT12"]] = [3.0, np.inf]
    return Stated(low, high)


def one_panel(gpus: tuple[str, ...] = ("H200", "A10"), column: str = "x", title: str = "heat, %") -> Panel:
    return panel(title, stated(), measured(gpus)[column].unstack("config"))


def dots_of(axis: Axes) -> list[Line2D]:
    return [line for line in axis.get_lines() if len(line.get_xdata()) == 1]


def test_a_panel_has_the_papers_cards_and_then_the_machines_in_their_order() -> None:
    shown = one_panel()
    groups = ["V100\npaper", "A100\npaper", "H100\npaper", "H200\nwindow", "H200\nstep", "A10\nwindow", "A10\nstep"]
    assert list(shown.values.index) == groups
    assert list(shown.values.columns) == ["BASE", "OPT1", "OPT2", "OPT12"]
    assert shown.of_paper == tuple(groups[:3])
    assert shown.values.iloc[:3].isna().all(axis=None)
    np.testing.assert_array_equal(shown.low.iloc[:3], stated().low)
    np.testing.assert_array_equal(shown.high.iloc[:3], stated().high)
    np.testing.assert_allclose(shown.values.loc["H200\nwindow"], [12.15, 11.15, 13.15, 10.1])
    np.testing.assert_allclose(shown.values.loc["H200\nstep"], [17.15, 16.15, 18.15, 15.1])
    np.testing.assert_allclose(shown.low.loc["A10\nstep"], [27.1, 26.1, 28.1, 25.1])
    np.testing.assert_allclose(shown.high.loc["A10\nstep"], [27.2, 26.2, 28.2, 25.1])
    assert shown.colours == {name: SETTING_COLOURS[name] for name in PAPER_SETTINGS}


def test_a_machine_without_a_setting_is_blank_and_what_is_not_the_papers_is_left_out() -> None:
    few = measured().drop(("H200", 1, "step", "OPT12")).drop("BASE", level="config")
    more = pd.concat([few, few.xs("OPT1", level="config", drop_level=False).rename(index={"OPT1": "FAST"})])
    shown = panel("heat", stated(), more["x"].unstack("config"))
    assert shown.values.loc["H200\nstep"].isna().tolist() == [True, False, False, True]
    assert list(shown.values.columns) == list(PAPER_SETTINGS)
    assert "FAST" not in caption([shown])


def test_a_mark_says_what_is_beneath_its_value() -> None:
    words = {("H200", "step", "OPT1"): "60% sgemm", ("H200", "step", "FAST"): "of no row"}
    shown = panel("heat, %", stated(), measured(("H200",))["x"].unstack("config"), beneath=words)
    assert shown.beneath == {("H200\nstep", "OPT1"): "60% sgemm"}
    said = [line.get_gid() for line in dots_of(dots_figure([shown]).axes[0])]
    assert [words for words in said if "sgemm" in words] == ["says: H200 step: OPT1, heat 16.1%: 60% sgemm"]


def test_rows_may_be_anything_that_is_named() -> None:
    ours = measured(("H200",))["x"].unstack("config").rename(columns={"BASE": "fp", "OPT1": "int"})
    theirs = Stated(*(bound.rename(columns={"BASE": "fp"}) for bound in (stated().low, stated().high)))
    shown = panel("share", theirs, ours, {"int": "integer", "fp": "floating point", "misc": "of which there is none"})
    assert shown.colours == {"integer": INK, "floating point": INK}
    assert shown.low.loc["A100\npaper", "floating point"] == 20
    axis = dots_figure([shown]).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["integer", "floating point"]


@pytest.mark.parametrize("log", [False, True])
def test_dots_lie_at_their_numbers(log: bool) -> None:
    """In the row of their setting and in its colour; the paper's are hollow, the second card's pale."""
    shown = one_panel(column="y" if log else "x")
    axis = dots_figure([shown], columns=1, log=log).axes[0]
    settings = [name for name in shown.values if not log or name != "BASE"]
    assert [label.get_text() for label in axis.get_yticklabels()] == settings
    centre = shown.values.fillna(shown.low.where(shown.low == shown.high))
    expected = {
        (place, label): centre.loc[label, name] for place, name in enumerate(settings) for label in centre.index
    }
    expected = {key: value for key, value in expected.items() if not np.isnan(value)}
    expected[settings.index("OPT12"), "H100\npaper"] = 8.0  # the bound
    marks = {}
    for dot in dots_of(axis):
        x, y = float(dot.get_xdata()[0]), float(dot.get_ydata()[0])
        place = round(y)
        (view,) = (name for name, offset in OFFSETS.items() if y - place == pytest.approx(offset))
        of_paper = view == "paper"
        assert (dot.get_markerfacecolor() == "none") == of_paper
        cards = [card for card, mark in CARD_MARKERS.items() if mark == dot.get_marker()]
        card = cards[0] if of_paper else "A10" if dot.get_alpha() == 0.45 else "H200"
        assert of_paper or dot.get_marker() == VIEW_MARKERS[0][view]
        assert to_hex(dot.get_color()) == SETTING_COLOURS[settings[place]].lower()
        marks[place, f"{card}\n{view}"] = x
    assert marks == expected
    assert axis.get_xscale() == ("log" if log else "linear")
    low, high = axis.get_xlim()
    assert low < min(expected.values()) if log else low == 0
    assert high > max(expected.values())


def test_a_range_is_drawn_from_end_to_end_and_a_bound_with_an_arrow() -> None:
    axis = dots_figure([one_panel(("H200",))], columns=1).axes[0]
    y = 2 + OFFSETS["paper"]
    (span,) = (line for line in axis.get_lines() if list(line.get_xdata()) == [1.0, 3.0])
    assert list(span.get_ydata()) == [y, y]
    assert (span.get_marker(), span.get_markerfacecolor()) == (CARD_MARKERS["H100"], "none")
    (arrow,) = axis.texts
    assert arrow.xy == (8.0, pytest.approx(3 + OFFSETS["paper"]))
    assert arrow.xyann[0] > 0, "more than"
    below = Stated(stated().low.replace(8.0, -np.inf), stated().high.replace(np.inf, 8.0))
    axis = dots_figure([panel("heat", below, measured()["x"].unstack("config"))]).axes[0]
    assert [(text.xy[0], text.xyann[0] < 0) for text in axis.texts] == [(8.0, True)]


def test_every_dot_says_what_it_is() -> None:
    """Its card and view, the row, the metric and the number, range or bound."""
    axis = dots_figure([one_panel(("H200",))], columns=1).axes[0]
    said = {str(line.get_gid()).removeprefix("says: ") for line in axis.get_lines() if line.get_gid()}
    assert len(said) == 8 + 4 + 3
    assert {
        "H200 step: OPT1, heat 16.1%", "paper, A100: BASE, heat 20%", "paper, H100: OPT2, heat 1 to 3%",
        "paper, H100: OPT12, heat more than 8%",
    } <= said  # fmt: skip


def test_the_runs_extremes_are_drawn_where_runs_differ() -> None:
    axis = dots_figure([one_panel(("H200",))], columns=1).axes[0]
    black = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_color() == "black"]
    np.testing.assert_allclose(
        sorted(tuple(line.get_xdata()) for line in black),
        [(11.1, 11.2), (12.1, 12.2), (13.1, 13.2), (16.1, 16.2), (17.1, 17.2), (18.1, 18.2)],
    )
    assert all(line.get_ydata()[0] == line.get_ydata()[1] for line in black)


def test_a_line_joins_what_the_paper_states_and_our_windows_value_on_one_card() -> None:
    """A number itself; a range at the end nearer to ours; a bound at the bound."""
    shown = one_panel(("H100", "A10"))
    axis = dots_figure([shown], columns=1).axes[0]
    slanted = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and np.ptp(line.get_ydata()) > 0]
    ours = shown.values.loc["H100\nwindow"]
    assert {line.get_color(): tuple(line.get_xdata()) for line in slanted} == {
        SETTING_COLOURS["BASE"]: (30.0, ours["BASE"]),
        SETTING_COLOURS["OPT2"]: (3.0, ours["OPT2"]),
        SETTING_COLOURS["OPT12"]: (8.0, ours["OPT12"]),
    }


def test_the_legend_names_the_cards_and_views_that_occur() -> None:
    shown = one_panel()
    named = ["H200, window", "H200, step", "A10, window", "A10, step"]
    assert legend(dots_figure([shown])) == ["paper, A100", "paper, H100", *named], "nothing is known of a V100"
    figure = dots_figure([shown, shown, shown], columns=2)
    assert [axis.axison for axis in figure.axes] == [True, True, True, False]
    names = [[label.get_text() for label in axis.get_yticklabels()] for axis in figure.axes[:3]]
    assert names == [list(PAPER_SETTINGS), [""] * 4, list(PAPER_SETTINGS)], "panels in a row share them"


def test_the_caption_tells_what_is_blank() -> None:
    shown = one_panel()
    said = caption([shown])
    assert said.endswith(
        "Missing, because not stated or not measured: the paper's V100; the paper's H100: heat (OPT1)."
    )
    assert "*Paper* hollow, *measured* filled" in said
    line = ["A100\npaper"]
    whole = Panel(
        "heat", *(t.loc[line] for t in (shown.values, shown.low, shown.high)), shown.of_paper, shown.colours, {}
    )
    assert "Missing" not in caption([whole])
    cold = one_panel(title="cold")
    assert "the paper's H100: heat (OPT1), cold (OPT1)." in caption([whole, shown, cold])


def test_a_reader_tells_each_card_from_the_others() -> None:
    """As where a reader has added one to the book's two."""
    (legend,) = dots_figure([one_panel(("H100", "H200", "A10", "L4", "T4"))]).legends
    marks = {
        text.get_text(): (line.get_marker(), line.get_alpha(), line.get_fillstyle(), line.get_markerfacecolor())
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
        if not text.get_text().startswith(("paper", "T4"))
    }
    assert len(set(marks.values())) == len(marks) == 8


def test_the_caption_says_where_dots_of_a_second_card_are() -> None:
    assert "dots are the A10's; those that cannot be seen lie behind the H200's. " in caption([one_panel()])
    assert "cannot be seen" not in caption([one_panel(("H200",))])


@compares_picture
def test_settings_look_as_stored() -> Figure:
    return readable(dots_figure([one_panel(("H200",)), one_panel(("H200",), "y", "cold, %")]))


@compares_picture
def test_ratios_look_as_stored() -> Figure:
    """Down to a hundredth of BASE and up to four times it."""
    ratios = 3.0 ** (measured(("H200",))["x"] % 5 - 2)
    ratios /= ratios.xs("BASE", level="config").reindex(ratios.index.droplevel("config")).to_numpy()
    parts = [20.0, 100.0, 500.0, 250.0]
    theirs = Stated(stated().low / parts, stated().high / parts)
    return readable(
        dots_figure([panel("cycles, relative to BASE", theirs, ratios.unstack("config"))], columns=1, log=True)
    )
