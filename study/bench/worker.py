"""The program that `python -m study bench` starts for a row: one network under one setting.

It writes FOLDER/KEY_MEASURE.json after each missing measure, so that a killed program loses only the measure it was
taking. Before the first round the network is built, and code for it generated; everything that runs the network, and so
chooses kernels, is in a round. The optimizer's learning rate is 0: it does its work and the weights stay, so that every
sample computes the same, and the last sample's output and gradient can be compared with BASE's.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput, first_line
from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.replay.step import graphed_step
from medddpm.measure.machine import now, package_version
from medddpm.measure.ready import round_path, rounds
from medddpm.measure.tools import Tool
from medddpm.runtime.exits import end
from medddpm.runtime.files import opened, replacing, write_json
from medddpm.runtime.processes import peak, pick_device, reset_peak, wait
from study.bench.networks import NETWORKS, SEED, TIMESTEPS, Problem, build
from study.bench.power import measured_power
from study.bench.settings import BASE, BY_SLUG

REFERENCE = "reference"
MEASURES = ("forward", "step", "sample")  # in the order they are taken: the forward pass before the optimizer has state
PACKAGES = ("monai", "dynamic_network_architectures")  # whose networks are measured
SETTLING = 3.0  # s
WARMUP, WARMUP_SECONDS = 3, 5.0  # runs; no third where the second took so long: the first may compile or search
SAMPLES_OF_A_VOLUME, SAMPLING_SECONDS = 3, 30.0  # whole volumes; no more once they took so long
FEW_STEPS = (10, 25, 50)
SHORT = ("ddim", "dpm++")  # samplers that take fewer steps


@dataclass(frozen=True)
class Case:
    """A network and its batch, whatever the setting: rows of one case can be compared.

    Args:
        network: a name out of `NETWORKS`.
        side, batch: the volumes' side in voxels, and their number.
        channels: base width; 64 as published.
    """

    network: str
    side: int
    batch: int
    channels: int = 64

    @property
    def key(self) -> str:
        """The start of the names of the case's files."""
        return f"{self.network}_{self.side}_b{self.batch}_c{self.channels}"

    @property
    def reference_key(self) -> str:
        """The key of the result that describes BASE's output and gradient."""
        return f"{self.key}.reference"

    def reference(self, folder: Path) -> Path:
        """Returns the file of BASE's output and gradient."""
        return folder / f"{self.reference_key}.pt"

    def result_key(self, setting: Tool, measure: str) -> str:
        """Returns the key of the result of one measure under a setting."""
        return f"{self.key}_{setting.slug}_{measure}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what `parser` describes; returns the exit code. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
    except torch.OutOfMemoryError:
        print("out of memory: use a smaller --size or --batch", file=sys.stderr)
    except Exception as error:  # a compiler's or a kernel's; the bench goes on to the next row
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
    else:
        return 0
    return 1


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.bench.worker", description=__doc__)
    top.add_argument("--network", required=True, choices=list(NETWORKS))
    top.add_argument("--setting", required=True, choices=list(BY_SLUG))
    top.add_argument(
        "--measure", nargs="+", choices=[REFERENCE, *MEASURES], required=True,
        help="which to take; reference: only write the output and the gradient of a step, under base",
    )  # fmt: skip
    top.add_argument("--side", type=int, required=True, help="of the volume, voxels")
    top.add_argument("--batch", type=int, required=True, help="volumes at once")
    top.add_argument("--channels", type=int, default=64, help="base width (64)")
    top.add_argument("--samples", type=int, default=20, help="of a forward pass or step, at least (20)")
    top.add_argument("--folder", type=Path, required=True, help="of the results")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Measures one row, as `parser` describes it."""
    setting, network = BY_SLUG[arguments.setting], NETWORKS[arguments.network]
    case = Case(network.name, arguments.side, arguments.batch, arguments.channels)
    device = pick_device(arguments.device)
    model = build(network, case.side, case.channels).to(device)
    with setting.on(model) as called:
        row = Row(case, setting, Problem(network, case.side, case.batch, device), model, called)
        row.prepare(arguments.measure)
        for number in rounds():
            for name in (REFERENCE, *MEASURES):
                if name in arguments.measure:
                    measure(row, name, number, arguments.samples, arguments.folder)
            row.end()


def measure(row: Row, name: str, number: int, samples: int, folder: Path) -> None:
    """Takes one measure of a row in a round, and writes its result, unless that is there."""
    known: dict[str, Any] = {"case": asdict(row.case), "setting": row.setting.name, "date": now()}
    if name == REFERENCE:
        path = folder / f"{row.case.reference_key}.json"
        if not path.is_file():
            save_reference(row, row.case.reference(folder))
            write_json(path, {**known, "sha256": digest(row.case.reference(folder))})
        return
    path = round_path(folder / f"{row.case.result_key(row.setting, name)}.json", number)
    if path.is_file():
        return
    rows = sampled(row, TIMESTEPS) if name == "sample" else [repeated(row, name, samples, folder)]
    if row.setting.switches.fast:
        known["acceleration"] = str(getattr(row.model, "acceleration", ""))
    packages = {package: package_version(package) for package in PACKAGES}
    write_json(path, {**known, "rows": rows, "packages": packages})
    row.drop()


@dataclass(frozen=True)
class Row:
    """A network under a setting, and the work that is measured.

    Args:
        case: the network and its batch.
        setting: the network's; already entered.
        problem: the batch.
        model: the network itself, whose parameters are trained.
        called: the module to call in the network's place.
    """

    case: Case
    setting: Tool
    problem: Problem
    model: nn.Module
    called: nn.Module

    @property
    def device(self) -> torch.device:
        """The device of network and batch."""
        return self.problem.device

    @property
    def graphed(self) -> bool:
        """True if its work is replayed from CUDA graphs, which a CPU lacks."""
        return self.setting.graph and self.device.type == "cuda"

    def prepare(self, measures: Sequence[str]) -> None:
        """Generates the code of a compiled network, as far as that can be done beside other programs."""
        if "forward" in measures:
            self.model.eval()
            self.setting.generate(lambda: self._forward()(*self._forward_inputs()))
        if "step" in measures:
            self.model.train()
            self.setting.generate(self._loss)

    def work(self, measure: str) -> Callable[[], Tensor]:
        """Returns a function that computes one sample of "forward" or "step" and returns the network's output.

        A forward pass is one of inference: without gradients, the network in evaluation mode. Its graph, if any, is
        captured here or in its first runs.
        """
        self.model.train(measure != "forward")
        if measure == "step" and self.setting.reader == "graphed_step":
            inputs = self.problem.inputs
            step = graphed_step(self.model, self.problem.loss, self._optimizer(), inputs)

            def whole() -> Tensor:
                output: Tensor = step(*inputs)[1]
                if step.why:  # it goes on without its graph: that is another setting
                    raise BadInput(self.setting.name, f"it has no graph: {step.why}", "read `help(graphed_step)`")
                return output

            return whole
        function, inputs = (
            (self._forward(), self._forward_inputs())
            if measure == "forward"
            else (self.ordinary_step(), self.problem.inputs)
        )
        if self.graphed:
            captured = cuda_graphs.GraphedCall(function, *inputs)

            def replay(_alive: Callable[..., Tensor] = function) -> Tensor:  # `function` holds the optimizer's state
                return captured(*inputs)

            return replay
        return lambda: function(*inputs)

    def gradient(self) -> list[Tensor]:
        """Returns the gradient of every parameter after the last step, on the CPU."""
        return [p.grad.detach().cpu() if p.grad is not None else torch.zeros(p.shape) for p in self.model.parameters()]

    def drop(self) -> None:
        """Frees gradients, unreachable objects and cached memory before the next measure."""
        self.model.zero_grad()
        gc.collect()  # an optimizer is part of a cycle: its state, twice the weights, would count in the next peak
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def end(self) -> None:
        """Frees graphs and compiled code too, as other programs are timed before the next round."""
        cuda_graphs.forget(self.model)
        if self.setting.compiled:
            torch._dynamo.reset()
        self.drop()

    def _begin(self) -> None:
        """Declares the last step's tensors dead, as our reference to its output would make each step another graph."""
        if self.setting.replays:
            torch.compiler.cudagraph_mark_step_begin()

    def _forward_inputs(self) -> tuple[Tensor, ...]:
        inputs = self.problem.forward_inputs()
        if not self.setting.halved:
            return inputs
        return tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)

    def _forward(self) -> Callable[..., Tensor]:
        @torch.no_grad()
        def forward(*inputs: Tensor) -> Tensor:
            self._begin()
            with self.setting.autocasting(self.device):
                return next(nested.tensors(self.called(*inputs)))

        return forward

    def _loss(self) -> Tensor:
        with self.setting.autocasting(self.device):
            return self.problem.loss(self.called, *self.problem.inputs)[0]

    def _optimizer(self) -> torch.optim.Optimizer:
        # Other people's networks are always trained with the fused Adam: it is a user's choice, not this package's.
        fused = self.device.type == "cuda" and (self.setting.fused_adam or not self.problem.network.ours)
        return torch.optim.Adam(
            self.model.parameters(), lr=0.0, fused=fused or None, capturable=fused and self.setting.graph
        )

    def ordinary_step(self) -> Callable[..., Tensor]:
        """Returns a step of an ordinary loop, with a new optimizer; the step returns the network's output."""
        optimizer = self._optimizer()

        def step(*inputs: Tensor) -> Tensor:
            optimizer.zero_grad()
            self._begin()
            with self.setting.autocasting(self.device):
                loss, output = self.problem.loss(self.called, *inputs)
            loss.backward()
            optimizer.step()
            return output.detach()

        return step


