"""Triton kernels of `kernels.conv3d` for few channels: a network's first and last convolution, 3³, stride 1, padding 1.

cuDNN multiplies as if there were 16 or 64 channels, or leaves the matrix units. Here the 27 taps of F few channels make
one short dimension of 27·F, beside W wide channels; three products serve both ends and their gradients:

    spread     (N, F, …) → (N, W, …)   y[v, w] = Σ_k few[v + δ(k), f(k)] · table[k, w]
    gather     (N, W, …) → (N, F, …)   y[v, f] = Σ_tap (x · table)[v + δ(tap), (tap, f)]
    correlate  (N, F, …), (N, W, …) → (27, F, W)      Σ_v few[v + δ(k), f(k)] · x[v, w], and Σ_v x[v, w]

with k = (tap, f) and taps in the order of a 3×3×3 array. The few are read from a copy with a border of zeros.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.kernels.norm_triton import channels_last, empty

ROWS = 64  # voxels a program takes at once, spreading
ROWS_ONE, ROWS_MORE = 128, 32  # and correlating, of one channel and of several
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
    bordered, table, bias, y, v, d, h, w, wide,
    FEW: tl.constexpr, HAS_BIAS: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    k = tl.arange(0, K)
    deep: tl.constexpr = 9 * FEW
    there = bordered + _starts(row, d, h, w, FEW)[:, None] + _steps(k, w, FEW)[None, :]
    weight = table + k[:, None] * wide + col[None, :]
    inside = (row < v)[:, None] & (k < deep)[None, :]
    known = (k < deep)[:, None] & (col < wide)[None, :]
    plane = (h + 2) * (w + 2) * FEW
    total = tl.zeros((BR, BC), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + col, mask=col < wide, other=0.0).to(tl.float32)[None, :]
    for z in tl.static_range(3):
        a = tl.load(there + z * plane, mask=inside, other=0.0)
        total = tl.dot(a, tl.load(weight + z * deep * wide, mask=known, other=0.0), total)
    here = y + row[:, None] * wide + col[None, :]
    tl.store(here, total.to(y.dtype.element_ty), mask=(row < v)[:, None] & (col < wide)[None, :])


@triton.jit
def _edge_correlate(
    bordered, x, partial, v, programs, d, h, w, wide,
    FEW: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    k = tl.arange(0, K)
    deep: tl.constexpr = 9 * FEW
    step = _steps(k, w, FEW)
    plane = (h + 2) * (w + 2) * FEW
    first = tl.zeros((K, BC), tl.float32)
    second = tl.zeros((K, BC), tl.float32)
    third = tl.zeros((K, BC), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(v, BR), programs):
        row = tl.cast(tile, tl.int64) * BR + tl.arange(0, BR)
        there = bordered + step[:, None] + _starts(row, d, h, w, FEW)[None, :]
        inside = (k < deep)[:, None] & (row < v)[None, :]
        b = tl.load(x + row[:, None] * wide + col[None, :], mask=(row < v)[:, None] & (col < wide)[None, :], other=0.0)
        a = tl.load(there, mask=inside, other=0.0)
        a = tl.where((k == deep)[:, None], 1.0, a).to(x.dtype.element_ty)  # a row of ones sums x itself
        first = tl.dot(a, b, first)
        second = tl.dot(tl.load(there + plane, mask=inside, other=0.0), b, second)
        third = tl.dot(tl.load(there + 2 * plane, mask=inside, other=0.0), b, third)
    to = partial + (tl.program_id(0) * 3 * K + k)[:, None] * wide + col[None, :]
    known = (k <= deep)[:, None] & (col < wide)[None, :]
    tl.store(to, first, mask=known)
    tl.store(to + K * wide, second, mask=known)
    tl.store(to + 2 * K * wide, third, mask=known)


@triton.jit
def _edge_gather(
    products, bias, y, v, d, h, w, few, HAS_BIAS: tl.constexpr, BR: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    f = tl.program_id(1)
    x0 = row % w
    y0 = row // w % h
    z0 = row // w // h % d
    total = tl.zeros((BR,), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + f).to(tl.float32)
    for tap in tl.static_range(27):
        z1, y1, x1 = z0 + (tap // 9 - 1), y0 + (tap // 3 % 3 - 1), x0 + (tap % 3 - 1)
        inside = (z1 >= 0) & (z1 < d) & (y1 >= 0) & (y1 < h) & (x1 >= 0) & (x1 < w)
        step = ((tap // 9 - 1) * h + (tap // 3 % 3 - 1)) * w + (tap % 3 - 1)
        there = products + (tap * few + f).to(tl.int64) * v + row + step
        total += tl.load(there, mask=inside & (row < v), other=0.0).to(tl.float32)
    tl.store(y + row * few + f, total.to(y.dtype.element_ty), mask=row < v)


def bordered(few: Tensor) -> Tensor:
    """(N, F, D, H, W) to (N, D + 2, H + 2, W + 2, F), a border of zeros around each volume."""
    n, f, d, h, w = few.shape
    result = few.new_zeros((n, d + 2, h + 2, w + 2, f))
    result[:, 1:-1, 1:-1, 1:-1] = few.permute(0, 2, 3, 4, 1)
    return result


def _deep(few: int) -> int:
    """Length of one plane of taps, and one more, as the matrix units take it."""
    return max(16, triton.next_power_of_2(9 * few + 1))


def _block(wide: int) -> int:
    return max(16, min(128, wide & -wide))


def spread(few: Tensor, like: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """See the module; `few` bordered, `like` any (N, F, D, H, W) of its volume, table (27, F, W) of its dtype."""
    n, _, d, h, w = like.shape
    f, wide = table.shape[1:]
    y = empty(like, wide)
    v, block = n * d * h * w, _block(wide)
    _edge_spread[(triton.cdiv(v, ROWS), triton.cdiv(wide, block))](
        few, table.contiguous(), bias, y, v, d, h, w, wide,
        FEW=f, HAS_BIAS=bias is not None, K=_deep(f), BR=ROWS, BC=block,
    )  # fmt: skip
    return y


def correlate(few: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """See the module; `few` bordered, x (N, W, D, H, W) channels-last.

    Returns (27, F, W) and (W,), float32, summed in a fixed order.
    """
    n, wide, d, h, w = x.shape
    f = few.shape[4]
    v, deep, rows = n * d * h * w, _deep(f), ROWS_ONE if f == 1 else ROWS_MORE
    block = min(_block(wide), 2048 // deep)
    programs = min(PROGRAMS, triton.cdiv(v, rows))
    partial = torch.empty((programs, 3, deep, wide), dtype=torch.float32, device=x.device)
    _edge_correlate[(programs, triton.cdiv(wide, block))](
        few, x, partial, v, programs, d, h, w, wide, FEW=f, K=deep, BR=rows, BC=block,
        num_stages=1 if deep * x.element_size() > 256 else 2,  # within any card's shared memory
    )  # fmt: skip
    sums = partial.sum(0)
    return sums[:, : 9 * f].reshape(27, f, wide), sums[0, 9 * f]


def gather(x: Tensor, table: Tensor, bias: Tensor | None, few: int) -> Tensor:
    """See the module; x (N, W, D, H, W) channels-last, table (W, 27·F) of its dtype. The products are float32."""
    n, wide, d, h, w = x.shape
    v = n * d * h * w
    rows = x.permute(0, 2, 3, 4, 1).reshape(v, wide)
    taps = table.t().contiguous()
    # A row a tap, so that neighbouring voxels lie side by side.
    if x.dtype == torch.float32:
        products = torch.mm(taps, rows.t())
    else:
        products = torch.mm(taps, rows.t(), out_dtype=torch.float32)
    y = empty(x, few)
    _edge_gather[(triton.cdiv(v, 256), few)](products, bias, y, v, d, h, w, few, HAS_BIAS=bias is not None, BR=256)
    return y


class FewIn(torch.autograd.Function):
    """3³ convolution of few channels in: x (N, F, D, H, W), weight (W, F, 3, 3, 3), of one dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, W, D, H, W), channels-last."""
        few = bordered(x)
        ctx.save_for_backward(few, weight)
        ctx.bias = None if bias is None else bias.dtype
        table = weight.permute(2, 3, 4, 1, 0).reshape(27, weight.shape[1], weight.shape[0])
        return spread(few, x, table, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        few, weight = ctx.saved_tensors
        dy = channels_last(grads[0])
        wide, f = weight.shape[:2]
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = gather(dy, weight.flip(2, 3, 4).permute(0, 2, 3, 4, 1).reshape(wide, -1), None, f)
        if ctx.needs_input_grad[1] or ctx.bias is not None:
            sums, ones = correlate(few, dy)
            dw = sums.reshape(3, 3, 3, f, wide).permute(4, 3, 0, 1, 2).to(weight.dtype)
            db = None if ctx.bias is None else ones.to(ctx.bias)
        return dx, dw, db


class FewOut(torch.autograd.Function):
    """3³ convolution of few channels out: x (N, W, D, H, W) channels-last, weight (F, W, 3, 3, 3), of one dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, F, D, H, W), channels-last."""
        f, wide = weight.shape[:2]
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.dtype
        return gather(x, weight.permute(1, 2, 3, 4, 0).reshape(wide, -1), bias, f)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        f, wide = weight.shape[:2]
        few = bordered(grads[0])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = spread(few, x, weight.flip(2, 3, 4).permute(2, 3, 4, 0, 1).reshape(27, f, wide), None)
        if ctx.needs_input_grad[1]:
            sums = correlate(few, x)[0].reshape(3, 3, 3, f, wide)
            dw = sums.flip(0, 1, 2).permute(3, 4, 0, 1, 2).to(weight.dtype)
        if ctx.bias is not None:
            db = channels_last(grads[0]).sum((0, 2, 3, 4), dtype=torch.float32).to(ctx.bias)
        return dx, dw, db
