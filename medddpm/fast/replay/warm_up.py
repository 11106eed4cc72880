"""Restores the gradients that a training step's warm-up overwrites."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor


@contextlib.contextmanager
def gradients_restored(parameters: Sequence[Tensor]) -> Iterator[None]:
    """On leaving, the parameters have the gradients that they had: a graph that failed leaves memory never written."""
    gradients = [p.grad for p in parameters]
    try:
        yield
    finally:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
