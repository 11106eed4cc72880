"""3-D convolution: our own kernels where cuDNN leaves the matrix units idle, PyTorch's function everywhere else."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch

if dispatch.TRITON:
    from medddpm.fast.kernels.conv3d import few_triton
try:  # Gluon is part of Triton from 3.6 on
    from medddpm.fast.kernels.conv3d import hopper as on_hopper
except Exception:  # it is experimental: a later release may lack what an earlier one had, in any way
    GLUON = False
else:
    GLUON = True

shared = few_triton.shared if dispatch.TRITON else contextlib.nullcontext
"""Inside, convolutions of one volume of few channels keep one copy of it for their backward passes."""
FEW = 8  # channels at most are few
FEW_OF_125 = 4  # or of a 5³ convolution's


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    hopper: bool = True,
) -> Tensor:
    """Computes `torch.nn.functional.conv3d`, faster where cuDNN wastes the matrix units.

    Few channels have kernels of their own (`few_triton`, which rounds float32 products to TF32, where cuDNN may too):
    at 3³, stride 1 and padding 1 up to 8 in, with as few or at least 16 out, and up to 8 out of at least 16 in. Where x
    needs no gradient, as a volume that was loaded, the stride may be 2, and up to 4 channels in may meet 5³. 3³ has
    kernels for 32 channels or more, too, in BF16 or FP16 on a Hopper GPU if the volume fills the card (`hopper`). 1³ at
    stride 1 is a matrix product. PyTorch computes the rest.

    Args:
        x: (N, C_in, D, H, W), cast to the weight's dtype if that is BF16 or FP16.
        weight: (C_out, C_in, *kernel).
        bias: (C_out,), any float dtype.
        stride, padding: as PyTorch's; no dilation, no groups.
        hopper: whether `hopper` may be used.

    Returns:
        (N, C_out, …), of the weight's dtype.
    """
    few_in = takes_few_in(x, weight, stride, padding)
    if weight.dtype in dispatch.REDUCED and x.dtype != weight.dtype and not few_in:
        x = x.to(weight.dtype)
        few_in = takes_few_in(x, weight, stride, padding)
    if few_in:
        return few_triton.FewIn.apply(x, weight, None if bias is None else bias.contiguous(), _one(stride))
    out, inside, *kernel = weight.shape
    plain = stride in (1, (1, 1, 1)) and x.shape[1] == inside
    if plain and kernel == [1, 1, 1] and padding in (0, (0, 0, 0)) and dispatch.takes(x):
        rows = x.permute(0, 2, 3, 4, 1)
        y = functional.linear(rows, weight.reshape(out, inside), None if bias is None else bias.to(x.dtype))
        return y.permute(0, 4, 1, 2, 3)
    few = out <= FEW < inside and has_few_channels(x, weight, stride, padding)
    if few and x.dtype == weight.dtype and dispatch.may_round(x) and dispatch.takes(x):
        return few_triton.FewOut.apply(x, weight, None if bias is None else bias.contiguous())
    hopper = hopper and GLUON and plain and padding in (1, (1, 1, 1))
    if hopper and dispatch.takes(x) and on_hopper.takes(x, weight):
        return on_hopper.Conv.apply(x, weight, bias)
    return functional.conv3d(x, weight, None if bias is None else bias.to(x.dtype), stride, padding)


def takes_few_in(x: Tensor, weight: Tensor, stride: int | tuple[int, ...], padding: int | tuple[int, ...]) -> bool:
    """Returns whether `conv3d` has a kernel for x's few channels; one casts an x that needs no gradient as it reads."""
    fits = weight.shape[1] <= FEW and has_few_channels(x, weight, stride, padding)
    alike = x.dtype == weight.dtype or (weight.dtype in dispatch.REDUCED and not _learns(x))
    return fits and alike and dispatch.may_round(weight) and dispatch.is_volume(x)


def has_few_channels(x: Tensor, weight: Tensor, stride: int | tuple[int, ...], padding: int | tuple[int, ...]) -> bool:
    """Returns whether `few_triton` serves x and a weight (C_out, C_in, *kernel) with these options."""
    out, inside, side = weight.shape[:3]
    step = _one(stride)
    if x.shape[1] != inside or set(weight.shape[2:]) != {side} or _one(padding) != side // 2:
        return False
    if side == 3 and step == 1:
        few, wide = sorted((inside, out))
        return few <= FEW and (wide <= FEW or wide >= 2 * FEW)
    fits = inside <= FEW if side == 3 else side == 5 and inside <= FEW_OF_125
    return not _learns(x) and fits and step in (1, 2) and (out <= FEW or out >= 2 * FEW)


def _learns(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _one(option: int | tuple[int, ...]) -> int | None:
    """The number that an option gives for every side; None if they differ."""
    numbers = {option} if isinstance(option, int) else set(option)
    return numbers.pop() if len(numbers) == 1 else None
