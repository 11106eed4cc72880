"""The figures of chapter 18: operators, versions of a kernel, their roofline, transfers, training and samples."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.bench.sentences import exact
from study.figures.style import MACHINE_COLOURS, VERSION_COLOURS, new_figure, say

CEILING = "#777777"
BY_LIBRARY = ("PyTorch", "cuDNN", "torch.compile")
LEAST = 1e-4  # of the sum of all operators: what is less in every column is named, not drawn
ASIDE = 0.3  # of a row: between two machines' dots
GAP = 2  # pixels between images
SHORT = {"layer_norm": "norm", "conv2d": "conv"}  # operators in a picture
BESIDE: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7}
NAMED = {  # the versions that a roofline names, eight in all: the report's, the best by hand, and the libraries'
    "conv2d": ("direct", "tiled, 4 outputs, async", "cuDNN BF16, channels-last"),
    "layer_norm": ("a warp a row", "PyTorch"),
    "block": ("unfused", "fused", "Triton"),
}


def colour_of(version: str) -> str:
    """Returns the colour of a version: the libraries', Triton's, or ours."""
    kind = "library" if version.startswith(BY_LIBRARY) else "Triton" if version == "Triton" else "by hand"
    return VERSION_COLOURS[kind]


def shares_figure(report: Mapping[str, float], measured: Mapping[str, Mapping[str, float]]) -> Figure:
    """Each operator's share of the sum of all, the report's beside ours; beneath, the names of those too small to draw.

    Args:
        report: Table I's seconds by operator.
        measured: machine to the same, on one thread of its CPU.
    """
    columns = {"report": report, **measured}
    totals = {name: sum(v for k, v in seconds.items() if k != "total") for name, seconds in columns.items()}
    operators = [name for name in report if name != "total"]
    largest = {name: max(columns[c][name] / totals[c] for c in columns) for name in operators}
    shown = sorted((name for name in operators if largest[name] > LEAST), key=lambda name: -largest[name])
    left_out = [name for name in operators if name not in shown]
    figure = new_figure(height=1.1 + 0.2 * len(shown) * len(columns) / 2, width=5.6)
    axis = figure.subplots()
    for number, (column, seconds) in enumerate(columns.items()):
        values = [100 * seconds[name] / totals[column] for name in shown]
        colour = MACHINE_COLOURS[number % len(MACHINE_COLOURS)]
        lower = ASIDE * (number - (len(measured) + 1) / 2) if number else 0.0  # machines side by side, report between
        axis.plot(values, [place + lower for place in range(len(shown))], "o", color=colour, markersize=6, label=column)
    axis.set_yticks(range(len(shown)), shown)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    names = textwrap.fill(f"below {100 * LEAST:g}% in each: {', '.join(left_out)}", 75)
    axis.set_xlabel("% of the sum of all operators" + (f"\n{names}" if left_out else ""))
    axis.legend(loc="lower right")
    return figure


def versions_figure(tables: Mapping[str, pd.DataFrame], card: str) -> Figure:
    """A bar a version, its time in a graph, one panel a case.

    Args:
        tables: title to what `study.convnext.tables.times` returns.
        card: on which they were measured.
    """
    figure = new_figure(height=0.9 + 0.17 * max(len(table) for table in tables.values()))
    axes = np.atleast_1d(figure.subplots(1, len(tables)))
    for axis, (title, table) in zip(axes, tables.items(), strict=True):
        shown = table["graph_us"].dropna()
        axis.barh(range(len(shown)), shown, 0.72, color=[colour_of(str(name)) for name in shown.index])
        for place, value in enumerate(shown):
            axis.annotate(exact(value), (value, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axis.set_yticks(range(len(shown)), list(shown.index))
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.tick_params(axis="y", length=0)
        axis.set(title=title.replace(", ", "\n"), xlabel=f"µs on an {card}")
    handles = [Patch(color=colour, label=name) for name, colour in VERSION_COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def roofline_figure(points: pd.DataFrame, limits: Mapping[str, float], card: str) -> Figure:
    """Draws versions under ncu against the machine's ceilings; those of `NAMED` with their names, the others pale.

    Args:
        points: what `study.convnext.tables.roofline` returns, of the versions that are drawn.
        limits: "copy" in GB/s; "fp32", "tf32" and "bf16" in TFLOP/s.
        card: on which they were measured.
    """
    figure = new_figure(height=3.6)
    axis = figure.subplots()
    low, high = points["intensity"].min() / 3, max(points["intensity"].max() * 12, 4e3)  # room for names on the right
    for name in ("fp32", "tf32", "bf16"):
        ridge = 1e3 * limits[name] / limits["copy"]
        axis.plot([low, ridge, high], [low * limits["copy"] / 1e3, *[limits[name]] * 2], color=CEILING, zorder=1)
        said = f"{name.upper()} {limits[name]:.0f} TFLOP/s"  # left of where a ceiling begins, where no dot can be
        axis.annotate(said, (ridge, limits[name]), (-4, 0), **BESIDE, ha="right", va="bottom")
    corner = (8 * low, 8 * low * limits["copy"] / 1e3)
    axis.annotate(f"copy {limits['copy'] / 1e3:.2f} TB/s", corner, (-4, 0), **BESIDE, ha="right", va="bottom")
    for point in points.to_dict("records"):
        at, version, rate = (point["intensity"], point["tflops"]), point["version"], point["tflops"]
        name, chosen = (
            f"{SHORT.get(point['operator'], point['operator'])}, {version}",
            version in NAMED[point["operator"]],
        )
        (dot,) = axis.plot(
            *at, "o", color=colour_of(version), markersize=5 if chosen else 3, alpha=1 if chosen else 0.4
        )
        say(dot, f"{name}: {rate:.3g} TFLOP/s at {point['intensity']:.3g} FLOPs per byte")
        if chosen:
            axis.annotate(name, at, (6, 0), **BESIDE, va="center")
    axis.set(xscale="log", yscale="log", xlim=(low / 1.2, high), ylim=(points["tflops"].min() / 2, limits["bf16"] * 2))
    axis.set(xlabel="FLOPs per byte of DRAM traffic", ylabel="TFLOP/s")
    axis.set_title(card, loc="left")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:g}")
    handles = [Line2D([], [], marker="o", linestyle="", color=c, label=name) for name, c in VERSION_COLOURS.items()]
    axis.legend(handles=handles, loc="lower right")
    return figure


def training_figure(training: pd.DataFrame, samples: pd.DataFrame) -> Figure:
    """The loss of the network, and images that it drew.

    Args:
        training, samples: schemas `TRAINING` and `SAMPLES` of `schemas_convnext`.
    """
    figure = new_figure(height=2.4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.4])
    left.plot(training["first"] + training["steps"] - 1, training["loss"], color=VERSION_COLOURS["by hand"])
    left.set(xlabel="step", ylabel="loss", title="training of the small network")
    side = int(samples["row"].max()) + 1
    ordered = samples.sort_values(["image", "row", "column"])
    images = ordered[["red", "green", "blue"]].to_numpy(np.uint8).reshape(-1, side, side, 3)
    across = -(-len(images) // 2)
    pitch = side + GAP
    sheet = np.full((2 * pitch - GAP, across * pitch - GAP, 3), 255, np.uint8)
    for place, image in enumerate(images):
        row, column = divmod(place, across)
        sheet[row * pitch :, column * pitch :][:side, :side] = image
    right.imshow(sheet)
    right.set_title(f"{len(images)} images that it drew from noise after training")
    right.set_axis_off()
    return figure
