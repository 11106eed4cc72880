"""A figure's drawing for phones: panels below each other, letters as large, and none where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from study.figures.legible import cut_off, faults
from study.figures.narrow import WIDTH, narrow
from study.figures.slices import gallery, slice_rows
from study.figures.style import name_rows, new_figure, save_figure

LONG = "BF16 autocast, torch.compile, max-autotune, channels-last"


def two_panels() -> Figure:
    figure = new_figure(height=2)
    left, right = figure.subplots(1, 2, sharey=True)
    for axis in (left, right):
        axis.plot([0, 1], [0, 1])
        axis.set_xlabel("a training step, median, ms; line: from the 10th to the 90th percentile of its times")
    name_rows(left, [LONG, "another row"])
    figure.legend(["one line with a long name", "two lines with a long name", "three"], loc="outside upper center")
    return figure


def test_panels_stand_below_each_other_and_all_letters_can_be_read(tmp_path: Path) -> None:
    figure = two_panels()
    figure.savefig(tmp_path / "before.png")
    small = narrow(figure)
    assert small is not None
    assert small.get_figwidth() == WIDTH
    assert faults(small, WIDTH) == cut_off(small) == []
    above, below = (axis.get_position() for axis in small.axes)
    assert above.x0 == below.x0
    assert above.y0 > below.y1
    names = [[label.get_text().replace("\n", " ") for label in axis.get_yticklabels()] for axis in small.axes]
    assert names == [[LONG, "another row"]] * 2
    figure.savefig(tmp_path / "after.png")
    before, after = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("before", "after"))
    assert (before == after).all(), "the figure itself stays as it was"


def test_a_text_that_is_cut_off_or_covered_leaves_no_drawing(tmp_path: Path) -> None:
    for texts in ((LONG + LONG,), ("0.30, floor 0.24", "covers it")):
        figure = two_panels()
        (tmp_path / "a.narrow.svg").touch()  # of an earlier run
        assert "a.narrow.svg" in {path.name for path in save_figure(figure, "a", tmp_path, "Two panels.")}
        for text in texts:
            figure.axes[0].text(0.4, 0.5, text)
        assert narrow(figure) is None
        save_figure(two_panels(), "b", tmp_path)
        assert not (tmp_path / "b.narrow.svg").exists(), "nothing is said of it to those who cannot see it"


def test_images_have_no_drawing_and_a_second_scale_goes_with_its_axis() -> None:
    figure = two_panels()
    figure.axes[0].secondary_xaxis(1.1, functions=(lambda x: x, lambda x: x))
    small = narrow(figure)
    assert small is not None
    assert [len(axis.child_axes) for axis in small.axes] == [1, 0]
    figure.axes[1].imshow([[0, 1]])
    assert narrow(figure) is None


def test_an_axis_has_fewer_numbers_where_they_would_cover_each_other() -> None:
    figure = new_figure(height=2)
    for axis, reach in zip(figure.subplots(1, 2), (0.0016, 1), strict=True):
        axis.set(xlim=(-reach, reach))
        axis.xaxis.set_major_locator(MaxNLocator(11, symmetric=True))
    small = narrow(figure)
    assert small is not None
    assert all(2 <= len(axis.get_xticks()) <= 5 for axis in small.axes)


def test_a_gallery_has_two_images_a_row() -> None:
    """In the same order, and none is smaller than the drawing has room for."""
    volumes = {f"seed {seed}, fails": [np.full((40, 30), seed)] * 3 for seed in range(1, 6)}
    title = "5 uncurated samples: T1, T2 and FLAIR, axial slice through the middle"
    small = narrow(gallery(volumes, title, limits=(0, 9)))
    assert small is not None
    assert [axis.get_title() for axis in small.axes] == list(volumes)
    places = [axis.get_position() for axis in small.axes]
    assert places[0].x0 == places[2].x0 == places[4].x0 < places[1].x0 == places[3].x0
    assert places[0].y0 == places[1].y0 > places[2].y0 > places[4].y0
    assert places[0].width > 0.46
    assert narrow(slice_rows({"first": [np.eye(9)] * 2, "second": [np.eye(9)] * 2}, ["a", "b"])) is None
    drawing = new_figure(height=2)
    drawing.subplots().set_axis_off()
    narrow(drawing)  # as of the architecture, whose boxes are no images
