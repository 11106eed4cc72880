"""Times each process's own part of a step, and names a process that all others wait for."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator

import torch

from medddpm.fast.reports import log
from medddpm.runtime.ranks import Ranks

SLOW = 1.25  # times as long as the others' median
SAMPLES = 10  # between comparisons


class Stopwatch:
    """Times a stretch of work on a device, also within a CUDA graph, where each replay times it anew."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
        self._times = [0.0, 0.0]

    def begin(self) -> None:
        """Marks the beginning of the stretch."""
        self._mark(0)

    def end(self) -> None:
        """Marks the end of the stretch."""
        self._mark(1)

    def _mark(self, which: int) -> None:
        if self._events is not None:
            self._events[which].record()
        else:
            self._times[which] = time.perf_counter()

    def ms(self) -> float:
        """Returns the time of the last stretch; the device must have finished it."""
        if self._events is not None:
            return self._events[0].elapsed_time(self._events[1])
        return 1e3 * (self._times[1] - self._times[0])


class Pace:
    """Compares the processes of a run.

    Args:
        ranks: the processes that train together.
        aside: whether volumes are loaded while the device computes.
    """

    def __init__(self, ranks: Ranks, aside: bool) -> None:
        self._ranks, self._aside = ranks, aside
        self._loaded, self._samples = 0.0, list[tuple[float, float]]()
        self._named: set[int] = set()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Adds the time within it to the step's loading time."""
        began = time.perf_counter()
        yield
        self._loaded += 1e3 * (time.perf_counter() - began)

    def sample(self, compute: float, steps: int) -> None:
        """Records the computing time of a step, in ms; `steps` is the number of steps since the last call.

        Every process calls it equally often. Every `SAMPLES` calls they compare, and the first process warns, once of
        each, of a process that takes `SLOW` times as long as the others.
        """
        self._samples.append((self._loaded / steps, compute))
        self._loaded = 0.0
        if len(self._samples) < SAMPLES:
            return
        load, compute = (statistics.median(column) for column in zip(*self._samples, strict=True))
        self._samples.clear()
        if self._ranks.world > 1:
            alone = max(load, compute) if self._aside else load + compute
            self._compare(self._ranks.gathered([alone, load]))

    def _compare(self, times: list[list[float]]) -> None:
        slow, (alone, load) = max(enumerate(times), key=lambda each: each[1][0])
        others = statistics.median(each[0] for rank, each in enumerate(times) if rank != slow)
        if alone < SLOW * others or slow in self._named:
            return
        self._named.add(slow)
        host = self._ranks.told(socket.gethostname(), slow)
        log.warning(
            f"rank {slow} on {host} takes {alone:.0f} ms a step by itself, {load:.0f} of them for loading, the others "
            f"{others:.0f} ms: all wait for it; look at its disk and loader, or at its GPU's clocks and temperature"
        )
