"""The window that the essay's reader drags over two timelines of a training step, and its still picture.

The page is HTML with its data and plain JavaScript in it, `window.html`: the same on the site and in a notebook that
JupyterLab trusts, without a kernel, and the same bytes each time. A widget has random identities, and shows nothing in
a stored notebook. Where scripts do not run, the still picture stands instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from medddpm.measure.profile import windows
from medddpm.measure.profile.families import family_of
from medddpm.measure.profile.windows import PAPERS_START, WINDOW
from study.figures.style import KIND_COLOURS, SETTING_COLOURS, new_figure
from study.profile import tables

KINDS = {
    "c": ("convolution", KIND_COLOURS["convolution, input gradient"]),
    "l": ("copies between layouts", KIND_COLOURS["layout"]),
    "n": ("normalization", KIND_COLOURS["normalization"]),
    "p": ("pointwise", KIND_COLOURS["pointwise"]),
    "o": ("other", KIND_COLOURS["other"]),
}
"""A letter for each kind of launch, its name and its colour."""

NAMES = {"BASE": "The baseline (BASE): FP32", "OPT2": "Channels-last (OPT2): FP32"}
SHORT = {"BASE": "the baseline", "OPT2": "Channels-last"}
PHASES = {"convert": "", "forward": "forward pass", "backward": "backward pass"}
DIGITS = 4  # of a launch's cycles, which changes no ratio by more than a thousandth

_LETTERS = {"convolution": "c", "layout": "l", "normalization": "n", "pointwise": "p"}
_COUNTED = ("window", "step", "window-0", "window-160", "window-300", "window-640")


@dataclass(frozen=True)
class Window:
    """A page of HTML in which a reader drags a window of launches."""

    page: str

    def _repr_html_(self) -> str:
        return self.page

    def __repr__(self) -> str:
        return "a window of a hundred launches to drag: where it is not shown, trust the notebook"


def timelines(root: Path, gpu: str) -> dict[str, pd.DataFrame]:
    """Returns the launches of BASE and of OPT2 up to the end of BASE's first backward pass, as many of each.

    Args:
        root: the repository.
        gpu: the records' folder of a card.

    Returns:
        by setting, a row a launch: cycles (of all SMs; 0 where none were counted), kind (a letter of `KINDS`), phase.
    """
    launches = tables.launches(root, gpu)
    kernels = tables.kernels(root, _COUNTED)
    kernels = kernels[kernels["gpu"] == gpu]
    runs = {}
    for name in NAMES:
        cost = windows.costs(launches[name], kernels[kernels["config"] == name])
        groups = windows.in_order(launches[name])["kernel"].map(lambda kernel: family_of(kernel).group)
        kind = groups.map(lambda group: _LETTERS.get(group, "o"))
        runs[name] = pd.DataFrame({"cycles": cost["cycles_active"].fillna(0), "kind": kind, "phase": cost["phase"]})
    stretches = windows.phases(runs["BASE"])
    last = int(stretches.loc[stretches["phase"] == "backward", "end"].iloc[0])
    return {name: run.iloc[:last] for name, run in runs.items()}


def window(runs: Mapping[str, pd.DataFrame], paper: tuple[float, float], whole: float) -> Window:
    """Makes the page: two strips of launches, the window's ratio of cycles, and its curve over all starts.

    Args:
        runs: as `timelines` returns them.
        paper: the least and the most that the paper states of the ratio.
        whole: the ratio in a whole step.
    """
    data = {
        "window": WINDOW,
        "start": PAPERS_START,
        "paper": list(paper),
        "whole": round(whole, DIGITS),
        "kinds": [[letter, *named] for letter, named in KINDS.items()],
        "runs": [_embedded(name, run) for name, run in runs.items()],
    }
    template = Path(__file__).with_name("window.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return Window(template.replace("/*data*/ null", text))


def _embedded(name: str, run: pd.DataFrame) -> dict[str, object]:
    """Returns a timeline as the page has it: thousands of cycles, one text of letters, the phases' beginnings."""
    stretches = windows.phases(run)
    return {
        "short": SHORT[name],
        "name": NAMES[name],
        "cycles": [int(float(f"{cycles / 1000:.{DIGITS}g}")) for cycles in run["cycles"]],
        "kinds": "".join(run["kind"]),
        "phases": [[PHASES[p], int(b)] for p, b in zip(stretches["phase"], stretches["begin"], strict=True)],
    }


def window_figure(runs: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws the still picture: both strips, the curve, and the two windows that show the least and the most.

    Args:
        runs: as `timelines` returns them.
    """
    figure = new_figure(height=4.3)
    axes = figure.subplots(len(runs) + 1, 1, sharex=True, height_ratios=[1] * len(runs) + [2])
    base, other = (run["cycles"].rolling(WINDOW).sum().dropna().to_numpy() for run in runs.values())
    ratios = other / base
    least, most = int(ratios.argmin()), int(ratios.argmax())
    for axis, (name, run) in zip(axes, runs.items(), strict=False):
        for letter, (_, colour) in KINDS.items():
            chosen = run[run["kind"] == letter]
            axis.vlines(chosen.index, 1e5, chosen["cycles"].clip(lower=3e5), color=colour, linewidth=0.5)
        stretches = windows.phases(run)
        for phase, begin in zip(stretches["phase"], stretches["begin"], strict=True):
            axis.axvline(begin, color="#777777", linewidth=0.6)
            axis.annotate(
                PHASES[phase], (begin, 1), (3, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7,
            )  # fmt: skip
        axis.set(yscale="log", ylim=(1e5, 3e11), yticks=[1e6, 1e8, 1e10], ylabel="cycles")
        axis.minorticks_off()
        axis.set_title(NAMES[name], loc="left")
    axis = axes[-1]
    axis.plot(ratios, color=SETTING_COLOURS["OPT2"])
    axis.axhline(1, color="#777777", linewidth=0.6)
    for start, words, up in ((least, f"1/{1 / ratios[least]:.0f}", -1), (most, f"{ratios[most]:.0f}", 1)):
        axis.plot([start], [ratios[start]], "o", color="black", markersize=4)
        axis.annotate(words, (start, ratios[start]), (6, 3 * up), textcoords="offset points", va="center", fontsize=12)
        for lane in axes[:-1]:
            _frame(lane, start)
    axis.set(
        yscale="log",
        ylim=(0.004, 400),
        xlim=(-5, len(run) + 5),
        xlabel="kernel launch; on the curve, the window's first",
    )
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_title("OPT2's cycles divided by BASE's, in the hundred launches from there on", loc="left")
    handles = [Patch(facecolor=colour, label=name) for name, colour in KINDS.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _frame(axis: Axes, start: int) -> None:
    axis.axvspan(start, start + WINDOW, facecolor="#E69F0038", edgecolor="black", linewidth=1.0, zorder=3)
