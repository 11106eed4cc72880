"""What a training step's warm-up leaves as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor


@contextlib.contextmanager
def gradients_kept(parameters: Sequence[Tensor]) -> Iterator[None]:
    """On leaving, the parameters have the gradients that they had: a graph that failed leaves memory never written."""
    kept = [p.grad for p in parameters]
    try:
        yield
    finally:
        for p, gradient in zip(parameters, kept, strict=True):
            p.grad = gradient
