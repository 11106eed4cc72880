"""The throughput's figure: volumes a second of each lever, beside what was expected of it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.figures.style import SETTING_COLOURS, name_rows, new_figure
from study.throughput.levers import LEVERS

SETTINGS = {(lever.group, lever.choice): lever.setting for lever in LEVERS}
PARTS = {
    "128³: FAST, one change to it, or PyTorch's kernels": ("reference", "batch", "precision", "graph", "optimizer"),
    "128³: activations computed again": ("recompute",),
    "128³: where volumes come from": ("loading",),
    "BraTS: activations computed again": ("recompute BraTS",),
}
CLEAR = 0.1  # of the axis: a mark so near the bar's end leaves no room for the number


def levers_figure(table: pd.DataFrame, card: str) -> Figure:
    """A bar a lever, with a mark where the reference's row puts it; an axis for each part of `PARTS` that has rows.

    Args:
        table: schema `THROUGHPUT`, of one machine.
        card: that machine's.
    """
    parts = [(title, table[table["group"].isin(groups)]) for title, groups in PARTS.items()]
    parts = [(title, rows) for title, rows in parts if len(rows)]
    figure = new_figure(height=0.9 + 0.24 * len(table) + 0.25 * len(parts))
    heights = [len(rows) for _, rows in parts]
    axes = figure.subplots(len(parts), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    limit = 1.3 * float(table[["volumes_a_second", "predicted"]].max().max())
    for axis, (title, rows) in zip(axes, parts, strict=True):
        places = range(len(rows))
        levers = list(zip(rows["group"].astype(str), rows["choice"].astype(str), strict=True))
        colours = [SETTING_COLOURS["FAST" if SETTINGS[lever] == "FAST" else "BASE"] for lever in levers]
        axis.barh(places, rows["volumes_a_second"], color=colours, height=0.62)
        axis.plot(rows["predicted"], places, "|", color="black", markersize=9, markeredgewidth=1.5)
        for place, (rate, mark) in enumerate(zip(rows["volumes_a_second"], rows["predicted"], strict=True)):
            edge = mark if rate < mark < rate + CLEAR * limit else rate
            others = _other_references(table, rate) if levers[place][0] == "reference" else ""
            axis.annotate(f"  {rate:.3g}{others}", (edge, place), va="center", fontsize=7)
        name_rows(axis, [_name(*lever) for lever in levers])
        axis.set_xlim(0, limit)
        axis.set_title(f"{card}, {title}", loc="left")
    axes[-1].set_xlabel("volumes per second; black mark: predicted from FAST in the same run")
    return figure


def _name(group: str, choice: str) -> str:
    if group == "reference":
        return "FAST, the reference"
    if group == "batch":
        return f"batch of {choice}"
    return f"recompute {choice}" if group.startswith("recompute") else choice


def _other_references(table: pd.DataFrame, rate: float) -> str:
    """Says how fast the reference was in runs whose own reference the table no longer has."""
    rows = table[~table["group"].str.contains("BraTS")]
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
