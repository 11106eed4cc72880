"""Group and instance norm with shift, concatenation, residual and activation in one call, beside their definition.

Group norm: Wu and He 2018, doi:10.1007/978-3-030-01261-8_1. Instance norm: Ulyanov et al. 2016, arXiv:1607.08022.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from medddpm.kernels import dispatch

if dispatch.TRITON:
    from medddpm.kernels import norm_triton

Activation = Literal["none", "silu", "leaky_relu", "prelu"]
ACTIVATIONS: tuple[Activation, ...] = (
    "none",
    "silu",
    "leaky_relu",
    "prelu",
)  # numbered as in `norm_triton`


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
    slope: float = 0.01,
) -> Tensor:
    """`activation(norm([x, other] + shift) · weight + bias + residual)`, statistics and arithmetic in float32.

    The kernels read `x` twice and write once; backward reads `x` and the gradient twice and writes once: 3 and 5 times
    the tensor's bytes. With `other`, the norm of `torch.cat([x, other], 1)` without that tensor: making it would read
    and write all its bytes once more, and keep them for backward.

    Args:
        x: (N, C, D, H, W).
        groups: any number that divides the channels, C or C + C_other.
        weight: (C,) factor after the norm; none is 1.
        bias: (C,) added after the norm; none is 0.
        other: (N, C_other, D, H, W), its channels behind those of `x`.
        shift: (N, C) or (C,), added before the norm: a convolution's bias, a residual block's timestep.
        residual: of the result's shape, added before the activation.
        slopes: (1,) or (C,), PReLU's below zero.
        eps: added to the variance.
        activation: what follows the norm.
        slope: leaky ReLU's below zero.

    Returns:
        (N, C, D, H, W), or C + C_other channels; of x's dtype.

    Raises:
        ValueError: where `groups` does not divide the channels, or the activation is unknown.
    """
    arguments = (x, groups, weight, bias, other, shift, residual, slopes, eps, activation, slope)
    return _norm(*arguments, False)[0]


def kept_group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`group_norm`, and its inputs handed back for whatever else reads them, a residual sum say.

    Use these and not the ones handed in: their gradient is then added within the norm's backward sweep, one reading
    of a tensor instead of two readings and a writing.

    Returns:
        the norm, x, other.
    """
    y, x, *rest = _norm(x, groups, weight, bias, other, shift, None, None, eps, activation, 0.01, True)
    return y, x, rest[0] if rest else None


def _norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None,
    shift: Tensor | None,
    residual: Tensor | None,
    slopes: Tensor | None,
    eps: float,
    activation: Activation,
    slope: float,
    keep: bool,
) -> tuple[Tensor, ...]:
    channels = x.shape[1] + (0 if other is None else other.shape[1])
    if groups < 1 or channels % groups:
        raise ValueError(f"{groups} groups do not divide {channels} channels")
    if activation not in ACTIVATIONS or (activation == "prelu") != (slopes is not None):
        raise ValueError(
            f"activation is {activation!r}: it must be one of {', '.join(ACTIVATIONS)}, and prelu comes with slopes"
        )
    volumes = [a for a in (x, other, residual) if a is not None]
    # The kernels know no broadcasting: whatever is not of its plain shape is the definition's to take or refuse.
    plain = (
        dispatch.same_places(*volumes)
        and (residual is None or residual.shape[1] == channels)
        and all(a is None or a.shape == (channels,) for a in (weight, bias))
        and (shift is None or shift.shape in ((channels,), (x.shape[0], channels)))
    )
    if plain and dispatch.takes(*volumes):
        if slopes is not None:
            slopes = slopes.expand(channels)
        weight, bias, shift, slopes = (None if a is None else a.contiguous() for a in (weight, bias, shift, slopes))
        act = ACTIVATIONS.index(activation)
        arguments = (x, other, weight, bias, shift, residual, slopes, groups, eps, act, slope, keep)
        result = norm_triton.Norm.apply(*arguments)
        return result if keep else (result,)
    y = group_norm_definition(
        x, groups, weight, bias, other=other, shift=shift, residual=residual, slopes=slopes, eps=eps,
        activation=activation, slope=slope,
    )  # fmt: skip
    return (y, x) if other is None else (y, x, other)


def group_norm_definition(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
    slope: float = 0.01,
) -> Tensor:
    """What `group_norm` computes, in PyTorch's own functions: in float64 for a float64 `x`, else in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    h = (x if other is None else torch.cat([x, other], dim=1)).to(wide)
    if shift is not None:
        h = h + dispatch.over_voxels(shift, wide)
    # Not functional.group_norm: it refuses a group of a single value, which a volume of 1³ may have.
    grouped = h.reshape(h.shape[0], groups, -1)
    grouped = grouped - grouped.mean(dim=2, keepdim=True)
    variance = (grouped * grouped).mean(dim=2, keepdim=True)
    h = (grouped * torch.rsqrt(variance + eps)).reshape(h.shape)
    if weight is not None:
        h = h * dispatch.over_voxels(weight, wide)
    if bias is not None:
        h = h + dispatch.over_voxels(bias, wide)
    if residual is not None:
        h = h + residual.to(wide)
    if activation == "silu":
        h = functional.silu(h)
    elif activation == "leaky_relu":
        h = functional.leaky_relu(h, slope)
    elif slopes is not None:
        h = functional.prelu(h, slopes.to(wide))
    return h.to(x.dtype)


def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "leaky_relu",
    slope: float = 0.01,
) -> Tensor:
    """`activation(instance norm)`, each channel of each sample by its own statistics: `group_norm`, a group a channel.

    Ulyanov et al. 2016, arXiv:1607.08022. Arguments, result and bytes moved are `group_norm`'s. A shift changes
    nothing here but that it gets its gradient, zero.
    """
    return group_norm(
        x, x.shape[1], weight, bias, shift=shift, residual=residual, slopes=slopes, eps=eps, activation=activation,
        slope=slope,
    )  # fmt: skip
