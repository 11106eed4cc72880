"""The process that `python -m study convnext` starts for one part of the measurement; it writes FOLDER/PART.json."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from medddpm.errors import BadInput, first_line
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import pick_device
from study.convnext import forward, launches, training
from study.convnext.model import ConvNeXtBlock, ConvNeXtUNet
from study.convnext.on_gpu import CONVOLUTION, conv2d_on_gpu, layer_norm_on_gpu
from study.convnext.operators import OperatorTimer
from study.convnext.timing import graphed, launched, waited
from study.convnext.versions import CASES, TIME, TOY, Case, Settings, Version, problem

PARTS = ("operators", "kernels", "transfers", "training")
STEPS = 10  # evaluations of the network that Table I's rows are taken over
SAMPLES = 20
CHOOSING = 5  # samples under each of a version's settings
TRANSFERRED = (4 * 32 * 32 * 3, 4 * 32 * 32 * 64, 2**24)  # bytes: an image, a feature map, what fills the bus
WINDOW = 50  # training steps of a mean loss
DRAWN = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what `parser` describes; returns the exit code. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        device = pick_device(arguments.device)
        if arguments.mark:
            mark(arguments, device)
            return 0
        rows = {"operators": operators, "kernels": kernels, "transfers": transfers, "training": trained}[
            arguments.part
        ](arguments, device)
        write_json(arguments.folder / f"{arguments.part}.json", rows)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # a compiler's or a kernel's; the other parts go on
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.convnext.worker", description=__doc__)
    top.add_argument("--part", required=True, choices=PARTS)
    top.add_argument("--folder", type=Path, required=True, help="of the results")
    top.add_argument("--mark", action="store_true", help="kernels: time nothing, run each version once for ncu")
    top.add_argument("--data", type=Path, help="training: CIFAR-10's binary files (scikit-learn's digits)")
    top.add_argument("--steps", type=int, default=2000, help="training: optimizer steps (2000)")
    top.add_argument("--toy", action="store_true", help="the smallest sizes, to rehearse without a GPU")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def check_part(part: str, device: torch.device, toy: bool) -> None:
    """Checks that a part, or the counters, can be measured on a device.

    Raises:
        BadInput: it takes a GPU.
    """
    if device.type == "cuda" or part in ("operators", "training") or (part == "kernels" and toy):
        return
    rehearsed = ", or rehearse with --toy" if part == "kernels" else ""
    raise BadInput(f"--part {part}", "there is no NVIDIA GPU here", f"measure on one, or leave the part out{rehearsed}")


# Tables I to III


def operators(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measures `convnext_operators`: the same few steps of sampling, with operators moved to the GPU in turn."""
    torch.manual_seed(0)
    network = ConvNeXtUNet(widths=(16, 16) if arguments.toy else (64, 128, 128)).eval()
    side, steps = (4, 2) if arguments.toy else (32, STEPS)
    noise = np.random.default_rng(0).standard_normal((1, side, side, 3), dtype=np.float32)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(cores, numba.config.NUMBA_NUM_THREADS)
    moved: dict[str, Callable[..., Any]] = {"conv2d": functools.partial(conv2d_on_gpu, device)}
    both = moved | {"layer_norm": functools.partial(layer_norm_on_gpu, device)}
    variants: list[tuple[str, int, dict[str, Callable[..., Any]]]] = [
        ("CPU, one thread", 1, {}),
        ("CPU, all cores", cores, {}),
    ]
    if device.type == "cuda":
        variants += [("conv2d on the GPU", 1, moved), ("conv2d and layer_norm on the GPU", 1, both)]
    rows = []
    for name, threads, replaced in variants:
        numba.set_num_threads(threads)
        forward.sample(network, noise, 2, OperatorTimer(**replaced))  # compiles
        timer = OperatorTimer(**replaced)
        began = time.perf_counter()
        forward.sample(network, noise, steps, timer)
        total = time.perf_counter() - began
        timed_rows = [(operator, timer.seconds[operator], timer.calls[operator]) for operator in timer.seconds]
        for operator, seconds, calls in [*timed_rows, ("total", total, steps)]:
            rows.append({"variant": name, "threads": threads, "operator": operator, "seconds": seconds, "calls": calls})
    return {"rows": rows, "blocks": _processor_blocks(arguments, cores)}


