"""The book's pictures: one style, one function a figure, a table or volumes in, a figure out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from medddpm.atomic import replacing

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

# Of the architecture: by what a layer does.
LAYER_COLOURS = {
    "convolution": "#BBBBBB",
    "residual": "#56B4E9",
    "attention": "#F0E442",
    "down": "#E69F00",
    "up": "#009E73",
    "output": "#BBBBBB",
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


def save(figure: Figure, name: str, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes NAME.png and NAME.svg, the same bytes each time for the same figure."""
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        path = Path(folder) / (name + suffix)
        with replacing(path) as temporary, mpl.rc_context(STYLE):
            figure.savefig(temporary, metadata=metadata)
        paths.append(path)
    return paths


# Training


def loss_curves(table: pd.DataFrame, axis: Axes, smooth: int = 1) -> Axes:
    """Loss against step, a line a setting.

    Settings that agree would hide each other: the first drawn are the widest, and the later ones lie on top.

    Args:
        table: setting, step, loss.
        axis: drawn into.
        smooth: steps of a running median; 1 for none.
    """
    present = [name for name in SETTING_COLOURS if name in set(table["setting"])]
    for place, name in enumerate(present):
        curve = table[table["setting"] == name].sort_values("step")
        loss = curve["loss"].rolling(smooth, center=True, min_periods=1).median()
        width = 1.0 + 1.6 * (len(present) - 1 - place)
        axis.plot(curve["step"], loss, color=SETTING_COLOURS[name], linewidth=width, label=name)
    axis.set(xlabel="step", ylabel="loss, mean |ε − ε$_θ$|")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return axis


def step_times(table: pd.DataFrame, axis: Axes) -> Axes:
    """The median time of a step, a bar a setting, its tenth and ninetieth percentile as a line.

    Args:
        table: setting, step, step_ms; each setting's first step, which sets up, should be left out.
        axis: drawn into.
    """
    present = [name for name in SETTING_COLOURS if name in set(table["setting"])]
    times = [table.loc[table["setting"] == name, "step_ms"] for name in present]
    medians = [float(t.median()) for t in times]
    spread = np.array([[m - t.quantile(0.1), t.quantile(0.9) - m] for m, t in zip(medians, times, strict=True)]).T
    bars = axis.bar(present, medians, yerr=spread, color=[SETTING_COLOURS[name] for name in present], width=0.65)
    axis.bar_label(bars, [f"{m:.0f}" for m in medians], padding=2, fontsize=7)
    axis.set(ylabel="time of a step, ms")
    axis.margins(y=0.12)
    return axis


# Volumes


