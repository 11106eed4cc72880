"""The program that ncu profiles for Figure 2: training steps of generative models with random weights."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from medddpm.errors import BadInput, first_line
from medddpm.measure.profile.trace import record
from medddpm.runtime.exits import end
from medddpm.runtime.processes import pick_device, wait
from medddpm.switches import BASE
from study.generative.models import MODELS, Model, loss_of, parse_names
from study.generative.results import trace_path

PRECISIONS = ("fp32", "bf16")
WARMUP = 2  # steps


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps under whatever profiles this process; returns the exit code: 1 where a model failed."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.generative.worker", description=__doc__)
    top.add_argument("--model", required=True, help=f"all, or some of {', '.join(MODELS)}, separated by commas")
    top.add_argument("--precision", default="fp32", help="fp32 (TF32 off), bf16 (autocast), or both with a comma")
    top.add_argument("--trace", type=Path, metavar="DIR", help="write the plain traces to DIR/MODEL_PRECISION.csv.gz")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    top.add_argument("--tiny", action="store_true", help="a toy of the same make")
    return top


def run(arguments: argparse.Namespace) -> int:
    """Runs every model at every precision; a failure is one line, and the rest go on."""
    models = [MODELS[name] for name in parse_names(arguments.model)]
    precisions = parse_precisions(arguments.precision)
    device = pick_device(arguments.device)
    failed = 0
    for model in models:
        for precision in precisions:
            try:
                _one(model, precision, device, arguments.trace, arguments.tiny)
            except (BadInput, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                failed += 1
                print(f"{model.name} {precision}: {first_line(error)}", file=sys.stderr, flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return int(failed > 0)


def parse_precisions(text: str) -> list[str]:
    """Precisions from a comma-separated list.

    Raises:
        BadInput: one is unknown, or there is none.
    """
    names = [name for name in text.split(",") if name]
    if not names or any(name not in PRECISIONS for name in names):
        raise BadInput("--precision", f"{text!r} is not a list of precisions", f"choose from {', '.join(PRECISIONS)}")
    return names


def training_step(model: Model, precision: str, device: torch.device, tiny: bool = False) -> Callable[[], float]:
    """Returns a new network's training step: forward, a scalar loss, backward, an update by fused Adam.

    Args:
        model: the model whose network is made.
        precision: "fp32", or "bf16" for autocast; the caller sets TF32.
        device: where the network is made, with random weights.
        tiny: makes a toy in its place.

    Returns:
        a function that does a step and returns its loss.
    """
    torch.manual_seed(0)
    network = model.build(device, tiny)
    inputs = model.draw(device, tiny)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=True)

    def step() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(network(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _one(model: Model, precision: str, device: torch.device, trace: Path | None, tiny: bool) -> None:
    with BASE:
        step = training_step(model, precision, device, tiny)
        for _ in range(WARMUP):
            step()
        if trace is not None:
            record(step, device, trace_path(trace, model, precision), before=step)
            return
        with torch.cuda.profiler.profile() if device.type == "cuda" else contextlib.nullcontext():
            step()
            wait(device)


if __name__ == "__main__":
    end(main())
