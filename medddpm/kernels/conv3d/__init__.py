"""3-D convolution: our own kernels where cuDNN leaves the matrix units idle, PyTorch's function everywhere else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from medddpm.kernels import dispatch

if dispatch.TRITON:
    from medddpm.kernels.conv3d import few_triton
try:  # Gluon is part of Triton from 3.6 on
    from medddpm.kernels.conv3d import hopper as on_hopper
except Exception:  # it is experimental: a later release may lack what an earlier one had, in any way
    GLUON = False
else:
    GLUON = True

FEW = 8  # channels at most are few, if the other side has twice as many or more


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    hopper: bool = True,
) -> Tensor:
    """Computes `torch.nn.functional.conv3d`, faster where cuDNN wastes the matrix units.

    3³ at stride 1 and padding 1 has kernels of its own: for up to 8 channels on one side and 16 or more on the other
    (`few_triton`, which rounds float32 products to TF32, where cuDNN may too), and on a Hopper GPU for 32
    channels or more in BF16 or FP16 if the volume fills the card (`hopper`). 1³ at stride 1 is a matrix product.
    PyTorch computes the rest.

    Args:
        x: (N, C_in, D, H, W), cast to the weight's dtype if that is BF16 or FP16.
        weight: (C_out, C_in, *kernel).
        bias: (C_out,), any float dtype.
        stride, padding: as PyTorch's; no dilation, no groups.
        hopper: whether `hopper` may be used.

    Returns:
        (N, C_out, …), of the weight's dtype.
    """
    if weight.dtype in (torch.bfloat16, torch.float16):
        x = x.to(weight.dtype)
    out, inside, *kernel = weight.shape
    plain = stride in (1, (1, 1, 1)) and x.shape[1] == inside
    if plain and kernel == [1, 1, 1] and padding in (0, (0, 0, 0)) and dispatch.takes(x):
        rows = x.permute(0, 2, 3, 4, 1)
        y = functional.linear(rows, weight.reshape(out, inside), None if bias is None else bias.to(x.dtype))
        return y.permute(0, 4, 1, 2, 3)
    if plain and has_few_channels(weight, stride, padding) and x.dtype == weight.dtype and dispatch.may_round(x):
        bias = None if bias is None else bias.contiguous()
        if inside <= FEW and dispatch.is_volume(x):
            return few_triton.FewIn.apply(x, weight, bias)
        if out <= FEW and dispatch.takes(x):
            return few_triton.FewOut.apply(x, weight, bias)
    hopper = hopper and GLUON and plain and padding in (1, (1, 1, 1))
    if hopper and dispatch.takes(x) and on_hopper.takes(x, weight):
        return on_hopper.Conv.apply(x, weight, bias)
    return functional.conv3d(x, weight, None if bias is None else bias.to(x.dtype), stride, padding)


def has_few_channels(weight: Tensor, stride: int | tuple[int, ...], padding: int | tuple[int, ...]) -> bool:
    """Whether `few_triton` serves a weight (C_out, C_in, *kernel): few channels on one side alone."""
    few, wide = sorted(weight.shape[:2])
    plain = weight.shape[2:] == (3, 3, 3) and stride in (1, (1, 1, 1)) and padding in (1, (1, 1, 1))
    return plain and few <= FEW and wide >= 2 * FEW
