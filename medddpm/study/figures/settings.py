"""Figures 8 (its ratios) and 10 to 13: one number per setting, the paper's cards beside ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from medddpm.study.figures.style import SETTING_COLOURS, new_figure

VIEWS = ("window", "step")
OURS = "FAST"  # not in the paper
CARD_MARKERS = {"V100": "v", "A100": "s", "H100": "o"}  # the paper's
VIEW_MARKERS = {"window": "o", "step": "D"}
OFFSETS = {"paper": -0.24, "window": 0.0, "step": 0.24}  # of a value in its setting's row


@dataclass(frozen=True)
class Panel:
    """One metric over cards and settings.

    Args:
        title: the metric and its unit.
        values: a row for each card and view, named by both on two lines, a column for each setting; NaN where
            nothing is known.
        low, high: the extremes of the runs, in the same shape; NaN in the paper's rows.
        of_paper: the groups that hold the paper's values; drawn hollow.
    """

    title: str
    values: pd.DataFrame
    low: pd.DataFrame
    high: pd.DataFrame
    of_paper: tuple[str, ...]


def panel(title: str, paper: pd.DataFrame, by_run: pd.DataFrame, column: str) -> Panel:
    """Puts the paper's values of one metric above ours.

    Args:
        title: the panel's.
        paper: one row per card, one column per setting, from `medddpm.study.claims.paper.paper_values`.
        by_run: from `profile.tables.each_run` over `summaries.summary` or `summaries.relative`; index gpu,
            run, view, config.
        column: which column of `by_run`.
    """
    ours = by_run[column].unstack("config")
    groups = ours.groupby(level=["gpu", "view"], sort=False)
    gpus = list(dict.fromkeys(by_run.index.get_level_values("gpu")))  # unstacked, they are in the alphabet's order
    frames = [table.reindex(_ordered(table, gpus)) for table in (groups.mean(), groups.min(), groups.max())]
    settings = [name for name in SETTING_COLOURS if name in ours.columns or name in paper.columns]
    frames = [t.set_axis([f"{gpu}\n{view}" for gpu, view in t.index]).reindex(columns=settings) for t in frames]
    theirs = paper.reindex(columns=settings).set_axis([f"{card}\npaper" for card in paper.index])
    unknown = theirs * np.nan
    values = pd.concat([theirs, frames[0]])
    low, high = pd.concat([unknown, frames[1]]), pd.concat([unknown, frames[2]])
    return Panel(title, values, low, high, tuple(theirs.index))


def settings_figure(panels: list[Panel], columns: int = 2, log: bool = False) -> Figure:
    """Dots, a row a setting and one panel per metric: hollow for the paper, filled for ours.

    A line joins the paper's value and our window's on the first card that has both; a black one the runs' extremes.
    Only the paper's settings are drawn: FAST has a chapter of its own, and would squash the rest.

    Args:
        panels: see `panel`.
        columns: panels in a row.
        log: for ratios that span decades; a line at 1 stands for BASE.
    """
    rows = -(-len(panels) // columns)
    figure = new_figure(height=0.45 + 1.6 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, shown in zip(axes, panels, strict=False):
        _dots(axis, shown, log)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    known = [shown.values.drop(columns=OURS, errors="ignore").dropna(how="all").index for shown in panels]
    labels = list(dict.fromkeys(str(label) for index in known for label in index))
    paper = {str(label) for shown in panels for label in shown.of_paper}
    handles = [
        Line2D([], [], color="black", linestyle="", label=_named(label), **_mark(label, label in paper, labels, paper))
        for label in labels
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 7), handletextpad=0.1)
    return figure


def caption(panels: list[Panel]) -> str:
    """The caption of `settings_figure`, in Markdown: which dots are whose, and which values are missing."""
    blank: dict[str, list[str]] = {}
    for shown in panels:
        for group, row in shown.values.drop(columns=OURS, errors="ignore").iterrows():
            if missing := [str(n) for n in row.index[row.isna()]]:
                blank.setdefault(f"{str(group).replace(chr(10), ' ')}", []).append(
                    f"{shown.title.partition(',')[0]} ({', '.join(missing)})"
                )
    listed = "; ".join(f"{group}: {', '.join(what)}" for group, what in blank.items())
    dots = (
        "*Paper* hollow, *measured* filled; a line joins the paper's and our window's, a black one the runs' extremes."
    )
    return f"{dots} Not there, because not stated or not measured: {listed or 'nothing'}."


def _ordered(table: pd.DataFrame, gpus: list[str]) -> pd.MultiIndex:
    """The machines in the order of `gpus`, the window of each before its step."""
    pairs = [(gpu, view) for gpu in gpus for view in VIEWS if (gpu, view) in table.index]
    return pd.MultiIndex.from_tuples(pairs, names=table.index.names)


def _named(label: str) -> str:
    card, view = label.split("\n")
    return f"paper, {card}" if view == "paper" else f"{card}, {view}"


def _mark(label: str, of_paper: bool, labels: list[str], paper: set[str]) -> dict[str, Any]:
    """How a value is drawn: the paper's cards by their shape, ours by the view; ours behind the first card pale."""
    card, view = label.split("\n")
    if of_paper:
        return {"marker": CARD_MARKERS.get(card, "^"), "markerfacecolor": "white", "markersize": 5}
    first = next(other for other in labels if other not in paper).split("\n")[0]
    own = card == first
    return {"marker": VIEW_MARKERS[view], "markersize": 5 if own else 3.5, "alpha": 1 if own else 0.45}


