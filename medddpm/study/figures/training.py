"""Loss and time of training steps by setting (notebook 01)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from medddpm.study.figures.style import SETTING_COLOURS


def loss_curves(table: pd.DataFrame, axis: Axes, smooth: int = 1) -> Axes:
    """Loss against step, a line a setting.

    Settings that agree would hide each other, so the lines are drawn on top of each other, the widest first.

    Args:
        table: setting, step, loss.
        axis: drawn into.
        smooth: the width of a running median, in steps; 1 for none.
    """
    present = [name for name in SETTING_COLOURS if name in set(table["setting"])]
    for place, name in enumerate(present):
        curve = table[table["setting"] == name].sort_values("step")
        loss = curve["loss"].rolling(smooth, center=True, min_periods=1).median()
        width = 1.0 + 1.6 * (len(present) - 1 - place)
        axis.plot(curve["step"], loss, color=SETTING_COLOURS[name], linewidth=width, label=name)
    axis.set(xlabel="step", ylabel="loss, mean |ε − ε$_θ$|")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return axis


def step_times(table: pd.DataFrame, axis: Axes) -> Axes:
    """The median time of a step, a bar a setting, with a line from its tenth to its ninetieth percentile.

    Args:
        table: setting, step, step_ms, without each setting's first steps, which set up libraries and caches.
        axis: drawn into.
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
