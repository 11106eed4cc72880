"""Checks that a figure is readable, and reads its texts."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.figures.legible import faults
from study.figures.style import PRINT_WIDTH


def readable(figure: Figure) -> Figure:
    """Checks that no letter of the figure is too small and no text lies on another; returns the figure."""
    assert faults(figure, PRINT_WIDTH) == []
    return figure


def texts(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]
