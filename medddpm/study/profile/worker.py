"""The program that `medddpm profile` runs: the published training, its phases marked (load, forward, backward, update).

The window view is the training run of the paper's Section 4 from its very first launch: the volume is prepared and the
weights are drawn on the CPU, so no kernel runs before. The other views mark one step after warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.runtime.processes import pick_device
from medddpm.study.profile import trace
from medddpm.switches import SETTINGS, Switches
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer

VIEWS = ("window", "step", "trace", "launches")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one view of the step under whatever profiles this process; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    top = argparse.ArgumentParser(prog="python -m medddpm.study.profile.worker", description=__doc__)
    top.add_argument("--switches", default="base", choices=[name.lower() for name in SETTINGS], help="(base)")
    top.add_argument(
        "--view", choices=VIEWS, required=True, help="window, launches: from the first launch on; step, trace: one step"
    )
    top.add_argument("--size", type=int, default=128, help="side of the volume (128)")
    top.add_argument("--channels", type=int, default=64, help="base width of the network (64)")
    top.add_argument("--accumulation", type=int, default=1, help="micro-steps of an optimizer step (1)")
    top.add_argument("--steps", type=int, default=2, help="steps of the window and launches views (2)")
    top.add_argument("--warmup", type=int, default=3, help="steps before the marked one (3)")
    top.add_argument(
        "--convert-on", choices=["gpu", "cpu"], default="gpu",
        help="where the weights go into the setting's layout: gpu, as a user's run does it, a launch a tensor; or cpu",
    )  # fmt: skip
    top.add_argument("--trace", type=Path, metavar="CSV.GZ", help="where the trace and launches views write theirs")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def run(arguments: argparse.Namespace) -> None:
    """One view of the training, as `parser` describes it."""
    traced = arguments.view in ("trace", "launches")
    if traced and arguments.trace is None:
        raise BadInput("--trace", f"the {arguments.view} view needs a file to write", "name one")
    device, setting = pick_device(arguments.device), SETTINGS[arguments.switches.upper()]
    trainer = build(setting, arguments.size, arguments.channels, arguments.accumulation, device)
    if arguments.convert_on == "cpu":
        lay_out_on_host(trainer.unet, setting)
    trainer.phase = nvtx_range if device.type == "cuda" and not traced else torch.profiler.record_function
    if arguments.view == "launches":

        def from_the_start() -> None:
            with setting.on(trainer.unet):
                for _ in range(arguments.steps):
                    trainer.train_step()

        write_trace(from_the_start, device, arguments.trace, before=lambda: torch.zeros(1, device=device))
        return
    with setting.on(trainer.unet):
        for _ in range(arguments.steps if arguments.view == "window" else arguments.warmup):
            trainer.train_step()
        _wait(device)
        if arguments.view == "step":
            with torch.cuda.profiler.profile() if device.type == "cuda" else contextlib.nullcontext():
                trainer.train_step()
                _wait(device)
        elif arguments.view == "trace":
            write_trace(trainer.train_step, device, arguments.trace, before=trainer.train_step)


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Marks the process, not the thread: autograd launches the backward pass from a thread of its own."""
    handle = torch.cuda.nvtx.range_start(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_end(handle)


def build(setting: Switches, size: int, channels: int, accumulation: int, device: torch.device) -> Trainer:
    """A trainer of the published network on one phantom, ready in memory, without a kernel launched.

    It makes no CUDA graph under any setting: a profiler is to see every launch, and the phase it belongs to.
    """
    config = TrainConfig(
        setting=setting.name,
        image_size=size,
        model_channels=channels,
        accumulation=accumulation,
        read_every_loss=True,
    )
    volumes = Phantom(1, (size, size, size))
    volumes[0]  # now in the data set's memory
    return Trainer(config, volumes, device, graph=False)


def lay_out_on_host(network: nn.Module, setting: Switches) -> None:
    """Puts 5-D weights into the setting's layout on the CPU; they come and go by copies, which are no launches."""
    for parameter in network.parameters():
        if parameter.dim() == 5:
            laid_out = parameter.data.cpu().contiguous(memory_format=setting.memory_format)
            parameter.data = laid_out.to(parameter.device)


def write_trace(work: Callable[[], object], device: torch.device, path: Path, before: Callable[[], object]) -> None:
    """Records `work` plainly, without counters, and writes its launches; see `medddpm.study.profile.trace`.

    Args:
        work: what is recorded.
        device: where it runs.
        path: the table, NAME.csv.gz.
        before: what runs while CUPTI wakes, which loses launches of its own.

    Raises:
        BadInput: where a GPU's launches were not seen.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        before()
        _wait(device)
        profiler.step()
        work()
        _wait(device)
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        exported = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(exported))
        table = trace.launches(json.loads(exported.read_bytes())["traceEvents"])
    if table.empty and device.type == "cuda":
        raise BadInput("trace", "CUPTI saw no kernel launch", "end other profilers of this GPU and try again")
    trace.write(table, path)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