def repeated(row: Row, measure: str, samples: int, folder: Path) -> dict[str, Any]:
    """Measures "forward" or "step"; adds the distance from BASE if BASE's output is in `folder`.

    It is timed `samples` times and, on a GPU, for `SETTLING` seconds at least, after as many without a measurement.
    """
    work = None
    if row.setting.replays or row.setting.reader == "accelerate":
        work = row.work(measure)
        work()  # a later run records the graphs
    elif measure == "step" and (row.setting.reader == "graphed_step" or (row.graphed and row.setting.compiled)):
        with cuda_graphs.off():  # these capture as soon as they are made: the first run is a step without a graph
            row.ordinary_step()(*row.problem.inputs)
        row.drop()
    reset_peak(row.device)  # the peak includes a capture, but not the compiling and searching of a first run
    work = work or row.work(measure)
    warm_up(work, row.device)
    samples = max(samples, settle(work, row.device))
    if not (row.graphed or row.setting.replays or row.setting.reader):
        reset_peak(row.device)  # not with a graph: a replay allocates nothing, its memory is the capture's
    with measured_power(row.device) as power:
        times, output = timed(work, samples, row.device)
    output = output.cpu()
    result: dict[str, Any] = {
        "measure": measure,
        "sampler": None,
        "steps": 1,
        "ms": times,
        "host_ms": launching(work, statistics.median(times), row.device),
        "peak_bytes": peak(row.device),
        **power,
    }
    reference = row.case.reference(folder)
    if row.setting == BASE or not reference.is_file():
        return result
    base = torch.load(reference, weights_only=True)
    result["rel_error_output"] = distance([output], [base["forward" if measure == "forward" else "output"]])
    if measure == "step":
        result["rel_error_grad"] = distance(row.gradient(), base["gradient"])
    if not all(math.isfinite(result.get(name, 0)) for name in ("rel_error_output", "rel_error_grad")):
        problem = f"its {measure} gives numbers that are not finite"
        raise BadInput(row.setting.name, problem, "do not use it at this size")
    return result


