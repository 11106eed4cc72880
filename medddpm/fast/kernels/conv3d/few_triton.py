"""Triton kernels of `conv3d.conv3d` for few channels: a network's first and last convolution, 3³ or 5³.

cuDNN multiplies as if there were 16 or 64 channels, or leaves the matrix units. Here the T taps of F few channels make
one short dimension of T·F, beside W channels, wide or few; three products serve both ends and their gradients:

    spread     (N, F, …) → (N, W, …)   y[v, w] = Σ_k few[s·v + δ(k), f(k)] · table[k, w]
    gather     (N, W, …) → (N, F, …)   y[v, f] = Σ_tap (x · table)[v + δ(tap), (tap, f)]
    correlate  (N, F, …), (N, W, …) → (T, F, W)      Σ_v few[s·v + δ(k), f(k)] · x[v, w], and Σ_v x[v, w]

with the stride s, k = (tap, f) and taps in the order of a 3×3×3 array, or one of 5×5×5. The few channels are read from
a copy with a border of zeros.

The gradients of a convolution y[v] = Σ_tap weight[tap] · x[v + δ(tap)] are such products again (Dumoulin and Visin
2016, arXiv:1603.07285, chapter 4):

    dx[v] = Σ_tap weight[tap]ᵀ · dy[v - δ(tap)]        dweight[tap] = Σ_v dy[v] · x[v + δ(tap)]ᵀ

Few channels in: y by spread, dx by gather; few channels out: y by gather, dx by spread; dweight always by correlate.
With few channels on both sides y and dx are by spread. Of a stride, and from wide channels of 5³, there is no dx.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.operators import derivatives, operator, traced, twice
from medddpm.fast.kernels.sums_triton import bias_gradient
from medddpm.fast.kernels.tf32_triton import nearest

SPREAD_ROWS = 64  # voxels a program takes at once, spreading
ROWS_ONE, ROWS_MORE = 128, 32  # and correlating, of one channel and of several
CORRELATE_TILE = 2048  # elements of a correlating program's accumulator, at most
GATHER_ROWS = 256
WIDE = 16  # channels
PROGRAMS = 528  # of the correlation: four for each of an H200's 132 multiprocessors


@triton.jit
def _starts(row, d, h, w, deep, high, long, FEW: tl.constexpr, STRIDE: tl.constexpr):
    """Where in the bordered copy, whose sides are deep, high and long, the first tap of these voxels lies."""
    x = row % w * STRIDE
    y = row // w % h * STRIDE
    z = row // w // h % d * STRIDE
    n = row // w // h // d
    return (((n * deep + z) * high + y) * long + x) * FEW


@triton.jit
def _steps(k, long, FEW: tl.constexpr, SIDE: tl.constexpr):
    """The offset of each (tap, channel) of one plane of taps from that plane's first."""
    return k // (SIDE * FEW) * long * FEW + k % (SIDE * FEW)


@triton.jit
def _edge_spread(
    few_ptr,  # (N, deep, high, long, FEW), bordered
    table_ptr,  # (SIDE³ · FEW, wide)
    bias_ptr,  # (wide,)
    y_ptr,  # (V, wide), V = N · d · h · w
    v, d, h, w, deep, high, long, wide,
    FEW: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, BLOCK_K)
    taps: tl.constexpr = SIDE * SIDE * FEW  # of one plane
    starts = _starts(row, d, h, w, deep, high, long, FEW, STRIDE)
    few_ptrs = few_ptr + starts[:, None] + _steps(k, long, FEW, SIDE)[None, :]
    table_ptrs = table_ptr + k[:, None] * wide + col[None, :]
    few_mask = (row < v)[:, None] & (k < taps)[None, :]
    table_mask = (k < taps)[:, None] & (col < wide)[None, :]
    plane = high * long * FEW
    acc = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + col, mask=col < wide, other=0.0).to(tl.float32)[None, :]
    for z in tl.static_range(SIDE):
        a = tl.load(few_ptrs + z * plane, mask=few_mask, other=0.0)
        b = tl.load(table_ptrs + z * taps * wide, mask=table_mask, other=0.0)
        acc = tl.dot(nearest(a), nearest(b), acc)
    y_ptrs = y_ptr + row[:, None] * wide + col[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(row < v)[:, None] & (col < wide)[None, :])


