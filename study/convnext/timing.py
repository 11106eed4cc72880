"""Times a computation: in a CUDA graph, launched from Python, and waited for each time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from medddpm.fast.graphs.cuda_graphs import GraphedCall

REPEATS = 50  # of a computation within one CUDA graph, or between two waits


def launched(run: Callable[[], object], samples: int) -> list[float]:
    """Measures the µs of one computation if Python launches `REPEATS` after another and waits at the end."""
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - began) / REPEATS)
    return times


def graphed(run: Callable[[], object], samples: int, device: torch.device) -> list[float]:
    """Measures the µs of one computation if a CUDA graph holds `REPEATS`; the data stay in L2 if they fit."""

    def repeated(marker: Tensor) -> Tensor:
        for _ in range(REPEATS):
            run()
        return marker

    marker = torch.zeros(1, device=device)
    replay = GraphedCall(repeated, marker, warmup=1)
    replay(marker)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    events[0].record()
    for event in events[1:]:
        replay(marker)
        event.record()
    torch.cuda.synchronize()
    return [1e3 * before.elapsed_time(after) / REPEATS for before, after in itertools.pairwise(events)]


def waited(run: Callable[[], object], samples: int, device: torch.device) -> list[float]:
    """Measures the µs of one computation, waited for each time."""
    times = []
    for _ in range(samples):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - began))
    return times
