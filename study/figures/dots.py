"""Figures 4 and 6 to 13 as dots: the paper's values hollow, ours filled, on one axis a metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from medddpm.measure.tables import GPU_ORDER
from study.claims.paper import Stated
from study.figures.style import SETTING_COLOURS, new_figure, say

VIEWS = ("window", "step")
BEYOND = "FAST"  # not in the paper: chapter 16 has it, and here it would squash the rest
CARD_MARKERS = {"V100": "v", "A100": "s", "H100": "o"}  # the paper's
VIEW_MARKERS = [{"window": "o", "step": "D"}] * 2  # of our first two cards
VIEW_MARKERS += [{"window": "^", "step": "X"}, {"window": "<", "step": "P"}]  # of the third, and of all others
SIZES = ((5.0, 1.0), (3.5, 0.45), (4.0, 0.8))  # and how opaque: the first card's, the second's, the others'
OFFSETS = {"paper": -0.24, "window": 0.0, "step": 0.24}  # of a value in its row
ARROW = 14  # points: how far the arrow of a bound reaches
INK = "#333333"  # of rows that are no settings


@dataclass(frozen=True)
class Panel:
    """One metric, a row for each setting, kernel or class of instruction.

    Args:
        title: the metric and its unit.
        values: ours, the mean of the runs: a line for each card and view, named by both on two lines, a column for each
            row; NaN in the paper's lines and where nothing is known.
        low, high: the extremes of the runs and, in the paper's lines, what it states: see `Stated`; in the same shape.
        of_paper: the lines that hold the paper's values.
        colours: of each row.
        beneath: words that follow a mark's value in the SVG, by line and row.
    """

    title: str
    values: pd.DataFrame
    low: pd.DataFrame
    high: pd.DataFrame
    of_paper: tuple[str, ...]
    colours: Mapping[str, str]
    beneath: Mapping[tuple[str, str], str]


def panel(
    title: str,
    paper: Stated,
    by_run: pd.DataFrame,
    names: Mapping[str, str] | None = None,
    beneath: Mapping[tuple[str, str, str], str] | None = None,
) -> Panel:
    """Returns a panel with the paper's values of one metric above ours.

    Args:
        title: the panel's.
        paper: from `study.claims.paper`; its columns are rows of the panel.
        by_run: from `profile.tables.each_run`, unstacked so that its columns are the rows; index gpu, run, view.
        names: the columns to draw, in order, and what to call them; by default the paper's settings.
        beneath: words that follow a mark's value in the SVG, by card, view and column.
    """
    chosen = {name: name for name in SETTING_COLOURS if name != BEYOND} if names is None else names
    columns = [name for name in chosen if name in by_run.columns or name in paper.low.columns]
    groups = by_run.groupby(level=["gpu", "view"], sort=False)
    known = {gpu: place for place, gpu in enumerate(GPU_ORDER)}  # unstacked, they are in the alphabet's order
    gpus = sorted(by_run.index.unique("gpu"), key=lambda gpu: (known.get(gpu, len(known)), gpu))
    frames = [table.reindex(_ordered(table, gpus)) for table in (groups.mean(), groups.min(), groups.max())]
    frames = [t.set_axis([f"{gpu}\n{view}" for gpu, view in t.index]).reindex(columns=columns) for t in frames]
    bounds = [
        bound.reindex(columns=columns).set_axis([f"{card}\npaper" for card in bound.index])
        for bound in (paper.low, paper.high)
    ]
    theirs = (bounds[0] * np.nan, *bounds)
    values, low, high = (pd.concat(pair).rename(columns=dict(chosen)) for pair in zip(theirs, frames, strict=True))
    colours = {chosen[name]: SETTING_COLOURS.get(name, INK) for name in columns}
    said = {(f"{gpu}\n{view}", chosen[c]): words for (gpu, view, c), words in (beneath or {}).items() if c in chosen}
    return Panel(title, values, low, high, tuple(bounds[0].index), colours, said)


def dots_figure(panels: list[Panel], columns: int = 2, log: bool = False) -> Figure:
    """Draws one panel a metric, a row a setting: a hollow mark for the paper, a filled one for ours.

    A range that the paper states is drawn from end to end, a bound ("more than 55%") with an arrow. A line joins the
    paper's value and our window's on the first card that has both; a black one the runs' extremes. Panels of the same
    rows share their names.

    Args:
        panels: see `panel`.
        columns: panels in a row.
        log: for ratios that span decades; a line at 1 stands for BASE.
    """
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    most = max(len(_rows(shown, log)) for shown in panels)
    figure = new_figure(height=0.45 + lines * (0.5 + 0.27 * most))
    axes = figure.subplots(lines, columns, squeeze=False, gridspec_kw={"wspace": 0.08}).ravel()
    for place, (axis, shown) in enumerate(zip(axes, panels, strict=False)):
        _dots(axis, shown, log)
        if place % columns and _rows(shown, log) == _rows(panels[place - place % columns], log):
            axis.set_yticklabels([])
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    known = {str(label) for shown in panels for label in shown.low.dropna(how="all").index}
    labels = [
        label for label in dict.fromkeys(str(name) for shown in panels for name in shown.low.index) if label in known
    ]
    paper = {str(label) for shown in panels for label in shown.of_paper}
    handles = [
        Line2D([], [], color="black", linestyle="", label=_named(label), **_mark(label, label in paper, labels, paper))
        for label in labels
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 7), handletextpad=0.1)
    return figure


def caption(panels: list[Panel]) -> str:
    """Returns the caption of `dots_figure`, in Markdown: the owners of the dots, and the missing values."""
    blank: dict[str, list[str]] = {}
    whole: dict[str, int] = {}
    for shown in panels:
        for group, row in shown.low.iterrows():
            name = _named(str(group)).replace("paper, ", "the paper's ")
            missing = [str(n) for n in row.index[row.isna()]]
            whole[name] = whole.get(name, 0) + (len(missing) == len(row))
            if missing:
                which = "" if len(missing) == len(row) else f" ({', '.join(missing)})"
                blank.setdefault(name, []).append(shown.title.partition(",")[0] + which)
    listed = [
        name if whole[name] == len(panels) else f"{name}: {', '.join(missing_of)}"
        for name, missing_of in blank.items()
    ]  # fmt: skip
    labels = (str(label).split("\n") for shown in panels for label in shown.low.index)
    ours = list(dict.fromkeys(card for card, view in labels if view != "paper"))
    pale = ""
    if len(ours) > 1:
        pale = f"Small pale dots are the {ours[1]}'s; those that cannot be seen lie behind the {ours[0]}'s. "
    lacking = f"Missing, because not stated or not measured: {'; '.join(listed)}." if listed else ""
    return (
        "*Paper* hollow, *measured* filled. A line joins the paper's value and our window's on one card; a black "
        f"line joins the lowest and the highest run. {pale}{lacking}"
    ).rstrip()


def _ordered(table: pd.DataFrame, gpus: list[str]) -> pd.MultiIndex:
    """Returns the machines in the order of `gpus`, the window of each before its step."""
    pairs = [(gpu, view) for gpu in gpus for view in VIEWS if (gpu, view) in table.index]
    return pd.MultiIndex.from_tuples(pairs, names=table.index.names)


def _named(label: str) -> str:
    card, view = label.split("\n")
    return f"paper, {card}" if view == "paper" else f"{card}, {view}"


def _mark(label: str, of_paper: bool, labels: list[str], paper: set[str]) -> dict[str, Any]:
    """Returns a value's marker: the paper's by card, ours by view; the second card's small and pale."""
    card, view = label.split("\n")
    if of_paper:
        return {"marker": CARD_MARKERS.get(card, "^"), "markerfacecolor": "none", "markersize": 5}
    ours = list(dict.fromkeys(other.split("\n")[0] for other in labels if other not in paper))
    place = ours.index(card)
    size, alpha = SIZES[min(place, 2)]
    mark = {"marker": VIEW_MARKERS[min(place, 3)][view], "markersize": size, "alpha": alpha}
    return mark | ({"zorder": 3.5} if place > 1 else {})  # draw the reader's own GPU on top


