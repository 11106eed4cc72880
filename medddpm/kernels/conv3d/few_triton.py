"""Triton kernels of `conv3d.conv3d` for few channels: a network's first and last convolution, 3³, stride 1, padding 1.

cuDNN multiplies as if there were 16 or 64 channels, or leaves the matrix units. Here the 27 taps of F few channels make
one short dimension of 27·F, beside W wide channels; three products serve both ends and their gradients:

    spread     (N, F, …) → (N, W, …)   y[v, w] = Σ_k few[v + δ(k), f(k)] · table[k, w]
    gather     (N, W, …) → (N, F, …)   y[v, f] = Σ_tap (x · table)[v + δ(tap), (tap, f)]
    correlate  (N, F, …), (N, W, …) → (27, F, W)      Σ_v few[v + δ(k), f(k)] · x[v, w], and Σ_v x[v, w]

with k = (tap, f) and taps in the order of a 3×3×3 array. The few channels are read from a copy with a border of zeros.

The gradients of a convolution y[v] = Σ_tap weight[tap] · x[v + δ(tap)] are such products again (Dumoulin and Visin
2016, arXiv:1603.07285, chapter 4):

    dx[v] = Σ_tap weight[tap]ᵀ · dy[v - δ(tap)]        dweight[tap] = Σ_v dy[v] · x[v + δ(tap)]ᵀ

Few channels in: y by spread, dx by gather; few channels out: y by gather, dx by spread; dweight always by correlate.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from medddpm.kernels.layout import channels_last, empty
from medddpm.kernels.operators import derivatives, operator, twice
from medddpm.kernels.sums_triton import bias_gradient
from medddpm.kernels.tf32_triton import nearest

SPREAD_ROWS = 64  # voxels a program takes at once, spreading
ROWS_ONE, ROWS_MORE = 128, 32  # and correlating, of one channel and of several
CORRELATE_TILE = 2048  # elements of a correlating program's accumulator, at most
GATHER_ROWS = 256
PROGRAMS = 528  # of the correlation: four for each of an H200's 132 multiprocessors


@triton.jit
def _starts(row, d, h, w, FEW: tl.constexpr):
    """Where in the bordered copy the first tap of these voxels lies."""
    x = row % w
    y = row // w % h
    z = row // w // h % d
    n = row // w // h // d
    return (((n * (d + 2) + z) * (h + 2) + y) * (w + 2) + x) * FEW


@triton.jit
def _steps(k, w, FEW: tl.constexpr):
    """How far behind that each (tap, channel) of one plane of nine taps lies."""
    return k // (3 * FEW) * (w + 2) * FEW + k % (3 * FEW)


@triton.jit
def _edge_spread(
    few_ptr,  # (N, D + 2, H + 2, W + 2, FEW), bordered
    table_ptr,  # (27 · FEW, wide)
    bias_ptr,  # (wide,)
    y_ptr,  # (V, wide)
    v, d, h, w, wide,
    FEW: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, BLOCK_K)
    taps: tl.constexpr = 9 * FEW  # of one plane
    few_ptrs = few_ptr + _starts(row, d, h, w, FEW)[:, None] + _steps(k, w, FEW)[None, :]
    table_ptrs = table_ptr + k[:, None] * wide + col[None, :]
    few_mask = (row < v)[:, None] & (k < taps)[None, :]
    table_mask = (k < taps)[:, None] & (col < wide)[None, :]
    plane = (h + 2) * (w + 2) * FEW
    acc = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + col, mask=col < wide, other=0.0).to(tl.float32)[None, :]
    for z in tl.static_range(3):
        a = tl.load(few_ptrs + z * plane, mask=few_mask, other=0.0)
        b = tl.load(table_ptrs + z * taps * wide, mask=table_mask, other=0.0)
        acc = tl.dot(nearest(a), nearest(b), acc)
    y_ptrs = y_ptr + row[:, None] * wide + col[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(row < v)[:, None] & (col < wide)[None, :])


@triton.jit
def _edge_correlate(
    few_ptr,  # (N, D + 2, H + 2, W + 2, FEW), bordered
    x_ptr,  # (V, wide)
    partial_ptr,  # (programs, 3, BLOCK_K, wide): by plane, its taps and in the first plane the sum of x behind them
    v, programs, d, h, w, wide,
    FEW: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, BLOCK_K)
    taps: tl.constexpr = 9 * FEW  # of one plane
    step = _steps(k, w, FEW)
    plane = (h + 2) * (w + 2) * FEW
    acc0 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc1 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc2 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(v, BLOCK_V), programs):
        row = tl.cast(tile, tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        few_ptrs = few_ptr + step[:, None] + _starts(row, d, h, w, FEW)[None, :]
        few_mask = (k < taps)[:, None] & (row < v)[None, :]
        x_mask = (row < v)[:, None] & (col < wide)[None, :]
        b = nearest(tl.load(x_ptr + row[:, None] * wide + col[None, :], mask=x_mask, other=0.0))
        a = tl.load(few_ptrs, mask=few_mask, other=0.0)
        a = tl.where((k == taps)[:, None], 1.0, a).to(x_ptr.dtype.element_ty)  # a row of ones sums x itself
        acc0 = tl.dot(nearest(a), b, acc0)
        acc1 = tl.dot(nearest(tl.load(few_ptrs + plane, mask=few_mask, other=0.0)), b, acc1)
        acc2 = tl.dot(nearest(tl.load(few_ptrs + 2 * plane, mask=few_mask, other=0.0)), b, acc2)
    partial_ptrs = partial_ptr + (tl.program_id(0) * 3 * BLOCK_K + k)[:, None] * wide + col[None, :]
    mask = (k <= taps)[:, None] & (col < wide)[None, :]
    tl.store(partial_ptrs, acc0, mask=mask)
    tl.store(partial_ptrs + BLOCK_K * wide, acc1, mask=mask)
    tl.store(partial_ptrs + 2 * BLOCK_K * wide, acc2, mask=mask)


@triton.jit
def _edge_gather(
    products_ptr,  # (27, few, V) float32
    bias_ptr,  # (few,)
    y_ptr,  # (V, few)
    v, d, h, w, few, HAS_BIAS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    f = tl.program_id(1)
    x0 = row % w
    y0 = row // w % h
    z0 = row // w // h % d
    acc = tl.zeros((BLOCK_V,), tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + f).to(tl.float32)
    for tap in tl.static_range(27):
        z1, y1, x1 = z0 + (tap // 9 - 1), y0 + (tap // 3 % 3 - 1), x0 + (tap % 3 - 1)
        inside = (z1 >= 0) & (z1 < d) & (y1 >= 0) & (y1 < h) & (x1 >= 0) & (x1 < w)
        step = ((tap // 9 - 1) * h + (tap // 3 % 3 - 1)) * w + (tap % 3 - 1)
        ptrs = products_ptr + (tap * few + f).to(tl.int64) * v + row + step
        acc += tl.load(ptrs, mask=inside & (row < v), other=0.0).to(tl.float32)
    tl.store(y_ptr + row * few + f, acc.to(y_ptr.dtype.element_ty), mask=row < v)


def bordered(few: Tensor) -> Tensor:
    """Copies (N, F, D, H, W) to (N, D + 2, H + 2, W + 2, F), with a border of zeros around each volume."""
    n, f, d, h, w = few.shape
    result = few.new_zeros((n, d + 2, h + 2, w + 2, f))
    result[:, 1:-1, 1:-1, 1:-1] = few.permute(0, 2, 3, 4, 1)
    return result


def _taps_block(few: int) -> int:
    """A length that the matrix units take, for the taps of one plane and the row of ones behind them."""
    return max(16, triton.next_power_of_2(9 * few + 1))


def _wide_block(wide: int) -> int:
    return max(16, min(128, wide & -wide))


def spread(few: Tensor, like: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """See the module. `few` is bordered, `like` any (N, F, D, H, W) of its volume, table (27, F, W) of its dtype."""
    n, _, d, h, w = like.shape
    f, wide = table.shape[1:]
    y = empty(like, wide)
    v, block = n * d * h * w, _wide_block(wide)
    _edge_spread[(triton.cdiv(v, SPREAD_ROWS), triton.cdiv(wide, block))](
        few, table.contiguous(), bias, y, v, d, h, w, wide,
        FEW=f, HAS_BIAS=bias is not None, BLOCK_K=_taps_block(f), BLOCK_V=SPREAD_ROWS, BLOCK_C=block,
    )  # fmt: skip
    return y


def correlate(few: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """See the module. `few` is bordered, x (N, W, D, H, W) channels-last.

    Returns:
        (27, F, W) and (W,), float32, summed in a fixed order.
    """
    n, wide, d, h, w = x.shape
    f = few.shape[4]
    v, taps, rows = n * d * h * w, _taps_block(f), ROWS_ONE if f == 1 else ROWS_MORE
    block = min(_wide_block(wide), CORRELATE_TILE // taps)
    programs = min(PROGRAMS, triton.cdiv(v, rows))
    partial = torch.empty((programs, 3, taps, wide), dtype=torch.float32, device=x.device)
    _edge_correlate[(programs, triton.cdiv(wide, block))](
        few, x, partial, v, programs, d, h, w, wide, FEW=f, BLOCK_K=taps, BLOCK_V=rows, BLOCK_C=block,
        num_stages=1 if taps * x.element_size() > 256 else 2,  # within any card's shared memory
    )  # fmt: skip
    sums = partial.sum(0)
    return sums[:, : 9 * f].reshape(27, f, wide), sums[0, 9 * f]


def gather(x: Tensor, table: Tensor, bias: Tensor | None, few: int) -> Tensor:
    """See the module. x is (N, W, D, H, W) channels-last, table (W, 27·F) of its dtype. The products are float32."""
    n, wide, d, h, w = x.shape
    v = n * d * h * w
    rows = x.permute(0, 2, 3, 4, 1).reshape(v, wide)
    weight = table.t().contiguous()
    # One row for each tap, so that neighbouring voxels lie side by side.
    if x.dtype == torch.float32:
        products = torch.mm(weight, rows.t())
    else:
        products = torch.mm(weight, rows.t(), out_dtype=torch.float32)
    y = empty(x, few)
    _edge_gather[(triton.cdiv(v, GATHER_ROWS), few)](
        products, bias, y, v, d, h, w, few, HAS_BIAS=bias is not None, BLOCK_V=GATHER_ROWS
    )
    return y


def _taps_behind(like: Tensor, f: int, wide: int) -> Tensor:
    """Allocates (27, F, W), as `correlate` leaves a weight's gradient; viewed as (3, 3, 3, F, W)."""
    return like.new_empty((3, 3, 3, f, wide))


