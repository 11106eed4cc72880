"""Slices of volumes: rows of a grid, a gallery, and real ones above synthetic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.figures.style import PRINT_WIDTH, Array, new_figure

LESION_COLOUR = "#F0E442"
BLACK = 0.05  # of the grey scale: a sample's background has some noise
MARGIN = 2  # voxels around what is not black
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


def gallery(
    slices: Mapping[str, Sequence[Plane]], title: str, columns: int = 4, limits: tuple[float, float] = (0, 1)
) -> Figure:
    """Shows slices in rows: those of a name side by side beneath it, all cut to the box of what is not black.

    Args:
        slices: 2-D, of equal shapes, by name.
        title: of them all.
        columns: names in a row.
        limits: the values shown black and white.
    """
    rows, across = _bright_box([plane for planes in slices.values() for plane in planes], limits)
    pictures = {name: np.hstack([plane[rows, across] for plane in planes]) for name, planes in slices.items()}
    lines = -(-len(pictures) // columns)
    height, width = next(iter(pictures.values())).shape
    figure = new_figure(0.25 + lines * (0.2 + 0.95 * PRINT_WIDTH / columns * height / width))
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, (name, picture) in zip(axes, pictures.items(), strict=False):
        _show(axis, picture, *limits)
        axis.set_title(name, pad=2)
    for axis in axes[len(pictures) :]:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=axes[0].title.get_fontsize())
    return figure


def real_above_synthetic(columns: Mapping[str, tuple[Plane, Plane, Plane]], limits: tuple[float, float]) -> Figure:
    """Real slices above synthetic ones for their masks, a column for each contrast; lesions are outlined.

    All are cut to the box of what is not black.

    Args:
        columns: by the contrast's name a real slice, a synthetic one, and the mask of their lesion, of equal shapes.
        limits: the values shown black and white.
    """
    box = _bright_box([plane for real, synthetic, _ in columns.values() for plane in (real, synthetic)], limits)
    real, synthetic, lesions = zip(*([plane[box] for plane in planes] for planes in columns.values()), strict=True)
    rows = {"held out": real, "synthetic": synthetic}
    figure = slice_rows(rows, list(columns), limits, width=1.75 * max(2, len(columns)))
    for axis, lesion in zip(figure.axes, lesions * 2, strict=True):
        outline(axis, lesion)
    return figure


def outline(axis: Axes, mask: Plane) -> None:
    """Draws the border of a mask."""
    if mask.any() and not mask.all():
        axis.contour(mask.astype(float), [0.5], colors=[LESION_COLOUR], linewidths=0.5)


def _bright_box(planes: Sequence[Plane], limits: tuple[float, float]) -> tuple[slice, slice]:
    """Returns the rows and columns in which any plane is brighter than `BLACK`, and `MARGIN` more on each side."""
    low, high = limits
    bright = (np.stack(planes).astype(float) > low + BLACK * (high - low)).any(axis=0)
    if not bright.any():
        return slice(None), slice(None)
    ends = [(int(places.min()), int(places.max())) for places in np.nonzero(bright)]
    rows, across = (slice(max(0, first - MARGIN), last + 1 + MARGIN) for first, last in ends)
    return rows, across


def _show(axis: Axes, plane: Plane, low: float | None, high: float | None) -> None:
    axis.imshow(plane, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
