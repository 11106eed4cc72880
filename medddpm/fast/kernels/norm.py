"""Group norm with shift, concatenation, residual and activation in one call, beside its definition.

Group norm: Wu and He 2018, doi:10.1007/978-3-030-01261-8_1. With a group for each channel it is instance norm (Ulyanov
et al. 2016, arXiv:1607.08022), and with the batch joined to one sample as well, batch norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.layout import over_voxels
from medddpm.fast.kernels.running import Running

if dispatch.TRITON:
    from medddpm.fast.kernels import norm_triton

Activation = Literal["none", "silu", "leaky_relu", "prelu", "elu"]


@dataclass(frozen=True, eq=False)
class NormArguments:
    """The arguments of one norm: `activation(norm([x, other] + shift) · weight + bias + residual)`.

    Args:
        x: (N, C, D, H, W).
        groups: any number that divides the channels, C or C + C_other.
        weight: (C,) factor after the norm; None is 1.
        bias: (C,) added after the norm; None is 0.
        other: (N, C_other, D, H, W), its channels behind those of `x`: the norm of `torch.cat([x, other], 1)` without
            that tensor, which would cost a read and a write of all its bytes and be kept for backward.
        shift: (N, C) or (C,), added before the norm: a convolution's bias, a residual block's timestep.
        residual: of the result's shape, added before the activation.
        slopes: (1,) or (C,), PReLU's below zero.
        eps: added to the variance.
        activation: what follows the norm.
        slope: leaky ReLU's below zero; ELU's limit, with its sign turned.
        joined: whether statistics are over the whole batch: batch norm, with a group for each channel.
        running: those of a batch norm, to add this batch's to, or to take the norm by.

    Raises:
        ValueError: if `groups` does not divide the channels, or is not their number in a batch norm; if the activation
            is unknown or lacks its slopes.
    """

    x: Tensor
    groups: int
    weight: Tensor | None = None
    bias: Tensor | None = None
    other: Tensor | None = None
    shift: Tensor | None = None
    residual: Tensor | None = None
    slopes: Tensor | None = None
    eps: float = 1e-5
    activation: Activation = "silu"
    slope: float = 0.01
    joined: bool = False
    running: Running | None = None

    def __post_init__(self) -> None:
        if self.groups < 1 or self.channels % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.channels} channels")
        if (self.joined or self.running is not None) and (self.groups != self.channels or not self.joined):
            raise ValueError("a batch norm is joined and has a group for each channel")
        known = get_args(Activation)
        if self.activation not in known or (self.activation == "prelu") != (self.slopes is not None):
            raise ValueError(
                f"activation is {self.activation!r}: it must be one of {', '.join(known)}, and prelu comes with slopes"
            )

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return self.x.shape[1] + (0 if self.other is None else self.other.shape[1])

    @property
    def rows(self) -> tuple[int, int]:
        """Returns the number of sets of statistics and the number of voxels of each."""
        n, v = self.x.shape[0], self.x.shape[2:].numel()
        return (1, n * v) if self.joined else (n, v)

    @property
    def fixed(self) -> bool:
        """Returns whether the norm is an affine map: its statistics are given."""
        return self.running is not None and self.running.fixed

    def served(self) -> bool:
        """Returns whether the kernels take these tensors; shapes that need broadcasting are left to the definition."""
        c, volumes = self.channels, [a for a in (self.x, self.other, self.residual) if a is not None]
        return (
            dispatch.same_places(*volumes)
            and (self.residual is None or self.residual.shape[1] == c)
            and all(a is None or a.shape == (c,) for a in (self.weight, self.bias))
            and (self.shift is None or self.shift.shape in ((c,), (self.rows[0], c)))
            and (self.running is None or self.running.plain(self.x))
            and dispatch.takes(*volumes)
        )


def group_norm(norm: NormArguments) -> Tensor:
    """Computes the norm, statistics and arithmetic in float32.

    The kernels read `x` twice and write once; backward reads `x` and the gradient twice and writes once: 3 and 5 times
    the tensor's bytes. Where the statistics are given, forward reads `x` once. Running statistics are changed in place.

    Returns:
        (N, C, D, H, W), or C + C_other channels; of x's dtype.
    """
    return _computed(norm, False)[0]


def group_norm_and_inputs(norm: NormArguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """Computes the norm and hands its inputs back for whatever else reads them, such as a residual sum.

    Use these and not the ones handed in: their gradient is then added within the norm's backward sweep, one reading
    of a tensor instead of two readings and a writing.

    Returns:
        the norm, x, other.
    """
    y, x, *rest = _computed(norm, True)
    return y, x, rest[0] if rest else None


def _computed(norm: NormArguments, keep: bool) -> tuple[Tensor, ...]:
    """The norm, and with `keep` the volumes it was taken of."""
    if not norm.served():
        y = group_norm_definition(norm)
        return (y, norm.x) if norm.other is None else (y, norm.x, norm.other)
    slopes = None if norm.slopes is None else norm.slopes.expand(norm.channels)
    x, other, residual = (_as_one(a) if norm.joined else a for a in (norm.x, norm.other, norm.residual))
    running = norm.running
    statistics = (running.mean, running.variance) if running is not None and running.fixed else (None, None)
    options = norm.groups, norm.eps, norm.activation, norm.slope
    *results, tables = norm_triton.Norm.apply(
        *statistics, keep, *options, x, norm.weight, norm.bias, other, norm.shift, residual, slopes
    )
    if running is not None and not running.fixed:
        norm_triton.norm_running(
            running.mean, running.variance, running.count, tables, norm.shift, running.momentum, norm.eps, norm.rows[1]
        )
    return tuple(_apart(a, norm.x) for a in results) if norm.joined else tuple(results)


def _as_one(x: Tensor | None) -> Tensor | None:
    """(N, C, D, H, W), channels-last, as the one volume (1, C, N·D, H, W) in the same memory."""
    if x is None:
        return None
    return x.permute(0, 2, 3, 4, 1).reshape(1, -1, *x.shape[3:], x.shape[1]).permute(0, 4, 1, 2, 3)


def _apart(y: Tensor, like: Tensor) -> Tensor:
    """Undoes `_as_one`, for a batch of `like`'s size."""
    rows = y.permute(0, 2, 3, 4, 1)
    return rows.reshape(*like.shape[:1], *like.shape[2:], y.shape[1]).permute(0, 4, 1, 2, 3)


