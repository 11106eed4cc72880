"""Reads the trace that a program with hooks left: the launches of its traced steps, and what is said of the program."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medddpm.errors import BadInput
from medddpm.measure.profile.program.observer import STEP, TRACED
from medddpm.measure.profile.trace import Launch, launches_within

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True)
class ProgramTrace:
    """The traced steps of a program.

    Args:
        steps: the launches of each; the last one is the table.
        gpus: how many have launches.
        graphs: whether CUDA graphs were launched.
    """

    steps: Sequence[Sequence[Launch]]
    gpus: int
    graphs: bool

    @property
    def differing(self) -> int:
        """The number of launches by which the last step differs from the one before: by kernel, grid and block."""
        before, last = (Counter(row[1:4] for row in step) for step in self.steps[-2:])
        return sum((before - last).values()) + sum((last - before).values())


def read_program_trace(path: Path, name: str) -> ProgramTrace:
    """Reads the file that torch.profiler exports for Chrome.

    Args:
        path: the file.
        name: of the run, for messages.

    Raises:
        BadInput: it is missing, cut short, lacks a step, or its last step launched nothing though there is a GPU.
    """
    try:
        events = [event for event in json.loads(path.read_bytes())["traceEvents"] if event.get("ph") == "X"]
        steps = launches_within(events, STEP)
        gpus = {event["args"]["device"] for event in events if event.get("cat") == "kernel"}
        graphs = any(str(event.get("name")).startswith(GRAPH_LAUNCHES) for event in events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        remedy = "free some disk space in TMPDIR and profile again"
        raise BadInput(name, "the program's trace is missing, cut short or damaged", remedy) from None
    if len(steps) < TRACED:
        remedy = "end other profilers; if torch.compile has compiled the optimizer's call, mark steps by "
        raise BadInput(name, f"the trace holds {len(steps)} of {TRACED} steps", remedy + "medddpm.measure.step()")
    if not steps[-1] and torch.cuda.is_available():
        remedy = "move the network and its batch to the GPU; if they are there, end other profilers and try again"
        raise BadInput(name, "CUPTI saw no kernel launch in the step", remedy)
    return ProgramTrace(steps, len(gpus), graphs)


def described(
    trace: ProgramTrace, status: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Returns what is known of the program, for the description of the trace, and the lines for its reader.

    Args:
        trace: the traced steps.
        status: what the program's process told.
        processes: of the program, that make steps.
    """
    known = {
        "step_ms": status["step_ms"],
        "processes": max([len(processes), *(int(process["world"]) for process in processes)]),
        "gpus": trace.gpus or None,
        "graphs": trace.graphs,
        "varies": trace.differing > 0,
        "differing": trace.differing,
        "loading_ms": status["loading_ms"],
        "steps_seen": status["steps_seen"],
        "by": status["by"],
    }
    step, times = trace.steps[-1], known["step_ms"]
    busy, spread = sum(row[4] for row in step) / 1e6, f"{min(times):.4g} to {max(times):.4g}, {len(times)} steps"
    lines = [
        f"A step, told by {known['by']}, takes {statistics.median(times):.4g} ms ({spread}, not profiled); "
        f"its launches take {busy:.4g} ms"
    ]
    if known["loading_ms"]:
        lines.append(f"The host waits {statistics.median(known['loading_ms']):.4g} ms of each step for its batch")
    if trace.graphs:
        lines.append("note: CUDA graphs make launches; ncu profiles each of their kernels by itself")
    if known["processes"] > 1:
        lines.append(f"note: {known['processes']} processes make steps; the trace is of the first one's GPU work")
    if trace.gpus > 1:
        lines.append(f"note: the step has launches on {trace.gpus} GPUs, which run beside each other")
    if trace.differing:
        counts = f"{len(step)} launches after {len(trace.steps[-2])} in the step before"
        lines.append(f"note: the step varies: {counts}, {trace.differing} of them different (kernel, grid or block)")
    return known, lines
