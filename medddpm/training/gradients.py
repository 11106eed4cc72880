"""Sums gradients over processes in flat buckets, each sent as soon as the backward pass has filled it.

The scheme of DistributedDataParallel (Li et al. 2020, PyTorch Distributed, VLDB), as functions of tensors alone: the
same calls run eagerly, through Gloo or NCCL, or are captured in a CUDA graph with the step around them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from medddpm.runtime.ranks import peers
from medddpm.training.config import TrainConfig
from medddpm.training.reports.pace import Stopwatch

LINE_BYTES = 128


class Bucket:
    """A flat buffer of the gradients of some parameters, one after the other.

    Args:
        parameters: on one device, in the order in which a backward pass reaches them.
        dtype: of the buffer, which is sent.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = list(parameters)
        # At whole lines of memory: kernels over many tensors read 16 bytes at a time where each begins at such.
        line = LINE_BYTES // dtype.itemsize
        *starts, end = itertools.accumulate((-(-p.numel() // line) * line for p in self.parameters), initial=0)
        self.flat = torch.zeros(end, dtype=dtype, device=self.parameters[0].device)
        # In the parameters' own strides, as the fused optimizer and the copies in few launches need.
        self.views = [
            self.flat.as_strided(p.shape, p.stride(), start) for p, start in zip(self.parameters, starts, strict=True)
        ]
        self.missing: set[int] = set()
        self.work: Any = None

    def send(self) -> None:
        """Fills the bucket and starts its sum; work on the device goes on meanwhile."""
        views, gradients = [], []
        for view, p in zip(self.views, self.parameters, strict=True):
            if p.grad is None:
                view.zero_()  # of a parameter that this process did not use
            else:
                views.append(view)
                gradients.append(p.grad)
        if gradients:
            torch._foreach_copy_(views, gradients)
        with peers():
            self.work = distributed.all_reduce(self.flat, async_op=True)

    def receive(self) -> None:
        """Waits for the sum and stores it in the parameters' `.grad`. On a GPU the host does not wait."""
        with peers():
            self.work.wait()
        self.work = None
        if all(p.dtype == self.flat.dtype for p in self.parameters):
            for view, p in zip(self.views, self.parameters, strict=True):
                p.grad = view
            return
        gradients = [torch.empty_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_copy_(gradients, self.views)
        for gradient, p in zip(gradients, self.parameters, strict=True):
            p.grad = gradient


class GradientSum:
    """Replaces every process's gradients by the sum over all processes; for the mean, divide the loss by their number.

    Every process must give the same parameters in the same order. Buckets are sent in that order, whichever is full
    first, so that all processes send the same one.

    Args:
        parameters: the trained ones, in the order of the network's forward pass.
        dtype: of the sums; None takes each parameter's. BF16 halves the traffic, and rounds each gradient and
            each partial sum to 8 bits.
        bucket_bytes: a bucket is sent once it holds so many; with 0 there is one, which is sent after the pass.

    Attributes:
        watch: times the pass up to where it waits for other processes.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None = None, bucket_bytes: int = 0
    ) -> None:
        self.buckets = list(_buckets(parameters, dtype, bucket_bytes))
        self._bucket_of = {id(p): bucket for bucket in self.buckets for p in bucket.parameters}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._filled) for bucket in self.buckets for p in bucket.parameters
        ]
        self._unsent: list[Bucket] | None = None  # None outside `of_pass`
        self.stopwatch = Stopwatch(self.buckets[0].flat.device)

    @contextlib.contextmanager
    def of_pass(self) -> Iterator[None]:
        """Surrounds a step's last forward and backward pass; on exit, every `.grad` is the sum over all processes.

        Raises:
            BadInput: another process has ended.
        """
        for bucket in self.buckets:
            bucket.missing = set(map(id, bucket.parameters))
        self._unsent = list(self.buckets)
        self.stopwatch.begin()
        try:
            yield
            while self._unsent:  # with parameters that the pass did not reach
                self._unsent.pop(0).send()
        finally:
            self._unsent = None
        self.stopwatch.end()
        for bucket in self.buckets:
            bucket.receive()

    def close(self) -> None:
        """Removes the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _filled(self, parameter: Tensor) -> None:
        if self._unsent is None:
            return
        self._bucket_of[id(parameter)].missing.discard(id(parameter))
        while self._unsent and not self._unsent[0].missing:
            self._unsent.pop(0).send()


def gradient_sum(parameters: Sequence[nn.Parameter], config: TrainConfig) -> GradientSum:
    """Sums the gradients of `parameters` in the dtype and the buckets that a run's config names."""
    dtype = torch.bfloat16 if config.gradient_dtype == "bf16" else None
    return GradientSum(parameters, dtype, config.bucket_mib * 2**20)


def _buckets(parameters: Sequence[nn.Parameter], dtype: torch.dtype | None, most: int) -> Iterator[Bucket]:
    """Cuts the parameters, last first as a backward pass reaches them, into buckets of one device and dtype.

    Args:
        most: bytes after which a bucket is closed; 0 for no such limit.
    """
    group: list[nn.Parameter] = []
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        full = 0 < most <= sum(p.numel() * (dtype or p.dtype).itemsize for p in group)
        if group and (full or (parameter.dtype, parameter.device) != (group[0].dtype, group[0].device)):
            yield Bucket(group, dtype or group[0].dtype)
            group = []
        group.append(parameter)
    if group:
        yield Bucket(group, dtype or group[0].dtype)