def _rows(shown: Panel, log: bool) -> list[str]:
    """Returns the rows to draw: on an axis of ratios BASE is the line at 1."""
    return [name for name in shown.low.columns if not (log and name == "BASE")]


def _dots(axis: Axes, shown: Panel, log: bool) -> None:
    rows = _rows(shown, log)
    tables = [
        table[rows].where(table[rows] > 0) if log else table[rows] for table in (shown.values, shown.low, shown.high)
    ]
    labels, paper = [str(label) for label in tables[1].index], {str(label) for label in shown.of_paper}
    for place, name in enumerate(rows):
        colour = shown.colours[name]
        columns = (table[name].to_numpy(dtype=float) for table in tables)
        known = {label: value for label, *value in zip(labels, *columns, strict=True) if not np.isnan(value[1])}
        for label, (value, low, high) in known.items():
            y, mark = place + OFFSETS[label.split("\n")[1]], _mark(label, label in paper, labels, paper)
            style = {"color": colour, "markeredgewidth": 0.9, "zorder": 3, "clip_on": False, **mark}
            metric, _, unit = shown.title.rpartition(", ")
            words = f"{_named(label) if label in paper else label.replace(chr(10), ' ')}: {name}, {metric}"
            unit = "%" if unit == "%" else f" ({unit})"
            if label in paper:
                say(_stated(axis, low, high, y, style), f"{words} {_in_words(low, high)}{unit}")
                continue
            (dot,) = axis.plot(value, y, linestyle="", **style)
            more = shown.beneath.get((label, name))
            say(dot, f"{words} {value:.3g}{unit}{': ' if more else ''}{more or ''}")
            if high > low:
                axis.plot([low, high], [y, y], color="black", linewidth=0.8, zorder=4)
        ends = [f"{card}\n{view}" for card in _both(known) for view in ("paper", "window")][:2]
        if ends:
            heights = [place + OFFSETS["paper"], place + OFFSETS["window"]]
            (_, low, high), (ours, _, _) = (known[end] for end in ends)
            nearest = low if np.isinf(high) else high if np.isinf(low) else min(max(ours, low), high)
            axis.plot([nearest, ours], heights, color=colour, linewidth=0.8, zorder=2)
    values = np.concatenate([table.to_numpy(dtype=float).ravel() for table in tables])
    least, most = (
        np.min(values, where=np.isfinite(values), initial=np.inf),
        np.max(values, where=np.isfinite(values), initial=0),
    )
    if log:
        axis.set_xscale("log")
        axis.set_xlim(min(least, 1) / 1.3, max(most, 1) * 1.3)
        axis.xaxis.set_major_locator(LogLocator(subs=(1,) if most / least > 30 else (1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axvline(1, color="black", linewidth=0.5, zorder=1)
    else:
        axis.set_xlim(0, most * 1.06)
        axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0, pad=5)
    axis.grid(axis="x", linewidth=0.3)
    axis.set_title(shown.title, loc="left")


def _in_words(low: float, high: float) -> str:
    """Returns a number, a range, or a bound in words."""
    if np.isfinite(low) and np.isfinite(high):
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"more than {low:g}" if np.isfinite(low) else f"up to {high:g}"


def _stated(axis: Axes, low: float, high: float, y: float, style: Mapping[str, Any]) -> Line2D:
    """Draws a number as a mark, a range as a line with a mark at either end, a bound as a mark with an arrow."""
    if np.isfinite(low) and np.isfinite(high):
        (mark,) = axis.plot([low, high] if high > low else [low], [y, y] if high > low else [y], linewidth=2.0, **style)
        return mark
    at, reach = (low, ARROW) if np.isfinite(low) else (high, -ARROW)
    arrow = {
        "arrowstyle": "<|-",
        "color": style["color"],
        "linewidth": 1.0,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 7,
    }
    axis.annotate("", (at, y), (reach, 0), textcoords="offset points", arrowprops=arrow, annotation_clip=False)
    (mark,) = axis.plot([at], [y], linestyle="", **style)
    return mark


def _both(labels: Collection[str]) -> list[str]:
    """Returns the cards that have a value of the paper and one of our window."""
    cards = list(dict.fromkeys(label.split("\n")[0] for label in labels))
    return [card for card in cards if {f"{card}\npaper", f"{card}\nwindow"} <= set(labels)]