def three_slices(volume: Array, at: Sequence[int] | None = None) -> list[Array]:
    """Axial, coronal and sagittal slices of (H, W, D), axes RAS, turned as they are read.

    Args:
        volume: (H, W, D).
        at: the voxel they meet in; default the middle.
    """
    h, w, d = at if at is not None else [n // 2 for n in volume.shape]
    return [np.rot90(plane) for plane in (volume[:, :, d], volume[:, w, :], volume[h, :, :])]


def where_most(mask: npt.NDArray[np.bool_]) -> list[int]:
    """The voxel whose three planes show most of `mask` (H, W, D)."""
    axes = range(mask.ndim)
    return [int(mask.sum(axis=tuple(other for other in axes if other != axis)).argmax()) for axis in axes]


def slice_rows(
    rows: Mapping[str, Sequence[Array]],
    titles: Sequence[str],
    limits: tuple[float, float] | None = None,
    width: float = PRINT_WIDTH,
) -> Figure:
    """A grid of slices: a row a name, a column a title.

    Args:
        rows: 2-D slices by the row's name.
        titles: of the columns.
        limits: black and white; default each slice's own extremes.
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


# Figure 3


def architecture(table: pd.DataFrame, axis: Axes) -> Axes:
    """The U of Figure 3: a box a layer, the encoder down the left, the decoder up the right, a row a level.

    In a row the layers run from left to right; an arrow is a skip, from what an encoder stage gives to the decoder
    stage that takes it.

    Args:
        table: of `medddpm.study.architecture.describe`.
        axis: drawn into; its frame is removed.
    """
    levels = int(table["level"].max())
    layers = table.to_dict("records")
    taken: dict[tuple[object, int], int] = {}  # boxes in each arm's row so far
    columns = []
    for layer in layers:
        arm = (layer["part"] if layer["part"] != "output" else "decoder", _row(layer, levels))
        columns.append(taken.get(arm, 0))
        taken[arm] = columns[-1] + 1
    left, right = (max(n for (part, _), n in taken.items() if part == arm) for arm in ("encoder", "decoder"))
    offset = {"encoder": 0.0, "middle": (left + right - 2.5) / 2, "decoder": left + 0.5, "output": left + 0.5}
    centres = [
        (offset[layer["part"]] + column, -_row(layer, levels)) for layer, column in zip(layers, columns, strict=True)
    ]
    for layer, (x, y) in zip(layers, centres, strict=True):
        _layer_box(axis, x, y, layer)
    _skips(axis, layers, centres)
    for level in range(levels + 1):
        last = [layer for layer in layers if layer["part"] == "encoder" and layer["level"] == level][-1]
        axis.text(-0.6, -level, f"{_space(last)}\n{last['out_channels']} ch", ha="right", va="center", fontsize=7)
    axis.text(offset["middle"] - 0.6, -levels - 1, "middle", ha="right", va="center", fontsize=7)
    axis.set(xlim=(-1.45, left + right + 0.05), ylim=(-levels - 1.4, 0.4))
    axis.set_axis_off()
    return axis


Layer = Mapping[Any, Any]


def _row(layer: Layer, levels: int) -> int:
    """A layer's row: the level it works at, for an upsampling the one it leaves; the middle lies below all."""
    if layer["part"] == "middle":
        return levels + 1
    return int(layer["level"]) + (layer["kind"] == "up")


def _layer_box(axis: Axes, x: float, y: float, layer: Layer) -> None:
    box = FancyBboxPatch(
        (x - 0.46, y - 0.34),
        0.92,
        0.68,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=LAYER_COLOURS[layer["kind"]],
        edgecolor="black",
        linewidth=0.5,
    )
    axis.add_patch(box)
    lines = [layer["kind"], f"{layer['in_channels']}→{layer['out_channels']}"]
    lines += [f"{_si(layer['parameters'])}params", f"{_si(layer['gflop'] * 1e9)}FLOP"]
    axis.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=5.6, linespacing=1.15)


def _skips(axis: Axes, layers: Sequence[Layer], centres: Sequence[tuple[float, float]]) -> None:
    """An arrow for each encoder stage, from its last layer to the first of the decoder stage; the last goes first."""
    ends = {layer["stage"]: place for layer, place in zip(layers, centres, strict=True) if layer["part"] == "encoder"}
    starts: dict[int, tuple[float, float]] = {}
    for layer, place in zip(layers, centres, strict=True):
        if layer["part"] == "decoder":
            starts.setdefault(layer["stage"], place)
    for (x0, y0), (x1, y1) in zip(reversed(ends.values()), starts.values(), strict=True):
        arrow = FancyArrowPatch(
            (x0, y0 - 0.34),
            (x1, y1 - 0.34),
            connectionstyle="arc3,rad=0.05",
            arrowstyle="-|>",
            mutation_scale=6,
            linewidth=0.6,
            color="#555555",
            shrinkA=0,
            shrinkB=0,
        )
        axis.add_patch(arrow)


def _space(layer: Layer) -> str:
    sides = [int(layer[name]) for name in ("height", "width", "depth")]
    return f"{sides[0]}³" if len(set(sides)) == 1 else "×".join(map(str, sides))


def _si(value: float) -> str:
    """Three digits and a prefix: 928 G."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
