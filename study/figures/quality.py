"""The pictures of quality: loss and sample parity, samplers, and samples during a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from study.figures.slices import Plane, outline, slice_rows
from study.figures.style import SETTING_COLOURS, new_figure
from study.parity.evaluate import PLANES
from study.parity.plans import SamplerSteps
from study.parity.samplers import SAMPLER_NAMES, SECONDS
from study.parity.tables import (
    CONTRAST_NAMES,
    TITLES,
    Metric,
    better,
    sampled_runs,
)
from study.parity.training import Slices

# Okabe & Ito's, without those of the settings.
SAMPLER_COLOURS = {"ddpm": "#4D4D4D", "ddim": "#56B4E9", "dpm++": "#CC79A7", "sde-dpm++": "#009E73"}
GREY = (0, 255)
UNITS = {"psnr": " dB"}  # the other metrics have none, or the loss's
ARROWS = {"higher": " ↑", "lower": " ↓"}  # how a metric is better


def parity_slices(slices: Slices, quality: pd.DataFrame, settings: Sequence[str], seeds: Sequence[int]) -> Figure:
    """Shows samples of models of several settings and seeds from equal masks and noise; a row for each subject.

    Args:
        slices: of `parity.results.QualityRecord`.
        quality: schema `QUALITY`, of one plan.
        settings: the ones to show.
        seeds: of trainings, the ones to show.
    """
    runs = sampled_runs(quality)
    chosen = [
        run
        for seed in seeds
        for name in settings
        for _, run in runs[(runs["setting"] == name) & (runs["seed"] == seed)].iterrows()
    ]
    first = chosen[0]
    rows, outlines = {}, []
    subjects = [n for n in range(3) if f"truth/{first['subjects']}/-/{first['contrast']}/{n}/{PLANES[0]}" in slices]
    for subject in subjects:
        at = f"{first['contrast']}/{subject}/{PLANES[0]}"
        samples = [slices[f"sample/{run['run']}/{run['what']}/{at}"] for run in chosen]
        rows[f"subject {subject + 1}"] = [slices[f"truth/{first['subjects']}/-/{at}"], *samples]
        lesion = _lesion(slices, first, subject)
        outlines += [lesion] * (1 + len(chosen))
    titles = ["held out", *(f"{run['setting']}\nseed {run['seed']}" for run in chosen)]
    figure = slice_rows(rows, titles, GREY)  # type: ignore[arg-type]
    for axis, lesion in zip(figure.axes, outlines, strict=True):
        outline(axis, lesion)
    return figure


def along_the_way(slices: Slices, run: str) -> Figure:
    """Shows samples of the averaged model for one held-out mask during training; at most eight steps, a column each."""
    names = [name.split("/") for name in slices if name.startswith(f"watch/{run}/")]
    steps = sorted({int(parts[2]) for parts in names})
    shown = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, min(8, len(steps)))]
    channel = names[0][3]
    rows = {
        plane: [slices[f"watch/{run}/{step}/{channel}/0/{plane}"] for step in shown]
        for plane in PLANES
        if f"watch/{run}/{shown[0]}/{channel}/0/{plane}" in slices
    }
    return slice_rows(rows, [f"{step:,} steps" for step in shown], GREY)  # type: ignore[arg-type]


def brats_slices(slices: Slices, quality: pd.DataFrame) -> Figure:
    """Shows the case, a sample for its mask, and one for the mirrored mask; a column for each modality.

    Args:
        slices: of `parity.results.QualityRecord`.
        quality: schema `QUALITY`, of the plan brats.
    """
    run = sampled_runs(quality).iloc[-1]
    channels = ("t1", "t1ce", "t2", "flair")
    at, sample = f"0/{PLANES[0]}", f"{run['run']}/{run['what']}"
    rows = {
        "the case": [slices[f"truth/{run['subjects']}/-/{name}/{at}"] for name in channels],
        "sample": [slices[f"sample/{sample}/{name}/{at}"] for name in channels],
        "sample, mask\nmirrored": [slices[f"mirrored-sample/{sample}/{name}/{at}"] for name in channels],
    }
    figure = slice_rows(rows, [CONTRAST_NAMES[name] for name in channels], GREY, width=5.6)  # type: ignore[arg-type]
    masks = [slices[f"{kind}mask/{run['subjects']}/-/labels/{at}"] for kind in ("", "", "mirrored-")]
    for place, axis in enumerate(figure.axes):
        labels = masks[place // len(channels)]
        outline(axis, (labels > 0) & (labels < 4))
    return figure


# Losses


def long_figure(loss: pd.DataFrame, step_ms: Mapping[str, float]) -> Figure:
    """Draws the held-out losses of the long runs: left by the step, right by the minutes that so many steps take.

    Args:
        loss: schema `LOSS`, of the plan "long".
        step_ms: of each setting, a step's time.
    """
    figure = new_figure(height=2.6)
    left, right = figure.subplots(1, 2, sharey=True)
    rows = loss[loss["part"] == "held-out"]
    held_out_curves(rows, left)
    minutes = [step * step_ms[name] / 60e3 for step, name in zip(rows["step"], rows["setting"], strict=True)]
    held_out_curves(rows.assign(step=minutes), right)
    for axis in (left, right):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    right.set(xlabel="minutes of training", ylabel="")
    left.set_title(f"{_side(rows)}: held-out loss by step")
    right.set_title("held-out loss by time on one card")
    return figure


def held_out_curves(loss: pd.DataFrame, axis: Axes) -> Axes:
    """Draws the held-out loss against the step, a line for each run; settings that agree lie on each other.

    Args:
        loss: rows of part "held-out".
        axis: to draw on.
    """
    present = [name for name in SETTING_COLOURS if name in set(loss["setting"])]
    for place, name in enumerate(present):
        width = 0.7 + 1.2 * (len(present) - 1 - place)
        for _, curve in loss[loss["setting"] == name].groupby("seed"):
            curve = curve.sort_values("step")
            axis.plot(curve["step"], curve["loss"], color=SETTING_COLOURS[name], linewidth=width)
    axis.set(xlabel="step", ylabel="loss, mean |ε − ε$_θ$|")
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.legend(handles=[Line2D([], [], color=SETTING_COLOURS[name], label=name) for name in present])
    return axis


def _side(rows: pd.DataFrame) -> str:
    sides = str(rows["size"].iloc[0]).split("x")
    return f"{sides[0]}³" if len(set(sides)) == 1 else "×".join(sides)


def _lesion(slices: Slices, run: Mapping[Any, Any] | pd.Series[Any], subject: int) -> Plane:
    """Returns the lesion in a held-out subject's mask, in the plane that is shown."""
    return slices[f"mask/{run['subjects']}/-/labels/{subject}/{PLANES[0]}"] == 2


