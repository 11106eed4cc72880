"""Where a window of a hundred launches lies in a run, and what it shows there (`medddpm.study.profile.windows`)."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from medddpm.study.figures.style import SETTING_COLOURS, new_figure
from medddpm.study.profile.windows import PAPERS_START, WINDOW, first_step, phases

STARTS = {"cycles_active": "SM cycles", "instructions": "instructions"}
PHASE_COLOURS = {"convert": "#F3D9E8", "forward": "#FFFFFF", "backward": "#E8E8E8", "update": "#C4C4C4"}


def phases_figure(traces: Mapping[str, Mapping[str, pd.DataFrame]]) -> Figure:
    """The launches of a run's first step in order, each by its duration; phases shaded, the paper's window framed.

    Args:
        traces: schema `TRACE`, from a run's first launch on, by machine and setting.
    """
    rows = [(gpu, name, table) for gpu, settings in traces.items() for name, table in settings.items()]
    figure = new_figure(height=0.5 + 1.15 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    longest = 0
    for axis, (gpu, name, table) in zip(axes, rows, strict=True):
        kernels = first_step(table)
        longest = max(longest, len(kernels))
        axis.scatter(kernels.index, kernels["duration_ns"] / 1e6, s=1.2, color=SETTING_COLOURS[name])
        _shade(axis, phases(kernels), len(kernels))
        axis.axvspan(PAPERS_START, PAPERS_START + WINDOW, facecolor="none", edgecolor="black", linewidth=1.0, zorder=3)
        axis.set(yscale="log", ylabel="ms a launch")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_title(f"{gpu} {name}: launches of the first step; the frame is the paper's window", loc="left")
    axes[-1].set(xlabel="kernel launch, from the run's first", xlim=(-5, longest + 5))
    return figure


def starts_figure(
    ratios: pd.DataFrame,
    measured: pd.DataFrame,
    whole: Mapping[str, float],
    stretches: pd.DataFrame,
    paper: Mapping[str, tuple[float, float]],
) -> Figure:
    """OPT2's counters divided by BASE's, over the launch that the window begins with.

    Args:
        ratios: index start, one column per counter of `STARTS`: what every window would show.
        measured: the same columns for the windows that were really profiled; index start.
        whole: the whole step's ratio by counter.
        stretches: BASE's phases, from `medddpm.study.profile.windows.phases`.
        paper: the paper's lowest and highest ratio by counter.
    """
    figure = new_figure(height=0.3 + 2.0 * len(STARTS))
    axes = figure.subplots(len(STARTS), 1, squeeze=False, sharex=True)[:, 0]
    last = int(ratios.index.max())
    for axis, (counter, title) in zip(axes, STARTS.items(), strict=True):
        low, high = paper[counter]
        band = axis.axhspan(low / 1.15, high * 1.15, color="#D55E00", alpha=0.45, linewidth=0)
        (line,) = axis.plot(ratios.index, ratios[counter], color=SETTING_COLOURS["OPT2"], linewidth=1.0)
        (dots,) = axis.plot(measured.index, measured[counter], "o", color="black", markersize=4)
        step = axis.axhline(whole[counter], color="#0072B2", linewidth=1.2)
        _shade(axis, stretches, last)
        axis.set(yscale="log", title=f"{title}, OPT2 by BASE", xlim=(-5, last + 5))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        axis.annotate(
            f"paper: {span}", (0.62, high * 1.2), (0, 1), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5, color="#A04000",
        )  # fmt: skip
        axis.annotate(
            f"a whole step: {whole[counter]:.2f}", (0.62, whole[counter]), (0, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5, color="#0072B2",
        )  # fmt: skip
    axes[-1].set_xlabel("launch that the window of 100 begins with, from the run's first; phases are BASE's")
    labels = ["every window, joined from its launches", "windows profiled", "a whole step", "paper"]
    figure.legend([line, dots, step, band], labels, loc="outside upper center", ncols=4)
    return figure


def _shade(axis: Axes, stretches: pd.DataFrame, end: int) -> None:
    stretches = stretches[stretches["begin"] < end]
    for phase, first, last in zip(
        stretches["phase"], stretches["begin"], stretches["end"].clip(upper=end), strict=True
    ):
        axis.axvspan(first, last, color=PHASE_COLOURS.get(phase, "#FFFFFF"), linewidth=0, zorder=0)
        if last - first > 0.06 * end:
            axis.annotate(
                phase, ((first + last) / 2, 1), (0, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="top", fontsize=6, color="#555555",
            )  # fmt: skip