def _processor_blocks(arguments: argparse.Namespace, cores: int) -> list[dict[str, Any]]:
    """Measures a ConvNeXt block on the CPU (Table V), with one thread and with all cores, in µs."""
    side, channels = (4, 16) if arguments.toy else (32, 64)
    torch.manual_seed(0)
    module = ConvNeXtBlock(channels, TIME)
    x = np.random.default_rng(0).standard_normal((1, side, side, channels), dtype=np.float32)
    rows = []
    for name, threads in (("numba, one thread", 1), ("numba, all cores", cores)):
        numba.set_num_threads(threads)
        work = functools.partial(forward.block, module, x, np.zeros((1, TIME), np.float32), OperatorTimer())
        work()
        exact = ConvNeXtBlock(channels, TIME).double()
        exact.load_state_dict(module.state_dict())
        image, shift = torch.from_numpy(x).double().permute(0, 3, 1, 2), module.shift.bias.double()[None]
        with torch.no_grad():
            expected = exact.body(image, shift).permute(0, 2, 3, 1).numpy()
        error = float(np.linalg.norm(work() - expected) / np.linalg.norm(expected - x))
        case = Case("block", 1, side, channels)
        rows.append(_row(case, name, "processor", waited(work, SAMPLES, torch.device("cpu")), error))
    return rows


# Kernels


