"""Compares a graph that rests on the caller's word with the same work done without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.graphs.graphed_pass import generator_at, generator_place, is_full

CHECKED = frozenset({10, 100, 1000})
"""The replays that are compared: a difference may come late, and each comparison costs a forward pass and a wait."""

TOLERANCE = 0.01
"""The relative difference that rounding may make: sums end in any order, and a BF16 number has eight bits."""


def without_graph(work: Callable[[], Any], networks: Sequence[nn.Module], device: torch.device) -> list[Tensor] | None:
    """Returns the tensors of `work()`, computed without gradients; buffers and random draws stay as they were.

    Returns None where memory is short.
    """
    buffers = [(t, t.clone()) for network in networks for t in network.buffers()]
    place = generator_place(device)
    try:
        for learns in (False, True):  # a loss may ask for gradients itself
            try:
                with cuda_graphs.off(), generator_at(device, place), torch.set_grad_enabled(learns):
                    return [t.detach().clone() for t in nested.distinct(work())]
            except RuntimeError as error:
                if is_full(error):
                    return None
                if learns:
                    raise
    finally:
        with torch.no_grad():
            for t, before in buffers:
                t.data.copy_(before)  # in whose version nothing is counted: a backward pass may be to come
    return None


def difference(eager: list[Tensor], replayed: list[Tensor]) -> str:
    """Says by how much the replay's tensors are off; empty if they are not."""
    for a, b in zip(eager, replayed, strict=True):
        if not a.is_floating_point() or not a.numel():
            continue
        wide, other = a.double(), b.detach().double()
        off, size = float((wide - other).norm()), float(wide.norm())
        if off > TOLERANCE * size + 1e-12:  # a difference that is no number comes of both passes alike
            return f"{float(other.mean()):.4g} with the graph, {float(wide.mean()):.4g} without"
    return ""
