"""The pictures of synthetic brains: numbers in their ranges, spectra, samplers, and errors of trainings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator

from study.brains.ranges import SPECTRUM_DB
from study.figures.quality import SAMPLER_COLOURS
from study.figures.style import SET_COLOURS, name_rows, new_figure
from study.parity.samplers import SAMPLER_NAMES
from study.parity.tables import CONTRAST_NAMES

RANGE_COLOUR = "#DDDDDD"  # of held-out heads
TRAINING_COLOURS = (SET_COLOURS[1], *SET_COLOURS[3:])  # the first is the shown model's
TISSUE_NAMES = {
    "white": "white matter",
    "grey": "grey matter",
    "csf": "outer CSF",
    "ventricles": "ventricles",
    "brain": "brain",
}
_SHOWN = ("white", "grey", "csf", "ventricles")
ANATOMY: Mapping[tuple[str, str], str] = {
    **{("volume", tissue): "volume, ml" for tissue in _SHOWN},
    ("surface", "white"): "surface, mm²/mm³",
    ("connected", "ventricles"): "in one part",
    **{("dice", tissue): "Dice" for tissue in _SHOWN},
    ("surface", "brain"): "surface, mm²/mm³",
    ("connected", "csf"): "in one part",
}
"""The numbers of the anatomy that are shown, by metric and tissue, as their panels name them beneath the tissue."""


def ranges_figure(verdicts: pd.DataFrame) -> Figure:
    """Draws a panel for each of `ANATOMY`: a dot for each sample on the range of held-out heads, a column for each set.

    A sample without the tissue has no dot, a number without rows no panel.

    Args:
        verdicts: of `study.brains.tables.called`, schema `VERDICTS`.
    """
    sets = list(verdicts["set"].cat.categories)
    palette = dict(zip(sets, SET_COLOURS, strict=False))
    figure = new_figure(height=4.3)
    judged = set(verdicts[["metric", "tissue"]].itertuples(index=False, name=None))
    numbers = [number for number in ANATOMY if number in judged]
    axes = figure.subplots(2, -(-len(numbers) // 2), squeeze=False).ravel()
    for axis, (metric, tissue) in zip(axes, numbers, strict=False):
        axis.use_sticky_edges = False  # of the bars, on which dots would be cut
        rows = verdicts[(verdicts["metric"] == metric) & (verdicts["tissue"] == tissue)]
        for place, name in enumerate(sets):
            part = rows[rows["set"] == name]
            if part.empty:
                continue  # judged by ranges without the number
            low, high = float(part["low"].iloc[0]), float(part["high"].fillna(1.0).iloc[0])  # shares have no upper end
            axis.bar(place, high - low, 0.9, low, color=RANGE_COLOUR, zorder=0)
            # Side by side in the order of the heads, so that the same picture comes each time.
            beside = part.assign(place=place + np.linspace(-0.33, 0.33, len(part)))
            sns.scatterplot(beside, x="place", y="value", color=palette[name], s=7, linewidth=0, ax=axis)
        axis.set(
            xticks=[],
            xlabel="",
            ylabel="",
            title=f"{TISSUE_NAMES[tissue]}\n{ANATOMY[metric, tissue]}",
            xlim=(-0.6, len(sets) - 0.4),
        )
        axis.yaxis.set_major_locator(MaxNLocator(4))
    handles: list[Patch | Line2D] = [
        Line2D([], [], color=colour, marker="o", markersize=3, linestyle="", label=name)
        for name, colour in palette.items()
    ]
    handles.append(Patch(color=RANGE_COLOUR, label="5th to 95th percentile of held-out heads"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def spectra_figure(verdicts: pd.DataFrame) -> Figure:
    """Draws a panel for each channel: the power of each set's samples by frequency, against the mean of held-out heads.

    A band holds nine tenths of a set's samples. Black: the difference that a set's mean may have.

    Args:
        verdicts: of `study.brains.tables.called`, schema `VERDICTS`.
    """
    rows = verdicts[verdicts["metric"] == "texture"]
    rows = rows.assign(shell=rows["tissue"].str.removeprefix("shell ").astype(int))
    sets = list(rows["set"].cat.categories)
    palette = dict(zip(sets, SET_COLOURS, strict=False))
    channels = list(dict.fromkeys(rows["channel"]))
    figure = new_figure(height=2.5)
    axes = figure.subplots(1, len(channels), sharey=True, squeeze=False)[0]
    for axis, channel in zip(axes, channels, strict=True):
        part = rows[rows["channel"] == channel]
        sns.lineplot(
            part, x="shell", y="value", hue="set", palette=palette, errorbar=("pi", 90), ax=axis, legend=False
        )  # fmt: skip
        for border in (-SPECTRUM_DB, SPECTRUM_DB):
            axis.axhline(border, color="black", linewidth=0.8)
        axis.set(
            title=CONTRAST_NAMES[channel],
            xlabel="",
            ylabel="dB above held-out heads",
            xticks=sorted(set(part["shell"])),
        )
        axis.yaxis.set_major_locator(MultipleLocator(SPECTRUM_DB))
    figure.supxlabel("frequency, eighths of Nyquist's", fontsize=axes[0].xaxis.label.get_fontsize())
    handles = [Line2D([], [], color=colour, label=name) for name, colour in palette.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def errors_figure(errors: pd.DataFrame, titles: Mapping[float, str]) -> Figure:
    """Draws a panel for each noise-to-signal ratio: the error of x_0 by step, a line for each training.

    Args:
        errors: training, step, ratio, value.
        titles: of the panels, by ratio.
    """
    trainings = list(dict.fromkeys(errors["training"]))
    palette = dict(zip(trainings, TRAINING_COLOURS, strict=False))
    figure = new_figure(height=2.4)
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, (ratio, title) in zip(axes, titles.items(), strict=True):
        part = errors[errors["ratio"] == ratio].assign(step=errors["step"] / 1000)
        sns.lineplot(part, x="step", y="value", hue="training", palette=palette, marker="o", ax=axis, legend=False)
        axis.set(title=title, xlabel="thousand steps", ylabel="", xlim=(0, None), ylim=(0, None))
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.yaxis.set_major_locator(MaxNLocator(4))
    axes[0].set_ylabel("mean squared error of x₀, × 1000")
    handles = [Line2D([], [], color=colour, marker="o", markersize=4, label=name) for name, colour in palette.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def evaluations_figure(passing: pd.DataFrame, times: pd.Series[float]) -> Figure:
    """Draws a row for each sampling: how many of its samples pass each group, with the interval, and its time.

    Args:
        passing: of `study.brains.tables.passing`, indexed by sampler, evaluations, and group.
        times: ms a volume, by sampler and evaluations: the rows, from the top down.
    """
    groups = list(dict.fromkeys(passing.index.get_level_values("group")))
    figure = new_figure(height=0.75 + 0.19 * len(times))
    axes = figure.subplots(1, len(groups) + 1, sharey=True, gridspec_kw={"wspace": 0.15})
    most = int(passing["of"].max())
    samplers = times.index.get_level_values(0)
    for axis, group in zip(axes, groups, strict=False):
        rows = passing.xs(group, level="group").reindex(times.index)
        axis.hlines(range(len(rows)), rows["of"] * rows["low"], rows["of"] * rows["high"], color="black", linewidth=0.8)
        for place, (sampler, passes) in enumerate(zip(samplers, rows["passes"], strict=True)):
            axis.plot(passes, place, "o", color=SAMPLER_COLOURS[sampler], markersize=4.5)
        axis.set(title=f"{group} passes, of {most}", xlim=(0, most + 1))
        axis.xaxis.set_major_locator(MultipleLocator(most / 4))
    axes[-1].barh(range(len(times)), times, 0.6, color=[SAMPLER_COLOURS[sampler] for sampler in samplers])
    axes[-1].set_title("ms a volume")
    name_rows(axes[0], [f"{SAMPLER_NAMES[sampler]}, {evaluations}" for sampler, evaluations in times.index])
    for axis in axes:
        axis.tick_params(axis="y", length=0)
    return figure
