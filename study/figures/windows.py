"""The place of a window of a hundred launches in a run, and its counters there (`medddpm.measure.profile.windows`)."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from medddpm.measure.profile.windows import PAPERS_START, WINDOW, first_step, phases
from study.figures.style import PHASE_COLOURS, SETTING_COLOURS, new_figure, say

FAINT = 1e-3  # opacity: what has no ink at all cannot be pointed at
STRIDE = 5  # starts that share an invisible strip, which says the ratio where a reader points at it


def phases_figure(traces: Mapping[str, Mapping[str, pd.DataFrame]]) -> Figure:
    """The launches of a run's first step in order, each by its duration; phases shaded, the paper's window framed.

    Args:
        traces: schema `TRACE`, from a run's first launch on, by machine (across) and setting (down).
    """
    names = list(dict.fromkeys(name for settings in traces.values() for name in settings))
    figure = new_figure(height=0.6 + 1.05 * len(names))
    axes = figure.subplots(len(names), len(traces), squeeze=False, sharex=True, sharey=True)
    longest = 0
    for column, (gpu, settings) in enumerate(traces.items()):
        for name, table in settings.items():
            axis = axes[names.index(name), column]
            kernels = first_step(table)
            longest = max(longest, len(kernels))
            axis.scatter(kernels.index, kernels["duration_ns"] / 1e6, s=1.0, color=SETTING_COLOURS[name], linewidth=0)
            _shade(axis, phases(kernels), len(kernels), named=False)
            frame = {"facecolor": "none", "edgecolor": "black", "linewidth": 1.0, "zorder": 3}
            axis.axvspan(PAPERS_START, PAPERS_START + WINDOW, **frame)
            axis.set_yscale("log")
            axis.set_title(f"{gpu}, {name}", loc="left")
            axis.yaxis.set_major_formatter("{x:g}")
    axes[0, 0].set_xlim(-5, longest + 5)
    size = mpl.rcParams["axes.labelsize"]
    figure.supylabel("ms a launch", fontsize=size)
    handles = [Patch(facecolor=c, edgecolor="#999999", linewidth=0.5, label=name) for name, c in PHASE_COLOURS.items()]
    frame_of_it = Patch(facecolor="none", edgecolor="black", label="the paper's window")
    figure.legend(handles=[*handles, frame_of_it], loc="outside upper center", ncols=len(handles) + 1)
    figure.supxlabel("kernel launch, from the run's first", fontsize=size)
    return figure


def mark_starts(
    axis: Axes, title: str, ratios: pd.Series[float], whole: float, stretches: pd.DataFrame, paper: tuple[float, float]
) -> None:
    """Names what a panel of ratios over the window's start holds: phases, the paper's range, a step, a window's ratio.

    Args:
        axis: holds the curve and marks, on which a reader who points at a start is told its ratio.
        title: of the counter.
        ratios: the curve's, by start.
        whole: the whole step's.
        stretches: BASE's phases, from `medddpm.measure.profile.windows.phases`.
        paper: its lowest and highest ratio.
    """
    last, (low, high) = int(ratios.index.max()), paper
    for start, ratio in zip(ratios.index[::STRIDE], ratios.iloc[::STRIDE], strict=True):
        place, across = (start - STRIDE / 2, 0.0), axis.get_xaxis_transform()
        strip = axis.add_patch(Rectangle(place, STRIDE, 1, transform=across, alpha=FAINT, zorder=4))
        say(strip, f"window from launch {start}: {title} {ratio:.3g} times BASE's")
    _shade(axis, stretches, last)
    axis.set(yscale="log", title=f"{title}, OPT2 divided by BASE", xlim=(-5, last + 5))
    axis.set_ylim(top=4 * axis.get_ylim()[1])  # room for the names of the phases
    axis.yaxis.set_major_formatter("{x:g}")
    span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    for said, level in ((f"paper: {span}", high * 1.2), (f"a whole step: {whole:.2f}", whole)):
        axis.annotate(
            said, (0.62, level), (0, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="center", va="bottom", fontsize=7,
        )  # fmt: skip


def _shade(axis: Axes, stretches: pd.DataFrame, end: int, named: bool = True) -> None:
    stretches = stretches[stretches["begin"] < end]
    for phase, first, last in zip(
        stretches["phase"], stretches["begin"], stretches["end"].clip(upper=end), strict=True
    ):
        axis.axvspan(first, last, color=PHASE_COLOURS.get(phase, "#FFFFFF"), linewidth=0, zorder=0)
        if named and last - first > 0.06 * end:
            axis.annotate(
                phase, (last, 1), (-3, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="right", va="top", fontsize=7, color="#555555",
            )  # fmt: skip
