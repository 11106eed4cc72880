"""Figures 8 (its ratios) and 10 to 13: one number per setting, the paper's cards beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from medddpm.study.figures.style import SETTING_COLOURS, new_figure

VIEWS = ("window", "step")
OURS = "FAST"  # not in the paper, which therefore lacks no value of it


@dataclass(frozen=True)
class Panel:
    """One metric over cards and settings.

    Args:
        title: the metric and its unit.
        values: one row per group of bars, in the order drawn; one column per setting; NaN where nothing is known.
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
    """Grouped bars, one panel per metric: hollow for the paper, filled for ours, a line between the runs' extremes.

    A dash marks a setting that has no value but could have one.

    Args:
        panels: see `panel`.
        columns: panels in a row.
        log: for ratios that span decades: bars begin at 1, which is BASE.
    """
    rows = -(-len(panels) // columns)
    figure = new_figure(height=0.45 + 1.75 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, shown in zip(axes, panels, strict=False):
        _bars(axis, shown, log)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    present = [name for name in SETTING_COLOURS if any(name in p.values for p in panels)]
    handles = [Patch(facecolor=SETTING_COLOURS[n], edgecolor=SETTING_COLOURS[n], label=n) for n in present]
    handles += [Patch(facecolor="white", edgecolor="black", label="paper"), Patch(color="black", label="measured")]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def caption(panels: list[Panel]) -> str:
    """The caption of `settings_figure`, in Markdown: which bars are whose, and which values are missing."""
    blank: dict[str, list[str]] = {}
    for shown in panels:
        for group, row in shown.values.iterrows():
            if missing := [str(n) for n in row.index[row.isna()] if n != OURS or group not in shown.of_paper]:
                blank.setdefault(f"{str(group).replace(chr(10), ' ')}", []).append(
                    f"{shown.title.partition(',')[0]} ({', '.join(missing)})"
                )
    listed = "; ".join(f"{group}: {', '.join(what)}" for group, what in blank.items())
    bars = "*Paper* outlined, *measured* filled, a line for the extremes of the runs."
    return f"{bars} Blank, because not stated or not measured: {listed or 'nothing'}."


def _ordered(table: pd.DataFrame, gpus: list[str]) -> pd.MultiIndex:
    """The machines in the order of `gpus`, the window of each before its step."""
    pairs = [(gpu, view) for gpu in gpus for view in VIEWS if (gpu, view) in table.index]
    return pd.MultiIndex.from_tuples(pairs, names=table.index.names)


def _bars(axis: Axes, shown: Panel, log: bool) -> None:
    settings = list(shown.values.columns)
    width = 0.84 / len(settings)
    drawn = shown.values.where(shown.values > 0) if log else shown.values
    ground = 1.0 if log else 0.0  # a ratio grows up or down from BASE
    for place, name in enumerate(settings):
        colour = SETTING_COLOURS[name]
        for group, label in enumerate(drawn.index):
            x = group + (place - (len(settings) - 1) / 2) * width
            value = float(drawn.loc[label, name])
            if np.isnan(value):
                if name != OURS or label not in shown.of_paper:
                    axis.text(x, ground, "–", ha="center", va="bottom", color=colour, fontsize=6)
                continue
            face = "white" if label in shown.of_paper else colour
            axis.bar(x, value - ground, width * 0.86, ground, color=face, edgecolor=colour, linewidth=0.9, zorder=2)
            low, high = float(shown.low.loc[label, name]), float(shown.high.loc[label, name])
            if high > low:
                axis.plot([x, x], [low, high], color="black", linewidth=0.8, zorder=3)
            if log and value == 1:
                continue  # equal to BASE: the line at 1 says so
            down = log and value < 1
            end = np.nanmin([value, low]) if down else np.nanmax([value, high])
            axis.annotate(
                f"{value:.2g}" if value < 10 else f"{value:.0f}", (x, end), (0, -1.5 if down else 1.5),
                textcoords="offset points", ha="center", va="top" if down else "bottom", fontsize=5, rotation=90,
            )  # fmt: skip
    least, most = float(np.nanmin(drawn.to_numpy())), float(np.nanmax(drawn.to_numpy()))
    if log:
        axis.set_yscale("log")
        room = max(1.5, (max(most, 1) / min(least, 1)) ** 0.3)  # for the numbers, which stand on end
        axis.set_ylim(min(least, 1) / room, max(most, 1) * room)
        axis.yaxis.set_major_locator(LogLocator(subs=(1,) if most / least > 30 else (1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.axhline(1, color="black", linewidth=0.5, zorder=3)
    else:
        axis.set_ylim(0, most * 1.28)
    axis.set_xticks(range(len(drawn)), list(drawn.index), fontsize=6)
    axis.set_xlim(-0.55, len(drawn) - 0.45)
    axis.tick_params(axis="x", length=0)
    axis.set_title(shown.title)


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
