"""Slices of volumes: rows of a grid, a gallery, and real ones above synthetic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.figures.style import PRINT_WIDTH, Array, new_figure

LESION_COLOUR = "#F0E442"
Plane = npt.NDArray[np.generic]


def slice_rows(
    rows: Mapping[str, Sequence[Array]],
    titles: Sequence[str],
    limits: tuple[float, float] | None = None,
    width: float = PRINT_WIDTH,
) -> Figure:
    """A grid of slices: a row for each name, a column for each title.

    Args:
        rows: 2-D slices by the row's name.
        titles: of the columns.
        limits: the values shown black and white; by default each slice's own extremes.
        width: of the figure, inches.
    """
    shapes = [[plane.shape for plane in slices] for slices in rows.values()]
    widths = [max(row[column][1] for row in shapes) for column in range(len(titles))]
    heights = [max(height for height, _ in row) for row in shapes]
    figure = new_figure(0.25 + 0.95 * width * sum(heights) / sum(widths), width)
    axes = figure.subplots(
        len(rows), len(titles), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
    )
    low, high = limits if limits else (None, None)
    for row, (name, slices) in zip(axes, rows.items(), strict=True):
        for axis, plane in zip(row, slices, strict=True):
            _show(axis, plane, low, high)
        row[0].set_ylabel(name)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure


def gallery(slices: Mapping[str, Array], title: str, columns: int = 6, limits: tuple[float, float] = (0, 1)) -> Figure:
    """Slices of equal shapes in rows, each under its name.

    Args:
        slices: 2-D, by name.
        title: of them all.
        columns: slices in a row.
        limits: the values shown black and white.
    """
    lines = -(-len(slices) // columns)
    height, width = next(iter(slices.values())).shape
    figure = new_figure(0.25 + lines * (0.2 + 0.95 * PRINT_WIDTH / columns * height / width))
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, (name, plane) in zip(axes, slices.items(), strict=False):
        _show(axis, plane, *limits)
        axis.set_title(name, pad=2)
    for axis in axes[len(slices) :]:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=axes[0].title.get_fontsize())
    return figure


def real_above_synthetic(columns: Mapping[str, tuple[Plane, Plane, Plane]], limits: tuple[float, float]) -> Figure:
    """Real slices above synthetic ones for their masks, a column for each contrast; lesions are outlined.

    Args:
        columns: by the contrast's name a real slice, a synthetic one, and the mask of their lesion.
        limits: the values shown black and white.
    """
    real, synthetic, lesions = zip(*columns.values(), strict=True)
    rows = {"held out": real, "synthetic": synthetic}
    figure = slice_rows(rows, list(columns), limits, width=1.75 * max(2, len(columns)))
    for axis, lesion in zip(figure.axes, lesions * 2, strict=True):
        outline(axis, lesion)
    return figure


def outline(axis: Axes, mask: Plane) -> None:
    """Draws the border of a mask."""
    if mask.any() and not mask.all():
        axis.contour(mask.astype(float), [0.5], colors=[LESION_COLOUR], linewidths=0.5)


def _show(axis: Axes, plane: Plane, low: float | None, high: float | None) -> None:
    axis.imshow(plane, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
