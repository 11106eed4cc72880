"""Reads the trace that a program with hooks left: the launches of its traced steps, and what is said of the program."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure.profile.observer import STEP, TRACED
from medddpm.measure.profile.trace import Launch, launches_within

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
Events = list[dict[str, Any]]


def read_events(path: Path, name: str) -> Events:
    """Reads the events of the file that torch.profiler exports for Chrome.

    Args:
        path: the file.
        name: of the run, for messages.

    Raises:
        BadInput: there is no such file, or it was cut short.
    """
    try:
        return [event for event in json.loads(path.read_bytes())["traceEvents"] if isinstance(event, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(name, "the program's trace is missing or cut short", "free some disk space in TMPDIR") from None


def steps_of(events: Events, name: str) -> list[list[Launch]]:
    """Returns the launches of each traced step.

    Args:
        events: of the trace.
        name: of the run, for messages.

    Raises:
        BadInput: the trace lacks a step, or the last step launched nothing though the trace has a GPU.
    """
    steps = launches_within(events, STEP)
    if len(steps) < TRACED:
        raise BadInput(name, f"the trace holds {len(steps)} of {TRACED} steps", "end other profilers and try again")
    if not steps[-1] and _has_gpu():
        remedy = "move the network and its batch to the GPU; if they are there, end other profilers and try again"
        raise BadInput(name, "CUPTI saw no kernel launch in the step", remedy)
    return steps


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def described(
    events: Events, steps: Sequence[Sequence[Launch]], status: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Returns what is known of the program, for the description of the trace, and the lines for its reader.

    Args:
        events: of the trace.
        steps: the launches of the traced steps; the last one is the table.
        status: what the program's process told.
        processes: of the program, that make steps.
    """
    before, last = (Counter(row[1:4] for row in step) for step in steps[-2:])
    differing = sum((before - last).values()) + sum((last - before).values())
    devices = {event["args"]["device"] for event in events if "device" in _arguments(event) and _is_kernel(event)}
    known = {
        "step_ms": status["step_ms"],
        "processes": max([len(processes), *(int(process["world"]) for process in processes)]),
        "gpus": len(devices),
        "graphs": any(str(event.get("name", "")).startswith(GRAPH_LAUNCHES) for event in events),
        "varies": differing > 0,
        "differing": differing,
        "loading_ms": status["loading_ms"],
        "steps_seen": status["steps_seen"],
        "by": status["by"],
    }
    return known, _lines(known, steps[-1])


def _lines(known: Mapping[str, Any], step: Sequence[Launch]) -> list[str]:
    times, busy = known["step_ms"], sum(row[4] for row in step) / 1e6
    spread = f"{min(times):.4g} to {max(times):.4g}, {len(times)} steps"
    lines = [
        f"A step, told by {known['by']}, takes {statistics.median(times):.4g} ms ({spread}, not profiled); "
        f"its launches take {busy:.4g} ms"
    ]
    if known["loading_ms"] is not None:
        lines.append(f"The host waits {known['loading_ms']:.4g} ms of each step for its batch")
    if known["graphs"]:
        lines.append("note: CUDA graphs make launches; ncu profiles each of their kernels by itself")
    if known["processes"] > 1:
        lines.append(f"note: {known['processes']} processes make steps; the trace is of the first one's GPU work")
    if known["gpus"] > 1:
        lines.append(f"note: the step has launches on {known['gpus']} GPUs, which run beside each other")
    if known["varies"]:
        share = f"{known['differing']} launches (kernel, grid and block) of {len(step)}"
        lines.append(f"note: the step varies: it differs from the step before in {share}; the trace is one of them")
    return lines


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args", {})
    return arguments if isinstance(arguments, dict) else {}


def _is_kernel(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "kernel"
