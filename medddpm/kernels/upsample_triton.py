"""Triton kernels of `kernels.upsample`: trilinear ×2 over channels-last memory, each value written once by one program.

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

TILE = 1024  # elements a program holds of one operand
SIDE = 2  # cells or voxels of a program's tile along H; the rest lie along W


@triton.jit
def _corner(x, n, d, h, w, c, xd, xh, xw, col, inside):
    line = (((n * d + xd) * h + xh) * w + xw)[:, None]
    return tl.load(x + line * c + col[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _upsample(
    x, y, d, h, w, c, BH: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    blocks, across = tl.cdiv(c, BC), tl.cdiv(w + 1, BW)
    pid = tl.program_id(0)
    col = pid % blocks * BC + tl.arange(0, BC)
    lane = tl.arange(0, BH * BW)
    iw = pid // blocks % across * BW + lane % BW - 1
    ih = pid // blocks // across * BH + lane // BW - 1
    id = tl.program_id(1) - 1
    n = tl.program_id(2).to(tl.int64)
    inside = ((iw < w) & (ih < h))[:, None] & (col < c)[None, :]
    d0, d1 = tl.maximum(id, 0), tl.minimum(id + 1, d - 1)
    h0, h1 = tl.maximum(ih, 0), tl.minimum(ih + 1, h - 1)
    w0, w1 = tl.maximum(iw, 0), tl.minimum(iw + 1, w - 1)
    # All eight loads come before the first store: the compiler cannot move one past the other.
    c000 = _corner(x, n, d, h, w, c, d0, h0, w0, col, inside)
    c001 = _corner(x, n, d, h, w, c, d0, h0, w1, col, inside)
    c010 = _corner(x, n, d, h, w, c, d0, h1, w0, col, inside)
    c011 = _corner(x, n, d, h, w, c, d0, h1, w1, col, inside)
    c100 = _corner(x, n, d, h, w, c, d1, h0, w0, col, inside)
    c101 = _corner(x, n, d, h, w, c, d1, h0, w1, col, inside)
    c110 = _corner(x, n, d, h, w, c, d1, h1, w0, col, inside)
    c111 = _corner(x, n, d, h, w, c, d1, h1, w1, col, inside)
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
            out = y + (((n * 2 * d + od) * 2 * h + oh) * 2 * w)[:, None] * c + col[None, :]
            ok = inside & ((oh >= 0) & (oh < 2 * h))[:, None] & (od >= 0) & (od < 2 * d)
            ow = 2 * iw + 1
            low, high = 0.75 * near + 0.25 * far, 0.25 * near + 0.75 * far
            tl.store(out + ow[:, None] * c, low.to(y.dtype.element_ty), mask=ok & (ow >= 0)[:, None])
            tl.store(out + (ow + 1)[:, None] * c, high.to(y.dtype.element_ty), mask=ok & (ow + 1 < 2 * w)[:, None])


@triton.jit
def _upsample_backward(
    dy, dx, d, h, w, c, BH: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    blocks, across = tl.cdiv(c, BC), tl.cdiv(w, BW)
    pid = tl.program_id(0)
    col = pid % blocks * BC + tl.arange(0, BC)
    lane = tl.arange(0, BH * BW)
    iw = pid // blocks % across * BW + lane % BW
    ih = pid // blocks // across * BH + lane // BW
    id = tl.program_id(1)
    n = tl.program_id(2).to(tl.int64)
    inside = ((iw < w) & (ih < h))[:, None] & (col < c)[None, :]
    total = tl.zeros((BH * BW, BC), tl.float32)
    for a in tl.static_range(4):
        od = tl.minimum(tl.maximum(2 * id - 1 + a, 0), 2 * d - 1)
        for b in tl.static_range(4):
            oh = tl.minimum(tl.maximum(2 * ih - 1 + b, 0), 2 * h - 1)
            line = dy + (((n * 2 * d + od) * 2 * h + oh) * 2 * w)[:, None] * c + col[None, :]
            row = tl.zeros((BH * BW, BC), tl.float32)
            for e in tl.static_range(4):
                ow = tl.minimum(tl.maximum(2 * iw - 1 + e, 0), 2 * w - 1)
                value = tl.load(line + ow[:, None] * c, mask=inside, other=0.0).to(tl.float32)
                row += (0.75 if e == 1 or e == 2 else 0.25) * value
            total += ((0.75 if a == 1 or a == 2 else 0.25) * (0.75 if b == 1 or b == 2 else 0.25)) * row
    at = (((n * d + id) * h + ih) * w + iw)[:, None] * c + col[None, :]
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=inside)


def _tile(c: int, w: int) -> tuple[int, int, int]:
    """Tile sides along H, W and C: channels as one power of two that divides C where one of 32 or more does."""
    block = c & -c
    if block < 32:
        block = triton.next_power_of_2(c)
    block = min(block, 64)
    along = min(max(1, TILE // block // SIDE), triton.next_power_of_2(w))
    return SIDE, along, block


class Upsample(torch.autograd.Function):
    """`kernels.upsample` by the kernels; weights and sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """(N, C, D, H, W) to (N, C, 2D, 2H, 2W), both channels-last, of x's dtype."""
        n, c, d, h, w = x.shape
        y = _empty(x, (2 * d, 2 * h, 2 * w))
        high, along, block = _tile(c, w + 1)
        grid = (triton.cdiv(h + 1, high) * triton.cdiv(w + 1, along) * triton.cdiv(c, block), d + 1, n)
        _upsample[grid](x, y, d, h, w, c, BH=high, BW=along, BC=block)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The transpose: (N, C, 2D, 2H, 2W) to (N, C, D, H, W)."""
        dy = grads[0].contiguous(memory_format=torch.channels_last_3d)
        n, c, *sides = dy.shape
        d, h, w = (side // 2 for side in sides)
        dx = _empty(dy, (d, h, w))
        high, along, block = _tile(c, w)
        grid = (triton.cdiv(h, high) * triton.cdiv(w, along) * triton.cdiv(c, block), d, n)
        _upsample_backward[grid](dy, dx, d, h, w, c, BH=high, BW=along, BC=block)
        return dx


def _empty(like: Tensor, sides: tuple[int, int, int]) -> Tensor:
    shape = (*like.shape[:2], *sides)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last_3d)