def sampled(row: Row, timesteps: int) -> list[dict[str, Any]]:
    """Draws whole volumes: the full chain and, under FAST, the samplers with fewer steps."""
    diffusion = GaussianDiffusion(row.called, timesteps).to(row.device)
    chains = [("ddpm", timesteps)]
    if row.setting.name == "FAST":
        chains += [(sampler, steps) for sampler in SHORT for steps in FEW_STEPS if steps < timesteps]
    rows = []
    for sampler, steps in chains:

        def draw(sampler: str = sampler, steps: int = steps) -> Tensor:
            generator = torch.Generator(row.device).manual_seed(SEED)
            with row.setting.autocasting(row.device):
                return diffusion.sample(row.problem.mask, steps, sampler, generator=generator)

        cuda_graphs.forget(row.model)  # a replay allocates nothing: each chain's peak is that of its own capture
        row.drop()
        reset_peak(row.device)
        draw("ddim", 2)  # its two evaluations warm the network up, and capture what is captured once
        times: list[float] = []
        while not times or (len(times) < SAMPLES_OF_A_VOLUME and sum(times) < 1e3 * SAMPLING_SECONDS):
            times += timed(draw, 1, row.device)[0]
        rows.append(
            {"measure": "sample", "sampler": sampler, "steps": steps, "ms": times, "peak_bytes": peak(row.device)}
        )
    return rows


