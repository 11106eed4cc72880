"""The throughput's figure: volumes a second of each lever, beside what was expected of it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from medddpm.study.figures.style import SETTING_COLOURS, new_figure
from medddpm.study.throughput.levers import LEVERS

SETTINGS = {(lever.group, lever.choice): lever.setting for lever in LEVERS}
CLEAR = 1.12  # times the bar: from there on a mark leaves room for the number


def levers_figure(table: pd.DataFrame, card: str) -> Figure:
    """A bar a lever, with a mark where the reference's row puts it: one axis for 128³, one for BraTS's volumes.

    Args:
        table: schema `THROUGHPUT`, of one machine.
        card: that machine's.
    """
    brats = table["group"].str.contains("BraTS")
    parts = [(title, rows) for title, rows in (("128³", table[~brats]), ("BraTS", table[brats])) if len(rows)]
    figure = new_figure(height=0.9 + 0.24 * len(table))
    heights = [len(rows) for _, rows in parts]
    axes = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, rows) in zip(axes, parts, strict=True):
        places = range(len(rows))
        levers = list(zip(rows["group"].astype(str), rows["choice"].astype(str), strict=True))
        colours = [SETTING_COLOURS[SETTINGS[lever]] for lever in levers]
        axis.barh(places, rows["volumes_a_second"], color=colours, height=0.62)
        axis.plot(rows["predicted"], places, "|", color="black", markersize=9, markeredgewidth=1.5)
        for place, (rate, mark) in enumerate(zip(rows["volumes_a_second"], rows["predicted"], strict=True)):
            edge = mark if rate < mark < CLEAR * rate else rate
            others = _other_references(rows, rate) if levers[place][0] == "reference" else ""
            axis.annotate(f"  {rate:.3g}{others}", (edge, place), va="center", fontsize=7)
        names = [f"{group.removesuffix(' BraTS')}: {choice}" for group, choice in levers]
        names = ["FAST, the reference" if name.startswith("reference") else name for name in names]
        axis.set_yticks(places, names)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_title(f"{card}, {title}", loc="left")
        axis.tick_params(axis="y", length=0)
        axis.margins(x=0.3)
    axes[-1].set_xlabel("volumes per second; black mark: predicted from FAST in the same run")
    return figure


def _other_references(rows: pd.DataFrame, rate: float) -> str:
    """Says how fast the reference was in runs whose own reference the table no longer has."""
    rates = (rows["volumes_a_second"] / rows["of_reference"]).dropna().map("{:.3g}".format)
    others = sorted(set(rates) - {f"{rate:.3g}"})
    return f"; {', '.join(others)} in another run" if others else ""


def recompute_figure(shares: pd.DataFrame) -> Figure:
    """The time of a step that computes activations again, divided by that of one that keeps them, as expected.

    Args:
        shares: index what is computed again, a column a network: the share of a forward pass's work.
    """
    figure = new_figure(height=1.9)
    axis = figure.subplots()
    width = 0.8 / len(shares.columns)
    for place, (name, colour) in enumerate(zip(shares.columns, ("#4D4D4D", "#BBBBBB"), strict=True)):
        left = [spot + (place - (len(shares.columns) - 1) / 2) * width for spot in range(len(shares))]
        times = (3 + shares[name]) / 3
        axis.bar(left, times, width=width, color=colour, label=name)
        for spot, value in zip(left, times, strict=True):
            axis.annotate(f"{value:.2f}", (spot, value), ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(shares)), list(shares.index))
    axis.set_ylim(0, 1.6)
    axis.set_xlabel("--recompute: what is computed again instead of kept")
    axis.set_ylabel("time of a step, none = 1")
    axis.legend(loc="upper left", ncols=2)
    return figure