def group_norm_definition(norm: NormArguments) -> Tensor:
    """Computes `group_norm` in PyTorch's own functions: in float64 for a float64 `x`, else in float32."""
    x, other, shift = norm.x, norm.other, norm.shift
    wide = torch.promote_types(x.dtype, torch.float32)
    h = (x if other is None else torch.cat([x, other], dim=1)).to(wide)
    if shift is not None:
        h = h + over_voxels(shift, wide)
    # Not functional.group_norm: it refuses a group of a single value, which a volume of 1³ may have.
    if norm.joined:
        h = _batch_norm(h, norm)
    else:
        grouped = h.reshape(h.shape[0], norm.groups, -1)
        grouped = grouped - grouped.mean(dim=2, keepdim=True)
        variance = (grouped * grouped).mean(dim=2, keepdim=True)
        h = (grouped * torch.rsqrt(variance + norm.eps)).reshape(h.shape)
    if norm.weight is not None:
        h = h * over_voxels(norm.weight, wide)
    if norm.bias is not None:
        h = h + over_voxels(norm.bias, wide)
    if norm.residual is not None:
        h = h + norm.residual.to(wide)
    if norm.activation == "silu":
        h = functional.silu(h)
    elif norm.activation == "leaky_relu":
        h = functional.leaky_relu(h, norm.slope)
    elif norm.activation == "elu":
        h = functional.elu(h, norm.slope)
    elif norm.slopes is not None:
        h = functional.prelu(h, norm.slopes.to(wide))
    return h.to(x.dtype)


def _batch_norm(h: Tensor, norm: NormArguments) -> Tensor:
    """Normalizes h (N, C, D, H, W) by the statistics of each channel, or by those that are given."""
    running = norm.running
    if running is not None and running.fixed:
        scale = torch.rsqrt(running.variance.to(h.dtype) + norm.eps)
        return (h - over_voxels(running.mean, h.dtype)) * over_voxels(scale, h.dtype)
    over = (0, 2, 3, 4)
    mean = h.mean(over, keepdim=True)
    h = h - mean
    variance = (h * h).mean(over, keepdim=True)
    if running is not None:
        running.add(mean.detach().flatten(), variance.detach().flatten(), norm.rows[1])
    return h * torch.rsqrt(variance + norm.eps)
