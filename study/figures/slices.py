"""Slices of volumes in a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from study.figures.style import PRINT_WIDTH, Array, new_figure


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
            axis.imshow(plane, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        row[0].set_ylabel(name)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure
