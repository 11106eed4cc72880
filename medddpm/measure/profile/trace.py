"""Records every launch of a program on a GPU, in order, by CUPTI through torch.profiler: `schemas.TRACE`."""

from __future__ import annotations

import bisect
import contextlib
import csv
import functools
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from medddpm.errors import BadInput
from medddpm.measure.schemas import PHASES, TRACE
from medddpm.runtime.files import write_gzipped
from medddpm.runtime.processes import wait

Launch = tuple[int, str, str, str, int, str, int, int]
"""A row of the schema `TRACE`: index, kernel, grid, block, duration in ns, phase, stream, begin in ns."""

_MANGLED = re.compile(r"\b_Z\w+")
# Kineto's names for what the GPU does, and for the host's side of it.
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_ON_HOST = {"cuda_runtime", "cuda_driver"}


def record(work: Callable[[], object], device: torch.device, path: Path, before: Callable[[], object]) -> None:
    """Records `work` plainly, without counters, and writes its launches.

    Args:
        work: the recorded program.
        device: that it runs on.
        path: the table, NAME.csv.gz.
        before: runs while CUPTI starts up, which loses launches.

    Raises:
        BadInput: CUPTI saw no launch on a GPU.
    """
    with new_profiler(gpu=device.type == "cuda") as profiler:
        before()
        wait(device)
        profiler.step()
        work()
        wait(device)
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        exported = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(exported))
        rows = launches(json.loads(exported.read_bytes())["traceEvents"])
    if not rows and device.type == "cuda":
        raise BadInput("trace", "CUPTI saw no kernel launch", "end other profilers of this GPU and try again")
    write(rows, path)


def new_profiler(gpu: bool) -> torch.profiler.profile:
    """Returns a profiler that warms up, as CUPTI loses launches meanwhile, until its `step`, and records from then on.

    Args:
        gpu: whether it records what the GPU does, beside the host.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))


def launches(events: Iterable[Mapping[str, Any]]) -> list[Launch]:
    """Extracts kernels, fills and copies from a trace's events, in the order in which the program launched them.

    A launch belongs to the phase in which the host launched it, not to the one in which it ran. The launches of a CUDA
    graph are launched together; they are in the order in which they ran.

    Args:
        events: `traceEvents` of the file that torch.profiler exports for Chrome; times in µs.

    Returns:
        a row for each launch: kernels as `demangled`, grid and block as ncu writes them, "(64, 1, 1)".
    """
    return _numbered(_timed([event for event in events if event.get("ph") == "X"]))


def launches_within(events: Iterable[Mapping[str, Any]], name: str) -> list[list[Launch]]:
    """Extracts `launches` of each of the host's ranges of a name, in order, as tables of their own.

    Args:
        events: as in `launches`.
        name: of the ranges, as `torch.profiler.record_function` got it.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    rows = _timed(complete)
    begun = [row[0] for row in rows]
    return [
        _numbered(rows[bisect.bisect_left(begun, first) : bisect.bisect_right(begun, last)])
        for first, last, _ in _ranges(complete, {name})
    ]


_Timed = tuple[float, float, str, str, str, int, str, int]


def _timed(complete: Sequence[Mapping[str, Any]]) -> list[_Timed]:
    """Returns the launches in order: when the host launched it and when it began, in µs, and a row's columns."""
    marks = _ranges(complete, set(PHASES))
    begins = [begin for begin, _, _ in marks]
    launched = {
        e["args"]["correlation"]: float(e["ts"])
        for e in complete
        if e.get("cat") in _ON_HOST and "correlation" in e.get("args", {})
    }
    rows = []
    for event in (e for e in complete if e.get("cat") in _ON_GPU):
        args, began = event["args"], float(event["ts"])
        when = launched.get(args.get("correlation"), began)
        place = bisect.bisect_right(begins, when) - 1
        phase = marks[place][2] if place >= 0 and when <= marks[place][1] else ""
        shape = (_triple(args.get("grid", ())), _triple(args.get("block", ())))
        duration, stream = round(1000 * float(event["dur"])), int(args["stream"])
        rows.append((when, began, demangled(str(event["name"])), *shape, duration, phase, stream))
    rows.sort(key=lambda row: row[:2])
    return rows


def _ranges(complete: Iterable[Mapping[str, Any]], names: set[str]) -> list[tuple[float, float, str]]:
    """Returns begin, end and name of the host's ranges of these names, in order."""
    return sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), str(e["name"]))
        for e in complete
        if e.get("cat") == "user_annotation" and e["name"] in names
    )


def _numbered(rows: Sequence[_Timed]) -> list[Launch]:
    first = min((row[1] for row in rows), default=0.0)
    return [(index, *row[2:], round(1000 * (row[1] - first))) for index, row in enumerate(rows)]


def write(rows: Iterable[Launch], path: Path) -> None:
    """Writes `launches` as gzipped CSV; equal rows give equal bytes.

    Without pandas: a Python that brings an old PyTorch, and with it NumPy 1, may have none that fits.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(TRACE.columns)
    table.writerows(rows)
    write_gzipped(text.getvalue().encode(), path)


def demangled(text: str) -> str:
    """Returns `text` with every mangled C++ name spelled out, as c++filt does.

    ncu and CUPTI each have a demangler of their own and spell one kernel differently, and CUPTI's leaves the longest
    names as they are; names are compared in this spelling.
    """
    return _MANGLED.sub(lambda match: _demangled_name(match.group()), text)


@functools.cache
def _demangled_name(name: str) -> str:
    return str(torch._C._demangle(name))


def _triple(sides: Sequence[int]) -> str:
    return f"({', '.join(str(int(side)) for side in sides)})" if sides else ""


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Marks an NVTX range of the process, not the thread: autograd launches the backward pass from its own thread."""
    handle = torch.cuda.nvtx.range_start(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_end(handle)
