"""Letters: none below seven points at print width, none on another; and the sentence for those who cannot see."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import seaborn as sns
from helpers.repository import ROOT
from matplotlib.figure import Figure
from PIL import Image

from study.figures.legible import faults
from study.figures.style import BARS, PRINT_WIDTH, new_figure, save_figure, say, say_bars


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
    png, svg = save_figure(figure, "a", tmp_path, "One word in an empty axis.")
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
