"""A network with CUDA graphs beside the same without, and a step that trains either."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from helpers.graphs import Network
from medddpm.fast.graphs import nested
from medddpm.fast.patch import accelerate
from medddpm.fast.replay import graphs


class Twins:
    """The same network twice: accelerated with graphs, and accelerated without."""

    def __init__(self, device: torch.device, make: Callable[[], nn.Module] = Network, **options: Any) -> None:
        torch.manual_seed(0)
        self.device = device
        plain = make().to(device)
        self.fast = accelerate(copy.deepcopy(plain), "tf32", graph="auto", report=None, **options)
        self.plain = accelerate(plain, "tf32", graph=False, report=None)
        self.runs = 0
        root: Any = self.fast.forward
        run = root.graphs.run

        def counted(value: Any) -> Any:
            self.runs += 1
            return run(value)

        root.graphs.run = counted
        self.optimizers = [torch.optim.SGD(n.parameters(), 0.05, momentum=0.9) for n in self]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter((self.fast, self.plain))

    @property
    def graphs(self) -> graphs.Graphs:
        return self.fast.acceleration.graphs

    def x(self, seed: int = 0, batch: int = 2, side: int = 6, **options: Any) -> Tensor:
        shape, generator = (batch, 2, side, side, side), torch.Generator().manual_seed(seed)
        x = torch.randn(shape, generator=generator, device="cpu")  # whatever `torch.device` is in force
        return x.to(self.device).requires_grad_(**options)

    def each(self, work: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> list[Any]:
        return [work(network, optimizer) for network, optimizer in zip(self, self.optimizers, strict=True)]

    def train(self, steps: int = 4, **options: Any) -> None:
        for seed in range(steps):
            self.each(lambda n, o, seed=seed: step(n, o, self.x(seed, **options)))
        self.check()

    def check(self) -> None:
        fast, plain = self
        for (name, a), b in zip(fast.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        for (name, p), q in zip(fast.named_parameters(), plain.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:  # on a GPU cuDNN's sums end in any order, and TF32 rounds what differs once more
                rtol, atol = (1e-3, 2e-4) if p.is_cuda else (1e-4, 5e-5)
                torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=atol)


def loss_of(out: Any, at: slice = slice(None)) -> Tensor:
    return torch.stack([t.float().square().mean() for t in list(nested.tensors(out))[at]]).sum()


def step(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
    optimizer.zero_grad()
    out = network(x)
    loss_of(out).backward()
    optimizer.step()
    return out
