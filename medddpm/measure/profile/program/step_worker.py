"""The program that `medddpm profile my_step.py` runs: a reader's step under a tool, again and again.

Its steps are marked as any program's may be; the hooks of `medddpm.measure.profile.program.hooked` end it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import medddpm.measure
from medddpm.errors import BadInput
from medddpm.measure.step_file import BUILD, StepFile, load
from medddpm.measure.subject import Subject
from medddpm.measure.tools import COMPARED
from medddpm.runtime.exits import end
from medddpm.runtime.processes import pick_device


def main(argv: Sequence[str] | None = None) -> int:
    """Makes steps as `parser` describes them; returns the exit code. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except BadInput as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
    except torch.OutOfMemoryError:
        print("\nout of memory: build a smaller batch", file=sys.stderr, flush=True)
    else:
        return 0
    return 1


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m medddpm.measure.profile.program.step_worker", description=__doc__)
    top.add_argument("--file", type=Path, required=True, help="the reader's")
    top.add_argument("--function", default=BUILD, help=f"in it, that builds the step ({BUILD})")
    top.add_argument("--tool", default=COMPARED[0].slug, choices=[tool.slug for tool in COMPARED])
    top.add_argument("--steps", type=int, required=True, help="at most")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Makes the steps.

    Raises:
        BadInput: the file is at fault, or the tool does nothing for its network.
    """
    step = load(StepFile(arguments.file, arguments.function), pick_device(arguments.device))
    tool = next(tool for tool in COMPARED if tool.slug == arguments.tool)
    with tool.on(step.model) as called:
        if off := getattr(getattr(step.model, "acceleration", None), "off", ""):
            raise BadInput("accelerate", off, "profile the step under another tool")
        step.check_loss()
        subject = Subject(tool, step, step.model, called)
        work = subject.work("step")
        for _ in range(arguments.steps):
            with medddpm.measure.step():
                work()


if __name__ == "__main__":
    end(main())