def _fake_few_in(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    n, f, d, h, w = x.shape
    return empty(x, weight.shape[0]), x.new_empty((n, d + 2, h + 2, w + 2, f))


@operator(_fake_few_in)
def few_in(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """3³ convolution of few channels in: x (N, F, D, H, W) in any memory order, weight (W, F, 3, 3, 3), of one dtype.

    Returns:
        (N, W, D, H, W), channels-last; and x bordered, for backward.
    """
    few = bordered(x)
    table = weight.permute(2, 3, 4, 1, 0).reshape(27, weight.shape[1], weight.shape[0])
    return spread(few, x, table, None if bias is None else bias.contiguous()), few


def _fake_few_in_backward(dy: Tensor, few: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    wide, f = weight.shape[:2]
    dx = [empty(dy, f)] if of_x else []
    if not of_weight:
        return dx
    dw = _taps_behind(weight, f, wide).permute(4, 3, 0, 1, 2)
    return [*dx, dw, dy.new_empty(wide, dtype=torch.float32)]


@operator(_fake_few_in_backward)
def few_in_backward(dy: Tensor, few: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    """With `of_x` the gradient of x; with `of_weight` those of weight and, in float32, bias. dy in any memory order."""
    dy = channels_last(dy)
    wide, f = weight.shape[:2]
    dx = [gather(dy, weight.flip(2, 3, 4).permute(0, 2, 3, 4, 1).reshape(wide, -1), None, f)] if of_x else []
    if not of_weight:
        return dx
    sums, ones = correlate(few, dy)
    # Where float32 products are rounded to TF32, `ones` are sums of what that leaves of dy.
    db = dy.sum((0, 2, 3, 4)) if dy.dtype == torch.float32 else ones.clone()
    return [*dx, sums.reshape(3, 3, 3, f, wide).permute(4, 3, 0, 1, 2).to(weight.dtype), db]


def _fake_few_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return empty(x, weight.shape[0])


@operator(_fake_few_out)
def few_out(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3³ convolution of few channels out: x (N, W, D, H, W) channels-last, weight (F, W, 3, 3, 3), of one dtype.

    Returns:
        (N, F, D, H, W), channels-last.
    """
    f, wide = weight.shape[:2]
    table = weight.permute(1, 2, 3, 4, 0).reshape(wide, -1)
    return gather(x, table, None if bias is None else bias.contiguous(), f)


def _fake_few_out_backward(dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    f, wide = weight.shape[:2]
    dx = [empty(x, wide)] if of_x else []
    return [*dx, _taps_behind(weight, f, wide).permute(3, 4, 0, 1, 2)] if of_weight else dx


@operator(_fake_few_out_backward)
def few_out_backward(dy: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool) -> list[Tensor]:
    """With `of_x` the gradient of x; with `of_weight` that of the weight. dy in any memory order."""
    f, wide = weight.shape[:2]
    few = bordered(dy)
    results = []
    if of_x:
        results = [spread(few, x, weight.flip(2, 3, 4).permute(2, 3, 4, 0, 1).reshape(27, f, wide), None)]
    if of_weight:
        sums = correlate(few, x)[0].reshape(3, 3, 3, f, wide)
        results.append(sums.flip(0, 1, 2).permute(3, 4, 0, 1, 2).to(weight.dtype))
    return results


def _definition(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv3d(x, weight, padding=1)


class FewIn(torch.autograd.Function):
    """`few_in`, with derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, W, D, H, W), channels-last."""
        y, few = few_in(x, weight, bias)
        # A gradient that is to be differentiated is a function of x itself, where x has a gradient.
        ctx.save_for_backward(few, weight, x if ctx.needs_input_grad[0] else None)
        ctx.bias = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        few, weight, x = ctx.saved_tensors
        if twice():
            x = few[:, 1:-1, 1:-1, 1:-1].permute(0, 4, 1, 2, 3) if x is None else x
            return *derivatives(_definition, [x, weight], grads), bias_gradient(grads[0], ctx.bias)
        of_x, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.bias is not None
        found = few_in_backward(grads[0], few, weight, of_x, of_weight)
        db = None if ctx.bias is None else found[-1].to(ctx.bias)
        return found[0] if of_x else None, found[-2] if of_weight else None, db


class FewOut(torch.autograd.Function):
    """`few_out`, with derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, F, D, H, W), channels-last."""
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.dtype
        return few_out(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        db = bias_gradient(grads[0], ctx.bias)
        if twice():
            return *derivatives(_definition, [x, weight], grads), db
        of_x, of_weight = ctx.needs_input_grad[:2]
        found = few_out_backward(grads[0], x, weight, of_x, of_weight)
        return found[0] if of_x else None, found[-1] if of_weight else None, db
