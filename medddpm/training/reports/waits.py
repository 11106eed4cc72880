"""Divides a training step's time into computing on the GPU, copying a batch, waiting for one, and idling otherwise.

CUPTI, through torch.profiler, records when each kernel and copy ran, in a CUDA graph too; the trainer's phases record
the host's work.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from medddpm.fast.reports import report

if TYPE_CHECKING:
    from medddpm.training.trainer import Trainer

Span = tuple[float, float]
"""Begin and end of something, µs."""

STEPS = 20  # recorded
WARMUP = 10  # steps before them, at least: kernels are compiled, the graph captured, the volumes on the device


def waits_of(trainer: Trainer, steps: int) -> Waits | None:
    """Returns a recorder for a training that ends at `steps`, or None, with a line, if the training is too short."""
    before = steps_before(trainer)
    last = trainer.step + before + STEPS
    if last <= steps:
        return Waits(trainer)
    report(
        f"--profile: no profile: {STEPS} steps are recorded once {before} more are made, and this run ends at step "
        f"{steps}; give --steps {last} or more"
    )
    return None


def steps_before(trainer: Trainer) -> int:
    """Returns the number of steps before the recorded ones: an epoch, and at least `WARMUP`."""
    a_step = trainer.config.batch_size * trainer.accumulation * trainer.ranks.world
    return max(WARMUP, -(-len(trainer.volumes) // a_step))


class Waits:
    """Records `STEPS` steps of a training, after its first epoch, and reports where they waited.

    Args:
        trainer: its `phase` is set while steps are recorded.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._begin = trainer.step + steps_before(trainer)
        self._profiler: Any = None

    def after_step(self) -> None:
        """Starts or ends the recording, and reports, if it is time; called after each step."""
        step = self._trainer.step
        if self._profiler is None and step == self._begin:
            self.start()
        elif self._profiler is not None and step == self._begin + STEPS:
            report(sentence(self.stop(), STEPS))

    def start(self) -> None:
        """Starts the recording."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self._trainer.device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize(self._trainer.device)
        self._profiler = torch.profiler.profile(activities=kinds)
        self._profiler.start()
        self._trainer.phase = torch.profiler.record_function

    def stop(self) -> dict[str, float]:
        """Ends the recording; returns `shares`."""
        on_gpu = self._trainer.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._trainer.device)
        self._profiler.stop()
        self._trainer.phase = contextlib.nullcontext
        with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
            exported = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(exported))
            events = json.loads(exported.read_bytes())["traceEvents"]
        self._profiler = None
        return shares(events, on_gpu)


def shares(events: Iterable[Mapping[str, Any]], on_gpu: bool) -> dict[str, float]:
    """Divides the time of the recorded steps into four parts, which add up to all of it.

    Args:
        events: `traceEvents` of the file that torch.profiler exports for Chrome; times in µs.
        on_gpu: whether a GPU computes; otherwise the host's phases after loading count as computing.

    Returns:
        seconds: "device" (it computes), "copy" (it only receives or sends), "loader" (it idles while the host waits for
        a batch) and "host" (it idles for any other reason).
    """
    complete = [event for event in events if event.get("ph") == "X"]
    phases = union(_span(e) for e in complete if e.get("cat") == "user_annotation")
    load = union(_span(e) for e in complete if e.get("cat") == "user_annotation" and e["name"] == "load")
    launched = [e for e in complete if e.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    copy = union(_span(e) for e in launched if "Memcpy" in e["name"] and "DtoD" not in e["name"])
    device = union(_span(e) for e in launched if "Memcpy" not in e["name"] or "DtoD" in e["name"])
    if not on_gpu:
        device = without(phases, load)
    every = [*phases, *device, *copy]
    if not every:
        return dict.fromkeys(("device", "copy", "loader", "host"), 0.0)
    whole = [(min(begin for begin, _ in every), max(end for _, end in every))]
    copied = without(copy, device)
    idle = without(without(whole, device), copied)
    waited = without(idle, without(idle, load))
    parts = {"device": device, "copy": copied, "loader": waited, "host": without(idle, load)}
    return {name: sum(end - begin for begin, end in spans) / 1e6 for name, spans in parts.items()}


def sentence(seconds_of: Mapping[str, float], steps: int) -> str:
    """Returns the result of `shares` as a line: ms a step and shares of it."""
    whole = sum(seconds_of.values()) or 1.0
    parts = ", ".join(
        f"{name} {1e3 * seconds / steps:.2f} ms ({seconds / whole:.1%})" for name, seconds in seconds_of.items()
    )
    return f"a step takes {1e3 * whole / steps:.2f} ms: {parts}"


def union(spans: Iterable[Span]) -> list[Span]:
    """Returns the spans in order, merged where they touch."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def without(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Returns what remains of `spans` outside of `holes`; both are in order and do not overlap themselves."""
    rest, place = [], 0
    for begin, end in spans:
        while place < len(holes) and holes[place][1] <= begin:
            place += 1
        at = place
        while at < len(holes) and holes[at][0] < end:
            if holes[at][0] > begin:
                rest.append((begin, holes[at][0]))
            begin = max(begin, holes[at][1])
            at += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])
