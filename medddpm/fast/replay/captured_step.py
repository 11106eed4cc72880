"""A call of a training step as a CUDA graph, and what must be as it was for a replay."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from medddpm.fast.graphs import nested
from medddpm.fast.replay.fingerprint import Fingerprint


class Captured:
    """A captured call.

    Args:
        inputs: the tensors that it reads.
        outputs: what `loss_fn` returned, which each replay overwrites.
        replay: launches it.
        pool: the memory that it lies in.
        fingerprints: of the model and of the loss's other networks as it was captured.
        state: of optimizer and scaler, which it reads and updates.
        gradients: of the optimizer's parameters, which each replay overwrites; empty if they are not its own.
        others: gradients that are summed elsewhere: of which tensor, or input by its number, and this call's.
        brings: the optimizer's parameters that its backward pass brings gradients to.

    Attributes:
        replays: how many there were.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        outputs: Any,
        replay: Callable[[], None],
        pool: Any,
        fingerprints: Sequence[Fingerprint],
        state: list[Tensor],
        gradients: list[Tensor | None],
        others: list[tuple[Any, Tensor]],
        brings: set[Tensor],
    ) -> None:
        self.inputs, self.outputs, self.state = inputs, outputs, state
        self.gradients, self._others, self.brings = gradients, others, brings
        self._places = list(map(Tensor.data_ptr, state))
        self.fingerprints, self._replay, self._pool = fingerprints, replay, pool
        self.replays = 0

    def updates(self, state: list[Tensor]) -> bool:
        """Returns whether the graph updates these tensors where they lie; a loaded checkpoint's are others."""
        same = len(state) == len(self.state) and all(map(operator.is_, state, self.state))
        return same and self._places == list(map(Tensor.data_ptr, state))

    def leave_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Leaves the optimizer's parameters the gradients of the last replay, or none where it does not keep them."""
        for p, gradient in itertools.zip_longest(parameters, self.gradients):
            if p.grad is not gradient:
                p.grad = gradient

    def __call__(self, batch: tuple[Any, ...]) -> Any:
        """Copies the batch in, replays, and copies the outputs out."""
        given = nested.distinct(batch)
        self.replays += 1
        with torch.no_grad():
            self._pool.replay(self._replay, self.inputs, given)
            if self._others:
                self._sum_others(given)
            return nested.mapped(self.outputs, Tensor.clone)

    def _sum_others(self, given: Sequence[Tensor]) -> None:
        """Adds this call's gradients of others to theirs, in two launches: a network's are many and small."""
        pairs = [(given[of] if isinstance(of, int) else of, gradient) for of, gradient in self._others]
        summed = dict(pairs)
        for t, gradient in pairs:
            if summed[t] is not gradient:  # of a tensor that is in the batch and read beside it
                t.grad = gradient.clone() if t.grad is None else t.grad.add_(gradient)
        held = {t: t.grad for t in summed if t.grad is not None}
        if held:
            torch._foreach_add_(list(held.values()), [summed[t] for t in held])
        if fresh := [t for t in summed if t not in held]:
            for t, gradient in zip(fresh, torch._foreach_mul([summed[t] for t in fresh], 1.0), strict=True):
                t.grad = gradient
