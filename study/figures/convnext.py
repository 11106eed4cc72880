"""The figures of chapter 18: operators, versions of a kernel, their roofline, transfers, training and samples."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from study.bench.sentences import exact
from study.figures.style import MACHINE_COLOURS, VERSION_COLOURS, new_figure

CEILING = "#777777"
BY_LIBRARY = ("PyTorch", "cuDNN", "torch.compile")
LEAST = 1e-4  # of the sum of all operators: what is less in every column is named, not drawn
ASIDE = 0.3  # of a row: between two machines' dots
GAP = 2  # pixels between images
ONE_CLUSTER = 0.25  # decades: points no further apart than this share a column of numbers
LETTER = 0.12  # inches: the height of a number, with what keeps it off the next
A_NAME = 0.147  # inches: the height of a line of the legend
SHORT = {"layer_norm": "norm", "conv2d": "conv"}  # operators in a legend


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
    """Versions under ncu against the machine's ceilings; numbers are beside the dots, and lines lead to them.

    Args:
        points: what `study.convnext.tables.roofline` returns, of the versions that are drawn.
        limits: "copy" in GB/s; "fp32", "tf32" and "bf16" in TFLOP/s.
        card: on which they were measured.
    """
    height = max(3.8, A_NAME * len(points))
    figure = new_figure(height)
    axis, beside = figure.subplots(1, 2, width_ratios=[1.6, 1])
    low, high = points["intensity"].min() / 3, max(points["intensity"].max() * 3, 1e3)
    corners = {}
    for name in ("fp32", "tf32", "bf16"):
        ridge = 1e3 * limits[name] / limits["copy"]
        axis.plot([low, ridge, max(high, ridge)], [low * limits["copy"] / 1e3, *[limits[name]] * 2], color=CEILING)
        corners[f"{name.upper()} {limits[name]:.0f} TFLOP/s"] = (ridge, limits[name])
    corners[f"copy {limits['copy'] / 1e3:.2f} TB/s"] = (8 * low, 8 * low * limits["copy"] / 1e3)
    for said, corner in corners.items():  # left of where a ceiling begins, where no dot can be
        axis.annotate(said, corner, (-4, 0), textcoords="offset points", ha="right", va="bottom", fontsize=7)
    bottom, top = points["tflops"].min() / 2, limits["bf16"] * 2
    axis.set(xscale="log", yscale="log", xlim=(low / 1.2, max(high, ridge) * 1.2), ylim=(bottom, top))
    axis.set(xlabel="FLOPs per byte of DRAM traffic", ylabel="TFLOP/s", title=card)
    letter = LETTER * np.log10(top / bottom) / (height - 0.8)  # decades; the axis has the rest of the height
    places = number_places(points["intensity"].to_numpy(float), points["tflops"].to_numpy(float), letter)
    for number, (point, place) in enumerate(zip(points.to_dict("records"), places, strict=True), 1):
        at, colour = (point["intensity"], point["tflops"]), colour_of(point["version"])
        axis.plot(*zip(at, place, strict=True), color=CEILING, linewidth=0.5, zorder=1)
        axis.plot(*at, "o", color=colour, markersize=4)
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # where a ceiling is behind the number
        axis.annotate(str(number), place, (2, 0), textcoords="offset points", va="center", fontsize=7, bbox=clear)
        label = f"{number} {SHORT.get(point['operator'], point['operator'])}, {point['version']}"
        beside.plot([], [], "o", color=colour, markersize=3, label=label)
    beside.set_axis_off()
    beside.legend(loc="center left", fontsize=7, labelspacing=0.35, handletextpad=0.2, borderaxespad=0)
    return figure


def number_places(x: np.ndarray, y: np.ndarray, letter: float) -> list[tuple[float, float]]:
    """Returns places for the numbers of points on two logarithmic axes: right of the points, none on another.

    Args:
        x, y: the points.
        letter: the least distance of two numbers, in decades of y.
    """
    across, places = np.argsort(x), np.log10(y)
    right = np.empty(len(x))
    splits = np.flatnonzero(np.diff(np.log10(x[across])) > ONE_CLUSTER) + 1
    for cluster in np.split(across, splits):
        upward = cluster[np.argsort(places[cluster])]
        right[cluster] = 1.3 * x[cluster].max()
        for _ in range(500):
            lacks = np.clip(letter - np.diff(places[upward]), 0, None)
            if lacks.max(initial=0) < letter / 100:
                break
            places[upward[:-1]] -= lacks / 2
            places[upward[1:]] += lacks / 2
    return list(zip(right.tolist(), (10**places).tolist(), strict=True))


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
