"""Triton kernels of `upsample.upsample`: trilinear ×2 over channels-last memory, each value written once.

With corners not aligned, outputs 2i + 1 and 2i + 2 of an axis are ¾ and ¼, ¼ and ¾ of inputs i and i + 1, indices
clamped to the axis. So forward goes by cells, i from -1 to n - 1: eight inputs make eight outputs. Backward is the
transpose gathered: input i takes ¼, ¾, ¾, ¼ of outputs 2i - 1 to 2i + 2, and the same clamping of indices gives the
edge outputs their whole weight. No atomics: the same bits each time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.operators import derivatives, operator, twice

TILE = 1024  # elements a program holds of one operand
SIDE = 2  # cells or voxels of a program's tile along H; the rest lie along W


@triton.jit
def _corner(x_ptr, n, d, h, w, c, xd, xh, xw, col, inside):
    line = (((n * d + xd) * h + xh) * w + xw)[:, None]
    return tl.load(x_ptr + line * c + col[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _upsample(
    x_ptr,  # (N, D, H, W, C)
    y_ptr,  # (N, 2D, 2H, 2W, C)
    d, h, w, c, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks, across = tl.cdiv(c, BLOCK_C), tl.cdiv(w + 1, BLOCK_W)
    pid = tl.program_id(0)
    col = pid % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_H * BLOCK_W)
    iw = pid // blocks % across * BLOCK_W + lane % BLOCK_W - 1
    ih = pid // blocks // across * BLOCK_H + lane // BLOCK_W - 1
    id = tl.program_id(1) - 1
    n = tl.program_id(2).to(tl.int64)
    inside = ((iw < w) & (ih < h))[:, None] & (col < c)[None, :]
    d0, d1 = tl.maximum(id, 0), tl.minimum(id + 1, d - 1)
    h0, h1 = tl.maximum(ih, 0), tl.minimum(ih + 1, h - 1)
    w0, w1 = tl.maximum(iw, 0), tl.minimum(iw + 1, w - 1)
    # All eight loads come before the first store: the compiler cannot move one past the other.
    c000 = _corner(x_ptr, n, d, h, w, c, d0, h0, w0, col, inside)
    c001 = _corner(x_ptr, n, d, h, w, c, d0, h0, w1, col, inside)
    c010 = _corner(x_ptr, n, d, h, w, c, d0, h1, w0, col, inside)
    c011 = _corner(x_ptr, n, d, h, w, c, d0, h1, w1, col, inside)
    c100 = _corner(x_ptr, n, d, h, w, c, d1, h0, w0, col, inside)
    c101 = _corner(x_ptr, n, d, h, w, c, d1, h0, w1, col, inside)
    c110 = _corner(x_ptr, n, d, h, w, c, d1, h1, w0, col, inside)
    c111 = _corner(x_ptr, n, d, h, w, c, d1, h1, w1, col, inside)
    for a in tl.static_range(2):  # the cell's two outputs along D, then along H, then along W
        far_d = 0.25 + 0.5 * a
        od = 2 * id + 1 + a
        e00 = (1 - far_d) * c000 + far_d * c100
        e01 = (1 - far_d) * c001 + far_d * c101
        e10 = (1 - far_d) * c010 + far_d * c110
        e11 = (1 - far_d) * c011 + far_d * c111
        for b in tl.static_range(2):
            far_h = 0.25 + 0.5 * b
            oh = 2 * ih + 1 + b
            near = (1 - far_h) * e00 + far_h * e10
            far = (1 - far_h) * e01 + far_h * e11
            out_ptr = y_ptr + (((n * 2 * d + od) * 2 * h + oh) * 2 * w)[:, None] * c + col[None, :]
            ok = inside & ((oh >= 0) & (oh < 2 * h))[:, None] & (od >= 0) & (od < 2 * d)
            ow = 2 * iw + 1
            low, high = 0.75 * near + 0.25 * far, 0.25 * near + 0.75 * far
            tl.store(out_ptr + ow[:, None] * c, low.to(y_ptr.dtype.element_ty), mask=ok & (ow >= 0)[:, None])
            ok &= (ow + 1 < 2 * w)[:, None]
            tl.store(out_ptr + (ow + 1)[:, None] * c, high.to(y_ptr.dtype.element_ty), mask=ok)


# Along each axis dx[i] = ¼ dy[2i - 1] + ¾ dy[2i] + ¾ dy[2i + 1] + ¼ dy[2i + 2], indices clamped.
@triton.jit
def _upsample_backward(
    dy_ptr,  # (N, 2D, 2H, 2W, C)
    dx_ptr,  # (N, D, H, W, C)
    d, h, w, c, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks, across = tl.cdiv(c, BLOCK_C), tl.cdiv(w, BLOCK_W)
    pid = tl.program_id(0)
    col = pid % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_H * BLOCK_W)
    iw = pid // blocks % across * BLOCK_W + lane % BLOCK_W
    ih = pid // blocks // across * BLOCK_H + lane // BLOCK_W
    id = tl.program_id(1)
    n = tl.program_id(2).to(tl.int64)
    inside = ((iw < w) & (ih < h))[:, None] & (col < c)[None, :]
    acc = tl.zeros((BLOCK_H * BLOCK_W, BLOCK_C), tl.float32)
    for a in tl.static_range(4):
        od = tl.minimum(tl.maximum(2 * id - 1 + a, 0), 2 * d - 1)
        for b in tl.static_range(4):
            oh = tl.minimum(tl.maximum(2 * ih - 1 + b, 0), 2 * h - 1)
            line_ptr = dy_ptr + (((n * 2 * d + od) * 2 * h + oh) * 2 * w)[:, None] * c + col[None, :]
            row = tl.zeros((BLOCK_H * BLOCK_W, BLOCK_C), tl.float32)
            for e in tl.static_range(4):
                ow = tl.minimum(tl.maximum(2 * iw - 1 + e, 0), 2 * w - 1)
                value = tl.load(line_ptr + ow[:, None] * c, mask=inside, other=0.0).to(tl.float32)
                row += (0.75 if e == 1 or e == 2 else 0.25) * value
            acc += ((0.75 if a == 1 or a == 2 else 0.25) * (0.75 if b == 1 or b == 2 else 0.25)) * row
    at = (((n * d + id) * h + ih) * w + iw)[:, None] * c + col[None, :]
    tl.store(dx_ptr + at, acc.to(dx_ptr.dtype.element_ty), mask=inside)


def _tile(c: int, w: int) -> tuple[int, int, int]:
    """Tile sides along H, W and C: channels as one power of two that divides C where one of 32 or more does."""
    block = c & -c
    if block < 32:
        block = triton.next_power_of_2(c)
    block = min(block, 64)
    along = min(max(1, TILE // block // SIDE), triton.next_power_of_2(w))
    return SIDE, along, block


def _doubled(x: Tensor) -> Tensor:
    """Allocates the result of `upsample`."""
    return empty(x, x.shape[1], [2 * side for side in x.shape[2:]])


def _halved(dy: Tensor) -> Tensor:
    """Allocates the result of `upsample_backward`."""
    return empty(dy, dy.shape[1], [side // 2 for side in dy.shape[2:]])


@operator(_doubled)
def upsample(x: Tensor) -> Tensor:
    """(N, C, D, H, W) to (N, C, 2D, 2H, 2W), both channels-last, of x's dtype."""
    n, c, d, h, w = x.shape
    y = _doubled(x)
    high, along, block = _tile(c, w + 1)
    grid = (triton.cdiv(h + 1, high) * triton.cdiv(w + 1, along) * triton.cdiv(c, block), d + 1, n)
    _upsample[grid](x, y, d, h, w, c, BLOCK_H=high, BLOCK_W=along, BLOCK_C=block)
    return y


@operator(_halved)
def upsample_backward(dy: Tensor) -> Tensor:
    """The transpose: (N, C, 2D, 2H, 2W) in any memory order to (N, C, D, H, W)."""
    dy = channels_last(dy)
    dx = _halved(dy)
    n, c, d, h, w = dx.shape
    high, along, block = _tile(c, w)
    grid = (triton.cdiv(h, high) * triton.cdiv(w, along) * triton.cdiv(c, block), d, n)
    _upsample_backward[grid](dy, dx, d, h, w, c, BLOCK_H=high, BLOCK_W=along, BLOCK_C=block)
    return dx


class Upsample(torch.autograd.Function):
    """`upsample.upsample` by the kernels; weights and sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """See `upsample`."""
        return upsample(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor | None:
        """See `upsample_backward`."""
        if twice():
            from medddpm.fast.kernels.upsample import upsample_definition  # which imports this module

            n, c, *sides = grads[0].shape
            x = grads[0].new_zeros((n, c, *(side // 2 for side in sides)), requires_grad=True)  # which one, is the same
            return derivatives(upsample_definition, [x], grads)[0]
        return upsample_backward(grads[0])
