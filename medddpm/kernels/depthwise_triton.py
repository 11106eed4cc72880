"""Triton kernels of `depthwise.depthwise`, for channels-last memory.

A program computes some output voxels, as rows, for a block of channels. With k a tap of the kernel, s the stride and p
the padding, a convolution pairs the output o with the input o·s - p + k; so

    y[o] = Σ_k w[k] · x[o·s - p + k]    dw[k] = Σ_o dy[o] · x[o·s - p + k]    dx[i] = Σ_k w[k] · dy[(i + p - k)/s]

where the last sum has the whole quotients only. The first and the last are one kernel, gathering forwards or
backwards; a transposed convolution is the last of them, with the first as its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.kernels.layout import channels_last, empty
from medddpm.kernels.norm_triton import PROGRAMS, channel_block
from medddpm.kernels.operators import operator

TILE, WEIGHT_TILE = 2048, 4096  # elements a program holds at once
WARPS = 4
Triple = tuple[int, int, int]


@triton.jit
def _conv_depthwise(
    x_ptr,  # (N, D, H, W, C)
    weight_ptr,  # (KD · KH · KW, C)
    bias_ptr,  # (C,)
    y_ptr,  # (N, OD, OH, OW, C)
    c, d, h, w, od, oh, ow,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, ADJOINT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    row = tl.program_id(0) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1).to(tl.int64)
    oz, oy, ox = row // (oh * ow), row // ow % oh, row % ow
    here, wide = row < od * oh * ow, col < c
    total = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_ptr + col, mask=wide, other=0.0).to(tl.float32)[None, :]
    for kd in range(KD):
        z, in_z = _met(oz, kd, d, SD, PD, ADJOINT)
        for kh in range(KH):
            y, in_y = _met(oy, kh, h, SH, PH, ADJOINT)
            line = (n * d + z) * h + y
            for kw in tl.static_range(KW):
                x, in_x = _met(ox, kw, w, SW, PW, ADJOINT)
                mask = (here & in_z & in_y & in_x)[:, None] & wide[None, :]
                value = tl.load(x_ptr + (line * w + x)[:, None] * c + col[None, :], mask=mask, other=0.0)
                tap = tl.load(weight_ptr + ((kd * KH + kh) * KW + kw) * c + col, mask=wide, other=0.0)
                total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    at = (n * (od * oh * ow) + row)[:, None] * c + col[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=here[:, None] & wide[None, :])


@triton.jit
def _met(o, k, side, S: tl.constexpr, P: tl.constexpr, ADJOINT: tl.constexpr):
    """Where along one side the output o meets tap k, and whether that is within the volume."""
    if ADJOINT:
        scaled = o + P - k
        i = scaled // S
        inside = (scaled >= 0) & (scaled % S == 0) & (i < side)
    else:
        i = o * S - P + k
        inside = (i >= 0) & (i < side)
    return i, inside


@triton.jit
def _conv_weight_depthwise(
    x_ptr,  # (N, D, H, W, C), gathered
    dy_ptr,  # (N, OD, OH, OW, C)
    partial_ptr,  # (P, KD · KH · KW, C)
    rows, c, d, h, w, od, oh, ow, programs,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program sums over every `programs`-th tile of rows, for one pair kd, kh and all kw."""
    blocks = tl.cdiv(c, BLOCK_C)
    p, plane = tl.program_id(0) // blocks, tl.program_id(1)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    kw = tl.arange(0, BLOCK_K)
    wide = col < c
    total = tl.zeros((BLOCK_V, BLOCK_K, BLOCK_C), tl.float32)
    for tile in range(p, tl.cdiv(rows, BLOCK_V), programs):
        row = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        here = row < rows
        voxel = row % (od * oh * ow)
        z = voxel // (oh * ow) * SD - PD + plane // KH
        y = voxel // ow % oh * SH - PH + plane % KH
        x = (voxel % ow * SW - PW)[:, None] + kw[None, :]
        line = ((row // (od * oh * ow)).to(tl.int64) * d + z) * h + y
        dy = tl.load(
            dy_ptr + row.to(tl.int64)[:, None] * c + col[None, :], mask=here[:, None] & wide[None, :], other=0.0
        )
        inside = (here & (z >= 0) & (z < d) & (y >= 0) & (y < h))[:, None]
        inside = inside & (x >= 0) & (x < w) & (kw < KW)[None, :]
        at = (line[:, None] * w + x)[:, :, None] * c + col[None, None, :]
        value = tl.load(x_ptr + at, mask=inside[:, :, None] & wide[None, None, :], other=0.0)
        total += value.to(tl.float32) * dy.to(tl.float32)[:, None, :]
    to = partial_ptr + ((p * KD * KH + plane) * KW + kw)[:, None] * c + col[None, :]
    tl.store(to, tl.sum(total, axis=0), mask=(kw < KW)[:, None] & wide[None, :])


def gathered(x: Tensor, taps: Tensor, bias: Tensor | None, y: Tensor, shape: tuple[Triple, ...], adjoint: bool) -> None:
    """Fills y (N, C, …) from x (N, C, …), both channels-last.

    Args:
        x: what is gathered.
        taps: (KD · KH · KW, C).
        bias: (C,), added.
        y: written.
        shape: kernel, stride, padding.
        adjoint: whether y is the gradient's, or a transposed convolution's.
    """
    c, voxels = x.shape[1], y[0, 0].numel()
    rows, block = channel_block(c, TILE)
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = shape
    _conv_depthwise[(triton.cdiv(voxels, rows) * triton.cdiv(c, block), x.shape[0])](
        x, taps, bias, y, c, *x.shape[2:], *y.shape[2:],
        KD=kd, KH=kh, KW=kw, SD=sd, SH=sh, SW=sw, PD=pd, PH=ph, PW=pw, ADJOINT=adjoint, HAS_BIAS=bias is not None,
        BLOCK_V=rows, BLOCK_C=block, num_warps=WARPS,
    )  # fmt: skip


def weight_gradient(x: Tensor, dy: Tensor, shape: tuple[Triple, ...]) -> Tensor:
    """Sums dy · x over the voxels of dy, for each tap. Returns (KD · KH · KW, C), float32."""
    c, rows = x.shape[1], dy.numel() // dy.shape[1]
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = shape
    taps = triton.next_power_of_2(kw)
    block = min(channel_block(c, TILE)[1], 32)
    tile = max(1, WEIGHT_TILE // (taps * block))
    blocks = triton.cdiv(c, block)
    programs = max(1, min(triton.cdiv(rows, tile), PROGRAMS // (blocks * kd * kh)))
    partial = torch.empty((programs, kd * kh * kw, c), dtype=torch.float32, device=x.device)
    _conv_weight_depthwise[(programs * blocks, kd * kh)](
        x, dy, partial, rows, c, *x.shape[2:], *dy.shape[2:], programs,
        KD=kd, KH=kh, KW=kw, SD=sd, SH=sh, SW=sw, PD=pd, PH=ph, PW=pw,
        BLOCK_V=tile, BLOCK_K=taps, BLOCK_C=block, num_warps=WARPS,
    )  # fmt: skip
    return partial.sum(0)


def _fake_depthwise(x: Tensor, _weight: Tensor, _bias: Tensor | None, sides: Sequence[int], *_: Any) -> Tensor:
    return empty(x, x.shape[1], sides)


@operator(_fake_depthwise)
def depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sides: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    transposed: bool,
) -> Tensor:
    """x: (N, C, D, H, W), channels-last; weight: (C, 1, *kernel). Returns (N, C, *sides)."""
    y = empty(x, x.shape[1], sides)
    shape = _shape(weight, stride, padding)
    gathered(x, weight.flatten(1).t().contiguous(), bias, y, shape, transposed)
    return y


def _fake_depthwise_backward(
    dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool, *_: Any
) -> list[Tensor]:
    dx = [empty(x, x.shape[1])] if of_x else []
    return [*dx, weight.new_empty((weight[0].numel(), len(weight))).t().reshape(weight.shape)] if of_weight else dx


@operator(_fake_depthwise_backward)
def depthwise_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    of_x: bool,
    of_weight: bool,
    stride: Sequence[int],
    padding: Sequence[int],
    transposed: bool,
) -> list[Tensor]:
    """With `of_x` the gradient of x; with `of_weight` that of the weight. dy in any memory order."""
    dy, shape = channels_last(dy), _shape(weight, stride, padding)
    results = []
    if of_x:
        results.append(empty(x, x.shape[1]))
        gathered(dy, weight.flatten(1).t().contiguous(), None, results[0], shape, not transposed)
    if of_weight:
        sums = weight_gradient(*((dy, x) if transposed else (x, dy)), shape)
        results.append(sums.t().reshape(weight.shape).to(weight.dtype))
    return results


def _shape(weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Triple, ...]:
    return cast(tuple[Triple, ...], (tuple(weight.shape[2:]), tuple(stride), tuple(padding)))


class Depthwise(torch.autograd.Function):
    """`depthwise`, with derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Triple,
        padding: Triple,
        transposed: bool,
        sides: Triple,
    ) -> Tensor:
        """x: (N, C, D, H, W), channels-last; weight: (C, 1, *kernel). Returns (N, C, *sides)."""
        ctx.options = stride, padding, transposed
        ctx.bias = None if bias is None else bias.dtype
        ctx.save_for_backward(x, weight)
        return depthwise(x, weight, bias, sides, stride, padding, transposed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Gradients of x, the weight and the bias."""
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        found = depthwise_backward(dy, x, weight, of_x, of_weight, *ctx.options)
        d_bias = None if ctx.bias is None else dy.sum((0, 2, 3, 4), dtype=torch.float32).to(ctx.bias)
        return found[0] if of_x else None, found[-1] if of_weight else None, d_bias, None, None, None, None
