"""The look of every figure: width, colours, fonts, and how a figure is saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from medddpm.runtime.files import replacing

Array = npt.NDArray[np.floating]

PRINT_WIDTH = 7.0  # inches: two columns of an ACM page

# Okabe & Ito's colours, which people of any colour vision tell apart; the order is that of every legend.
SETTING_COLOURS = {"BASE": "#4D4D4D", "OPT1": "#0072B2", "OPT2": "#E69F00", "OPT12": "#009E73", "FAST": "#D55E00"}
# What a kernel does, in the order of every legend. Convolution's three products have one hue: together they are what
# the paper calls a single kernel's share. Blue, orange and grey alternate in lightness for any colour vision.
KIND_COLOURS = {
    "convolution, forward": "#08519C",
    "convolution, input gradient": "#4292C6",
    "convolution, weight gradient": "#9ECAE1",
    "convolution, other": "#DEEBF7",
    "matmul": "#F0E442",
    "normalization": "#D55E00",
    "pointwise": "#E69F00",
    "layout": "#CC79A7",
    "resampling": "#009E73",
    "reduction": "#999999",
    "update": "#4D4D4D",
    "other": "#EEEEEE",
}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "svg.hashsalt": "medddpm",
}


def use_style() -> None:
    """Sets the book's style for everything drawn afterwards."""
    mpl.rcParams.update(STYLE)


def new_figure(height: float, width: float = PRINT_WIDTH) -> Figure:
    """An empty figure in the book's style, sizes in inches, laid out so that nothing overlaps.

    It is made without pyplot, so a notebook shows it once, where it is returned.
    """
    use_style()
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, name: str, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes NAME.png and NAME.svg, the same bytes each time for the same figure."""
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        path = Path(folder) / (name + suffix)
        with replacing(path) as temporary, mpl.rc_context(STYLE):
            figure.savefig(temporary, metadata=metadata)
        paths.append(path)
    return paths