# Samplers

PANELS: tuple[Metric, ...] = (
    ("psnr", "all"),
    ("wasserstein", "brain"),
    ("frechet", "all"),
    ("dice", "brain"),
    ("lesion_contrast", "lesion"),
    ("diversity", "all"),
)
IDEALS: dict[Metric, Metric] = {  # the values of the held-out volumes
    ("diversity", "all"): ("diversity_reference", "all"),
    ("dice", "brain"): ("dice_reference", "brain"),
    ("lesion_contrast", "lesion"): ("lesion_contrast_reference", "lesion"),
}


def samplers_figure(table: pd.DataFrame) -> Figure:
    """Draws a panel for each metric against seconds per volume, a line for each sampler, a point for each step count.

    Dashed: the value of the held-out volumes, if it is known.

    Args:
        table: of `parity.samplers.samplers`.
    """
    panels = [name for name in PANELS if name in table]
    figure = new_figure(height=0.4 + 1.75 * -(-len(panels) // 3))
    axes = np.atleast_1d(figure.subplots(-(-len(panels) // 3), 3, squeeze=False)).ravel()
    for axis, name in zip(axes, panels, strict=False):
        for sampler, colour in SAMPLER_COLOURS.items():
            rows = table[table.index.get_level_values("sampler") == sampler].sort_values(by=[SECONDS])  # type: ignore[list-item]
            axis.plot(rows[SECONDS], rows[name], "o-", color=colour, markersize=3, linewidth=1)
        _steps(axis, table)
        if (ideal := IDEALS.get(name)) in table:
            axis.axhline(float(table[ideal].mean()), color="black", linewidth=0.7, linestyle="--")
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.margins(x=0.12, y=0.22)  # above there is room for the numbers of steps
        axis.set_title(("PSNR, dB" if name == ("psnr", "all") else TITLES[name]) + ARROWS.get(better(name[0]), ""))
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel(
        "seconds per volume; above a line: the number of steps of all points on it\n"
        "↑ higher is better, ↓ lower is better, no arrow: nearer to the dashed line (held-out volumes) is better",
        fontsize=axes[0].xaxis.label.get_fontsize(),
    )
    present = [name for name in SAMPLER_COLOURS if name in table.index.get_level_values("sampler")]
    handles = [
        Line2D([], [], color=SAMPLER_COLOURS[n], marker="o", markersize=3, label=SAMPLER_NAMES[n]) for n in present
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def samplers_slices(slices: Slices, quality: pd.DataFrame, samplers: Sequence[SamplerSteps]) -> Figure:
    """Shows samples for the first held-out mask from the same noise by several samplers, beside the mask's volume.

    Args:
        slices: of `parity.results.QualityRecord`.
        quality: schema `QUALITY`, of the plan samplers.
        samplers: the ones to show, in this order.
    """
    run = sampled_runs(quality).iloc[-1]
    at = f"{run['contrast']}/0/{PLANES[0]}"
    names = [f"sample/{run['run']}/{name}-{steps}/{at}" for name, steps in samplers]
    titles = ["held out", *(f"{SAMPLER_NAMES[name]}\n{steps} steps" for name, steps in samplers)]
    shown = [slices[name] for name in (f"truth/{run['subjects']}/-/{at}", *names)]
    figure = slice_rows({"": shown}, titles, GREY)  # type: ignore[dict-item]
    for axis in figure.axes:
        outline(axis, _lesion(slices, run, 0))
    return figure


def _steps(axis: Axes, table: pd.DataFrame) -> None:
    """Draws a line through the points of equal steps, with the number above; samplers take equally long for them."""
    for steps, rows in table.groupby(level="steps"):
        seconds = float(rows[SECONDS].median())
        axis.axvline(seconds, color="#DDDDDD", linewidth=0.7, zorder=0)
        axis.annotate(
            f"{steps}", (seconds, 1), xycoords=("data", "axes fraction"),
            fontsize=7, ha="center", va="top", backgroundcolor="white",
        )  # fmt: skip
