"""What a forward or a backward pass draws, and one tensor as several arguments."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.networks import block, distance, volume
from torch import Tensor, nn
from torch.nn import functional

from medddpm import accelerate, graphed_step

X = volume(2, 3, 8, 8, 8)


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)


class Net(nn.Module):
    def __init__(self, factor: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self.factor = block(), factor

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        return self.block(x) * self.factor(*more)


def test_minus_zero_is_another_number_than_zero() -> None:
    network = Net(lambda number: 1 if str(number) == "0.0" else -3)
    fast = accelerate(copy.deepcopy(network), report=None)
    for number in (0.0, 0.0, 0.0, -0.0):
        out = fast(X, number)
        out.sum().backward()
        assert distance(out, network(X, number)) < 1e-5


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -gradient


class Drawing(Reversal):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return random.random() * gradient


class WithFunction(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.block, self.function = block(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.block(x))

    def gradient(self) -> Tensor:
        self.zero_grad()
        self(X).square().sum().backward()
        return self.block[0].weight.grad.clone()  # type: ignore[union-attr]


def test_a_backward_pass_that_draws_on_the_host_has_no_graph() -> None:
    network: Any = accelerate(WithFunction(Drawing), report=None)
    norms = [network.gradient().norm().item() for _ in range(5)]
    assert len(set(norms)) == len(norms)
    assert network.acceleration.graphs.why == "its backward pass draws random numbers on the host"


class Writes(nn.Module):
    """Writes into its first argument, and reads the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return self.conv(y)


class Asks(Writes):
    """Tells whether its arguments are the same tensor."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.conv(x) * (2 if x is y else 1)


@pytest.mark.parametrize("make", [Writes, Asks])
def test_one_tensor_as_two_arguments_is_one(make: type[Writes]) -> None:
    network = make()
    fast = accelerate(copy.deepcopy(network), report=None)
    for twice in [True] * 5 + [False] * 5 + [True]:
        gradients = []
        for each in (network, fast):
            x = X.clone()
            if make is Asks:
                x.requires_grad_()
            out = each(x, x if twice else X.clone())
            out.square().sum().backward()
            gradients.append((out, each.conv.weight.grad, x.grad if make is Asks else x))  # type: ignore[union-attr]
        for a, b in zip(*gradients, strict=True):
            assert distance(b, a) < 1e-5
    assert fast.acceleration.graphs.captured == (2 if make is Asks else 0)


def test_one_tensor_twice_in_a_batch_is_one() -> None:
    def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(model(x), model(y)) + (2.0 if x is y else 1.0)

    network = accelerate(block(), report=None)
    step = graphed_step(network, loss_fn, torch.optim.AdamW(network.parameters(), 0.0, fused=True), (X, X))
    assert [step(X, X).item(), step(X, X.clone()).item(), step(X, X).item()] == [2.0, 1.0, 2.0]
