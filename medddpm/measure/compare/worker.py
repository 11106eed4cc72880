"""The program that `medddpm compare` starts for a row: a reader's step under one tool, or in float32, the reference.

It writes FOLDER/TOOL.json for each round; the reference also FOLDER/reference.pt, the outputs and gradients. Errors are
measured after the times, from the same seed and buffers in every process, with dropout layers off: each tool has random
draws of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput, first_line
from medddpm.measure.machine import now
from medddpm.measure.ready import round_path, rounds
from medddpm.measure.step_file import BUILD, SEED, Step, StepFile, load
from medddpm.measure.store import digest
from medddpm.measure.subject import Subject, check_finite, repeated
from medddpm.measure.timing import distance
from medddpm.measure.tools import AUTOCAST, COMPARED, FLOAT32
from medddpm.runtime.exits import end
from medddpm.runtime.files import read_json, replacing, write_json
from medddpm.runtime.processes import pick_device

REFERENCE = "reference"
MARK = "compare: "  # begins the line of a failure; what the reader's file prints may follow it
STEADY = 1e-4  # largest distance of two float32 runs that are the same: a choice, above atomics' and below TF32's
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
Errors = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what `parser` describes; returns the exit code. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except BadInput as error:
        line = str(error)
    except torch.OutOfMemoryError:
        line = "out of memory: build a smaller batch"
    except Exception as error:  # a compiler's or a kernel's; the comparison goes on to the next tool
        line = f"{type(error).__name__}: {first_line(error)}"
    else:
        return 0
    print(f"\n{MARK}{line}", file=sys.stderr, flush=True)
    return 1


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m medddpm.measure.compare.worker", description=__doc__)
    top.add_argument("--file", type=Path, required=True, help="the reader's")
    top.add_argument("--function", default=BUILD, help=f"in it, that builds the step ({BUILD})")
    top.add_argument("--tool", required=True, choices=[REFERENCE, *(tool.slug for tool in COMPARED)])
    top.add_argument("--measure", required=True, choices=["step", "forward"])
    top.add_argument("--samples", type=int, default=20, help="at least (20)")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    top.add_argument("--folder", type=Path, required=True, help="of the results")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Measures one row, as `parser` describes it."""
    file = StepFile(arguments.file, arguments.function)
    known = {**file.identity(), "measure": arguments.measure}
    step = load(file, pick_device(arguments.device))
    if arguments.measure == "forward" and step.call is None:
        remedy = "call it in loss_fn: --infer measures the first such call"
        raise BadInput(str(file), "loss_fn calls only parts of the network, never the network", remedy)
    if arguments.tool == REFERENCE:
        for _ in rounds():
            reference(
                step, arguments.measure, arguments.folder, {"of": known, "imports": file.imports(), "date": now()}
            )
        return
    tool = next(tool for tool in COMPARED if tool.slug == arguments.tool)
    with tool.on(step.model) as called:
        subject = Subject(tool, step, step.model, called)
        if off := getattr(getattr(step.model, "acceleration", None), "off", ""):
            raise BadInput("accelerate", off, "compare the other tools")
        subject.prepare([arguments.measure])
        for number in rounds():
            result, _, work = repeated(subject, arguments.measure, arguments.samples)
            result |= errors(subject, step, arguments.measure, work, arguments.folder)
            check_finite(result, tool.slug)
            report = {"acceleration": str(getattr(step.model, "acceleration", ""))} if tool.reader else {}
            path = round_path(arguments.folder / f"{tool.slug}.json", number)
            write_json(path, {"of": known, "imports": file.imports(), "date": now(), **result, **report})
            subject.end()


def reference(step: Step, measure: str, folder: Path, known: dict[str, Any]) -> None:
    """Writes the outputs and gradients of float32, and what the comparison has to know of the step.

    Among that is "unjudged", why errors cannot be measured, or else the errors under autocast alone. Tools are timed
    all the same.
    """
    known |= {
        "network": type(step.model).__name__,
        "digest": step.digest,
        "unpacked": step.unpacked,
        "held_bytes": torch.cuda.memory_allocated() if step.device.type == "cuda" else 0,
        "volumes": any(p.dim() == 5 for p in step.model.parameters()),
        "returns_more": False,
    }
    if measure == "step":
        with contextlib.suppress(torch.OutOfMemoryError):  # a tool may take less
            known["returns_more"] = step.check_loss()
    path = folder / f"{REFERENCE}.json"
    write_json(path, {**known, "unjudged": "the float32 run was killed", "partial": True})
    try:
        made = _judgement(step, measure, folder)
    except torch.OutOfMemoryError:
        made = {"unjudged": "float32 does not fit into memory"}
    except Exception as error:
        made = {"unjudged": f"float32 fails: {type(error).__name__}: {first_line(error)}"}
    write_json(path, {**known, **made})


