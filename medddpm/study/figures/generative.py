"""Figure 2: the IPC of generative models' training steps against what their training is published to have cost."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from medddpm.study.figures.style import new_figure

# Okabe & Ito's, as the settings' colours are; a shape as well, for print without colour.
KINDS = {"latent diffusion": ("#0072B2", "o"), "diffusion": ("#D55E00", "D"), "GAN": ("#009E73", "s")}
PRECISIONS = ("fp32", "bf16")  # filled, hollow
OWN = "A100"  # the axis's GPU; another's hours are named beside the point

# Where a model's label goes, so that the close ones keep apart: of its points, joined by a line.
_PLACES: Mapping[str, str] = {"sd15": "below", "pixart": "left", "wuerstchen-prior": "above"}  # others: right
_OFFSETS: Mapping[str, tuple[float, float, str, str]] = {  # points, horizontal and vertical alignment
    "right": (6, 0, "left", "center"),
    "left": (-6, 0, "right", "center"),
    "above": (0, 5, "center", "bottom"),
    "below": (0, -5, "center", "top"),
}


def generative_models(table: pd.DataFrame, ipc: str = "ipc_geometric") -> Figure:
    """Points of every model and precision, those without a published cost in a strip of their own.

    Args:
        table: schema `GENERATIVE`, of one GPU.
        ipc: the column to draw, "ipc_geometric" or "ipc_total".
    """
    figure = new_figure(height=3.0)
    left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1.25, 1]})
    costed = table["training_gpu_hours"].notna()
    _with_cost(table[costed], left, ipc)
    _without_cost(table[~costed], right, ipc)
    left.set(ylabel={"ipc_geometric": "IPC, geometric mean by time", "ipc_total": "IPC, instructions by cycles"}[ipc])
    left.set_ylim(0, 1.18 * float(table[ipc].max()))
    figure.legend(handles=_legend(table), loc="outside upper center", ncols=len(KINDS) + len(PRECISIONS))
    return figure


def _with_cost(table: pd.DataFrame, axis: Axes, ipc: str) -> None:
    for name, rows in table.groupby("model", sort=False):
        hours = float(rows["training_gpu_hours"].iloc[0])
        _points(axis, [hours] * len(rows), rows, ipc)
        hardware = str(rows["training_hardware"].iloc[0])
        label = str(rows["title"].iloc[0]) + ("" if hardware == OWN else f"\n({hardware} hours)")
        place = _PLACES.get(str(name), "right")
        x, y, across, along = _OFFSETS[place]
        level = {"above": rows[ipc].max(), "below": rows[ipc].min()}.get(place, rows[ipc].mean())
        axis.annotate(
            label, (hours, float(level)), (x, y), textcoords="offset points", ha=across, va=along, fontsize=6.5
        )
    axis.set(xscale="log", xlabel=f"published training time, {OWN} GPU-hours", title="cost published")
    # Room for the labels at both ends.
    every = table["training_gpu_hours"]
    axis.set_xlim(every.min() / 3, every.max() * 40)


def _without_cost(table: pd.DataFrame, axis: Axes, ipc: str) -> None:
    names = list(dict.fromkeys(table["model"]))
    for place, name in enumerate(names):
        rows = table[table["model"] == name]
        _points(axis, [place] * len(rows), rows, ipc)
    titles = [str(table.loc[table["model"] == name, "title"].iloc[0]) for name in names]
    axis.set_xticks(range(len(names)), titles, rotation=30, ha="right", rotation_mode="anchor")
    axis.set(xlim=(-0.6, len(names) - 0.4), title="no published cost")
    axis.tick_params(axis="y", left=False)
    axis.spines["left"].set_visible(False)


def _points(axis: Axes, x: list[float], rows: pd.DataFrame, ipc: str) -> None:
    """A model's precisions, joined by a thin line."""
    colour, marker = KINDS[str(rows["kind"].iloc[0])]
    axis.plot(x, rows[ipc], color=colour, linewidth=0.6, zorder=1)
    for place, precision, value in zip(x, rows["precision"], rows[ipc], strict=True):
        face = colour if precision == PRECISIONS[0] else "white"
        axis.plot(place, value, marker=marker, markersize=5, color=colour, markerfacecolor=face, linestyle="none")


def _legend(table: pd.DataFrame) -> list[Line2D]:
    kinds = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=kind)
        for kind, (colour, marker) in KINDS.items()
        if kind in set(table["kind"])
    ]
    precisions = [
        Line2D(
            [], [], color="black", marker="o", linestyle="none", markersize=5, label=precision,
            markerfacecolor="black" if precision == PRECISIONS[0] else "white",
        )
        for precision in PRECISIONS
        if precision in set(table["precision"])
    ]  # fmt: skip
    return [*kinds, *precisions]