@triton.jit
def _edge_correlate(
    few_ptr,  # (N, deep, high, long, FEW), bordered
    x_ptr,  # (V, wide), V = N · d · h · w
    partial_ptr,  # (programs, SIDE, BLOCK_K, wide): by plane, its taps and in the first plane the sum of x behind them
    v, programs, d, h, w, deep, high, long, wide,
    FEW: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, BLOCK_K)
    taps: tl.constexpr = SIDE * SIDE * FEW  # of one plane
    step = _steps(k, long, FEW, SIDE)
    plane = high * long * FEW
    acc0 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc1 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc2 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc3 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    acc4 = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(v, BLOCK_V), programs):
        row = tl.cast(tile, tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        few_ptrs = few_ptr + step[:, None] + _starts(row, d, h, w, deep, high, long, FEW, STRIDE)[None, :]
        few_mask = (k < taps)[:, None] & (row < v)[None, :]
        x_mask = (row < v)[:, None] & (col < wide)[None, :]
        b = nearest(tl.load(x_ptr + row[:, None] * wide + col[None, :], mask=x_mask, other=0.0))
        a = tl.load(few_ptrs, mask=few_mask, other=0.0)
        a = tl.where((k == taps)[:, None], 1.0, a).to(x_ptr.dtype.element_ty)  # a row of ones sums x itself
        acc0 = tl.dot(nearest(a), b, acc0)
        acc1 = tl.dot(nearest(tl.load(few_ptrs + plane, mask=few_mask, other=0.0)), b, acc1)
        acc2 = tl.dot(nearest(tl.load(few_ptrs + 2 * plane, mask=few_mask, other=0.0)), b, acc2)
        if SIDE == 5:
            acc3 = tl.dot(nearest(tl.load(few_ptrs + 3 * plane, mask=few_mask, other=0.0)), b, acc3)
            acc4 = tl.dot(nearest(tl.load(few_ptrs + 4 * plane, mask=few_mask, other=0.0)), b, acc4)
    partial_ptrs = partial_ptr + (tl.program_id(0) * SIDE * BLOCK_K + k)[:, None] * wide + col[None, :]
    mask = (k <= taps)[:, None] & (col < wide)[None, :]
    tl.store(partial_ptrs, acc0, mask=mask)
    tl.store(partial_ptrs + BLOCK_K * wide, acc1, mask=mask)
    tl.store(partial_ptrs + 2 * BLOCK_K * wide, acc2, mask=mask)
    if SIDE == 5:
        tl.store(partial_ptrs + 3 * BLOCK_K * wide, acc3, mask=mask)
        tl.store(partial_ptrs + 4 * BLOCK_K * wide, acc4, mask=mask)


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


class _Shared(threading.local):
    """A thread's last bordered copy within `shared`: the volume, the copy, and the version, width and dtype of it."""

    on = False
    last: tuple[weakref.ref[Tensor], weakref.ref[Tensor], tuple[int, int, torch.dtype]] | None = None


_SHARED = _Shared()


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Inside, convolutions of one volume keep one bordered copy of it, as the two that begin a residual block."""
    outer = _SHARED.on, _SHARED.last
    _SHARED.on, _SHARED.last = True, None
    try:
        yield
    finally:
        _SHARED.on, _SHARED.last = outer


def bordered_once(x: Tensor, border: int, dtype: torch.dtype) -> Tensor:
    """`bordered`, or within `shared` what it returned for the same volume, if that is still kept for backward."""
    if traced() or not _SHARED.on or x.is_inference():
        return bordered(x, border, dtype)
    options = x._version, border, dtype
    if _SHARED.last is not None:
        volume, copy, then = _SHARED.last
        if volume() is x and then == options and (shared_copy := copy()) is not None:
            return shared_copy
    few = bordered(x, border, dtype)
    _SHARED.last = weakref.ref(x), weakref.ref(few), options
    return few


def bordered(few: Tensor, border: int = 1, dtype: torch.dtype | None = None) -> Tensor:
    """Copies (N, F, D, H, W) to (N, D + 2, H + 2, W + 2, F), or wider, with a border of zeros around each volume."""
    n, f, *sides = few.shape
    result = few.new_zeros((n, *(side + 2 * border for side in sides), f), dtype=dtype)
    _inner(result, border).copy_(few)
    return result


def _inner(few: Tensor, border: int) -> Tensor:
    """The (N, F, D, H, W) within a bordered copy."""
    inner = slice(border, -border)
    return few[:, inner, inner, inner].permute(0, 4, 1, 2, 3)


def _taps_block(taps: int) -> int:
    """A length that the matrix units take, for the taps of one plane and the row of ones behind them."""
    return max(16, triton.next_power_of_2(taps + 1))


def _wide_block(wide: int) -> int:
    return max(16, min(128, wide & -wide))


def _sides(few: Tensor, side: int, stride: int) -> list[int]:
    """The sides of what a bordered copy is spread to."""
    return [(whole - side) // stride + 1 for whole in few.shape[1:4]]


def spread(few: Tensor, table: Tensor, bias: Tensor | None, side: int = 3, stride: int = 1) -> Tensor:
    """See the module. `few` is bordered, table (side³, F, W) of its dtype."""
    f, wide = table.shape[1:]
    d, h, w = sides = _sides(few, side, stride)
    y = empty(few, wide, sides)
    v, block = y.numel() // wide, _wide_block(wide)
    _edge_spread[(triton.cdiv(v, SPREAD_ROWS), triton.cdiv(wide, block))](
        few, table.contiguous(), bias, y, v, d, h, w, *few.shape[1:4], wide, FEW=f, SIDE=side, STRIDE=stride,
        HAS_BIAS=bias is not None, BLOCK_K=_taps_block(side**2 * f), BLOCK_V=SPREAD_ROWS, BLOCK_C=block,
    )  # fmt: skip
    return y


def correlate(few: Tensor, x: Tensor, side: int = 3, stride: int = 1) -> tuple[Tensor, Tensor]:
    """See the module. `few` is bordered, x (N, W, D, H, W) channels-last.

    Returns:
        (side³, F, W) and (W,), float32, summed in a fixed order.
    """
    n, wide, d, h, w = x.shape
    f = few.shape[4]
    v, taps = n * d * h * w, side**2 * f
    long = _taps_block(taps)
    rows = ROWS_ONE if long == 16 else ROWS_MORE
    block = min(_wide_block(wide), CORRELATE_TILE // long)
    programs = min(PROGRAMS, triton.cdiv(v, rows))
    partial = torch.empty((programs, side, long, wide), dtype=torch.float32, device=x.device)
    _edge_correlate[(programs, triton.cdiv(wide, block))](
        few, x, partial, v, programs, d, h, w, *few.shape[1:4], wide,
        FEW=f, SIDE=side, STRIDE=stride, BLOCK_K=long, BLOCK_V=rows, BLOCK_C=block,
        num_stages=1 if long * x.element_size() > 256 else 2,  # within any card's shared memory
    )  # fmt: skip
    sums = partial.sum(0)
    return sums[:, :taps].reshape(side**3, f, wide), sums[0, taps]


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


def _taps_behind(like: Tensor, f: int, wide: int, side: int = 3) -> Tensor:
    """Allocates (side³, F, W), as `correlate` leaves a weight's gradient; viewed as (side, side, side, F, W)."""
    return like.new_empty((side, side, side, f, wide))


def _fake_few_in(few: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    return empty(few, weight.shape[0], _sides(few, weight.shape[2], stride))


@operator(_fake_few_in)
def few_in(few: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Convolution of few channels in: `few` is bordered, weight (W, F, 3, 3, 3), of one dtype.

    The weight may be of 5³; the padding keeps the sides at stride 1.

    Returns:
        (N, W, …), channels-last.
    """
    side = weight.shape[2]
    table = weight.permute(2, 3, 4, 1, 0).reshape(side**3, weight.shape[1], weight.shape[0])
    return spread(few, table, None if bias is None else bias.contiguous(), side, stride)


def _fake_few_in_backward(
    dy: Tensor, few: Tensor, weight: Tensor, stride: int, of_x: bool, of_weight: bool
) -> list[Tensor]:
    wide, f, side = weight.shape[:3]
    dx = [empty(dy, f, [whole - side + 1 for whole in few.shape[1:4]])] if of_x else []
    if not of_weight:
        return dx
    dw = _taps_behind(weight, f, wide, side).permute(4, 3, 0, 1, 2)
    return [*dx, dw, dy.new_empty(wide, dtype=torch.float32)]


@operator(_fake_few_in_backward)
def few_in_backward(dy: Tensor, few: Tensor, weight: Tensor, stride: int, of_x: bool, of_weight: bool) -> list[Tensor]:
    """With `of_x` the gradient of x; with `of_weight` those of weight and, in float32, bias. dy in any memory order.

    Of x there is none if the stride is 2, or the weight one of 5³ with 16 channels or more out.
    """
    dy = channels_last(dy)
    wide, f, side = weight.shape[:3]
    dx = [_of_few(dy, weight)] if of_x else []
    if not of_weight:
        return dx
    sums, ones = correlate(few, dy, side, stride)
    # Where float32 products are rounded to TF32, `ones` are sums of what that leaves of dy.
    db = dy.sum((0, 2, 3, 4)) if dy.dtype == torch.float32 else ones.clone()
    return [*dx, sums.reshape(side, side, side, f, wide).permute(4, 3, 0, 1, 2).to(weight.dtype), db]


def _of_few(dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the few channels in, at stride 1."""
    wide, f, side = weight.shape[:3]
    mirrored = weight.flip(2, 3, 4)
    if wide >= WIDE:
        return gather(dy, mirrored.permute(0, 2, 3, 4, 1).reshape(wide, -1), None, f)
    table = mirrored.permute(2, 3, 4, 0, 1).reshape(side**3, wide, f)
    return spread(bordered(dy, side // 2), table, None, side)


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
        results = [spread(few, weight.flip(2, 3, 4).permute(2, 3, 4, 0, 1).reshape(27, f, wide), None)]
    if of_weight:
        sums = correlate(few, x)[0].reshape(3, 3, 3, f, wide)
        results.append(sums.flip(0, 1, 2).permute(3, 4, 0, 1, 2).to(weight.dtype))
    return results


def _definition(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    return functional.conv3d(x, weight, None, stride, weight.shape[2] // 2)


class FewIn(torch.autograd.Function):
    """`few_in` of a volume, with derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        """(N, W, …), channels-last."""
        few = bordered_once(x, weight.shape[2] // 2, weight.dtype)
        # A gradient that is to be differentiated is a function of x itself; and the layer before may keep it anyway.
        ctx.save_for_backward(x if ctx.needs_input_grad[0] else few, weight)
        ctx.bias, ctx.stride = None if bias is None else bias.dtype, stride
        return few_in(few, weight, bias, stride)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        saved, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.bias is not None
        border = weight.shape[2] // 2
        if twice():
            defined = functools.partial(_definition, stride=ctx.stride)
            x = saved if of_x else _inner(saved, border)
            return *derivatives(defined, [x, weight], grads), bias_gradient(grads[0], ctx.bias), None
        few = bordered(saved, border) if of_x else saved
        gradients = few_in_backward(grads[0], few, weight, ctx.stride, of_x, of_weight)
        db = None if ctx.bias is None else gradients[-1].to(ctx.bias)
        return gradients[0] if of_x else None, gradients[-2] if of_weight else None, db, None


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
        gradients = few_out_backward(grads[0], x, weight, of_x, of_weight)
        return gradients[0] if of_x else None, gradients[-1] if of_weight else None, db
