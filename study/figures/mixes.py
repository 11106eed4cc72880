"""Kinds of kernels and classes of instructions, for Figures 4 and 6 to 9; and Figure 4's stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from medddpm.measure.profile.families import family_named
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.profile.kernel_names import function_name
from study.figures.style import CLASS_COLOURS, KIND_COLOURS, name_rows, new_figure, say

OTHERS = "other classes"
LEAST = 0.005  # of a row's time: a kernel with less is not named
LIMIT = 4  # instructions that an SM can issue a cycle: one by each of its schedulers

_KINDS = {
    "sm80_xmma_fprop_implicit": "convolution, forward",
    "sm90_xmma_fprop_implicit": "convolution, forward",
    "implicit_convolveNd": "convolution, forward",
    "_5x_cudnn_volta_scudnn": "convolution, forward",
    "xmma_dgrad": "convolution, input gradient",
    "xmma_wgrad": "convolution, weight gradient",
    "fused convolution": "convolution, forward",
    "fused data gradient": "convolution, input gradient",
    "fused weight gradient": "convolution, weight gradient",
}


def kind_of(family: str) -> str:
    """Returns one of `KIND_COLOURS`: the family's group; of a convolution forward or one of the two gradients."""
    group = family_named(family).group
    return _KINDS.get(family, f"{group}, other" if group == "convolution" else group)


def by_kind(shares: pd.DataFrame) -> pd.DataFrame:
    """Adds up shares of families (columns) by `kind_of`, in the legend's order."""
    added = shares.T.groupby(kind_of).sum().T
    return added[[kind for kind in KIND_COLOURS if kind in added]]


def largest(kernels: pd.DataFrame, rows: Sequence[str], count: int = 3) -> dict[tuple[str, str, str], str]:
    """Names the kernels that take most of a row's time, for the words of marks and bars.

    Args:
        kernels: from `profile.tables.kernels`.
        rows: the row of each kernel.
        count: the number of kernels to name.

    Returns:
        by card, view and row: "60% sgemm, 30% copy".
    """
    launches = kernels.assign(
        row=list(rows),
        name=kernels["kernel"].map(function_name),
        time=kernels["count"] * kernels["duration_ns"],
    )
    words: dict[tuple[str, str, str], str] = {}
    for place, group in launches.groupby(["gpu", "view", "row"]):
        gpu, view, row = map(str, place)
        shares = (group.groupby("name")["time"].sum() / group["time"].sum()).nlargest(count)
        words[gpu, view, row] = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= LEAST)
    return words


def folded(mix: pd.DataFrame) -> pd.DataFrame:
    """Renames instruction classes (columns), and adds up those without a colour as other classes."""
    named = mix.T.groupby(lambda name: CLASSES[name] if CLASSES[name] in CLASS_COLOURS else OTHERS).sum().T
    return named.reindex(columns=list(CLASS_COLOURS), fill_value=0.0)


def stack_figure(stacks: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draws IPC stacks, a panel a card (down) and view (across), a bar a family, labelled with its IPC.

    Args:
        stacks: by card and view, a row a family, a column a class of `CLASS_COLOURS`, in instructions per cycle.
    """
    gpus, views = (list(dict.fromkeys(key[place] for key in stacks)) for place in (0, 1))
    most = max(len(rows) for rows in stacks.values())
    figure = new_figure(height=0.7 + len(gpus) * (0.35 + 0.2 * most))
    axes = figure.subplots(len(gpus), len(views), squeeze=False, sharex=True)
    for (gpu, view), rows in stacks.items():
        axis = axes[gpus.index(gpu), views.index(view)]
        left = np.zeros(len(rows))
        for name, colour in CLASS_COLOURS.items():
            bars = axis.barh(
                range(len(rows)), rows[name], 0.72, left, color=colour, edgecolor="white", linewidth=0.4, label=name
            )
            for bar, family, value in zip(bars, rows.index, rows[name], strict=True):
                say(bar, f"{gpu} {view}: {family}, {name} {value:.2f}")
            left += rows[name].to_numpy()
        for place, total in enumerate(left):
            axis.annotate(f"{total:.2f}", (total, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
        name_rows(axis, list(rows.index), most)
        axis.set_title(f"{gpu}, {view}", loc="left")
        axis.set_xlim(0, LIMIT * 1.05)
    for axis in axes[-1]:
        axis.set_xlabel("instructions per SM cycle, of 4")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure
