"""3³ convolutions of 32 channels or more on a Hopper GPU: when the kernels serve, and their gradients.

`conv3d` calls this. The kernels are in `hopper_data` and `hopper_weight`.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.conv3d.hopper_data import CHANNELS, ROW, ROWS, convolve, processors, tile
from medddpm.fast.kernels.conv3d.hopper_weight import STRIP, weight_gradient
from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.operators import derivatives, operator, traced, twice
from medddpm.fast.kernels.sums_triton import bias_gradient
from medddpm.fast.reports import is_first

LEAST = 32  # channels on either side
COVERED = 0.7  # part of the tiles' voxels that must lie in the volume
BUSY = 0.7  # part of the processors that must have a tile in the last round


def pays(x: Tensor, channels: int) -> bool:
    """Returns whether `convolve` of `x` to so many channels fills its tiles and the card; if not, cuDNN is as fast."""
    n, _, d, h, w = x.shape
    inside, across, deep = tile(x.shape, ROW)
    high = triton.cdiv(h, ROWS)
    tiles = n * triton.cdiv(d, deep) * high * triton.cdiv(w, across) * triton.cdiv(channels, CHANNELS)
    there = processors(x.device)
    return inside * h / (high * ROWS) >= COVERED and tiles >= BUSY * triton.cdiv(tiles, there) * there


def gradient_pays(x: Tensor) -> bool:
    """Returns whether `weight_gradient` is worth its partial sums."""
    return tile(x.shape, STRIP)[0] >= COVERED and x.numel() // x.shape[1] >= 32**3


def takes(x: Tensor, weight: Tensor) -> bool:
    """Returns whether the kernels serve: a Hopper GPU, BF16 or FP16, channels-last, channels in eights from `LEAST`."""
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and weight.dtype == x.dtype
        and weight.shape[2:] == (3, 3, 3)
        and min(weight.shape[:2]) >= LEAST
        and not any(c % 8 for c in weight.shape[:2])
        and x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last_3d)
        and weight.is_contiguous(memory_format=torch.channels_last_3d)
        and (dispatch.is_hopper(x.device) if traced() else _launched(x, weight))  # the operator itself sees to the rest
    )


def _launched(*tensors: Tensor) -> bool:
    """Returns whether the kernels can have these tensors: TMA wants their memory to begin at a multiple of 16 bytes."""
    return works(tensors[0].device) and not any(a.data_ptr() % 16 for a in tensors)


@functools.cache
def works(device: torch.device) -> bool:
    """Returns whether `device` is a Hopper GPU on which this Triton's Gluon, which is experimental, computes correctly.

    Once in each process a small convolution is compared with PyTorch's; if it fails or differs, rank 0 warns, and
    cuDNN is used.
    """
    if not dispatch.is_hopper(device):
        return False
    generator = torch.Generator(device).manual_seed(0)
    x, dy, weight = (
        torch.randn(shape, generator=generator, device=device)
        .bfloat16()
        .contiguous(memory_format=torch.channels_last_3d)
        for shape in ((1, 32, 3, 5, 16), (1, 40, 3, 5, 16), (40, 32, 3, 3, 3))
    )
    try:
        computed = (convolve(x, weight), convolve(dy, weight, adjoint=True), weight_gradient(x, dy))
        right = (functional.conv3d(x, weight, padding=1), *_ordinary(dy, x, weight, True, True))
        off = [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(computed, right, strict=True)]
        problem = "" if max(off) < 1e-2 else f"differ by {max(off):.1e}"
    except Exception as error:  # a compiler's
        problem = f"do not compile ({type(error).__name__})"
    if problem and is_first():
        warnings.warn(
            f"the 3³ convolution's kernels {problem} with Triton {triton.__version__}: cuDNN's are used", stacklevel=2
        )
    return not problem


def _ordinary(dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> tuple[Tensor, Tensor]:
    one = [1, 1, 1]
    wanted = [of_x, of_weight, False]
    dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, weight, None, one, one, one, False, [0, 0, 0], 1, wanted)
    return dx, dw


def _fake_conv3d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return empty(x, weight.shape[0])


@operator(_fake_conv3d)
def conv3d_hopper(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3³ convolution at stride 1 and padding 1 of tensors that `takes` accepts, by cuDNN where that is as fast.

    Returns:
        (N, C_out, D, H, W), channels-last.
    """
    if _launched(x, weight) and pays(x, weight.shape[0]):
        return convolve(x, weight, bias)
    return channels_last(functional.conv3d(x, weight, None if bias is None else bias.to(x.dtype), padding=1))


def _fake_conv3d_backward(dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    return [empty(a, a.shape[1]) for a, wanted in ((x, of_x), (weight, of_weight)) if wanted]


@operator(_fake_conv3d_backward)
def conv3d_hopper_backward(dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    """Gradients of x and of weight, those asked for; dy in any memory order."""
    dy = channels_last(dy)
    launched = _launched(dy, x, weight)
    ours = launched and of_x and pays(dy, weight.shape[1]), launched and of_weight and gradient_pays(x)
    theirs = of_x and not ours[0], of_weight and not ours[1]
    dx, dw = _ordinary(dy, x, weight, *theirs) if any(theirs) else (None, None)
    if ours[0]:
        dx = convolve(dy, weight, adjoint=True)
    if ours[1]:
        dw = weight_gradient(x, dy)
    return [channels_last(grad) for grad, wanted in ((dx, of_x), (dw, of_weight)) if wanted and grad is not None]


class Conv(torch.autograd.Function):
    """`conv3d_hopper`, with derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, C_out, D, H, W), channels-last."""
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.dtype
        return conv3d_hopper(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        db = bias_gradient(grads[0], ctx.bias)
        if twice():
            return *derivatives(lambda x, weight: functional.conv3d(x, weight, padding=1), [x, weight], grads), db
        of_x, of_weight = ctx.needs_input_grad[:2]
        computed = conv3d_hopper_backward(grads[0], x, weight, of_x, of_weight)
        return computed[0] if of_x else None, computed[-1] if of_weight else None, db
