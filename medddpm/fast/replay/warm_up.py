"""What a training step's warm-up leaves as it was, and the stream that it runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
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


@contextlib.contextmanager
def on_its_stream(pool: Any, device: torch.device) -> Iterator[None]:
    """Inside, work goes to the stream that captures: autograd's streams of the warm-up then serve the capture."""
    stream = getattr(pool, "stream", None)
    if stream is None:
        yield
        return
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:  # where memory was short, the weights are restored behind what still writes to them
        current.wait_stream(stream)
