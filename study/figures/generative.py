"""Figure 2: the IPC of generative models' training steps against what their training is published to have cost."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.figures.style import PRECISION_COLOURS, name_rows, new_figure

KIND_MARKERS = {"latent diffusion": "o", "diffusion": "D", "GAN": "s"}
CLOSE = 1.8  # times another's hours: such names would lie on each other
OWN = "A100"  # the axis's GPU; another's hours are named beside the point


def generative_models(table: pd.DataFrame, ipc: str = "ipc_geometric") -> Figure:
    """The IPC of every model in both precisions: above by the published cost of its training, below those without one.

    Args:
        table: schema `GENERATIVE`, of one GPU.
        ipc: the column to draw, "ipc_geometric" or "ipc_total".
    """
    costed = table["training_gpu_hours"].notna()
    uncosted = list(dict.fromkeys(table.loc[~costed, "model"]))
    figure = new_figure(height=3.6 + 0.19 * len(uncosted), width=5.6)
    ratios = {"height_ratios": [2.6, 0.4 + 0.19 * len(uncosted)]}
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw=ratios)
    _with_cost(table[costed], above, ipc)
    _without_cost(table[~costed], below, ipc)
    below.set_xlim(0, 1.35 * float(table[ipc].max()))
    below.set_xlabel(
        {"ipc_geometric": "IPC, geometric mean weighted by time", "ipc_total": "IPC, instructions / cycles"}[ipc]
    )
    figure.legend(handles=_legend(table), loc="outside upper center", ncols=5)
    return figure


def _with_cost(table: pd.DataFrame, axis: Axes, ipc: str) -> None:
    every = table.groupby("model")["training_gpu_hours"].first()
    for _, rows in table.groupby("model", sort=False):
        hours = float(rows["training_gpu_hours"].iloc[0])
        crowded = bool(((every > hours) & (every < CLOSE * hours)).any())  # then another model's name is above its own
        _points(axis, hours, rows, ipc)
        hardware = str(rows["training_hardware"].iloc[0])
        label = str(rows["title"].iloc[0]) + ("" if hardware == OWN else f" ({hardware} hours)")
        at, away, side = (rows[ipc].min(), -6, "right") if crowded else (rows[ipc].max(), 6, "left")
        axis.annotate(
            label, (float(at), hours), (away, 0), textcoords="offset points", ha=side, va="center", fontsize=7
        )
    axis.set(yscale="log", ylabel=f"published training time,\n{OWN} GPU-hours")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylim(every.min() / 2, every.max() * 2)


def _without_cost(table: pd.DataFrame, axis: Axes, ipc: str) -> None:
    names = list(dict.fromkeys(table["model"]))
    for place, name in enumerate(names):
        _points(axis, place, table[table["model"] == name], ipc)
    name_rows(axis, [str(table.loc[table["model"] == name, "title"].iloc[0]) for name in names])
    axis.set_title("no published training time", loc="left")


def _points(axis: Axes, y: float, rows: pd.DataFrame, ipc: str) -> None:
    """A model's precisions, joined by a thin line."""
    marker = KIND_MARKERS[str(rows["kind"].iloc[0])]
    axis.plot(rows[ipc], [y] * len(rows), color="#999999", linewidth=0.8, zorder=1)
    for precision, value in zip(rows["precision"], rows[ipc], strict=True):
        axis.plot(value, y, marker=marker, markersize=5, color=PRECISION_COLOURS[str(precision)], linestyle="none")


def _legend(table: pd.DataFrame) -> list[Line2D]:
    marks = [(colour, "o", name) for name, colour in PRECISION_COLOURS.items() if name in set(table["precision"])]
    marks += [("#999999", marker, name) for name, marker in KIND_MARKERS.items() if name in set(table["kind"])]
    return [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=label)
        for colour, marker, label in marks
    ]
