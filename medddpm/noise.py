"""Draws noise from generators on any device, ahead of a device that waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from medddpm.errors import BadArgument

Generators = torch.Generator | Sequence[torch.Generator] | None
"""The source of noise: one generator for all volumes of a batch, one for each, or PyTorch's own."""


def normals(like: Tensor, generator: Generators, count: int) -> Iterator[Tensor]:
    """Yields `count` draws of `normal`.

    For a GPU the host draws ahead while the device works: a volume of 128³ takes the host about as long as a step takes
    an H200.
    """
    draws = (_noise(like, generator) for _ in range(count))
    for noise in ahead(draws) if like.is_cuda and source_of(like, generator).type == "cpu" else draws:
        yield noise.to(like.device, non_blocking=True)


def ahead(items: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yields the items; a thread makes each one while the previous one is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def normal(like: Tensor, generator: Generators) -> Tensor:
    """Draws a standard normal of `like`'s shape, dtype and device, on the generator's device."""
    return _noise(like, generator).to(like.device, non_blocking=True)


def _noise(like: Tensor, generator: Generators) -> Tensor:
    """Draws `normal` and leaves it on the generator's device; noise for a GPU lies in pinned memory of the host."""
    source = source_of(like, generator)
    noise = torch.empty(like.shape, dtype=like.dtype, device=source, pin_memory=like.is_cuda and source.type == "cpu")
    if isinstance(generator, Sequence):
        for volume, volume_generator in zip(noise, generator, strict=True):
            volume.normal_(generator=volume_generator)
        return noise
    return noise.normal_(generator=generator)


def source_of(like: Tensor, generator: Generators) -> torch.device:
    """Returns the device that draws.

    Raises:
        BadArgument: `generator` is no generator, or a sequence of another length than the batch.
    """
    if generator is None:
        return like.device
    generators: Sequence[Any] = generator if isinstance(generator, Sequence) else [generator]
    for each in generators:
        if not isinstance(each, torch.Generator):
            problem = f"it is of type {type(each).__name__}"
            raise BadArgument("generator", problem, "give torch.Generator().manual_seed(…)")
    if generators is generator and len(generators) != len(like):
        problem = f"there are {len(generators)} for {len(like)} volumes"
        raise BadArgument("generator", problem, "give one for each, or one for all")
    return generators[0].device
