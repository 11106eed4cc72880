"""A network in an ordinary loop and the same in a `graphed_step`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.graphs import Network
from medddpm import accelerate, graphed_step


def alike(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01, fused=True)


def loss_of(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss on both outputs, as in deep supervision."""
    first, second = network(x)
    return functional.mse_loss(first, y) + 0.5 * functional.mse_loss(second, y[:, :2])


def of_a_domain(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss on one of the two outputs, by the side of the volumes."""
    first, second = network(x)
    return functional.mse_loss(*((first, y) if x.shape[-1] == 5 else (second, y[:, :2])))


def batch(device: torch.device, seed: int = 0, side: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, c, side, side, side, generator=generator).to(device) for c in (2, 3))  # type: ignore[return-value]


class Pair:
    """The same network in an ordinary loop and in a captured one."""

    def __init__(
        self,
        device: torch.device,
        average: bool = False,
        loss: Callable[..., Any] = loss_of,
        make: Callable[[], nn.Module] = Network,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.device, self.loss, self.options = device, loss, options
        self.plain = accelerate(make().to(device), "tf32", graph=False, report=None)
        self.fast = copy.deepcopy(self.plain)
        self.averages = [copy.deepcopy(n) for n in (self.plain, self.fast)] if average else []
        self.optimizers = [adam(n.parameters()) for n in (self.plain, self.fast)]
        after = (lambda: self.averaged(1)) if average else None
        self.scalers = [None, None]
        if options.pop("scaled", False):
            self.scalers = [torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=2) for _ in range(2)]
        self.step = graphed_step(
            self.fast, loss, self.optimizers[1], batch(device), after=after, scaler=self.scalers[1], **options
        )

    @torch.no_grad()
    def averaged(self, at: int) -> None:
        network = (self.plain, self.fast)[at]
        torch._foreach_lerp_(list(self.averages[at].parameters()), list(network.parameters()), 0.1)

    def ordinary(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        every, norm, scaler = self.options.get("accumulate", 1), self.options.get("clip_norm"), self.scalers[0]
        optimizer = self.optimizers[0]
        if number % every == 0:
            optimizer.zero_grad()
        loss = self.loss(self.plain, x, y)
        scaled = loss / every if scaler is None else scaler.scale(loss / every)
        scaled.backward()
        if number % every == every - 1:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if norm is not None:
                nn.utils.clip_grad_norm_(self.plain.parameters(), norm)
            optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
            if self.averages:
                self.averaged(0)
        return loss.detach()

    def train(self, steps: int = 6, side: int = 5) -> None:
        for seed in range(steps):
            given = batch(self.device, seed, side)
            number = self.step.calls
            torch.testing.assert_close(self.step(*given), self.ordinary(number, *given), rtol=1e-4, atol=1e-5)
        self.check()

    def train_under(self, schedule: Callable[[torch.optim.Optimizer], Any], steps: int) -> None:
        """A step of the schedule behind each of the loop's."""
        schedules = [schedule(optimizer) for optimizer in self.optimizers]
        for seed in range(steps):
            given = batch(self.device, seed)
            self.ordinary(0, *given)
            self.step(*given)
            for each in schedules:
                each.step()
        self.check()

    def check(self) -> None:
        for a, b in ((self.plain, self.fast), self.averages or (self.plain, self.fast)):
            for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
                torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