def kernels(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measures rows of schema `KERNELS` of `schemas_convnext`: every version of every case, its error and its time."""
    check_part("kernels", device, arguments.toy)
    rows, failed = list[dict[str, Any]](), {}
    for case in _cases(arguments.toy):
        case_problem = problem(case, device)
        for version in case_problem.versions:
            try:
                samples = 1 if arguments.toy else SAMPLES
                measured = functools.partial(_measured, case, version, case_problem.error, device, samples)
                rows += within(fastest(version, device), measured) if version.searched else measured()
            except Exception as error:  # one version's compiler or kernel; the others stand
                failed[f"{case.operator} {case.size}, {version.name}"] = f"{type(error).__name__}: {first_line(error)}"
    return {"rows": rows, "failed": failed}


def fastest(version: Version, device: torch.device) -> Settings:
    """Returns the settings of a version under which it is fastest in a CUDA graph; on a CPU the first."""

    def median() -> float:
        version.run()
        return statistics.median(graphed(version.run, CHOOSING, device))

    if device.type != "cuda":
        return version.settings[0]
    return min(version.settings, key=lambda settings: within(settings, median))


def within(settings: Settings, work: Callable[[], Any], thread: ThreadPoolExecutor | None = None) -> Any:
    """Calls `work` under `settings`, in `thread` or in a new thread, and returns its result.

    A thread of PyTorch's keeps the algorithm that cuDNN chose for a convolution, by rule or by search: with one thread
    for both, the second would time the first's algorithm.
    """

    def run() -> Any:
        with settings():
            return work()

    if thread is not None:
        return thread.submit(run).result()
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(run).result()


def _measured(
    case: Case, version: Version, error_of: Callable[[Tensor], float], device: torch.device, samples: int
) -> list[dict[str, Any]]:
    result = version.run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    error = error_of(version.output(result))
    for _ in range(3 if samples > 1 else 0):
        version.run()
    if device.type != "cuda":
        return [_row(case, version.name, "processor", waited(version.run, samples, device), error)]
    rows = [_row(case, version.name, "launched", launched(version.run, samples), error)]
    return [_row(case, version.name, "graph", graphed(version.run, samples, device), error), *rows]


def _row(case: Case, version: str, how: str, times: list[float], error: float) -> dict[str, Any]:
    return {
        "operator": case.operator, "batch": case.batch, "size": case.size, "stride": case.stride, "version": version,
        "how": how, "us": times, "error": error, "gflop": case.flop / 1e9, "least_mb": case.least_bytes / 1e6,
    }  # fmt: skip


def mark(arguments: argparse.Namespace, device: torch.device) -> None:
    """Runs each version once between the profiler's marks, and the kernel `between_versions` before each."""
    from study.convnext.kernels.pointwise import between_versions

    for case in _cases(arguments.toy):
        case_problem = problem(case, device)
        separate = launches.Launch(between_versions, (1,), 32, (torch.zeros(1, device=device),)).prepared()
        separate()
        with contextlib.ExitStack() as threads:
            runs = [_in_one_thread(threads, version, device) for version in case_problem.versions]
            for run in runs:
                for _ in range(3):
                    run()
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
            for run in runs:
                separate()
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()


def _in_one_thread(threads: contextlib.ExitStack, version: Version, device: torch.device) -> Callable[[], object]:
    """Returns a function that runs a version once under its fastest settings, always in one thread."""
    if not version.searched:
        return version.run
    settings, thread = fastest(version, device), threads.enter_context(ThreadPoolExecutor(1))
    return lambda: within(settings, version.run, thread)


def in_order(toy: bool, device: torch.device) -> list[tuple[Case, str]]:
    """Returns the cases and versions in the order in which `mark` runs them."""
    return [(case, version.name) for case in _cases(toy) for version in problem(case, device).versions]


def _cases(toy: bool) -> tuple[Case, ...]:
    return TOY if toy else CASES


# Table IV


def transfers(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measures rows of schema `TRANSFERS` of `schemas_convnext`."""
    check_part("transfers", device, arguments.toy)
    rows: list[dict[str, Any]] = []

    def add(part: str, memory: str, size: int, times: list[float]) -> None:
        rows.append({"what": part, "memory": memory, "bytes": size, "us": times})

    for memory, size in itertools.product(("pageable", "pinned"), TRANSFERRED):
        pinned = memory == "pinned"
        host = torch.zeros(size // 4, pin_memory=pinned).normal_()
        near = host.to(device)
        for part, run in (
            ("to GPU", functools.partial(near.copy_, host, non_blocking=pinned)),
            ("to CPU", functools.partial(host.copy_, near, non_blocking=pinned)),
        ):
            waited(run, 10, device)
            add(part, memory, size, waited(run, 100, device))
    for channels in (3, 64):
        host = torch.zeros(1, 32, 32, channels).normal_()
        weight, bias = torch.zeros(3, 3, channels, 64).normal_(), torch.zeros(64)
        x, w, b = (tensor.to(device) for tensor in (host, weight, bias))
        out = x.new_empty((1, 32, 32, 64))
        (launch,) = launches.convolution(CONVOLUTION, x, w, b, out, 1, 1)
        times = graphed(launch.prepared(), SAMPLES, device)
        for memory in ("pageable", "pinned"):
            sent = host.pin_memory() if memory == "pinned" else host
            back = torch.zeros(out.shape, pin_memory=memory == "pinned")

            def whole(sent: Tensor = sent, w: Tensor = w, b: Tensor = b, back: Tensor = back) -> None:
                near = sent.to(device, non_blocking=sent.is_pinned())
                result = near.new_empty((1, 32, 32, 64))
                for step in launches.convolution(CONVOLUTION, near, w, b, result, 1, 1):
                    step()
                back.copy_(result, non_blocking=back.is_pinned())

            waited(whole, 10, device)
            add("whole", memory, 4 * host.numel(), waited(whole, 100, device))
            add("kernel", memory, 4 * host.numel(), times)
    return {"rows": rows}


# Training


def trained(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Trains and draws for `convnext_training` and `convnext_samples`; returns losses, samples and times."""
    side = 8 if arguments.toy else training.SIDE
    images = training.cifar(arguments.data) if arguments.data else training.digits(side)
    small: dict[str, Any] = {"widths": (16, 16), "timesteps": 4, "batch": 4} if arguments.toy else {}
    began = time.perf_counter()
    diffusion, losses = training.train(images, arguments.steps, device, **small)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    samples = training.draw(diffusion, 2 if arguments.toy else DRAWN, images.shape[-1])
    values = ((samples.cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return {
        "data": "cifar-10" if arguments.data else "digits",
        "losses": [losses[start : start + WINDOW] for start in range(0, len(losses), WINDOW)],
        "samples": values.tolist(),
        "training_seconds": seconds,
        "sampling_seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    end(main())
