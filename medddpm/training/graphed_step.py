"""Captures an optimizer step as one CUDA graph: every micro-step's passes, the sum over processes, and the update."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from medddpm.fast.graphs import cuda_graphs
from medddpm.training.gradients import GradientSum


class GraphedStep:
    """The step of a `medddpm.training.trainer.Trainer`, captured; capturing changes no weight, moment or random draw.

    The host never waits for the device. The graph is valid while the network's acceleration stays the same, and the
    weights and the optimizer's state stay where they are in memory.

    Args:
        loss: is minimized: `loss(image, mask, generator=…)`, as of a `GaussianDiffusion`, whose network is accelerated
            and on a GPU.
        optimizer: Adam on its parameters, capturable.
        batches: (image, mask) of each micro-step, on that GPU, in the shapes of all later ones: (N, C, D, H, W) and
            (N, M, D, H, W).
        clip_norm: as for `clip`.
        total: the divisor of the sum of the losses: the number of micro-steps in all processes.
        gradients: sums them over processes within the graph; every process then captures and replays alike. Free the
            graph before the process group: NCCL waits for those that hold its collectives.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        batches: Sequence[tuple[Tensor, Tensor]],
        clip_norm: float = 0.0,
        total: int | None = None,
        gradients: GradientSum | None = None,
    ) -> None:
        self._loss, self._optimizer, self._clip_norm = loss, optimizer, clip_norm
        self._total, self._gradients = total or len(batches), gradients
        # A replay starts at a generator's seed: with one for each, micro-steps draw as if seeded in between.
        self._generators = [torch.Generator(image.device) for image, _ in batches]
        with unchanged(optimizer), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "This instance was constructed with capturable"
            )  # the warm-up is not captured
            self._graph = cuda_graphs.GraphedCall(
                self._step, *(tensor for batch in batches for tensor in batch), generators=self._generators
            )

    def __call__(self, batches: Sequence[tuple[Tensor, Tensor]], seeds: Sequence[int]) -> Tensor:
        """Makes one step.

        Args:
            batches: (image, mask) of each micro-step, on any device.
            seeds: one for each micro-step's timesteps and noise.

        Returns:
            this process's part of the loss, a scalar on the device; later steps do not overwrite it.
        """
        for generator, seed in zip(self._generators, seeds, strict=True):
            generator.manual_seed(seed)
        return self._graph(*(tensor for batch in batches for tensor in batch)).clone()

    def _step(self, *tensors: Tensor) -> Tensor:
        # Starting without gradients, the backward pass allocates them in the graph's own memory, where they stay.
        self._optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        for image, mask, generator in zip(tensors[::2], tensors[1::2], self._generators, strict=True):
            with summed(self._gradients, last=len(losses) == len(self._generators) - 1):
                loss = self._loss(image, mask, generator=generator) / self._total
                loss.backward()
            losses.append(loss.detach())
        clip(self._optimizer, self._clip_norm)
        self._optimizer.step()
        return torch.stack(losses).sum()


def summed(gradients: GradientSum | None, last: bool) -> contextlib.AbstractContextManager[None]:
    """Returns a context for a micro-step's passes; in the last one of a step it sums gradients over processes."""
    return gradients.of_pass() if gradients is not None and last else contextlib.nullcontext()


def clip(optimizer: torch.optim.Optimizer, norm: float) -> None:
    """Scales the gradient of all parameters of `optimizer` down to `norm` if its norm is larger; 0 leaves it as it is.

    The host does not wait for the device.
    """
    if norm:
        nn.utils.clip_grad_norm_([weight for group in optimizer.param_groups for weight in group["params"]], norm)


@contextlib.contextmanager
def unchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """On exit, restores weights and moments in place, and sets new moments to zero."""
    before = {tensor: tensor.detach().clone() for tensor in _weights_and_moments(optimizer)}
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor in _weights_and_moments(optimizer):
                if tensor in before:
                    tensor.copy_(before[tensor])
                else:
                    tensor.zero_()


def lay_out_alike(
    weights: Sequence[nn.Parameter], averages: Sequence[Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Gives averages and moments the strides of their weights, as the fused kernels need.

    A resumed run loads them in the strides in which they were saved.
    """
    moments = ((w, m) for w in weights for m in optimizer.state.get(w, {}).values() if m.shape == w.shape)
    for weight, tensor in (*zip(weights, averages, strict=True), *moments):
        if tensor.stride() != weight.stride():
            tensor.data = torch.empty_like(weight).copy_(tensor.data)


def _weights_and_moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return weights + [value for weight in weights for value in optimizer.state.get(weight, {}).values()]