def save_reference(row: Row, path: Path) -> None:
    """Writes the output and the gradient of one step, and the output of a forward pass."""
    known: dict[str, Any] = {"forward": row.work("forward")().cpu()}  # before the step, whose batch norms move
    known |= {"output": row.work("step")().cpu(), "gradient": row.gradient()}
    with replacing(path) as temporary:
        torch.save(known, temporary)
    row.drop()


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Returns ‖ours − theirs‖ / ‖theirs‖ over all tensors together, in float64."""
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, theirs, strict=True))
    return (apart / sum(float(b.double().square().sum()) for b in theirs)) ** 0.5


def warm_up(work: Callable[[], object], device: torch.device) -> None:
    """Runs `work` until libraries are loaded, kernels compiled and caches filled."""
    for run in range(1, WARMUP + 1):
        began = time.monotonic()
        work()
        wait(device)
        if run >= 2 and time.monotonic() - began > WARMUP_SECONDS:
            break


def settle(work: Callable[[], Tensor], device: torch.device) -> int:
    """Runs `work` for `SETTLING` seconds and returns the number of runs; does nothing and returns 1 on a CPU.

    A GPU may draw more than its power limit for about a second, and its clocks fall only then: a time within that
    second is shorter than in any long training.
    """
    if device.type != "cuda":
        return 1
    times = timed(work, 3, device)[0]
    runs = math.ceil(1e3 * SETTLING / statistics.median(times))
    timed(work, runs, device)
    return runs


def timed(work: Callable[[], Tensor], samples: int, device: torch.device) -> tuple[list[float], Tensor]:
    """Times samples of `work`; returns each one's time in ms, and the last one's result.

    On a GPU samples follow each other without a wait, as training steps do, timed by events on the device. Each result
    is freed before the next sample, or it would count in the peak.
    """
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(samples):
            output = work()
            marks.append(time.perf_counter())
        return [1e3 * (after - before) for before, after in itertools.pairwise(marks)], output
    torch.cuda.synchronize(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    events[0].record()
    last: list[Tensor] = []
    for event in events[1:]:
        last.clear()
        last.append(work())
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events)], last[0]


def launching(work: Callable[[], object], ms: float, device: torch.device) -> float | None:
    """Returns the host's median time for `work` in ms; None on a CPU, where the host does all the work.

    The GPU is idle before each run: a busy one makes the host wait once it has launched enough. If the host takes
    longer than the GPU, the GPU waits for the host.

    Args:
        work: computes one sample.
        ms: the time of a sample: it runs as often as fits into `SETTLING`, from 3 to 20 times.
        device: that it runs on.
    """
    if device.type != "cuda":
        return None
    taken = []
    for _ in range(max(3, min(20, int(1e3 * SETTLING / ms)))):
        wait(device)
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    end(main())
