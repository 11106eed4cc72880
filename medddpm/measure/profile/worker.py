"""The program that `medddpm profile` runs: the published training, its phases marked (load, forward, backward, update).

The window view is the training run of the paper's Section 4 from its very first launch: the volume is prepared and the
weights are drawn on the CPU, so no kernel runs before. The step view profiles one step after warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.torch_version import TorchVersion

from medddpm.errors import BadInput
from medddpm.measure.machine import software
from medddpm.measure.profile import trace
from medddpm.measure.published import SETTINGS, Prepared, build, lay_out_on_host, subject
from medddpm.measure.schemas import VIEWS
from medddpm.runtime.exits import end
from medddpm.runtime.processes import pick_device, wait


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one view of the training under whatever profiles this process; returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.about:
        print(json.dumps(software()))
        return 0
    try:
        if arguments.prepare:
            torch.save(subject(arguments.size)[0], arguments.prepare)
        else:
            run(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m medddpm.measure.profile.worker", description=__doc__)
    top.add_argument("--setting", default="base", choices=[name.lower() for name in SETTINGS], help="(base)")
    task = top.add_mutually_exclusive_group(required=True)
    task.add_argument("--view", choices=VIEWS, help="window: from the first launch on; step: one step")
    task.add_argument("--prepare", type=Path, metavar="FILE.pt", help="only write the subject, for --subject")
    task.add_argument("--about", action="store_true", help="only print the versions that it runs with, as JSON")
    top.add_argument("--size", type=int, default=128, help="side of the volume (128)")
    top.add_argument("--channels", type=int, default=64, help="base width of the network (64)")
    top.add_argument("--accumulation", type=int, default=1, help="micro-steps of an optimizer step (1)")
    top.add_argument("--steps", type=int, default=2, help="steps of the window view (2)")
    top.add_argument("--warmup", type=int, default=3, help="steps before the profiled one, in the step view (3)")
    top.add_argument(
        "--convert-on", choices=["gpu", "cpu"], default="gpu",
        help="where the weights go into the setting's layout: gpu, as a user's run does it, a launch a tensor; or cpu",
    )  # fmt: skip
    top.add_argument(
        "--subject", type=Path, metavar="FILE.pt",
        help="the subject as --prepare wrote it, in a Python that lacks what preparing takes: MONAI, nilearn and SciPy",
    )  # fmt: skip
    top.add_argument("--trace", type=Path, metavar="CSV.GZ", help="write the view's plain trace here")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Runs one view of the training, as `parser` describes it.

    The paper's settings also run under an older PyTorch than the package's (`medddpm profile --python`); 2.2 did.

    Raises:
        BadInput: there is no such device, or this PyTorch is too old for the setting.
    """
    device, setting = pick_device(arguments.device), SETTINGS[arguments.setting.upper()]
    if setting.fast and TorchVersion(torch.__version__) < "2.10":
        problem = f"{arguments.setting} needs PyTorch 2.10 or later, and this is {torch.__version__}"
        raise BadInput("--setting", problem, "under this one profile base, opt1, opt2 and opt12")
    volumes = Prepared(arguments.size, arguments.subject) if arguments.subject else subject(arguments.size)
    trainer = build(setting, volumes, arguments.channels, arguments.accumulation, device)
    if arguments.convert_on == "cpu":
        lay_out_on_host(trainer.unet, setting)
    profiled = device.type == "cuda" and arguments.trace is None
    trainer.phase = trace.nvtx_range if profiled else torch.profiler.record_function

    def train(steps: int) -> None:
        for _ in range(steps):
            trainer.train_step()
        wait(device)

    def train_from_the_first_launch() -> None:
        with setting.on(trainer.unet):
            train(arguments.steps)

    if arguments.view == "window":
        if arguments.trace is None:
            train_from_the_first_launch()
        else:
            first = functools.partial(torch.zeros, 1, device=device)
            trace.record(train_from_the_first_launch, device, arguments.trace, before=first)
        return
    with setting.on(trainer.unet):
        train(arguments.warmup)
        if arguments.trace is not None:
            trace.record(trainer.train_step, device, arguments.trace, before=trainer.train_step)
        else:
            with torch.cuda.profiler.profile() if profiled else contextlib.nullcontext():
                train(1)


if __name__ == "__main__":
    end(main())
