"""The stacked bars of Figures 4 to 9: which kernels run, and which instructions they execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from medddpm.study.figures.style import KIND_COLOURS, new_figure
from medddpm.study.profile.families import family_named
from medddpm.study.profile.instructions import CLASSES

# Paul Tol's muted scheme.
CLASS_COLOURS = dict(
    zip(
        CLASSES,
        ("#332288", "#88CCEE", "#44AA99", "#DDCC77", "#999933", "#AA4499", "#CC6677", "#882255", "#DDDDDD"),
        strict=True,
    )
)
LABELLED_ABOVE = 0.045  # of a bar's length; a smaller part is not labelled

_KINDS = {
    "sm80_xmma_fprop_implicit": "convolution, forward",
    "sm90_xmma_fprop_implicit": "convolution, forward",
    "implicit_convolveNd": "convolution, forward",
    "_5x_cudnn_volta_scudnn": "convolution, forward",
    "xmma_dgrad": "convolution, input gradient",
    "xmma_wgrad": "convolution, weight gradient",
    "fused convolution": "convolution, forward",
    "fused data gradient": "convolution, input gradient",
    "fused weight gradient": "convolution, weight gradient",
}


def kind_of(family: str) -> str:
    """One of `KIND_COLOURS`: the family's group; convolutions are divided into forward and the two gradients."""
    group = family_named(family).group
    return _KINDS.get(family, f"{group}, other" if group == "convolution" else group)


def by_kind(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares of families (columns) added up by `kind_of`, in the legend's order."""
    added = shares.T.groupby(kind_of).sum().T
    return added[[kind for kind in KIND_COLOURS if kind in added]]


def stacked(
    axis: Axes,
    rows: pd.DataFrame,
    colours: Mapping[str, str],
    percent: bool = True,
    hollow: Sequence[str] = (),
) -> Axes:
    """Horizontal stacked bars, one per row of `rows`, from the top; the columns are the parts.

    Args:
        axis: where to draw.
        rows: parts by row; NaN and 0 are not drawn.
        colours: the colour of each part, in the order they are stacked.
        percent: whether parts are shares of 1, labelled in percent; otherwise they have the axis' own unit.
        hollow: rows with the paper's values: outlined only, and dotted up to 1 where the paper gives none.
    """
    total = 1.0 if percent else float(rows.sum(axis="columns").max())
    for place, (name, parts) in enumerate(rows.iterrows()):
        left = 0.0
        for part, colour in colours.items():
            value = float(parts.get(part, np.nan))
            if not value > 0:
                continue
            outline = name in hollow
            axis.barh(
                place, value, 0.72, left, color="white" if outline else colour,
                edgecolor=colour if outline else "white", linewidth=1.4 if outline else 0.4, zorder=2,
            )  # fmt: skip
            if value > LABELLED_ABOVE * total:
                text = f"{100 * value:.0f}" if percent else f"{value:.2f}"
                ink = "black" if outline or _light(colour) else "white"
                axis.text(left + value / 2, place, text, ha="center", va="center", fontsize=6, color=ink, zorder=3)
            left += value
        if percent and name in hollow and left < 1:
            axis.barh(place, 1 - left, 0.72, left, color="none", edgecolor="#AAAAAA", linestyle=":", linewidth=0.8)
            if left < 0.9:
                axis.text((1 + left) / 2, place, "not stated", ha="center", va="center", fontsize=6, color="#777777")
    axis.set_yticks(range(len(rows)), list(rows.index))
    axis.set_ylim(len(rows) - 0.45, -0.55)
    axis.tick_params(axis="y", length=0)
    if percent:
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    return axis


def stack_figure(
    panels: Mapping[str, pd.DataFrame],
    colours: Mapping[str, str],
    xlabel: str,
    names: Mapping[str, str] | None = None,
    hollow: Sequence[str] = (),
    percent: bool = True,
) -> Figure:
    """Panels of `stacked` rows, one below the other, with one legend of the parts that occur.

    Args:
        panels: rows by the panel's title.
        colours: the colour of each part.
        xlabel: what a bar's length is.
        names: the parts' names in the legend; by default those in `colours`.
        hollow: rows with the paper's values.
        percent: see `stacked`.
    """
    lengths = [len(rows) for rows in panels.values()]
    columns = 4
    present = [
        part for part in colours if any((rows.get(part, pd.Series(dtype=float)) > 0).any() for rows in panels.values())
    ]
    legend = 0.17 * -(-len(present) // columns)
    figure = new_figure(height=0.55 + legend + 0.235 * sum(lengths) + 0.3 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": lengths}, sharex=not percent)[
        :, 0
    ]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        stacked(axis, rows, colours, percent, hollow).set_title(title, loc="left")
    axes[-1].set_xlabel(xlabel)
    handles = [
        axes[0].barh(0, 0, color=colours[part], edgecolor="#777777", linewidth=0.4, label=(names or {}).get(part, part))
        for part in present
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    return figure


def _light(colour: str) -> bool:
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
