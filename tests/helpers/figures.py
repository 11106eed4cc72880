"""What every figure is held to."""

from __future__ import annotations

from matplotlib.figure import Figure

from medddpm.study.figures.legible import faults
from medddpm.study.figures.style import PRINT_WIDTH


def readable(figure: Figure) -> Figure:
    """The figure, of which no letter is too small and no text lies on another."""
    assert faults(figure, PRINT_WIDTH) == []
    return figure
