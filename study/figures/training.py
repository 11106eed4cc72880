"""Loss and time of training steps by setting (notebook 01)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from study.figures.style import SETTING_COLOURS


def loss_curves(table: pd.DataFrame, axis: Axes) -> Axes:
    """Draws loss against step, a line a setting.

    Settings that agree would hide each other, so the widest line is drawn first. `loss_differences` shows their
    differences.

    Args:
        table: setting, step, loss.
        axis: to draw on.
    """
    present = [name for name in SETTING_COLOURS if name in set(table["setting"])]
    for place, name in enumerate(present):
        curve = table[table["setting"] == name].sort_values("step")
        width = 1.0 + 1.6 * (len(present) - 1 - place)
        axis.plot(curve["step"], curve["loss"], color=SETTING_COLOURS[name], linewidth=width, label=name)
    axis.set(xlabel="step", ylabel="loss, mean |ε − ε$_θ$|")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return axis


def loss_differences(table: pd.DataFrame, axis: Axes) -> Axes:
    """Draws the distance of each setting's loss from BASE's at the same step, on a logarithmic axis.

    It has no legend, for lack of room: the colours are those of `loss_curves`, beside which it stands. Where the two
    are equal to the last bit, the line has a gap.

    Args:
        table: setting, step, loss; trained from one seed, so that a step has the same volumes and noise in all.
        axis: to draw on.
    """
    loss = table.pivot(index="step", columns="setting", values="loss")
    apart = loss.sub(loss["BASE"], axis=0).abs().div(loss["BASE"], axis=0)
    for name in [name for name in SETTING_COLOURS if name in loss and name != "BASE"]:
        positive = apart[name].where(apart[name] > 0)
        axis.plot(apart.index, positive, color=SETTING_COLOURS[name], linewidth=1.0, label=name)
    axis.set(xlabel="step", ylabel="|loss − BASE's| / BASE's", yscale="log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axis


def step_times(table: pd.DataFrame, axis: Axes) -> Axes:
    """Draws the median time of a step, a bar a setting, with a line from its tenth to its ninetieth percentile.

    Args:
        table: setting, step, step_ms, without each setting's first steps, which set up libraries and caches.
        axis: to draw on.
    """
    present = [name for name in SETTING_COLOURS if name in set(table["setting"])]
    times = [table.loc[table["setting"] == name, "step_ms"] for name in present]
    medians = [float(t.median()) for t in times]
    spread = np.array([[m - t.quantile(0.1), t.quantile(0.9) - m] for m, t in zip(medians, times, strict=True)]).T
    bars = axis.bar(present, medians, yerr=spread, color=[SETTING_COLOURS[name] for name in present], width=0.65)
    axis.bar_label(bars, [f"{m:.0f}" for m in medians], padding=2, fontsize=7)
    axis.set(ylabel="time of a step, ms")
    axis.margins(y=0.12)
    return axis
