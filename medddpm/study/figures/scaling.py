"""The figures of scaling: efficiency on several GPUs, and the hours of large trainings on up to 1024."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from medddpm.study.bench.networks import NETWORKS
from medddpm.study.figures.style import SETTING_COLOURS, new_figure


def efficiency_figure(steps: pd.DataFrame) -> Figure:
    """Each step on several GPUs by its efficiency against one GPU; weak scaling filled, strong scaling hollow.

    Args:
        steps: from `medddpm.study.scaling.tables.efficiency`, at least one row.
    """
    networks = list(dict.fromkeys(steps["network"]))
    heights = [int((steps["network"] == network).sum()) for network in networks]
    figure = new_figure(height=1.1 + 0.2 * sum(heights) + 0.3 * len(networks))
    axes = figure.subplots(len(networks), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axis, network in zip(axes, networks, strict=True):
        rows = steps[steps["network"] == network]
        colours = [SETTING_COLOURS[setting] for setting in rows["setting"]]
        places = range(len(rows))
        axis.scatter(rows["weak"], places, c=colours, s=22, zorder=3)
        axis.scatter(rows["strong"], places, facecolors="none", edgecolors=colours, s=40, zorder=3)
        axis.set_yticks(places, [_name(row) for row in rows.to_dict("records")])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.axvline(100, color="#999999", linewidth=0.8)
        axis.set_title(NETWORKS[network].title, loc="left")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color="#EEEEEE")
    axes[-1].set_xlabel("efficiency against one GPU, %")
    handles = [Line2D([], [], color="#4D4D4D", marker="o", linestyle="", fillstyle=how) for how in ("full", "none")]
    figure.legend(handles, ["weak", "strong"], loc="outside upper right", ncols=2)
    return figure


def _name(row: dict[str, object]) -> str:
    volumes = row["micro_steps"]
    kept = ", sharded weights" if row["weights"] == "sharded" else ""
    several = "s" if volumes != 1 else ""
    return f"{row['setting']}, {row['gpus']} GPUs, {volumes} volume{several} each, {row['gradient_dtype']}{kept}"


def estimates_figure(table: pd.DataFrame) -> Figure:
    """Hours of each training by the number of GPUs; a cross where loading or communication sets the pace.

    Args:
        table: from `medddpm.study.scaling.estimates.table`.
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
            held = rows[rows["limited_by"] != "computing"]
            axis.plot(held["gpus"], held["hours"], "x", color=colour, markersize=7)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(name)
        axis.set_xlabel("GPUs")
        axis.set_xticks([1, 8, 64, 512])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
        axis.grid(color="#EEEEEE")
    axes[0].set_ylabel("hours")
    axes[-1].legend(loc="upper right")
    return figure
