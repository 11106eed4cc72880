"""The figures of chapter 18: operators, versions of a kernel, their roofline, transfers, training and samples."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from medddpm.study.bench.sentences import three
from medddpm.study.figures.style import MACHINE_COLOURS, VERSION_COLOURS, new_figure

CEILING = "#777777"
BY_LIBRARY = ("PyTorch", "cuDNN", "torch.compile")
LEAST = 1e-4  # of the sum of all operators: what is less in every column is named, not drawn
GAP = 2  # pixels between images


def colour_of(version: str) -> str:
    """The colour of a version: the libraries', Triton's, or ours."""
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
    for offset, (column, seconds) in enumerate(columns.items()):
        values = [100 * seconds[name] / totals[column] for name in shown]
        colour = MACHINE_COLOURS[offset % len(MACHINE_COLOURS)]
        axis.plot(values, range(len(shown)), "o", color=colour, markersize=6, label=column)
    axis.set_yticks(range(len(shown)), shown)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.grid(color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    names = textwrap.fill(f"below {100 * LEAST:g}% in every column: {', '.join(left_out)}", 90)
    axis.set_xlabel("% of the sum of all operators" + (f"\n{names}" if left_out else ""))
    axis.legend(loc="lower right")
    return figure


def versions_figure(tables: Mapping[str, pd.DataFrame], card: str) -> Figure:
    """A bar a version, its time in a graph, one panel a case.

    Args:
        tables: title to what `medddpm.study.convnext.tables.times` returns.
        card: on which they were measured.
    """
    figure = new_figure(height=0.9 + 0.17 * max(len(table) for table in tables.values()))
    axes = np.atleast_1d(figure.subplots(1, len(tables)))
    for axis, (title, table) in zip(axes, tables.items(), strict=True):
        shown = table["graph_us"].dropna()
        axis.barh(range(len(shown)), shown, 0.72, color=[colour_of(str(name)) for name in shown.index])
        for place, value in enumerate(shown):
            axis.annotate(three(value), (value, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axis.set_yticks(range(len(shown)), list(shown.index))
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.tick_params(axis="y", length=0)
        axis.set(title=title.replace(", ", "\n"), xlabel=f"µs on an {card}")
    handles = [Patch(color=colour, label=name) for name, colour in VERSION_COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def roofline_figure(points: pd.DataFrame, limits: Mapping[str, float]) -> Figure:
    """Versions under ncu against the machine's ceilings.

    Args:
        points: what `medddpm.study.convnext.tables.roofline` returns, of the versions that are drawn.
        limits: "copy" in GB/s; "fp32" and "bf16" in TFLOP/s.
    """
    figure = new_figure(height=3.4, width=5.6)
    axis = figure.subplots()
    low, high = points["intensity"].min() / 3, max(points["intensity"].max() * 3, 1e3)
    for name in ("fp32", "bf16"):
        ridge = 1e3 * limits[name] / limits["copy"]
        axis.plot([low, ridge, max(high, ridge)], [low * limits["copy"] / 1e3, *[limits[name]] * 2], color=CEILING)
        axis.annotate(f"{name.upper()} {limits[name]:.0f} TFLOP/s", (low, limits[name]), va="bottom", fontsize=7)
    for number, point in enumerate(points.to_dict("records"), 1):
        axis.plot(point["intensity"], point["tflops"], "o", color=colour_of(point["version"]), markersize=4)
        label = f"{number} {point['operator']}, {point['version']}"
        axis.annotate(
            str(number), (point["intensity"], point["tflops"]), (3, 2), textcoords="offset points", fontsize=7
        )
        axis.plot([], [], "o", color=colour_of(point["version"]), markersize=3, label=label)
    axis.set(xscale="log", yscale="log", xlabel="FLOPs per byte of DRAM traffic", ylabel="TFLOP/s")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
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
