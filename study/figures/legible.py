"""Finds texts of a figure that cannot be read: too small, or on top of each other."""

from __future__ import annotations

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SMALLEST = 7.0  # points, at print width
SLACK = 1.0  # pixels: boxes of letters are a little larger than their ink


def faults(figure: Figure, print_width: float) -> list[str]:
    """Returns a sentence for each text below `SMALLEST` at `print_width` (inches), and for each two texts that overlap.

    It draws the figure, which may move its layout by a hair.
    """
    figure.draw_without_rendering()
    scale = min(1.0, print_width / figure.get_figwidth())
    texts = _drawn(figure)
    sizes = [(text.get_text(), float(text.get_fontsize()) * scale) for text in texts]
    sentences = [f"{text!r} has {size:.1f} points" for text, size in sizes if size < SMALLEST - 1e-6]
    boxes = [(text.get_text(), text.get_window_extent().padded(-SLACK)) for text in texts]
    sentences += [
        f"{one!r} overlaps {other!r}"
        for (one, box), (other, beside) in combinations(boxes, 2)
        if box.x0 < beside.x1 and beside.x0 < box.x1 and box.y0 < beside.y1 and beside.y0 < box.y1
    ]
    return sentences


def cut_off(figure: Figure) -> list[str]:
    """Returns each text that reaches beyond the edge of a figure that was drawn."""
    page = figure.bbox.padded(SLACK)
    boxes = [(text.get_text(), text.get_window_extent()) for text in _drawn(figure)]
    return [text for text, box in boxes if Bbox.union([page, box]).bounds != page.bounds]


def _drawn(figure: Figure) -> list[Text]:
    second = (axis for first in figure.axes for axis in first.child_axes if isinstance(axis, Axes | SecondaryAxis))
    every = [*figure.axes, *second]
    hidden = {id(text) for axis in every for text in _not_drawn(axis)}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return [text for text in texts if id(text) not in hidden]


def _not_drawn(axes: Axes | SecondaryAxis) -> list[Text]:
    """Returns the labels of ticks beyond an axis' ends, and all labels of an axis that is off."""
    if not axes.axison:
        return [*axes.xaxis.findobj(Text), *axes.yaxis.findobj(Text)]
    beyond = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        slack = 1e-9 * (high - low)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low - slack <= tick.get_loc() <= high + slack:
                beyond += [tick.label1, tick.label2]
    return beyond
