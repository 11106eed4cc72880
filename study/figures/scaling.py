"""The figures of scaling: efficiency on several GPUs, and the hours of large trainings on up to 1024."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.bench.networks import NETWORKS
from study.figures.style import SETTING_COLOURS, new_figure

MARKERS = {2: "o", 4: "s", 8: "D"}  # by GPUs


def efficiency_figure(steps: pd.DataFrame) -> Figure:
    """Draws each step on several GPUs by its efficiency against one GPU: weak scaling on the left, strong on the right.

    Args:
        steps: from `study.scaling.tables.efficiency`, at least one row; a row a step (`tables.as_trained`).
    """
    steps = steps.assign(step=[_name(row) for row in steps.to_dict("records")])
    networks = list(dict.fromkeys(steps["network"]))
    heights = [steps[steps["network"] == network]["step"].nunique() for network in networks]
    figure = new_figure(height=1.1 + 0.2 * sum(heights) + 0.3 * len(networks))
    axes = figure.subplots(len(networks), 2, squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    for row, network in zip(axes, networks, strict=True):
        of_network = steps[steps["network"] == network]
        names = list(dict.fromkeys(of_network["step"]))
        for axis, kind in zip(row, ("weak", "strong"), strict=True):
            for gpus, rows in of_network.groupby("gpus"):
                places = [names.index(name) for name in rows["step"]]
                colours = [SETTING_COLOURS[setting] for setting in rows["setting"]]
                axis.scatter(rows[kind], places, c=colours, marker=MARKERS[int(gpus)], s=20, zorder=3)
            axis.axvline(100, color="#999999", linewidth=0.8)
            axis.tick_params(axis="y", length=0)
            axis.grid(color="#EEEEEE")
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.5, -0.5)
        row[0].set_title(NETWORKS[network].title, loc="left")
    for axis, kind in zip(axes[-1], ("weak", "strong"), strict=True):
        axis.set_xlabel(f"{kind} efficiency, %")
    handles = [
        Line2D([], [], color="#4D4D4D", marker=marker, markersize=5, linestyle="", label=f"{gpus} GPUs")
        for gpus, marker in MARKERS.items()
        if gpus in set(steps["gpus"])
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def _name(row: Mapping[Hashable, object]) -> str:
    volumes, dtype = row["micro_steps"], str(row["gradient_dtype"]).upper()
    sharding = ", sharded" if row["weights"] == "sharded" else ""
    return f"{row['setting']}, {volumes} volume{'s' * (volumes != 1)}, {dtype} gradients{sharding}"


def estimates_figure(table: pd.DataFrame) -> Figure:
    """Draws the hours of each training by the number of GPUs; a cross where loading or communication sets the pace.

    Args:
        table: from `study.scaling.estimates.table`.
    """
    names = list(dict.fromkeys(table["data"]))
    figure = new_figure(height=2.7)
    axes = figure.subplots(1, len(names), squeeze=False, sharex=True, sharey=True)[0]
    for axis, name in zip(axes, names, strict=True):
        for setting, colour in SETTING_COLOURS.items():
            rows = table[(table["data"] == name) & (table["setting"] == setting)]
            if rows.empty:
                continue
            axis.plot(rows["gpus"], rows["hours"], color=colour, marker=".", markersize=4, label=setting)
            limited = rows[rows["limited_by"] != "computing"]
            axis.plot(limited["gpus"], limited["hours"], "x", color=colour, markersize=7)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(name)
        axis.set_xlabel("GPUs")
        axis.set_xticks([1, 8, 64, 512])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(color="#EEEEEE")
    axes[0].set_ylabel("hours")
    axes[-1].legend(loc="upper right")
    return figure
