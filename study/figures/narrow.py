"""Lays a figure out anew for a phone: its panels below each other, in letters of the same size."""

from __future__ import annotations

import warnings
from copy import deepcopy
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec
from matplotlib.ticker import MaxNLocator

from study.figures.legible import cut_off, faults

WIDTH = 3.7  # inches: 355 pixels of a browser, of a phone's 390
_LETTERS = (50, 40, 30)  # in a line of a title: as many as fit
_ROW = 22  # letters of a row's name in a line
_LINE = 0.15  # inches
_TICKS = 3  # at most so many steps between the numbers of an axis whose figure gives a number of them


def narrow(figure: Figure) -> Figure | None:
    """Returns a copy of a figure, `WIDTH` inches wide, or None where its texts cannot be read at that width.

    Panels of several columns stand below each other, in the order in which they are read, each with the labels of its
    row and column. Long names of rows, titles and labels are broken, and a legend has two columns. A gallery, of
    images that each have a title, has two a row. Other images have no such copy: their rows and columns
    belong together.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # there is no room for the panels
            for ticks in (None, _TICKS):
                copy = _laid_out(figure, ticks)
                if copy is None or not (faults(copy, WIDTH) or cut_off(copy)):
                    return copy
    except UserWarning:
        pass
    return None


def _laid_out(figure: Figure, ticks: int | None) -> Figure | None:
    axes = [axis.xaxis for axis in figure.axes]
    if ticks and not any(type(axis.get_major_locator()) is MaxNLocator for axis in axes):
        return None
    copy = deepcopy(figure)
    shown = [axis for axis in copy.axes if axis.axison]
    if shown and all(axis.images and axis.get_title() for axis in shown):
        return _gallery(copy)
    panels = [axis for axis in copy.axes if axis.get_subplotspec() and not axis.images]
    if not panels or len(panels) < len(copy.axes):
        return None
    height = float(copy.get_figheight())
    rows, columns = _spec(panels[0]).get_gridspec().get_geometry()
    if columns > 1:
        height *= _stack(copy, panels) / rows
    stacked = len({_place(axis)[0] for axis in panels})
    lines = max(_break_names(axis) for axis in panels)
    for axis in panels if ticks else []:
        if type(locator := axis.xaxis.get_major_locator()) is MaxNLocator:  # whoever chose a number had room for it
            locator.set_params(nbins=ticks)
    copy.set_size_inches(WIDTH, max(height, stacked * (lines * _LINE + 0.5)))
    for legend in list(copy.legends):
        copy.legends.remove(legend)
        names = [text.get_text() for text in legend.get_texts()]
        handles = [handle for handle in legend.legend_handles if handle is not None]
        copy.legend(handles, names, loc="outside upper center", ncols=2, columnspacing=1.2)
    texts = [text for axis in panels for text in (axis.title, axis.xaxis.label)]
    texts += [text for text in copy.texts if text.get_text() in (copy.get_suptitle(), copy.get_supxlabel())]
    written = [text.get_text() for text in texts]
    for letters in _LETTERS:
        for text, words in zip(texts, written, strict=True):
            text.set_text("\n".join(fill(line, letters) for line in words.split("\n")))
        copy.draw_without_rendering()
        if not cut_off(copy):
            break
    return copy


def _gallery(figure: Figure) -> Figure:
    for empty in [axis for axis in figure.axes if not axis.axison]:
        empty.remove()
    pictures = sorted(figure.axes, key=_place)
    grid = GridSpec(-(-len(pictures) // 2), 2, figure=figure)
    for place, axis in enumerate(pictures):
        axis.set_subplotspec(grid[divmod(place, 2)])
    height, width = pictures[0].images[0].get_size()
    figure.set_size_inches(WIDTH, 0.45 + grid.nrows * (0.2 + WIDTH / 2 * height / width))
    figure.suptitle(fill(figure.get_suptitle(), _LETTERS[0]), fontsize=pictures[0].title.get_fontsize())
    return figure


def _stack(figure: Figure, panels: list[Axes]) -> int:
    """Puts panels into one column; returns the number of rows."""
    places = {axis: _place(axis) for axis in panels}
    order = sorted(set(places.values()))
    grid = GridSpec(len(order), 1, figure=figure)
    for axis, (row, column) in places.items():
        if axis.axison:
            axis.tick_params(labelleft=True, labelbottom=True)
            beside = [a.get_ylabel() for a, place in places.items() if place[0] == row and a.get_ylabel()]
            below = [a.get_xlabel() for a, place in places.items() if place[1] == column and a.get_xlabel()]
            axis.set_ylabel(axis.get_ylabel() or "".join(beside[:1]))
            axis.set_xlabel(axis.get_xlabel() or "".join(below[-1:]))
        axis.set_subplotspec(grid[order.index((row, column))])
    return len(order)


def _place(axis: Axes) -> tuple[int, int]:
    return _spec(axis).rowspan.start, _spec(axis).colspan.start


def _spec(axis: Axes) -> SubplotSpec:
    spec = axis.get_subplotspec()
    assert spec is not None, "it was counted among the panels"
    return spec


def _break_names(axis: Axes) -> int:
    """Breaks long names of rows; returns the number of lines of all rows."""
    names = [label.get_text() for label in axis.get_yticklabels()]
    if max(map(len, names), default=0) <= _ROW:
        return 0
    broken = [fill(name, _ROW, break_long_words=False, break_on_hyphens=False) for name in names]
    axis.set_yticks(axis.get_yticks(), broken)
    return len(names) * max(name.count("\n") + 1 for name in broken)
