"""A small network to capture, as it is or with a weight that is computed, and a mode that sees its functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

from medddpm.fast.known import register


@register
class Network(nn.Module):
    """Two outputs, a norm, statistics that run, and settings that its user may change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.batch = nn.BatchNorm3d(8)
        self.second = nn.Conv3d(8, 3, 1)
        self.aside = nn.Conv3d(8, 2, 1)
        self.both = True
        self.settings = {"scales": [[1.0, 1.0]]}
        self.number = torch.tensor(1.0)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor | tuple[Tensor, Tensor]:
        scale = scale * self.settings["scales"][0][1]
        h = self.batch(functional.silu(self.norm(self.first(x)))) * scale * self.number
        return (self.second(h), self.aside(h)) if self.both else self.second(h)


def weight_normed() -> Network:
    """The network, whose first weight is computed from two parameters."""
    network = Network()
    parametrizations.weight_norm(network.first)
    return network


class Doubles(TorchFunctionMode):
    """Doubles what `silu` returns."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        return 2 * out if func is functional.silu else out
