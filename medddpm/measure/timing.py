"""Times work after its device has settled, and says how far results are from others."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medddpm.measure.harness import GIB
from medddpm.runtime.processes import wait

SETTLING = 3.0  # s
WARMUP, WARMUP_SECONDS = 3, 5.0  # runs; no third where the second took so long: the first may compile or search


def distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Returns ‖ours − theirs‖ / ‖theirs‖ over all tensors together, in float64."""
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, theirs, strict=True))
    return (apart / sum(float(b.double().square().sum()) for b in theirs)) ** 0.5


def warm_up(work: Callable[[], object], device: torch.device) -> None:
    """Runs `work` until libraries are loaded, kernels compiled and caches filled."""
    for run in range(1, WARMUP + 1):
        began = time.monotonic()
        work()
        wait(device)
        if run >= 2 and time.monotonic() - began > WARMUP_SECONDS:
            break


def settle(work: Callable[[], Tensor], device: torch.device) -> int:
    """Runs `work` for `SETTLING` seconds and returns the number of runs; does nothing and returns 1 on a CPU.

    A GPU may draw more than its power limit for about a second, and its clocks fall only then: a time within that
    second is shorter than in any long training.
    """
    if device.type != "cuda":
        return 1
    times = timed(work, 3, device)[0]
    runs = math.ceil(1e3 * SETTLING / statistics.median(times))
    timed(work, runs, device)
    return runs


def timed(work: Callable[[], Tensor], samples: int, device: torch.device) -> tuple[list[float], Tensor]:
    """Times samples of `work`; returns each one's time in ms, and the last one's result.

    On a GPU samples follow each other without a wait, as training steps do, timed by events on the device. Each result
    is freed before the next sample, or it would count in the peak.
    """
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(samples):
            output = work()
            marks.append(time.perf_counter())
        return [1e3 * (after - before) for before, after in itertools.pairwise(marks)], output
    torch.cuda.synchronize(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    events[0].record()
    last: list[Tensor] = []
    for event in events[1:]:
        last.clear()
        last.append(work())
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events)], last[0]


def launching(work: Callable[[], object], ms: float, device: torch.device) -> float | None:
    """Returns the host's median time for `work` in ms; None on a CPU, where the host does all the work.

    The GPU is idle before each run: a busy one makes the host wait once it has launched enough. If the host takes
    longer than the GPU, the GPU waits for the host.

    Args:
        work: computes one sample.
        ms: the time of a sample: it runs as often as fits into `SETTLING`, from 3 to 20 times.
        device: that it runs on.
    """
    if device.type != "cuda":
        return None
    taken = []
    for _ in range(max(3, min(20, int(1e3 * SETTLING / ms)))):
        wait(device)
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def spread(samples: list[float]) -> dict[str, Any]:
    """Returns the columns of a row for its samples' times."""
    p10, median, p90 = (round(float(np.percentile(samples, p)), 5) for p in (10, 50, 90))
    return {"median_ms": median, "p10_ms": p10, "p90_ms": p90, "samples": len(samples)}


def columns(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns `schemas.TIMES`, `ERRORS` and `POWER` of what `subject.repeated` measured."""
    peak = measured["peak_bytes"]
    return {
        **spread(measured["ms"]),
        "host_ms": _rounded(measured.get("host_ms"), 5),
        "peak_gib": None if peak is None else round(peak / GIB, 4),
        "rel_error_output": digits(measured.get("rel_error_output")),
        "rel_error_grad": digits(measured.get("rel_error_grad")),
        "sm_mhz": measured.get("sm_mhz"),
        "watts": _rounded(measured.get("watts"), 1),
    }


def _rounded(value: float | None, places: int) -> float | None:
    return None if value is None else round(value, places)


def digits(value: float | None) -> float | None:
    """Rounds a number to four digits for a table; None stays."""
    return None if value is None else float(f"{value:.4g}")
