"""The pictures of synthetic brains: numbers in their ranges, spectra, recipes, evaluations, and what samples train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from study.brains.arms import REFERENCE
from study.brains.ranges import SPECTRUM_DB
from study.figures.quality import SAMPLER_COLOURS
from study.figures.style import SET_COLOURS, name_rows, new_figure
from study.parity.samplers import SAMPLER_NAMES
from study.parity.tables import CONTRAST_NAMES

RANGE_COLOUR = "#DDDDDD"  # of held-out heads
TISSUE_NAMES = {
    "white": "white matter",
    "grey": "grey matter",
    "csf": "outer CSF",
    "ventricles": "ventricles",
    "oedema": "oedema",
    "tumour": "tumour",
    "brain": "brain",
}
_SHOWN = ("white", "grey", "csf", "ventricles")
ANATOMY: Mapping[tuple[str, str], str] = {
    **{("volume", tissue): "ml" for tissue in _SHOWN},
    ("surface", "white"): "surface, mm²/mm³",
    ("connected", "ventricles"): "share in one part",
    **{("dice", tissue): "Dice" for tissue in _SHOWN},
    ("surface", "brain"): "surface, mm²/mm³",
    ("connected", "csf"): "share in one part",
}
"""The units of the numbers of the anatomy that are shown, by metric and tissue."""


def ranges_figure(verdicts: pd.DataFrame) -> Figure:
    """Draws a panel for each of `ANATOMY`: a dot for each sample on the range of held-out heads, a column for each set.

    A sample without the tissue has no dot, a number without rows no panel.

    Args:
        verdicts: of `study.brains.tables.called`, schema `VERDICTS`.
    """
    sets = list(verdicts["set"].cat.categories)
    palette = dict(zip(sets, SET_COLOURS, strict=False))
    figure = new_figure(height=4.1)
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
            ylabel=ANATOMY[metric, tissue],
            title=TISSUE_NAMES[tissue],
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
    figure.supxlabel("frequency, eighths of Nyquist's", fontsize=axes[0].xaxis.label.get_fontsize())
    handles = [Line2D([], [], color=colour, label=name) for name, colour in palette.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def recipe_figure(errors: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draws a row for each arm, a panel for each measure: a dot for each seed, and a line between them.

    A line through a panel is the mean of the plain arm.

    Args:
        errors: arm, seed, and a column for each measure; arms from the top down.
        titles: of the measures, by column.
    """
    arms = list(dict.fromkeys(errors["arm"]))
    plain = errors[errors["arm"] == REFERENCE]
    figure = new_figure(height=0.8 + 0.155 * len(arms))
    axes = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for axis, (measure, title) in zip(axes, titles.items(), strict=True):
        spread = errors.groupby("arm", sort=False)[measure].agg(["min", "max"])
        axis.hlines(range(len(arms)), spread["min"], spread["max"], color="black", linewidth=0.8)
        places = errors["arm"].map(arms.index)
        sns.scatterplot(x=errors[measure], y=places, color=SET_COLOURS[1], s=14, linewidth=0, ax=axis, zorder=3)
        axis.axvline(plain[measure].mean(), color="black", linewidth=0.6)
        axis.set(xlabel="", ylabel="", title=title, axisbelow=True)
        axis.grid(axis="y", linewidth=0.3)
    name_rows(axes[0], arms)
    return figure


def evaluations_figure(passing: pd.DataFrame) -> Figure:
    """Draws how many samples pass, and the seconds of a volume, against the evaluations of the network.

    Args:
        passing: sampler, evaluations, group (one or two), passes, of (so many samples), seconds (a volume).
    """
    figure = new_figure(height=2.5)
    left, right = figure.subplots(1, 2)
    present = [name for name in SAMPLER_COLOURS if name in set(passing["sampler"])]
    colours = {"hue": "sampler", "hue_order": present, "palette": {name: SAMPLER_COLOURS[name] for name in present}}
    sns.lineplot(passing, x="evaluations", y="passes", style="group", markers=True, ax=left, legend=False, **colours)
    groups = list(dict.fromkeys(passing["group"]))
    once = passing.drop_duplicates(["sampler", "evaluations"])
    sns.lineplot(once, x="evaluations", y="seconds", marker="o", ax=right, legend=False, **colours)
    most = int(passing["of"].max())
    left.set(ylabel=f"samples that pass, of {most}", ylim=(-0.5, most + 0.5))
    right.set(ylabel="seconds a volume", ylim=(0, None))
    for axis in (left, right):
        axis.set(xlabel="evaluations of the network", xlim=(0, None))
        axis.yaxis.set_major_locator(MaxNLocator(5))
    handles = [Line2D([], [], color=SAMPLER_COLOURS[name], label=SAMPLER_NAMES[name]) for name in present]
    for place, group in enumerate(groups):  # as seaborn's first and second style
        dashes: Literal["-", "--"] = "--" if place else "-"
        handles.append(Line2D([], [], color="black", marker="oX"[place], linestyle=dashes, markersize=4, label=group))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def use_figure(use: pd.DataFrame) -> Figure:
    """Draws the Dice of segmenters on held-out heads by what they were trained on, a dot and an interval for each seed.

    Args:
        use: schema `USE`, of one set of samples.
    """
    tissues = [name for name in TISSUE_NAMES if name in set(use["tissue"])]
    kinds = dict(zip(("heads", "both", "samples"), SET_COLOURS, strict=False))
    seeds = sorted(set(use["seed"]))
    figure = new_figure(height=0.9 + 0.3 * len(tissues), width=5.6)
    axis = figure.subplots()
    lines = [(kind, seed) for kind in kinds for seed in seeds]
    for row in use.to_dict("records"):
        step = lines.index((row["trained_on"], row["seed"])) - (len(lines) - 1) / 2
        place = tissues.index(row["tissue"]) + 0.7 * step / len(lines)
        axis.plot([row["low"], row["high"]], [place, place], color=kinds[row["trained_on"]], linewidth=1)
        axis.plot(row["value"], place, "o", color=kinds[row["trained_on"]], markersize=3)
    name_rows(axis, [TISSUE_NAMES[name] for name in tissues])
    axis.set_xlabel("Dice on held-out heads, 95% interval")
    handles = [Line2D([], [], color=colour, marker="o", markersize=3, label=name) for name, colour in kinds.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure
