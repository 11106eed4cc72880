"""Letters: none below seven points at print width, none on another; and the sentence for those who cannot see."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import seaborn as sns
from helpers.figures import legend
from helpers.repository import ROOT
from matplotlib.figure import Figure
from PIL import Image

from study.figures.legible import faults
from study.figures.style import (
    BARS,
    POINTS,
    PRINT_WIDTH,
    finish_points,
    new_figure,
    plain_logarithms,
    save_figure,
    say,
    say_bars,
    say_stack,
    source_marks,
)


def labelled(*places: tuple[float, float, str], fontsize: float = 7, width: float = 7) -> Figure:
    figure = new_figure(height=2, width=width)
    axis = figure.subplots()
    for x, y, text in places:
        axis.text(x, y, text, fontsize=fontsize)
    return figure


def test_texts_that_lie_on_each_other_are_found() -> None:
    apart = labelled((0.1, 0.5, "one"), (0.6, 0.5, "other"))
    assert faults(apart, PRINT_WIDTH) == []
    assert faults(labelled((0.5, 0.5, "one"), (0.51, 0.5, "other")), PRINT_WIDTH) == ["'one' overlaps 'other'"]


def test_letters_are_measured_at_print_width() -> None:
    assert faults(labelled((0.5, 0.5, "small"), fontsize=6), PRINT_WIDTH) == ["'small' has 6.0 points"]
    wide = faults(labelled((0.5, 0.5, "wide"), width=14, fontsize=10), PRINT_WIDTH)
    assert "'wide' has 5.0 points" in wide


def test_ticks_beyond_an_axis_and_an_axis_that_is_off_count_for_nothing() -> None:
    figure = new_figure(height=2)
    shown, hidden = figure.subplots(1, 2)
    shown.set_yticks([0, 0.5, 5.0, 5.001], ["zero", "half", "beyond", "beyond too"])
    shown.set_ylim(0, 1)
    hidden.set_axis_off()
    assert faults(figure, PRINT_WIDTH) == []


def test_a_figure_that_cannot_be_read_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="crowded: 'one' overlaps 'other'"):
        save_figure(labelled((0.5, 0.5, "one"), (0.51, 0.5, "other")), "crowded", tmp_path, "Two words.")


def test_both_files_and_the_page_carry_the_sentence(tmp_path: Path) -> None:
    figure = labelled((0.5, 0.5, "one"))
    png, svg, _ = save_figure(figure, "a", tmp_path, "One word in an empty axis.")
    with Image.open(png) as picture:
        assert picture.info["Description"] == "One word in an empty axis."
    assert "<title>One word in an empty axis.</title>" in svg.read_text()
    assert figure._repr_mimebundle_() == ({}, {"image/png": {"alt": "One word in an empty axis."}})
    assert new_figure(1)._repr_mimebundle_() == ({}, {})


def test_a_mark_says_what_it_is_where_a_reader_points_at_it(tmp_path: Path) -> None:
    figure = new_figure(height=2)
    (dot,) = figure.subplots().plot(1, 2, "o")
    say(dot, "H100 <step>: 57%")
    _, svg = save_figure(figure, "a", tmp_path)
    assert svg.read_text().count("<g><title>H100 &lt;step&gt;: 57%</title>") == 1
    assert "says" not in svg.read_text()


def test_each_bar_of_seaborn_says_its_source_its_row_and_its_value(tmp_path: Path) -> None:
    table = pd.DataFrame({"kind": ["norm", "norm", "copy"], "source": ["H100, window", "H200, step", "H200, step"]})
    table["share"] = [12.345, 6.0, 3.0]
    figure = new_figure(height=2)
    axis, sources, rows = figure.subplots(), ["H100, window", "H200, step"], ["copy", "norm"]
    sns.barplot(table, x="share", y="kind", hue="source", order=rows, hue_order=sources, ax=axis, **BARS)
    with pytest.raises(ValueError, match="zip"):
        say_bars(axis, sources, rows, {})  # seaborn draws no bar for what the table has not
    table.loc[3] = ["copy", "H100, window", 0.0]
    axis.clear()
    sns.barplot(table, x="share", y="kind", hue="source", order=rows, hue_order=sources, ax=axis, **BARS)
    say_bars(axis, sources, rows, {("H200", "step", "norm"): "60% sgemm"})
    _, svg = save_figure(figure, "a", tmp_path)
    assert re.findall("<title>([^<]*)", svg.read_text()) == [
        "H100, window: copy 0%",
        "H100, window: norm 12.3%",
        "H200, step: copy 3%",
        "H200, step: norm 6%: 60% sgemm",
    ]


PAGES = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if "02" <= path.name[:2] <= "15"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_picture_of_a_chapter_has_a_sentence(path: Path) -> None:
    outputs = [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert pictures
    assert [o for o in pictures if not o.metadata.get("image/png", {}).get("alt", "").endswith(".")] == []


def test_points_of_the_paper_are_hollow_and_every_source_says_its_values() -> None:
    """Side by side in their rows, so that equal values of two sources are both seen; an arrow marks a lower bound."""
    rows = [("H100, window", "BASE", 20.0), ("H100, window", "BASE", 24.0), ("paper, H100", "BASE", 22.0)]
    rows += [("paper, A100", "BASE", 22.0), ("paper, A100", "OPT1", 55.0), ("H100, step", "OPT1", 9.0)]
    table = pd.DataFrame(rows, columns=["source", "config", "share"])
    marks = source_marks(table["source"].unique())
    assert marks["hue_order"] == ["paper, A100", "paper, H100", "H100, window", "H100, step"]
    figure = new_figure(height=2)
    axis = figure.subplots()
    sns.pointplot(table, x="share", y="config", order=["BASE", "OPT1"], hue="source", ax=axis, **marks, **POINTS)
    finish_points(figure, marks, "%", at_least={("paper, A100", "OPT1", 55.0)})
    lines = [line for line in axis.lines if line.get_marker() not in ("None", "")]
    assert [line.get_gid() for line in lines] == [
        "says: paper, A100: BASE 22%, OPT1 more than 55%", "says: paper, H100: BASE 22%",
        "says: H100, window: BASE 22%", "says: H100, step: OPT1 9%",
    ]  # fmt: skip
    assert [line.get_markerfacecolor() == "none" for line in lines] == [True, True, False, False]
    places = [line.get_xydata()[0] for line in lines[:3]]
    assert [x for x, _ in places] == [22, 22, 22]
    assert len({round(y, 3) for _, y in places}) == 3, "none hides another"
    (arrow,) = axis.texts
    assert (arrow.xy[0], arrow.xyann[0] > 0) == (55, True)
    assert legend(figure) == marks["hue_order"]


def test_parts_of_a_stack_say_their_values() -> None:
    figure = new_figure(height=2)
    axis = figure.subplots()
    pd.DataFrame({"integer": [1.0, 0.5], "other": [2.0, 0.25]}, index=["a", "b"]).plot.barh(stacked=True, ax=axis)
    say_stack(axis, "H100 step", ["a", "b"])
    said = [bar.get_gid() for bar in axis.patches]
    assert said[0] == "says: H100 step: a, integer 1.00"
    assert said[-1] == "says: H100 step: b, other 0.25"


@pytest.mark.parametrize(("high", "shown"), [(1.0, ["0.2", "0.5", "1"]), (100.0, ["1", "10", "100"])])
def test_a_logarithmic_axis_has_plain_numbers(high: float, shown: list[str]) -> None:
    figure = new_figure(height=2)
    axis = figure.subplots()
    axis.set(xscale="log", xlim=(0.15, high * 1.1))
    plain_logarithms(axis.xaxis)
    figure.draw_without_rendering()
    assert set(shown) <= {label.get_text() for label in axis.get_xticklabels()}