def _judgement(step: Step, measure: str, folder: Path) -> dict[str, Any]:
    with FLOAT32.on(step.model) as called:
        subject = Subject(FLOAT32, step, step.model, called)
        work = subject.work(measure) if measure == "step" else None
        exact, again = (results(subject, step, measure, work) for _ in range(2))
        if why := _unsteady(subject, step, measure, exact, again):
            return {"unjudged": why}
        path = folder / f"{REFERENCE}.pt"
        with replacing(path) as temporary:
            torch.save({"outputs": exact[0], "gradient": exact[1]}, temporary)
        subject.drop()
    tool = AUTOCAST[0]
    with tool.on(step.model) as called:
        subject = Subject(tool, step, step.model, called)
        try:
            rough = results(subject, step, measure, subject.work(measure) if measure == "step" else None)
        except Exception as error:  # of an operator that has no BF16
            return {"unjudged": f"BF16 autocast, the measure of errors, fails: {first_line(error)}"}
    return {"sha256": digest(path), "autocast": apart(rough, exact)}


def _unsteady(subject: Subject, step: Step, measure: str, exact: Results, again: Results) -> str:
    """Says why float32 differs from run to run; empty if it does not."""
    if not all(bool(tensor.isfinite().all()) for tensor in (*exact[0], *exact[1])):
        return "float32's own outputs or gradients are not finite"
    try:
        by_run = max(apart(again, exact).values(), default=0.0)
        other = [] if step.call is None else _outputs(subject, step, measure, lambda: torch.manual_seed(SEED + 1))
        by_seed = apart((other, []), (exact[0], [])).get("rel_error_output", 0.0)
    except BadInput:
        return "shapes change from one float32 run to the next"
    if not by_run <= STEADY:
        return f"two float32 runs from one seed differ by {by_run:.2g}, so that tools cannot be told apart by errors"
    if not by_seed <= STEADY:
        return f"the network draws random numbers outside of dropout layers: two runs differ by {by_seed:.2g}"
    return ""


Results = tuple[list[Tensor], list[Tensor]]
"""Outputs and gradients, on the CPU."""


def results(subject: Subject, step: Step, measure: str, work: Any) -> Results:
    """Computes outputs and, by a whole step, `work`, gradients: from one seed, without dropout."""
    outputs = _outputs(subject, step, measure) if step.call is not None else []
    if measure == "forward":
        return outputs, []
    step.reset()
    with without_dropout(step.model):
        work()
    return outputs, subject.gradient()


def _outputs(subject: Subject, step: Step, measure: str, reseed: Any = lambda: None) -> list[Tensor]:
    step.reset()
    reseed()
    step.model.train(measure == "step")
    # With gradients, where a step has them: what is compiled or captured for the step then serves.
    with without_dropout(step.model), torch.set_grad_enabled(measure == "step"):
        return [output.detach().cpu() for output in subject.outputs()]


@contextlib.contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Inside, the network's dropout layers let all through."""
    active = [part for part in network.modules() if isinstance(part, DROPOUT) and part.training and part.p > 0]
    for part in active:
        part.eval()
    try:
        yield
    finally:
        for part in active:
            part.train()


def errors(subject: Subject, step: Step, measure: str, work: Any, folder: Path) -> dict[str, Any]:
    """Returns a tool's errors against float32, or "unjudged": why there are none."""
    known = read_json(folder / f"{REFERENCE}.json", "give --again")
    if why := known.get("unjudged"):
        return {"unjudged": why}
    if known["digest"] != step.digest:
        how = "seed what it draws (Python, NumPy and PyTorch are seeded before it); --again if what it imports changed"
        return {"unjudged": f"each process builds other weights or another batch: {how}"}
    exact = torch.load(folder / f"{REFERENCE}.pt", weights_only=True)
    try:
        return dict(apart(results(subject, step, measure, work), (exact["outputs"], exact["gradient"])))
    except BadInput as error:
        return {"unjudged": error.problem}
    except Exception as error:  # of code that is compiled or captured anew without dropout; the times stand
        return {"unjudged": f"the run for its errors fails: {type(error).__name__}: {first_line(error)}"}


def apart(ours: Results, exact: Results) -> Errors:
    """Returns the relative distance of outputs and of gradients, where there are any that are not all zero.

    Raises:
        BadInput: the outputs have other shapes.
    """
    shapes = [[tensor.shape for tensor in (*made[0], *made[1])] for made in (ours, exact)]
    if shapes[0] != shapes[1]:
        raise BadInput("network", "its outputs have other shapes than float32's", "give it inputs of one shape")
    names = ("rel_error_output", "rel_error_grad")
    return {key: distance(a, b) for key, a, b in zip(names, ours, exact, strict=True) if any(map(torch.any, b))}


if __name__ == "__main__":
    end(main())
