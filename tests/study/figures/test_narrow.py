"""A figure's drawing for phones: panels below each other, letters as large, and none where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
from matplotlib.figure import Figure

from study.figures.legible import cut_off, faults
from study.figures.narrow import WIDTH, narrow
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
