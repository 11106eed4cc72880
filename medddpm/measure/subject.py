"""A network under a tool: one training step or forward pass of it, as a function that can be timed.

The optimizer's learning rate is 0: it does its work and the weights stay, so that every sample computes the same, and
the last one's gradient can be compared with another tool's.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.replay.step import graphed_step
from medddpm.measure.power import measured_power
from medddpm.measure.timing import launching, settle, timed, warm_up
from medddpm.measure.tools import Tool
from medddpm.runtime.processes import peak, reset_peak


class Batch(Protocol):
    """One fixed batch for a network, and what is computed from it."""

    @property
    def device(self) -> torch.device:
        """The device of network and batch."""

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments of `loss` after the network."""

    @property
    def always_fused(self) -> bool:
        """Whether the update is the fused Adam on a GPU under every tool."""

    def forward_inputs(self) -> tuple[Any, ...]:
        """Returns the arguments of `forward` after the network."""

    def forward(self, model: nn.Module, *inputs: Any) -> Any:
        """Returns what the network returns."""

    def loss(self, model: nn.Module, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Returns the loss, a scalar, and a tensor that one sample of a step gives: the network's output, or less."""


@dataclass(frozen=True)
class Subject:
    """A network under a tool, and the work that is measured.

    Args:
        setting: the tool; already entered.
        problem: the batch.
        model: the network itself, whose parameters are trained.
        called: the module to call in the network's place.
    """

    setting: Tool
    problem: Batch
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

    def _forward_inputs(self) -> tuple[Any, ...]:
        inputs = self.problem.forward_inputs()
        if not self.setting.halved:
            return inputs
        return tuple(nested.mapped(x, lambda t: t.bfloat16() if t.is_floating_point() else t) for x in inputs)

    def outputs(self) -> list[Tensor]:
        """Returns every tensor of the network's output for the inputs of a forward pass."""
        return self._outputs(*self._forward_inputs())

    def _outputs(self, *inputs: Any) -> list[Tensor]:
        self._begin()
        with self.setting.autocasting(self.device):
            return list(nested.tensors(self.problem.forward(self.called, *inputs)))

    def _forward(self) -> Callable[..., Tensor]:
        @torch.no_grad()
        def forward(*inputs: Any) -> Tensor:
            return self._outputs(*inputs)[0]

        return forward

    def _loss(self) -> Tensor:
        with self.setting.autocasting(self.device):
            return self.problem.loss(self.called, *self.problem.inputs)[0]

    def _optimizer(self) -> torch.optim.Optimizer:
        fused = self.device.type == "cuda" and (self.setting.fused_adam or self.problem.always_fused)
        return torch.optim.Adam(
            self.model.parameters(), lr=0.0, fused=fused or None, capturable=fused and self.setting.graph
        )

    def ordinary_step(self) -> Callable[..., Tensor]:
        """Returns a step of an ordinary loop, with a new optimizer; the step returns the network's output."""
        optimizer = self._optimizer()

        def step(*inputs: Any) -> Tensor:
            optimizer.zero_grad()
            self._begin()
            with self.setting.autocasting(self.device):
                loss, output = self.problem.loss(self.called, *inputs)
            loss.backward()
            optimizer.step()
            return output.detach()

        return step


def repeated(subject: Subject, measure: str, samples: int) -> tuple[dict[str, Any], Tensor, Callable[[], Tensor]]:
    """Measures "forward" or "step".

    The work is timed `samples` times and, on a GPU, for `timing.SETTLING` seconds at least, after as many without a
    measurement.

    Returns:
        its times in ms, the host's and the peak of memory; the last sample's output, on the CPU; the work itself.
    """
    work, setting, device = None, subject.setting, subject.device
    if setting.replays or setting.reader == "accelerate":
        work = subject.work(measure)
        work()  # a later run records the graphs
    elif measure == "step" and (setting.reader == "graphed_step" or (subject.graphed and setting.compiled)):
        with cuda_graphs.off():  # these capture as soon as they are made: the first run is a step without a graph
            subject.ordinary_step()(*subject.problem.inputs)
        subject.drop()
    reset_peak(device)  # the peak includes a capture, but not the compiling and searching of a first run
    work = work or subject.work(measure)
    warm_up(work, device)
    samples = max(samples, settle(work, device))
    if not (subject.graphed or setting.replays or setting.reader):
        reset_peak(device)  # not with a graph: a replay allocates nothing, its memory is the capture's
    with measured_power(device) as power:
        times, output = timed(work, samples, device)
    output = output.cpu()
    result: dict[str, Any] = {
        "measure": measure,
        "sampler": None,
        "steps": 1,
        "ms": times,
        "host_ms": launching(work, statistics.median(times), device),
        "peak_bytes": peak(device),
        **power,
    }
    return result, output, work


def check_finite(result: dict[str, Any], name: str) -> None:
    """Checks that a result's distances from float32 are numbers.

    Raises:
        BadInput: one is not, under the tool of that name.
    """
    if not all(math.isfinite(result.get(error) or 0) for error in ("rel_error_output", "rel_error_grad")):
        problem = f"its {result['measure']} gives numbers that are not finite"
        raise BadInput(name, problem, "do not use it at this size")
