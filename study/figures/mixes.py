"""Kinds of kernels, for Figures 4 and 6 to 9, and the names of the largest of each kind."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from medddpm.measure.profile.families import family_named
from medddpm.measure.profile.kernel_names import function_name

LEAST = 0.005  # of a row's time: a kernel with less is not named

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
