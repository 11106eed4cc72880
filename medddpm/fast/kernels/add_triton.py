"""Triton kernels of `add.add`: a residual sum with its biases, and the 1³ convolution of its skip, in one sweep.

A channels-last tensor is V = N·D·H·W rows of C values. The product's operands are read once, since one program holds
all output channels of a row, up to `WIDE`; its accumulator is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.norm_triton import channel_block
from medddpm.fast.kernels.operators import derivatives, operator, twice
from medddpm.fast.kernels.sums_triton import bias_gradient
from medddpm.fast.kernels.tf32_triton import nearest

ADD_TILE = 4096  # elements a program of the plain sum holds
ROWS, WIDE, DEEP = 128, 128, 64  # a program's tile of the product: rows, output channels, channels summed at once


@triton.jit
def _add(
    h_ptr,  # (V, C)
    x_ptr,  # (V, C)
    bias_ptr,  # (C,)
    y_ptr,  # (V, C)
    v, c, HAS_BIAS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (row < v)[:, None] & (col < c)[None, :]
    at = row[:, None] * c + col[None, :]
    acc = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    acc += tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=mask)


# The product is y = h + bias + [x, other] · weightᵀ. Its gradients are dh = dy, d[x, other] = dy · weight and
# d_weight = dyᵀ · [x, other], which are cuBLAS's (`Add.backward`), and d_bias, which `sums_triton` sums.
@triton.jit
def _add_product(
    h_ptr,  # (V, C)
    x_ptr,  # (V, C_x)
    other_ptr,  # (V, C_other)
    weight_ptr,  # (C, C_x + C_other)
    bias_ptr,  # (C,)
    y_ptr,  # (V, C)
    v, c, c_x, c_other,
    HAS_BIAS: tl.constexpr, HAS_OTHER: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_K)
    inside = (row < v)[:, None]
    at = row[:, None] * c + col[None, :]
    mask = inside & (col < c)[None, :]
    acc = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    weight_col_ptr = weight_ptr + col[None, :] * (c_x + c_other)
    for first in range(0, c_x, BLOCK_K):
        k = first + lane
        a = tl.load(x_ptr + row[:, None] * c_x + k[None, :], mask=inside & (k < c_x)[None, :], other=0.0)
        w = tl.load(weight_col_ptr + k[:, None], mask=(k < c_x)[:, None] & (col < c)[None, :], other=0.0)
        acc = tl.dot(nearest(a), nearest(w), acc)
    if HAS_OTHER:
        for first in range(0, c_other, BLOCK_K):
            k = first + lane
            a = tl.load(
                other_ptr + row[:, None] * c_other + k[None, :], mask=inside & (k < c_other)[None, :], other=0.0
            )
            w = tl.load(
                weight_col_ptr + (c_x + k)[:, None], mask=(k < c_other)[:, None] & (col < c)[None, :], other=0.0
            )
            acc = tl.dot(nearest(a), nearest(w), acc)
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=mask)


def _fake_add(h: Tensor, *_: Tensor | None) -> Tensor:
    return empty(h, h.shape[1])


@operator(_fake_add)
def add(h: Tensor, x: Tensor, other: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """See `add.add`; every volume channels-last, weight (C, C_x + C_other) of their dtype, bias contiguous."""
    c = h.shape[1]
    v = h.numel() // c
    y = empty(h, c)
    if weight is None:
        rows, block = channel_block(c, ADD_TILE)
        _add[(triton.cdiv(v, rows) * triton.cdiv(c, block),)](
            h, x, bias, y, v, c, HAS_BIAS=bias is not None, BLOCK_V=rows, BLOCK_C=block
        )
    else:
        block = max(16, min(WIDE if h.element_size() < 4 else WIDE // 2, c & -c))  # within shared memory
        _add_product[(triton.cdiv(v, ROWS) * triton.cdiv(c, block),)](
            h, x, other, weight.contiguous(), bias, y, v, c, x.shape[1], 0 if other is None else other.shape[1],
            HAS_BIAS=bias is not None, HAS_OTHER=other is not None,
            BLOCK_V=ROWS, BLOCK_C=block, BLOCK_K=DEEP,
        )  # fmt: skip
    return y


def _fake_add_backward(dy: Tensor, x: Tensor, other: Tensor | None, weight: Tensor) -> list[Tensor]:
    return [*(empty(part, part.shape[1]) for part in (x, other) if part is not None), weight.new_empty(weight.shape)]


@operator(_fake_add_backward)
def add_backward(dy: Tensor, x: Tensor, other: Tensor | None, weight: Tensor) -> list[Tensor]:
    """Gradients of x, of other if there is one, and of the weight; dy (N, C, D, H, W) in any memory order."""
    d_rows = _rows(channels_last(dy))
    d_parts, d_weights = [], []
    first = 0
    for part in (x,) if other is None else (x, other):
        piece = weight[:, first : first + part.shape[1]]
        first += part.shape[1]
        d_part = empty(part, part.shape[1])
        torch.mm(d_rows, piece, out=_rows(d_part))
        d_parts.append(d_part)
        d_weights.append(torch.mm(d_rows.t(), _rows(part)))
    return [*d_parts, d_weights[0] if other is None else torch.cat(d_weights, 1)]


def _skip(x: Tensor, other: Tensor | None, weight: Tensor) -> Tensor:
    return functional.conv3d(x if other is None else torch.cat([x, other], 1), weight[:, :, None, None, None])


class Add(torch.autograd.Function):
    """`add.add` by the kernels: h + x + bias, or h + bias + the 1³ convolution of x and other by `weight`."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, x: Tensor, other: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """See `add`."""
        ctx.save_for_backward(*(() if weight is None else (x, other, weight)))
        ctx.bias = None if bias is None else bias.dtype
        return add(h, x, other, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of every tensor handed in; that of h is the incoming gradient itself."""
        dy = channels_last(grads[0])
        d_bias = bias_gradient(dy, ctx.bias)
        saved = ctx.saved_tensors  # unpacked once: a checkpoint computes it again for it, and takes no second asking
        if not saved:
            return dy, dy, None, None, d_bias
        x, other, weight = saved
        if twice():
            return dy, *derivatives(_skip, saved, [dy]), d_bias
        d_x, *d_other, d_weight = add_backward(dy, x, other, weight)
        return dy, d_x, d_other[0] if d_other else None, d_weight, d_bias


def _rows(x: Tensor) -> Tensor:
    """Channels-last (N, C, D, H, W) as its (N·D·H·W, C) matrix, the same memory."""
    return x.permute(0, 2, 3, 4, 1).reshape(-1, x.shape[1])