def _dots(axis: Axes, shown: Panel, log: bool) -> None:
    settings = [name for name in shown.values.columns if name != OURS and not (log and name == "BASE")]
    drawn = shown.values[settings].where(shown.values[settings] > 0) if log else shown.values[settings]
    labels, paper = [str(label) for label in drawn.index], {str(label) for label in shown.of_paper}
    for place, name in enumerate(settings):
        colour = SETTING_COLOURS[name]
        columns = (table[name].to_numpy(dtype=float) for table in (drawn, shown.low, shown.high))
        found = {label: value for label, *value in zip(labels, *columns, strict=True) if not np.isnan(value[0])}
        for label, (value, low, high) in found.items():
            y, mark = place + OFFSETS[label.split("\n")[1]], _mark(label, label in paper, labels, paper)
            axis.plot(value, y, color=colour, linestyle="", markeredgewidth=0.9, zorder=3, clip_on=False, **mark)
            if high > low:
                axis.plot([low, high], [y, y], color="black", linewidth=0.8, zorder=4)
        ends = [f"{card}\n{view}" for card in _both(found) for view in ("paper", "window")][:2]
        if ends:
            heights = [place + OFFSETS["paper"], place + OFFSETS["window"]]
            axis.plot([found[end][0] for end in ends], heights, color=colour, linewidth=0.8, zorder=2)
    least, most = float(np.nanmin(drawn.to_numpy())), float(np.nanmax(drawn.to_numpy()))
    if log:
        axis.set_xscale("log")
        axis.set_xlim(min(least, 1) / 1.3, max(most, 1) * 1.3)
        axis.xaxis.set_major_locator(LogLocator(subs=(1,) if most / least > 30 else (1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axvline(1, color="black", linewidth=0.5, zorder=1)
    else:
        axis.set_xlim(0, most * 1.06)
    axis.set_yticks(range(len(settings)), settings)
    axis.set_ylim(len(settings) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", linewidth=0.3)
    axis.set_title(shown.title, loc="left")


def _both(labels: Collection[str]) -> list[str]:
    """The cards of which there is a value of the paper and of our window."""
    cards = list(dict.fromkeys(label.split("\n")[0] for label in labels))
    return [card for card in cards if {f"{card}\npaper", f"{card}\nwindow"} <= set(labels)]


def priority_figure(scores: pd.DataFrame, ranks: Mapping[str, int]) -> Figure:
    """Summed priority scores by kind of kernel, one bar per setting; the paper's rank beside the kind's name.

    Args:
        scores: ms, index gpu, view, config, one column per kind, from `medddpm.study.profile.summaries.priorities`.
        ranks: the paper's, by kind.
    """
    machines = scores.groupby(level=["gpu", "view"], sort=False).size().index.tolist()
    shares = scores.div(scores.max(axis="columns"), axis="index")  # a step's scores are a hundred times a window's
    kinds = [kind for kind in scores.columns if shares[kind].max() > 0.01]
    figure = new_figure(height=0.7 + 0.5 * len(kinds) * len(machines), width=5.4)
    axes = figure.subplots(len(machines), 1, squeeze=False)[:, 0]
    for axis, key in zip(axes, machines, strict=True):
        table = scores.xs(key, level=("gpu", "view"))
        settings = [name for name in SETTING_COLOURS if name in table.index]
        for place, name in enumerate(settings):
            height = 0.84 / len(settings)
            y = [row + (place - (len(settings) - 1) / 2) * height for row in range(len(kinds))]
            bars = axis.barh(y, table.loc[name, kinds].fillna(0), height * 0.9, color=SETTING_COLOURS[name], label=name)
            axis.bar_label(bars, [f"{v:.2f}" if v > 0 else "" for v in bars.datavalues], padding=2, fontsize=5.5)
        named = [f"{kind}\n(paper: {ranks[kind]}.)" if kind in ranks else kind for kind in kinds]
        axis.set_yticks(range(len(kinds)), named)
        axis.tick_params(axis="y", length=0)
        axis.invert_yaxis()
        axis.margins(x=0.08)
        axis.set_title(", ".join(key), loc="left")
        axis.set_xlabel("duration × estimated speedup, summed, ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def spread_figure(spread: pd.DataFrame) -> Figure:
    """How far runs lie apart: one point per setting, one row per number, one panel per view.

    Args:
        spread: from `medddpm.study.profile.tables.spread`; index gpu, view, config, one column per number.
    """
    views = [view for view in VIEWS if view in spread.index.get_level_values("view")]
    figure = new_figure(height=0.6 + 0.16 * len(spread.columns))
    axes = figure.subplots(1, len(views), squeeze=False, sharey=True, sharex=True)[0]
    for axis, view in zip(axes, views, strict=True):
        table = spread.xs(view, level="view")
        for name, colour in SETTING_COLOURS.items():
            for _, row in table[table.index.get_level_values("config") == name].iterrows():
                axis.plot(100 * row, range(len(row)), "o", color=colour, markersize=3.5, label=name, clip_on=False)
        axis.set(title=view, xlabel="largest difference between runs, % of their mean")
        axis.grid(axis="y", linewidth=0.3)
    axes[0].set_yticks(range(len(spread.columns)), list(spread.columns))
    axes[0].invert_yaxis()
    axes[0].set_xlim(0, None)
    drawn = {label: h for axis in axes for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    once = {name: drawn[name] for name in SETTING_COLOURS if name in drawn}
    figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=len(once))
    return figure
