"""Triton kernels of a large depthwise convolution of stride 1, as products of the Tensor Cores.

Each channel by itself has no product of matrices. One is made by computing more than is asked for: eight neighbours
along W read a window of 16, so a matrix of the taps, moved by one place for each of the eight and zero elsewhere, maps
the window to them; it is joined over eight lines of the window, and over the eight planes of outputs that may read the
plane at hand. About a third of the products count. That beats the other multiprocessor units with 7³ taps, not with
fewer.

Volumes are copied to zero-padded planes (N, C, DP, HP, WP) first: position = coordinate + padding. With P the padding,
the gradients are of that same form:

    dx[i] = Σ_k w[K - 1 - k] · dy[i - (K - 1 - P) + k]    dw[K - 1 - k] = Σ_i x[i] · dy[i - (K - 1 - P) + k]
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.layout import empty

Triple = tuple[int, int, int]

OUT, WINDOW, TALL, SLOTS = (tl.constexpr(size) for size in (8, 16, 8, 8))  # outputs, window along W, lines, planes
LEAST, LEAST_WEIGHT = 64**3, 48**3  # voxels of a sample from which on it is faster; for the weight's gradient
ROWS, WARPS = 128, 4  # a program's rows of OUT outputs
DEPTH = 48  # planes of outputs that a program makes, at most
COPY_W, COPY_C = 128, 32  # a program's tile of a copy


@triton.jit
def _conv_planes(
    x_ptr,  # (N, D, H, W, C)
    y_ptr,  # (N, C, DP, HP, WP)
    c, d, h, w, dp, hp, wp, pd, ph, pw, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    line, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    tiles = tl.cdiv(wp, BLOCK_W)
    j = tl.program_id(1) % tiles * BLOCK_W + tl.arange(0, BLOCK_W)
    col = tl.program_id(1) // tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    z, y, x = line // hp - pd, line % hp - ph, j - pw
    inside = (x >= 0) & (x < w) & (z >= 0) & (z < d) & (y >= 0) & (y < h)
    ptrs = x_ptr + (((n * d + z) * h + y) * w + x)[:, None] * c + col[None, :]
    value = tl.load(ptrs, mask=inside[:, None] & (col < c)[None, :], other=0.0)
    to = y_ptr + ((n * c + col)[:, None] * (dp * hp) + line) * wp + j[None, :]
    tl.store(to, tl.trans(value), mask=(col < c)[:, None] & (j < wp)[None, :])


@triton.jit
def _conv_unplanes(
    x_ptr,  # (N, C, lines, WP)
    y_ptr,  # (N, lines, W, C)
    c, lines, w, wp, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    line, n = tl.program_id(0), tl.program_id(2).to(tl.int64)
    tiles = tl.cdiv(w, BLOCK_W)
    x = tl.program_id(1) % tiles * BLOCK_W + tl.arange(0, BLOCK_W)
    col = tl.program_id(1) // tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (col < c)[:, None] & (x < w)[None, :]
    value = tl.load(x_ptr + ((n * c + col)[:, None] * lines + line) * wp + x[None, :], mask=mask, other=0.0)
    to = y_ptr + ((n * lines + line) * w + x)[:, None] * c + col[None, :]
    tl.store(to, tl.trans(value), mask=(x < w)[:, None] & (col < c)[None, :])


@triton.jit
def _conv_banded(
    weight_ptr,  # (C, KD · KH · KW)
    t_ptr,  # (C, SLOTS, TALL · WINDOW, SLOTS · OUT): the taps for each remainder of the plane's number
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    ch, rest = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, col = tl.arange(0, TALL * WINDOW)[:, None], tl.arange(0, SLOTS * OUT)[None, :]
    kd, kh, kw = (rest - col // OUT + SLOTS) % SLOTS, k // WINDOW, k % WINDOW - col % OUT
    tap = (kd * KH + kh) * KW + kw
    if FLIP:
        tap = KD * KH * KW - 1 - tap
    there = (kd < KD) & (kh < KH) & (kw >= 0) & (kw < KW)
    value = tl.load(weight_ptr + ch * (KD * KH * KW) + tap, mask=there, other=0.0)
    tl.store(t_ptr + ((ch * SLOTS + rest) * (TALL * WINDOW) + k) * (SLOTS * OUT) + col, value)


@triton.jit
def _conv_depthwise_planes(
    x_ptr,  # (N, C, DP, HP, WP)
    t_ptr,  # (C, SLOTS, TALL · WINDOW, SLOTS · OUT)
    bias_ptr,  # (C,)
    y_ptr,  # (N, C, OD, OH, WO)
    c, dp, hp, wp, od, oh, ow, wo, depth,
    KD: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Passes through the planes: each adds to outputs of the KD planes that read it, of which the oldest is done."""
    tiles = tl.cdiv(ow, OUT)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ch, n = tl.program_id(1), tl.program_id(2) // tl.cdiv(od, depth)
    z0 = tl.program_id(2) % tl.cdiv(od, depth) * depth
    z1 = tl.minimum(z0 + depth, od)
    here = row < oh * tiles
    yy, xx = tl.where(here, row // tiles, 0), row % tiles * OUT
    k, col, out = tl.arange(0, TALL * WINDOW), tl.arange(0, SLOTS * OUT), tl.arange(0, OUT)
    at = (n * c + ch).to(tl.int64)
    x_ptrs = x_ptr + at * dp * hp * wp + (yy * wp + xx)[:, None] + (k // WINDOW * wp + k % WINDOW)[None, :]
    t_ptrs = t_ptr + ch.to(tl.int64) * (SLOTS * TALL * WINDOW * SLOTS * OUT) + k[:, None] * (SLOTS * OUT) + col[None, :]
    y_ptrs = y_ptr + at * od * oh * wo + (yy * wo + xx)[:, None] + out[None, :]
    fits = here[:, None] & (xx[:, None] + out[None, :] < ow)
    bias = tl.load(bias_ptr + ch).to(tl.float32) if HAS_BIAS else 0.0
    acc = tl.zeros((BLOCK_M, SLOTS * OUT), tl.float32)
    for step in tl.range(z1 - z0 + KD - 1, num_stages=1):  # loads ahead of time make it slower
        z = z0 + step
        x, taps = tl.load(x_ptrs + z * (hp * wp)), tl.load(t_ptrs + z % SLOTS * (TALL * WINDOW * SLOTS * OUT))
        acc = tl.dot(x, taps, acc)
        done = z - (KD - 1)
        slot = (col // OUT == (done + SLOTS) % SLOTS)[None, :]
        whole = tl.sum(tl.reshape(tl.where(slot, acc, 0.0), (BLOCK_M, SLOTS, OUT)), axis=1) + bias
        tl.store(y_ptrs + done * (oh * wo), whole.to(y_ptr.dtype.element_ty), mask=fits & (done >= z0))
        acc = tl.where(slot, 0.0, acc)


@triton.jit
def _conv_weight_planes(
    dy_ptr,  # (N, C, DP, HP, WP), padded
    x_ptr,  # (N, C, D, H, WO), zero from W on
    partial_ptr,  # (C, P, SLOTS · OUT, TALL · WINDOW)
    c, dp, hp, wp, d, h, w, wo, depth,
    KD: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Sums x[z, y, 8t + i] · dy[z + kd, y + kh, 8t + j] over z, y and t: (kd, i) by (kh, j)."""
    tiles = tl.cdiv(w, OUT)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ch, n = tl.program_id(1), tl.program_id(2) // tl.cdiv(d, depth)
    z0 = tl.program_id(2) % tl.cdiv(d, depth) * depth
    z1 = tl.minimum(z0 + depth, d)
    here = row < h * tiles
    yy, xx = tl.where(here, row // tiles, 0), row % tiles * OUT
    k, col = tl.arange(0, TALL * WINDOW), tl.arange(0, SLOTS * OUT)
    at = (n * c + ch).to(tl.int64)
    dy_ptrs = dy_ptr + at * dp * hp * wp + (yy * wp + xx)[:, None] + (k // WINDOW * wp + k % WINDOW)[None, :]
    slot = (col // OUT)[None, :]
    x_ptrs = x_ptr + at * d * h * wo + (yy * wo + xx)[:, None] + (col % OUT)[None, :] - slot * (h * wo)
    fits = here[:, None] & (slot < KD)
    acc = tl.zeros((SLOTS * OUT, TALL * WINDOW), tl.float32)
    for step in tl.range(z1 - z0 + KD - 1, num_stages=1):
        z = z0 + step
        dy = tl.load(dy_ptrs + z * (hp * wp))
        x = tl.load(x_ptrs + z * (h * wo), mask=fits & (z - slot >= z0) & (z - slot < z1), other=0.0)
        acc = tl.dot(tl.trans(x), dy, acc)
    p = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    to = partial_ptr + (ch.to(tl.int64) * (tl.num_programs(0) * tl.num_programs(2)) + p) * (SLOTS * OUT * TALL * WINDOW)
    tl.store(to + col[:, None] * (TALL * WINDOW) + k[None, :], acc)


@triton.jit
def _conv_weight_fold(
    partial_ptr,  # (C, P, SLOTS · OUT, TALL · WINDOW), as `_conv_weight_planes` leaves it
    sums_ptr,  # (KD · KH · KW, C)
    c, programs, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
):  # fmt: skip
    """A tap is a diagonal: (kd, i) by (kh, i + kw)."""
    ch, kd, kh = tl.program_id(0), tl.program_id(1) // KH, tl.program_id(1) % KH
    i, kw = tl.arange(0, OUT)[:, None], tl.arange(0, WINDOW)[None, :]
    ptrs = partial_ptr + ch.to(tl.int64) * programs * (SLOTS * OUT * TALL * WINDOW)
    ptrs += (kd * OUT + i) * (TALL * WINDOW) + kh * WINDOW + i + kw
    mask = kw + i * 0 < KW
    acc = tl.zeros((OUT, WINDOW), tl.float32)
    for p in range(programs):
        acc += tl.load(ptrs + p * (SLOTS * OUT * TALL * WINDOW), mask=mask, other=0.0)
    tap = KD * KH * KW - 1 - ((kd * KH + kh) * KW + tl.arange(0, WINDOW))
    tl.store(sums_ptr + tap * c + ch, tl.sum(acc, axis=0), mask=tl.arange(0, WINDOW) < KW)


def suits(x: Tensor, sides: Triple, shape: tuple[Triple, ...], least: int) -> bool:
    """Returns whether this is the faster way to outputs of these sides, of `least` voxels or more; and a way at all.

    Args:
        x: the volume that is convolved, 16-bit: float32 would be rounded.
        shape: kernel, stride, padding.
    """
    kernel, stride, padding = shape
    most = SLOTS.value, TALL.value, WINDOW.value - OUT.value + 1
    return (
        x.element_size() == 2
        and stride == (1, 1, 1)
        and all(7 <= k <= limit and p < k for k, limit, p in zip(kernel, most, padding, strict=True))
        and sides[0] * sides[1] * sides[2] >= least
    )


def turned(kernel: Triple, padding: Triple) -> Triple:
    """The padding with which a gradient is convolved."""
    kd, kh, kw = (k - 1 - p for k, p in zip(kernel, padding, strict=True))
    return kd, kh, kw


def planes(x: Tensor, sides: Triple, kernel: Triple, padding: Triple) -> Tensor:
    """Copies x (N, C, …), channels-last, to the padded planes of which outputs of these sides are made."""
    wp = _up(_up(sides[2], OUT.value) + WINDOW.value - OUT.value, 16)
    return _copied(x, (sides[0] + kernel[0] - 1, sides[1] + TALL.value - 1, wp), padding)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, sides: Triple, flip: bool) -> Tensor:
    """Convolves planes of `planes`; `flip` takes the taps from the last on. Returns (N, C, *sides), channels-last.

    Args:
        x: for outputs of these sides, and a kernel of the weight's.
        weight: (C, 1, *kernel), of x's dtype.
        bias: (C,), added.
    """
    n, c, dp, hp, wp = x.shape
    (kd, kh, kw), (od, oh, ow) = weight.shape[2:], sides
    taps = x.new_empty((c, SLOTS.value, TALL.value * WINDOW.value, SLOTS.value * OUT.value))
    _conv_banded[(c, SLOTS.value)](weight.contiguous(), taps, KD=kd, KH=kh, KW=kw, FLIP=flip)
    wo, depth = _up(ow, 16), _depth(od)
    made = x.new_empty((n, c, od, oh, wo))
    grid = triton.cdiv(oh * triton.cdiv(ow, OUT.value), ROWS), c, n * triton.cdiv(od, depth)
    _conv_depthwise_planes[grid](
        x, taps, bias, made, c, dp, hp, wp, od, oh, ow, wo, depth,
        KD=kd, HAS_BIAS=bias is not None, BLOCK_M=ROWS, num_warps=WARPS,
    )  # fmt: skip
    y = empty(x, c, sides)
    block = min(COPY_C, triton.next_power_of_2(c))
    _conv_unplanes[(od * oh, triton.cdiv(ow, COPY_W) * triton.cdiv(c, block), n)](
        made, y, c, od * oh, ow, wo, BLOCK_W=COPY_W, BLOCK_C=block
    )
    return y


def weight_gradient(dy: Tensor, x: Tensor, kernel: Triple) -> Tensor:
    """Sums over the voxels for each tap. Returns (KD · KH · KW, C), float32.

    Args:
        dy: planes of the gradient, for outputs of x's sides.
        x: (N, C, …), channels-last.
        kernel: the sides of the taps.
    """
    n, c, d, h, w = x.shape
    kd, kh, kw = kernel
    wo, depth = _up(w, 16), _depth(d)
    flat = _copied(x, (d, h, wo), (0, 0, 0))
    grid = triton.cdiv(h * triton.cdiv(w, OUT.value), ROWS), c, n * triton.cdiv(d, depth)
    size = (c, grid[0] * grid[2], SLOTS.value * OUT.value, TALL.value * WINDOW.value)
    partial = torch.empty(size, dtype=torch.float32, device=x.device)
    _conv_weight_planes[grid](
        dy, flat, partial, c, *dy.shape[2:], d, h, w, wo, depth, KD=kd, BLOCK_M=ROWS, num_warps=WARPS
    )
    sums = torch.empty((kd * kh * kw, c), dtype=torch.float32, device=x.device)
    _conv_weight_fold[(c, kd * kh)](partial, sums, c, size[1], KD=kd, KH=kh, KW=kw, num_warps=1)
    return sums


def _copied(x: Tensor, sides: Triple, padding: Triple) -> Tensor:
    n, c = x.shape[:2]
    (dp, hp, wp), block = sides, min(COPY_C, triton.next_power_of_2(c))
    y = x.new_empty((n, c, *sides))
    _conv_planes[(dp * hp, triton.cdiv(wp, COPY_W) * triton.cdiv(c, block), n)](
        x, y, c, *x.shape[2:], *sides, *padding, BLOCK_W=COPY_W, BLOCK_C=block
    )
    return y


def _depth(planes: int) -> int:
    """Planes of outputs of a program: shares of DEPTH at most, as equal as they can be."""
    return triton.cdiv(planes, triton.cdiv(planes, DEPTH))


def _up(size: int, multiple: int) -> int:
    return triton.cdiv(size, multiple) * multiple
