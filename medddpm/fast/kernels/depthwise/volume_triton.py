"""Triton kernels of `depthwise.depthwise`, for channels-last memory.

With k a tap of the kernel, s the stride and p the padding, a convolution pairs the output o with the input o·s - p + k:

    y[o] = Σ_k w[k] · x[o·s - p + k]    dw[k] = Σ_o dy[o] · x[o·s - p + k]    dx[i] = Σ_k w[k] · dy[(i + p - k)/s]

where the last sum has the whole quotients only. The first and the last are one kernel, gathering forwards or
backwards; a transposed convolution is the last of them, with the first as its gradient.

A program computes `BLOCK_X` neighbours along W of some lines, each neighbour in a tensor (lines, channels) of its own.
So which tap meets which value is known when the kernel is compiled, and a value that was loaded and converted once
serves all the taps along W. The taps are loaded as tensors of the same shape, so that every thread finds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.depthwise import planes_triton as as_planes
from medddpm.fast.kernels.depthwise.weight_triton import Tile, Triple, weight_gradient
from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.norm_triton import channel_block
from medddpm.fast.kernels.operators import derivatives, operator, twice
from medddpm.fast.kernels.sums_triton import bias_gradient

TILES = Tile(256, 24, 4), Tile(256, 8, 4), Tile(128, 4, 2)  # tried in this order: see `_tile`
BUSY = 512  # programs that keep a card at work: four for each of an H200's 132 multiprocessors


@no_type_check  # tuples that grow
@triton.jit
def _conv_depthwise(
    x_ptr,  # (N, D, H, W, C)
    weight_ptr,  # (KD · KH · KW, C)
    bias_ptr,  # (C,)
    y_ptr,  # (N, OD, OH, OW, C)
    d, h, w, od, oh, ow,
    C: tl.constexpr, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, ADJOINT: tl.constexpr,
    HAS_BIAS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_X: tl.constexpr,
):  # fmt: skip
    """Values along W are the COUNT ones from the FIRST behind the tile's own.

    Going backwards, lines whose D and H leave the same remainders by the strides meet the same taps: a program has
    lines of one such class, and passes over the other taps.
    """
    blocks, tiles = tl.cdiv(C, BLOCK_C), tl.cdiv(ow, BLOCK_X)
    pid = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    rest_d, rest_h = tl.program_id(2) // SH, tl.program_id(2) % SH
    col = pid % blocks * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    ox = pid // blocks % tiles * BLOCK_X
    line = pid // blocks // tiles * BLOCK_L + tl.arange(0, BLOCK_L)[:, None]
    wide = tl.broadcast_to(col < C, (BLOCK_L, BLOCK_C))
    cols = tl.broadcast_to(col, (BLOCK_L, BLOCK_C))
    if ADJOINT:
        a, b = line // tl.cdiv(oh, SH), line % tl.cdiv(oh, SH)
        oz, oy = a * SD + rest_d, b * SH + rest_h
        first_d, first_h = (rest_d + PD) % SD, (rest_h + PH) % SH
        x = ox // SW + FIRST
    else:
        oz, oy = line // oh, line % oh
        a, b = oz * SD, oy * SH
        first_d, first_h = 0, 0
        x = ox * SW + FIRST
    total = ()
    for _ in tl.static_range(BLOCK_X):
        start = tl.zeros((BLOCK_L, BLOCK_C), tl.float32)
        if HAS_BIAS:
            start += tl.load(bias_ptr + cols, mask=wide, other=0.0).to(tl.float32)
        total = total + (start,)
    for kd in range(first_d, KD, SD if ADJOINT else 1):
        for kh in range(first_h, KH, SH if ADJOINT else 1):
            if ADJOINT:
                z, y = a + (rest_d + PD - kd) // SD, b + (rest_h + PH - kh) // SH
            else:
                z, y = a - PD + kd, b - PH + kh
            inside = wide & (z >= 0) & (z < d) & (y >= 0) & (y < h)
            taps = ()
            for kw in tl.static_range(KW):
                tap = tl.load(weight_ptr + ((kd * KH + kh) * KW + kw) * C + cols, mask=wide, other=0.0)
                taps = taps + (tap.to(tl.float32),)
            ptrs = x_ptr + (((n * d + z) * h + y) * w + x) * C + cols
            values = ()
            for i in tl.static_range(COUNT):
                value = tl.load(ptrs + i * C, mask=inside & (x + i >= 0) & (x + i < w), other=0.0)
                values = values + (value.to(tl.float32),)
            added = ()
            for j in tl.static_range(BLOCK_X):
                acc = total[j]
                for kw in tl.static_range(KW):
                    if ADJOINT:
                        if (j + PW - kw) % SW == 0:
                            acc += values[(j + PW - kw) // SW - FIRST] * taps[kw]
                    else:
                        acc += values[j * SW + kw] * taps[kw]
                added = added + (acc,)
            total = added
    here = wide & (oz < od) & (oy < oh)
    ptrs = y_ptr + (((n * od + oz) * oh + oy) * ow + ox) * C + cols
    for j in tl.static_range(BLOCK_X):
        tl.store(ptrs + j * C, total[j].to(y_ptr.dtype.element_ty), mask=here & (ox + j < ow))


def _tile(y: Tensor, strides: bool) -> Tile:
    """The largest tile of which y has enough for the card; `strides`: whether outputs share few inputs."""
    for tile in TILES:
        # 24 neighbours share most, unless a last tile would stand out further, or strides let them share little.
        if tile.across == 24 and (strides or -y.shape[4] % 24 > -y.shape[4] % 16):
            tile = tile._replace(across=16)
        if y.numel() >= BUSY * tile.elements * tile.across:
            break
    return tile


def gathered(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    y: Tensor,
    shape: tuple[Triple, ...],
    adjoint: bool,
    tile: Tile | None = None,
) -> None:
    """Fills y (N, C, …) from x (N, C, …), both channels-last.

    Args:
        x: what is gathered.
        taps: (KD · KH · KW, C).
        bias: (C,), added.
        y: written.
        shape: kernel, stride, padding.
        adjoint: whether y is the gradient's, or a transposed convolution's.
        tile: of a program; None takes the fastest for the size.
    """
    c, (od, oh, ow) = x.shape[1], y.shape[2:]
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = shape
    tile = tile or _tile(y, not adjoint and sw > 1)
    rows, block = channel_block(c, tile.elements)
    across = min(tile.across, triton.next_power_of_2(ow))
    if adjoint:  # the output ox + j meets the value (ox + j + pw - kw) / sw
        across = triton.cdiv(across, sw) * sw
        first = -((kw - 1 - pw) // sw)
        count, classes, lines = (across - 1 + pw) // sw - first + 1, sd * sh, triton.cdiv(od, sd) * triton.cdiv(oh, sh)
    else:
        first, count, classes, lines = -pw, (across - 1) * sw + kw, 1, od * oh
    programs = triton.cdiv(lines, rows) * triton.cdiv(ow, across) * triton.cdiv(c, block)
    _conv_depthwise[(programs, x.shape[0], classes)](
        x, taps, bias, y, *x.shape[2:], od, oh, ow,
        C=c, KD=kd, KH=kh, KW=kw, SD=sd, SH=sh, SW=sw, PD=pd, PH=ph, PW=pw, ADJOINT=adjoint, HAS_BIAS=bias is not None,
        FIRST=first, COUNT=count, BLOCK_L=rows, BLOCK_C=block, BLOCK_X=across, num_warps=tile.warps,
    )  # fmt: skip


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
    shape, whole = _shape(weight, stride, padding), cast(Triple, tuple(sides))
    if not transposed and as_planes.suits(x, whole, shape, as_planes.LEAST):
        return as_planes.convolved(as_planes.planes(x, whole, *shape[::2]), weight, bias, whole, False)
    y = empty(x, x.shape[1], sides)
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
    dy, shape, sides = channels_last(dy), _shape(weight, stride, padding), cast(Triple, tuple(x.shape[2:]))
    least = as_planes.LEAST_WEIGHT if of_weight else as_planes.LEAST
    padded = None
    if not transposed and as_planes.suits(dy, sides, shape, least):
        padded = as_planes.planes(dy, sides, shape[0], as_planes.turned(*shape[::2]))
    results = []
    if of_x and padded is not None and as_planes.suits(dy, sides, shape, as_planes.LEAST):
        results.append(as_planes.convolved(padded, weight, None, sides, True))
    elif of_x:
        results.append(empty(x, x.shape[1]))
        gathered(dy, weight.flatten(1).t().contiguous(), None, results[0], shape, not transposed)
    if of_weight:
        if padded is not None:
            sums = as_planes.weight_gradient(padded, x, shape[0])
        else:
            sums = weight_gradient(*((dy, x) if transposed else (x, dy)), shape)
        results.append(sums.t().reshape(weight.shape).to(weight.dtype))
    return results


def _shape(weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Triple, ...]:
    return cast(tuple[Triple, ...], (tuple(weight.shape[2:]), tuple(stride), tuple(padding)))


def _definition(
    x: Tensor, weight: Tensor, sides: Sequence[int], stride: Triple, padding: Triple, transposed: bool
) -> Tensor:
    from medddpm.fast.kernels.depthwise import depthwise_definition  # which imports this module

    if not transposed:
        return depthwise_definition(x, weight, None, stride, padding)
    least = [(i - 1) * s - 2 * p + k for i, k, s, p in zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)]
    more = cast(Triple, tuple(side - size for side, size in zip(sides, least, strict=True)))
    return depthwise_definition(x, weight, None, stride, padding, more)


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
        d_bias = bias_gradient(dy, ctx.bias)
        if twice():
            both = derivatives(lambda x, weight: _definition(x, weight, dy.shape[2:], *ctx.options), [x, weight], [dy])
            return *both, d_bias, None, None, None, None
        of_x, of_weight = ctx.needs_input_grad[:2]
        gradients = depthwise_backward(dy, x, weight, of_x, of_weight, *ctx.options)
        return gradients[0] if of_x else None, gradients[-1] if of_weight else None, d_bias, None, None, None, None
