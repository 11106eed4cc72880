"""The sum that ends a residual block, its biases and the 1³ convolution of its skip included, beside its definition."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.layout import over_voxels

if dispatch.TRITON:
    from medddpm.fast.kernels import add_triton


def add(
    h: Tensor,
    x: Tensor,
    other: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes a residual block's sum: `h + bias + x`, or `h + bias + weight · [x, other]`, its skip a 1³ convolution.

    The kernels read every volume once and write once: 3 times a tensor's bytes for the plain sum. They round float32
    products to TF32, where cuDNN may too.

    Args:
        h: (N, C, D, H, W).
        x: (N, C, D, H, W), or (N, C_x, D, H, W) if there is a weight.
        other: (N, C_other, D, H, W), its channels behind those of `x`; only with a weight.
        weight: (C, C_x + C_other), of h's dtype.
        bias: (C,).

    Returns:
        (N, C, D, H, W), of h's dtype.
    """
    volumes = (h, x) if other is None else (h, x, other)
    c, inside = h.shape[1], sum(a.shape[1] for a in volumes[1:])
    if weight is None:
        plain = x.shape == h.shape and other is None
    else:  # 16 is the least the matrix units take
        plain = weight.shape == (c, inside) and weight.dtype == h.dtype and min(a.shape[1] for a in volumes) >= 16
        plain = plain and dispatch.may_round(h)
    if plain and dispatch.same_places(*volumes) and (bias is None or bias.shape == (c,)) and dispatch.takes(*volumes):
        bias = None if bias is None else bias.contiguous()
        return add_triton.Add.apply(h, x, other, weight, bias)
    return add_definition(h, x, other, weight=weight, bias=bias)


def add_definition(
    h: Tensor,
    x: Tensor,
    other: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes `add` in PyTorch's own functions."""
    skip = x if other is None else torch.cat([x, other], dim=1)
    if weight is not None:
        skip = functional.conv3d(skip, weight[:, :, None, None, None])
    h = h + skip
    return h if bias is None else h + over_voxels(bias, h.dtype)
