"""Norms on the fast path: a norm and its neighbours in a chain of layers are computed in one call of the fused kernels.

A convolution's bias costs a pass of its own over the output. If a norm follows, the convolution omits the bias and the
norm adds it. The norm also takes the activation behind it and the residual between. `run` looks up each layer's
stand-in when it is called: a layer that is not known, or has hooks, or drops values, is called as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import Tensor, nn

from medddpm.fast.forward import Forward, Rule, hooked
from medddpm.fast.kernels.add import add
from medddpm.fast.kernels.layout import channels_last, over_voxels
from medddpm.fast.kernels.norm import NormArguments, group_norm, group_norm_and_inputs
from medddpm.fast.kernels.running import Running
from medddpm.fast.layers import IDLE, Convolution, idle, stand_in

NORMS = (nn.GroupNorm, nn.InstanceNorm3d, nn.BatchNorm3d)


class Norm(Forward):
    """nn.GroupNorm and nn.InstanceNorm3d over volumes, by the fused kernels; statistics in float32.

    A subclass says what else a norm has to be given, and how many values its statistics are over.
    """

    what = "norm"

    def fits(self) -> bool:
        """Returns whether this stand-in computes the layer as it is set now."""
        return _fits(self.module)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W), or (N, C, …), which the layer itself computes. Returns the same shape."""
        return self.fused(x) if self.takes(x) else self.original(x)

    @property
    def channels(self) -> int:
        """The number of the input's channels."""
        return int(getattr(self.module, "num_channels", None) or getattr(self.module, "num_features", None) or 0)

    @property
    def groups(self) -> int:
        """The number of groups of channels that share statistics."""
        return int(getattr(self.module, "num_groups", self.channels))

    def takes(self, x: object, other: Tensor | None = None) -> bool:
        """Returns whether the kernels compute this input. The layer itself refuses statistics of one value.

        So is an empty batch.
        """
        if not isinstance(x, Tensor) or x.dim() != 5 or not x.is_floating_point() or not len(x) or self.values(x) < 2:
            return False
        return x.shape[1] + (0 if other is None else other.shape[1]) == self.channels

    def values(self, x: Tensor) -> int:
        """Returns how many values of each channel share statistics."""
        return x.shape[2:].numel()

    def options(self) -> dict[str, Any]:
        """Returns what `NormArguments` has besides: `arguments` asks for it at each call."""
        return {}

    def arguments(self, x: Tensor, activation: nn.Module | None, **beside: Any) -> NormArguments:
        """The norm of x with the layer's parameters as they are now, an activation that `known` knows, and `beside`."""
        layer = cast(nn.GroupNorm, self.module)
        act = known(activation, self.channels) | self.options()
        return NormArguments(channels_last(x), self.groups, layer.weight, layer.bias, eps=layer.eps, **beside, **act)

    def fused(
        self,
        x: Tensor,
        shift: Tensor | None = None,
        residual: Tensor | None = None,
        activation: nn.Module | None = None,
    ) -> Tensor:
        """Computes `activation(norm(x + shift) + residual)` of x (N, C, D, H, W)."""
        if residual is not None:
            residual = channels_last(residual.to(x.dtype))
        return group_norm(self.arguments(x, activation, shift=shift, residual=residual))

    def and_inputs(
        self, x: Tensor, other: Tensor | None = None, activation: nn.Module | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns `activation(norm([x, other]))`, x and other: see `kernels.norm.group_norm_and_inputs`."""
        other = None if other is None else channels_last(other.to(x.dtype))
        return group_norm_and_inputs(self.arguments(x, activation, other=other))


class BatchNorm(Norm):
    """nn.BatchNorm3d: in training over the whole batch, whose statistics are then kept; in evaluation an affine map."""

    def values(self, x: Tensor) -> int:
        """Returns how many values of each channel share statistics."""
        return x.shape[0] * x.shape[2:].numel()

    def options(self) -> dict[str, Any]:
        """Returns whether to use the batch's statistics, and which running ones to update, as the layer decides."""
        layer = cast(nn.BatchNorm3d, self.module)
        mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
        keeps = mean is not None and variance is not None
        if not keeps or (layer.training and not layer.track_running_stats):
            return {"joined": True}
        momentum = 0.0 if layer.momentum is None and count is None else layer.momentum
        running = Running(cast(Tensor, mean), cast(Tensor, variance), count, momentum, fixed=not layer.training)
        return {"joined": True, "running": running}


class InstanceNorm(Forward):
    """Runs nn.InstanceNorm3d with running statistics as PyTorch does, its gradient mended: see `AsContiguous`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.sees_layout = True


def known(activation: nn.Module | None, channels: int) -> dict[str, Any]:
    """Returns the `NormArguments` that stand for this activation; empty if none do."""
    if activation is None:
        return {"activation": "none"}
    if "forward" in activation.__dict__ or hooked(activation):
        return {}
    kind = type(activation)
    if kind is nn.SiLU:
        return {"activation": "silu"}
    if kind is nn.LeakyReLU:
        return {"activation": "leaky_relu", "slope": cast(nn.LeakyReLU, activation).negative_slope}
    if kind is nn.ELU:
        return {"activation": "elu", "slope": cast(nn.ELU, activation).alpha}
    if kind is nn.ReLU:
        return {"activation": "leaky_relu", "slope": 0.0}
    if kind is nn.PReLU and (slopes := activation._parameters.get("weight")) is not None:
        return {"activation": "prelu", "slopes": slopes} if slopes.numel() in (1, channels) else {}
    return {}


class Chain(Forward):
    """nn.Sequential that has a norm in it: `run` computes its layers."""

    what = "layers around a norm"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = activations_behind_norms(module)

    def steps(self) -> Iterable[nn.Module]:
        """The layers, in order, as they are now."""
        return [layer for layer in self.module._modules.values() if layer is not None]

    def compute(self, x: Any) -> Any:
        """x: whatever the first layer takes."""
        return run(self.steps(), x)


def run(
    modules: Iterable[nn.Module],
    x: Any,
    *,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    last: nn.Module | None = None,
) -> Any:
    """Computes `last(chain(x) + residual)`; a norm takes the bias, the residual and the activation beside it.

    Args:
        modules: the layers, in order; those of a chain within are taken one by one.
        x: input of the first layer.
        shift: (N, C), added to the output of the first layer, a convolution.
        residual: (N, C, D, H, W), added to the output of the last layer.
        last: the activation after that.
    """
    steps = list(layers(modules))
    pending: Tensor | None = None  # (C,) or (N, C), still to be added to x
    while steps:
        layer = steps.pop(0)
        norm, conv = stand_in(layer, Norm), stand_in(layer, Convolution)
        if norm is not None and norm.takes(x):
            if steps and known(steps[0], norm.channels):
                x = norm.fused(x, pending, activation=steps.pop(0))
            elif residual is not None and not steps and residual.shape == x.shape:
                behind = last if last is not None and known(last, norm.channels) else None
                x = norm.fused(x, pending, residual, behind)
                residual, last = None, None if behind is last else last
            else:
                x = norm.fused(x, pending)
            pending = None
            continue
        if pending is not None:
            x, pending = x + over_voxels(pending, x.dtype), None
        behind_takes = stand_in(steps[0], Norm) is not None if steps else residual is not None
        if conv is not None and behind_takes and isinstance(x, Tensor) and x.dim() == 5:
            x, pending = conv.product(x), conv.bias.parameter
        else:
            x = layer(x)
        if shift is not None:
            pending, shift = (shift if pending is None else shift + pending), None
    if residual is not None:
        x = summed(x, residual, pending)
    elif pending is not None:
        x = x + over_voxels(pending, x.dtype)
    return x if last is None else last(x)


def joined(modules: Iterable[nn.Module], x: Any, residual: Any, last: nn.Module | None, fuse: bool) -> Any:
    """Like `run` with a residual; with `fuse` off the residual is added in a step of its own."""
    if fuse:
        return run(modules, x, residual=residual, last=last)
    y = run(modules, x) + residual
    return y if last is None else last(y)


def summed(x: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `x + residual + bias` of x and residual (N, C, D, H, W), bias (C,) or (N, C)."""
    if x.dim() == 5 and x.shape == residual.shape and (bias is None or bias.dim() == 1):
        return add(channels_last(x), channels_last(residual.to(x.dtype)), bias=bias)
    return x + residual if bias is None else x + residual + over_voxels(bias, x.dtype)


def layers(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yields the layers of a chain that do something, and those of the chains in it."""
    for module in modules:
        chain = stand_in(module, Chain)
        if chain is not None:
            yield from layers(chain.steps())
        elif not idle(module):
            yield module


def is_known(activation: nn.Module) -> bool:
    """Returns whether a norm computes this activation with it, in a chain of whatever width it has."""
    return bool(known(activation, getattr(activation, "num_parameters", 1)))


def activations_behind_norms(*modules: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the activations that a norm before them computes: the report must not list them as left alone."""
    leaves = [m for m in _leaves(modules) if type(m) not in IDLE]
    pairs = itertools.pairwise(leaves)
    return tuple(b for a, b in pairs if _fits(a) and is_known(b))


def _leaves(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _leaves(module._modules.values())
        else:
            yield module


def _fits(module: nn.Module) -> bool:
    if type(module) is nn.InstanceNorm3d and module.track_running_stats:
        return False
    return type(module) in NORMS


def _norm(module: nn.Module, features: frozenset[str]) -> Forward | None:
    if type(module) is nn.InstanceNorm3d and not _fits(module):
        return InstanceNorm(module)
    if "norm" not in features or not _fits(module):
        return None
    return BatchNorm(module) if type(module) is nn.BatchNorm3d else Norm(module)


def _chain(module: nn.Module, features: frozenset[str]) -> Forward | None:
    if "norm" not in features or not any(_fits(leaf) and not hooked(leaf) for leaf in _leaves([module])):
        return None
    return Chain(module, features)


RULES: dict[str, Rule] = {
    "torch.nn.modules.batchnorm.BatchNorm3d": _norm,
    "torch.nn.modules.container.Sequential": _chain,
    "torch.nn.modules.instancenorm.InstanceNorm3d": _norm,
    "torch.nn.modules.normalization.GroupNorm": _norm,
}
