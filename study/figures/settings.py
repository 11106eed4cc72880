"""The distance between runs, by setting (notebook 03)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from medddpm.measure.schemas import VIEWS
from study.figures.style import SETTING_COLOURS, new_figure

NUMBER_NAMES = {
    "duration_ns": "duration",
    "ipc_total": "IPC, of all",
    "ipc_geometric": "IPC, geometric mean",
    "stall_long_scoreboard": "stalls: memory",
    "stall_math_pipe": "stalls: math pipe",
    "stall_branch": "stalls: branches",
    "tensor_pct": "Tensor Cores",
    "fma_pct": "FP32 pipe",
    "alu_pct": "integer pipe",
    "sm_throughput_pct": "SM throughput",
    "l1_hit_pct": "L1 hit rate",
    "l2_hit_pct": "L2 hit rate",
    "dram_pct": "DRAM throughput",
    "warps_per_cycle": "active warps",
}
"""A reader's names for the columns of `medddpm.measure.profile.summaries.summary`."""


def spread_figure(spread: pd.DataFrame) -> Figure:
    """Draws the distance between runs: a point for each setting and card, a row for each number, a panel for each view.

    The first card's points are filled, the others' hollow.

    Args:
        spread: from `study.profile.tables.spread`; index gpu, view, config, one column per number.
    """
    views = [view for view in VIEWS if view in spread.index.get_level_values("view")]
    figure = new_figure(height=0.6 + 0.16 * len(spread.columns))
    axes = figure.subplots(1, len(views), squeeze=False, sharey=True, sharex=True)[0]
    first, *_ = spread.index.unique("gpu")
    for axis, view in zip(axes, views, strict=True):
        table = spread.xs(view, level="view")
        for name, colour in SETTING_COLOURS.items():
            rows = table[table.index.get_level_values("config") == name].iloc[::-1]
            for gpu, row in zip(rows.index.get_level_values("gpu"), rows.to_numpy(), strict=True):
                fill = "full" if gpu == first else "none"
                axis.plot(
                    100 * row,
                    range(len(row)),
                    "o",
                    color=colour,
                    markersize=3.5,
                    fillstyle=fill,
                    label=name,
                    clip_on=False,
                )
        axis.set(title=view, xlabel="largest difference between runs, % of their mean")
        axis.grid(axis="y", linewidth=0.3)
    names = [NUMBER_NAMES.get(str(name), str(name).replace("_", " ")) for name in spread.columns]
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlim(0, None)
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """Names each setting once, whichever panels have it."""
    handles = {label: h for axis in figure.axes for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    once = {name: handles[name] for name in SETTING_COLOURS if name in handles}
    figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=len(once))
