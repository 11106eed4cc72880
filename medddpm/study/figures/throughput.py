"""The throughput's figure: volumes a second of each lever, beside what was expected of it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from medddpm.study.figures.style import SETTING_COLOURS, new_figure

EXPECTED_COLOUR = "#4D4D4D"


def levers_figure(table: pd.DataFrame) -> Figure:
    """A bar a lever, by group, with a mark where the reference's row puts it.

    Args:
        table: schema `THROUGHPUT`, of one machine.
    """
    groups = list(dict.fromkeys(table["group"]))
    heights = [int((table["group"] == group).sum()) for group in groups]
    figure = new_figure(height=0.6 + 0.22 * (sum(heights) + len(groups)))
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[count + 0.4 for count in heights])[:, 0]
    for axis, group in zip(axes, groups, strict=True):
        rows = table[table["group"] == group]
        places = range(len(rows))
        axis.barh(places, rows["volumes_a_second"], color=SETTING_COLOURS["FAST"], height=0.6)
        axis.plot(rows["predicted"], places, "|", color=EXPECTED_COLOUR, markersize=10, markeredgewidth=1.5)
        for place, rate in zip(places, rows["volumes_a_second"], strict=True):
            axis.annotate(f" {rate:.3g}", (rate, place), va="center", fontsize=7)
        axis.set_yticks(places, rows["choice"])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_title(group, loc="left")
        axis.tick_params(axis="y", length=0)
        axis.margins(x=0.12)
    figure.supxlabel("volumes a second; mark: expected", fontsize=8)
    return figure


def recompute_figure(shares: pd.DataFrame) -> Figure:
    """The time of a step that computes activations again, divided by that of one that keeps them, as expected.

    Args:
        shares: index what is computed again, a column a network: the share of a forward pass's work.
    """
    figure = new_figure(height=1.9)
    axis = figure.subplots()
    width = 0.8 / len(shares.columns)
    for place, (name, colour) in enumerate(zip(shares.columns, ("OPT1", "OPT2"), strict=True)):
        left = [spot + (place - (len(shares.columns) - 1) / 2) * width for spot in range(len(shares))]
        times = (3 + shares[name]) / 3
        axis.bar(left, times, width=width, color=SETTING_COLOURS[colour], label=name)
        for spot, value in zip(left, times, strict=True):
            axis.annotate(f"{value:.2f}", (spot, value), ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(shares)), list(shares.index))
    axis.set_ylim(0, 1.6)
    axis.set_xlabel("computed again")
    axis.set_ylabel("step, times")
    axis.legend(loc="upper left", ncols=2)
    return figure
