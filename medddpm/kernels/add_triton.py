"""Triton kernels of `kernels.add`: a residual sum with its biases, and the 1³ convolution of its skip, in one sweep.

Memory is rows × channels, rows = N·D·H·W. The product's operands are read once, since one program holds a row's all
output channels up to `WIDE`; its accumulator is float32. Bias gradients are sums over rows, merged in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.kernels.norm_triton import channel_block, channels_last, empty, even, summing

ADD_TILE = 4096  # elements a program of the plain sum holds
ROWS, WIDE, DEEP = 128, 128, 64  # a program's tile of the product: rows, output channels, channels summed at once


@triton.jit
def _add(
    h, x, bias, out, v, c, HAS_BIAS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BR + tl.arange(0, BR)
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    mask = (row < v)[:, None] & (col < c)[None, :]
    at = row[:, None] * c + col[None, :]
    total = tl.load(h + at, mask=mask, other=0.0).to(tl.float32) + tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_product(
    h, x, other, weight, bias, out, v, c, cx, co,
    HAS_BIAS: tl.constexpr, HAS_OTHER: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BR + tl.arange(0, BR)
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    deep = tl.arange(0, BK)
    inside = (row < v)[:, None]
    at = row[:, None] * c + col[None, :]
    mask = inside & (col < c)[None, :]
    total = tl.load(h + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    line = weight + col[None, :] * (cx + co)
    for first in range(0, cx, BK):
        k = first + deep
        a = tl.load(x + row[:, None] * cx + k[None, :], mask=inside & (k < cx)[None, :], other=0.0)
        w = tl.load(line + k[:, None], mask=(k < cx)[:, None] & (col < c)[None, :], other=0.0)
        total = tl.dot(a, w, total)
    if HAS_OTHER:
        for first in range(0, co, BK):
            k = first + deep
            a = tl.load(other + row[:, None] * co + k[None, :], mask=inside & (k < co)[None, :], other=0.0)
            w = tl.load(line + (cx + k)[:, None], mask=(k < co)[:, None] & (col < c)[None, :], other=0.0)
            total = tl.dot(a, w, total)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _column_sums(x, partial, v, c, programs, EVEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    blocks = tl.cdiv(c, BC)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    total = tl.zeros((BR, BC), tl.float32)
    for tile in range(p, tl.cdiv(v, BR), programs):
        row = tl.cast(tile, tl.int64) * BR + tl.arange(0, BR)
        there = x + row[:, None] * c + col[None, :]
        if EVEN:
            total += tl.load(there).to(tl.float32)
        else:
            total += tl.load(there, mask=(row < v)[:, None] & (col < c)[None, :], other=0.0).to(tl.float32)
    tl.store(partial + p * c + col, tl.sum(total, axis=0), mask=col < c)


def column_sums(x: Tensor) -> Tensor:
    """(N, C, D, H, W), channels-last, to (C,) float32: each channel over samples and voxels."""
    c = x.shape[1]
    v = x.numel() // c
    rows, block, programs = summing(1, v, c)
    partial = torch.empty((programs, c), dtype=torch.float32, device=x.device)
    _column_sums[(programs * triton.cdiv(c, block),)](
        x, partial, v, c, programs, EVEN=even(v, c, rows, block), BR=rows, BC=block, num_warps=2
    )
    return partial.sum(0)


class Add(torch.autograd.Function):
    """`kernels.add` by the kernels: h + x + bias, or h + bias + the 1³ convolution of x and other by `weight`."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, x: Tensor, other: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """See `kernels.add`; every volume channels-last, weight (C, C_x + C_other) of their dtype."""
        c = h.shape[1]
        v = h.numel() // c
        out = empty(h, c)
        if weight is None:
            rows, block = channel_block(c, ADD_TILE)
            _add[(triton.cdiv(v, rows) * triton.cdiv(c, block),)](
                h, x, bias, out, v, c, HAS_BIAS=bias is not None, BR=rows, BC=block
            )
        else:
            block = max(16, min(WIDE if h.element_size() < 4 else WIDE // 2, c & -c))  # within shared memory
            _add_product[(triton.cdiv(v, ROWS) * triton.cdiv(c, block),)](
                h, x, other, weight.contiguous(), bias, out, v, c, x.shape[1], 0 if other is None else other.shape[1],
                HAS_BIAS=bias is not None, HAS_OTHER=other is not None, BR=ROWS, BC=block, BK=DEEP,
            )  # fmt: skip
        ctx.save_for_backward(*(() if weight is None else (x, other, weight)))
        ctx.bias = None if bias is None else bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Gradients of every tensor handed in; h's is what comes in, itself."""
        assert grads[0] is not None
        d_out = channels_last(grads[0])
        d_bias = None if ctx.bias is None else column_sums(d_out).to(ctx.bias)
        if not ctx.saved_tensors:
            return d_out, d_out, None, None, d_bias
        x, other, weight = ctx.saved_tensors
        d_rows = _rows(d_out)
        d_parts: list[Tensor | None] = []
        d_weights = []
        first = 0
        for part in (x,) if other is None else (x, other):
            piece = weight[:, first : first + part.shape[1]]
            first += part.shape[1]
            d_part = empty(part, part.shape[1])
            torch.mm(d_rows, piece, out=_rows(d_part))
            d_parts.append(d_part)
            d_weights.append(torch.mm(d_rows.t(), _rows(part)))
        d_weight = d_weights[0] if other is None else torch.cat(d_weights, 1)
        return d_out, d_parts[0], d_parts[1] if other is not None else None, d_weight, d_bias


def _rows(x: Tensor) -> Tensor:
    """Channels-last (N, C, D, H, W) as its (N·D·H·W, C) matrix, the same memory."""
    return x.permute(0, 2, 3, 4, 1).reshape(-1, x.shape[1])
