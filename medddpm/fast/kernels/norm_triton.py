"""Triton kernels of `norm.group_norm`, forward and backward, for channels-last memory.

A channels-last (N, C, D, H, W) tensor is N times V = D·H·W rows of C values. Every sweep over the voxels works channel
by channel, and only a small second kernel knows of groups; so any group count costs the same, and two tensors that
stand for their concatenation differ from one only in where their channels begin. Each program of a summing sweep leaves
one partial result, and these are merged in a fixed order: no atomics, the same bits each time. Means and squared
deviations are merged by Chan et al. (1983, doi:10.2307/2683386).

In the kernels' signatures C is the channels of one part, x or other, and C_all those of both together; P is the
programs a sample of a summing sweep.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels import running_triton
from medddpm.fast.kernels.layout import channels_last, empty
from medddpm.fast.kernels.operators import derivatives, operator, traced, twice
from medddpm.fast.kernels.running import Running

SUM_TILE, APPLY_TILE, MERGE_TILE = 1024, 2048, 4096  # elements a program holds at once: summing, writing, merging
PROGRAMS = 1056  # of a summing sweep, about: eight for each of an H200's 132 multiprocessors
SUM_WARPS, APPLY_WARPS, BACKWARD_WARPS, MERGE_WARPS = 2, 4, 2, 8  # summing, writing forward and backward, merging
SUM_STAGES = 3  # of a summing sweep: the loads of so many tiles are under way at once

# What forward keeps for backward, as rows of (TABLES, N, C_all) float32. The norm is factor · (x - centre) + bias,
# where factor = weight · rstd and centre = the group's mean - shift; MEAN is the channel's own, without the shift.
FACTOR, BIAS, CENTRE, RSTD, MEAN = (tl.constexpr(row) for row in range(5))
TABLES = 5

# What backward sums, as rows of (SUMS, N, C_all) float32; the partial sums of a sweep have the first three.
SUM_DZ, SUM_DZ_XHAT, SUM_DSLOPE, DX_CONST, DX_LINEAR, SUM_DX = (tl.constexpr(row) for row in range(6))
PARTIAL_SUMS, SUMS = 3, 6


@triton.jit
def _rows_of(p, v, programs, BLOCK_V: tl.constexpr):
    """Rows that program `p` of a summing sweep sees: every `programs`-th tile from the end, the first perhaps short."""
    tiles = tl.cdiv(v, BLOCK_V)
    return ((tiles - 1 - p) // programs + 1) * BLOCK_V - tl.where(p == 0, tiles * BLOCK_V - v, 0)


@triton.jit
def _norm_statistics(
    x_ptr,  # (N, V, C), one part
    mean_ptr,  # (N, P, C_all), of the rows that a program sees
    m2_ptr,  # (N, P, C_all), their squared deviations from that mean, summed
    v, c, c_all, c_offset, programs,
    EVEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1).to(tl.int64)
    sample_ptr = x_ptr + n * v * c
    # Sums of distances from the first row lose no digits to a mean that is large beside the spread.
    pilot = tl.load(sample_ptr + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    sum_d = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    sum_d2 = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    tiles = tl.cdiv(v, BLOCK_V)
    for tile in tl.range(p, tiles, programs, num_stages=STAGES):
        row = (tiles - 1 - tile).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)  # written last: still in the cache
        ptrs = sample_ptr + row[:, None] * c + col[None, :]
        if EVEN:
            d = tl.load(ptrs).to(tl.float32) - pilot
        else:
            mask = (row < v)[:, None] & (col < c)[None, :]
            d = tl.where(mask, tl.load(ptrs, mask=mask, other=0.0).to(tl.float32) - pilot, 0.0)
        sum_d += d
        sum_d2 += d * d
    rows = _rows_of(p, v, programs, BLOCK_V).to(tl.float32)
    total_d = tl.sum(sum_d, axis=0)
    at = (n * programs + p) * c_all + c_offset + col
    tl.store(mean_ptr + at, tl.sum(pilot, axis=0) + total_d / rows, mask=col < c)
    tl.store(m2_ptr + at, tl.maximum(tl.sum(sum_d2, axis=0) - total_d * total_d / rows, 0.0), mask=col < c)


@triton.jit
def _norm_merge(
    mean_ptr,  # (N, P, C_all), as `_norm_statistics` leaves it
    m2_ptr,  # (N, P, C_all)
    weight_ptr,  # (C_all,)
    bias_ptr,  # (C_all,)
    shift_ptr,  # (N, C_all), or (C_all,) with a stride of 0
    tables_ptr,  # (TABLES, N, C_all)
    v, c_all, programs, eps, per_group, shift_stride,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFT: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    g, n = tl.program_id(0), tl.program_id(1)
    lane, slot = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_P)
    inside = lane < per_group
    col = g * per_group + lane
    at = n * c_all + col
    # The mean of the group, from those of its channels; a channel's shift moves its mean and nothing else.
    part = tl.zeros((BLOCK_P, BLOCK_G), tl.float32)
    for first in range(0, programs, BLOCK_P):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        rows = _rows_of(p, v, programs, BLOCK_V).to(tl.float32)[:, None]
        ptrs = mean_ptr + (n * programs + p)[:, None] * c_all + col[None, :]
        part += tl.load(ptrs, mask=mask, other=0.0) * (rows / v)
    channel_mean = tl.sum(part, axis=0)
    shift = tl.zeros((BLOCK_G,), tl.float32)
    if HAS_SHIFT:
        shift = tl.load(shift_ptr + n * shift_stride + col, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(tl.where(inside, channel_mean + shift, 0.0), axis=0) / per_group
    # Chan et al.: the squared deviations add up, and with them rows · (a part's mean - the group's mean)².
    part = tl.zeros((BLOCK_P, BLOCK_G), tl.float32)
    for first in range(0, programs, BLOCK_P):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        rows = _rows_of(p, v, programs, BLOCK_V).to(tl.float32)[:, None]
        where = (n * programs + p)[:, None] * c_all + col[None, :]
        d = tl.load(mean_ptr + where, mask=mask, other=0.0) + shift[None, :] - mean
        part += tl.where(mask, tl.load(m2_ptr + where, mask=mask, other=0.0) + rows * d * d, 0.0)
    variance = tl.sum(tl.sum(part, axis=0), axis=0) / ((v * 1.0) * per_group)
    rstd = 1.0 / tl.sqrt(variance + eps)
    factor = tl.zeros((BLOCK_G,), tl.float32) + rstd
    if HAS_WEIGHT:
        factor *= tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    bias = tl.zeros((BLOCK_G,), tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + col, mask=inside, other=0.0).to(tl.float32)
    size = tl.num_programs(1) * c_all
    tl.store(tables_ptr + FACTOR * size + at, factor, mask=inside)
    tl.store(tables_ptr + BIAS * size + at, bias, mask=inside)
    tl.store(tables_ptr + CENTRE * size + at, mean - shift, mask=inside)
    tl.store(tables_ptr + RSTD * size + at, tl.zeros((BLOCK_G,), tl.float32) + rstd, mask=inside)
    tl.store(tables_ptr + MEAN * size + at, channel_mean, mask=inside)


@triton.jit
def _gate(z):
    """The logistic function of z, in four instructions: `exp` and a division take more, to serve denormal numbers."""
    root = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * z))
    return root * root


@triton.jit
def _norm_apply(
    x_ptr,  # (N, V, C), one part
    residual_ptr,  # (N, V, C_all)
    slopes_ptr,  # (C_all,)
    y_ptr,  # (N, V, C_all)
    tables_ptr,  # (TABLES, N, C_all)
    v, c, c_all, c_offset, slope,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    row = tl.program_id(0) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * c_all
    at = tables_ptr + n * c_all + c_offset + col
    factor = tl.load(at + FACTOR * size, mask=col < c, other=0.0)[None, :]
    bias = tl.load(at + BIAS * size, mask=col < c, other=0.0)[None, :]
    centre = tl.load(at + CENTRE * size, mask=col < c, other=0.0)[None, :]
    mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
    line = (n * v + row)[:, None]
    z = factor * (tl.load(x_ptr + line * c + col[None, :], mask=mask).to(tl.float32) - centre) + bias
    if HAS_RESIDUAL:
        z += tl.load(residual_ptr + line * c_all + c_offset + col[None, :], mask=mask).to(tl.float32)
    if ACT == "silu":
        z = z * _gate(z)
    elif ACT == "leaky_relu":
        z = tl.where(z > 0, z, z * slope)
    elif ACT == "elu":
        z = tl.where(z > 0, z, slope * (tl.exp(tl.minimum(z, 0.0)) - 1.0))
    elif ACT == "prelu":
        z = tl.where(
            z > 0, z, z * tl.load(slopes_ptr + c_offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
        )
    tl.store(y_ptr + line * c_all + c_offset + col[None, :], z.to(y_ptr.dtype.element_ty), mask=mask)


# Backward. Let x̂ = (x + shift - mean) · rstd, z = weight · x̂ + bias + residual, y = act(z) and dz = dy · act'(z). With
# E the mean over the values of a group (Ioffe and Szegedy 2015, arXiv:1502.03167, section 3, a group in the batch's
# place):
#
#     dx = rstd · (weight · dz - E[weight · dz] - x̂ · E[weight · dz · x̂])
#        = factor · dz + dx_const + dx_linear · (x - centre)
#     d_weight = Σ dz · x̂        d_bias = Σ dz        d_residual = dz        d_shift = Σ dx
#
# The first sweep (`_norm_sums`) sums dz and dz · x̂ over the voxels of each channel, `_norm_merge_sums` makes dx_const
# and dx_linear of each group from them, and the second sweep (`_norm_apply_backward`) writes dx.


@triton.jit
def _norm_sums(
    x_ptr,  # (N, V, C), one part
    dy_ptr,  # (N, V, C_all)
    residual_ptr,  # (N, V, C_all)
    dresidual_ptr,  # (N, V, C_all), written where there is a residual: dz
    slopes_ptr,  # (C_all,)
    tables_ptr,  # (TABLES, N, C_all)
    partial_ptr,  # (PARTIAL_SUMS, N, P, C_all)
    v, c, c_all, c_offset, programs, slope,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, EVEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * c_all
    at = tables_ptr + n * c_all + c_offset + col
    factor = tl.load(at + FACTOR * size, mask=col < c, other=0.0)[None, :]
    bias = tl.load(at + BIAS * size, mask=col < c, other=0.0)[None, :]
    centre = tl.load(at + CENTRE * size, mask=col < c, other=0.0)[None, :]
    rstd = tl.load(at + RSTD * size, mask=col < c, other=0.0)
    slopes = slope
    if ACT == "prelu":
        slopes = tl.load(slopes_ptr + c_offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    sum_dz = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    sum_dz_d = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)  # d = x - centre, which is x̂ divided by rstd
    sum_dslope = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    tiles = tl.cdiv(v, BLOCK_V)
    for tile in tl.range(p, tiles, programs, num_stages=STAGES):
        row = (tiles - 1 - tile).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
        line = (n * v + row)[:, None]
        here = line * c_all + c_offset + col[None, :]
        d = tl.load(x_ptr + line * c + col[None, :], mask=mask).to(tl.float32) - centre
        dy = tl.load(dy_ptr + here, mask=mask).to(tl.float32)
        z = factor * d + bias
        if HAS_RESIDUAL:
            z += tl.load(residual_ptr + here, mask=mask).to(tl.float32)
        if ACT == "prelu":
            sum_dslope += _masked(tl.where(z > 0, 0.0, z * dy), mask, EVEN)
        dz = _activation_backward(z, dy, slopes, ACT)
        if HAS_RESIDUAL:
            dz = dz.to(dresidual_ptr.dtype.element_ty)
            tl.store(dresidual_ptr + here, dz, mask=mask)
            dz = dz.to(tl.float32)
        sum_dz += _masked(dz, mask, EVEN)
        sum_dz_d += _masked(dz * d, mask, EVEN)
    to = partial_ptr + (n * programs + p) * c_all + c_offset + col
    size = tl.num_programs(1) * programs * c_all
    tl.store(to + SUM_DZ * size, tl.sum(sum_dz, axis=0), mask=col < c)
    tl.store(to + SUM_DZ_XHAT * size, tl.sum(sum_dz_d, axis=0) * rstd, mask=col < c)
    if ACT == "prelu":
        tl.store(to + SUM_DSLOPE * size, tl.sum(sum_dslope, axis=0), mask=col < c)


@triton.jit
def _masked(value, mask, EVEN: tl.constexpr):
    return value if EVEN else tl.where(mask, value, 0.0)


@triton.jit
def _activation_backward(z, dy, slope, ACT: tl.constexpr):
    """dz = dy · act'(z)."""
    if ACT == "silu":
        gate = _gate(z)
        dy = dy * gate * (1.0 + z * (1.0 - gate))
    elif ACT == "elu":
        dy = tl.where(z > 0, dy, dy * slope * tl.exp(tl.minimum(z, 0.0)))
    elif ACT != "none":
        dy = tl.where(z > 0, dy, dy * slope)
    return dy


@triton.jit
def _norm_merge_sums(
    partial_ptr,  # (PARTIAL_SUMS, N, P, C_all), as `_norm_sums` leaves it
    tables_ptr,  # (TABLES, N, C_all)
    sums_ptr,  # (SUMS, N, C_all)
    v, c_all, programs, per_group,
    ACT: tl.constexpr, FIXED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    g, n = tl.program_id(0), tl.program_id(1)
    lane, slot = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_P)
    inside = lane < per_group
    col = g * per_group + lane
    at = n * c_all + col
    size = tl.num_programs(1) * programs * c_all
    # In float64: the terms of SUM_DX cancel, and leave what is as small beside them as the root of the voxels' number.
    part_dz = tl.zeros((BLOCK_P, BLOCK_G), tl.float64)
    part_dz_xhat = tl.zeros((BLOCK_P, BLOCK_G), tl.float64)
    part_dslope = tl.zeros((BLOCK_P, BLOCK_G), tl.float32)
    for first in range(0, programs, BLOCK_P):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        where = partial_ptr + (n * programs + p)[:, None] * c_all + col[None, :]
        part_dz += tl.load(where + SUM_DZ * size, mask=mask, other=0.0).to(tl.float64)
        part_dz_xhat += tl.load(where + SUM_DZ_XHAT * size, mask=mask, other=0.0).to(tl.float64)
        if ACT == "prelu":
            part_dslope += tl.load(where + SUM_DSLOPE * size, mask=mask, other=0.0)
    sum_dz = tl.sum(part_dz, axis=0)
    sum_dz_xhat = tl.sum(part_dz_xhat, axis=0)
    size = tl.num_programs(1) * c_all
    factor = tl.load(tables_ptr + FACTOR * size + at, mask=inside, other=0.0).to(tl.float64)
    centre = tl.load(tables_ptr + CENTRE * size + at, mask=inside, other=0.0)
    rstd = tl.load(tables_ptr + RSTD * size + at, mask=inside, other=0.0)
    channel_mean = tl.load(tables_ptr + MEAN * size + at, mask=inside, other=0.0)
    count = (tl.zeros((1,), tl.float64) + v) * per_group
    away = tl.where(per_group > 1, channel_mean - centre, 0.0)  # a channel alone has the group's mean
    dx_const = -tl.sum(factor * sum_dz, axis=0) / count  # the factor is weight · rstd
    dx_linear = -rstd * tl.sum(factor * sum_dz_xhat, axis=0) / count
    if FIXED:  # the statistics do not depend on x
        dx_const = 0.0
        dx_linear = tl.zeros((BLOCK_G,), tl.float32)
    tl.store(sums_ptr + SUM_DZ * size + at, sum_dz, mask=inside)
    tl.store(sums_ptr + SUM_DZ_XHAT * size + at, sum_dz_xhat, mask=inside)
    tl.store(sums_ptr + SUM_DSLOPE * size + at, tl.sum(part_dslope, axis=0), mask=inside)
    tl.store(sums_ptr + DX_CONST * size + at, tl.zeros((BLOCK_G,), tl.float64) + dx_const, mask=inside)
    tl.store(sums_ptr + DX_LINEAR * size + at, dx_linear, mask=inside)
    tl.store(
        sums_ptr + SUM_DX * size + at,
        factor * sum_dz + v * (dx_const + dx_linear * away),
        mask=inside,
    )


@triton.jit
def _norm_apply_backward(
    x_ptr,  # (N, V, C), one part
    dy_ptr,  # (N, V, C_all); dz where there was a residual, and ACT is then "none"
    dkept_ptr,  # (N, V, C), the gradient of the part as it was handed back
    dx_ptr,  # (N, V, C)
    slopes_ptr,  # (C_all,)
    tables_ptr,  # (TABLES, N, C_all)
    sums_ptr,  # (SUMS, N, C_all)
    v, c, c_all, c_offset, slope,
    ACT: tl.constexpr, HAS_DKEPT: tl.constexpr, EVEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    row = tl.program_id(0) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * c_all
    at = n * c_all + c_offset + col
    factor = tl.load(tables_ptr + FACTOR * size + at, mask=col < c, other=0.0)[None, :]
    bias = tl.load(tables_ptr + BIAS * size + at, mask=col < c, other=0.0)[None, :]
    centre = tl.load(tables_ptr + CENTRE * size + at, mask=col < c, other=0.0)[None, :]
    dx_const = tl.load(sums_ptr + DX_CONST * size + at, mask=col < c, other=0.0)[None, :]
    dx_linear = tl.load(sums_ptr + DX_LINEAR * size + at, mask=col < c, other=0.0)[None, :]
    mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
    line = (n * v + row)[:, None]
    here = line * c + col[None, :]
    d = tl.load(x_ptr + here, mask=mask).to(tl.float32) - centre
    dy = tl.load(dy_ptr + line * c_all + c_offset + col[None, :], mask=mask).to(tl.float32)
    slopes = slope
    if ACT == "prelu":
        slopes = tl.load(slopes_ptr + c_offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    dz = _activation_backward(factor * d + bias, dy, slopes, ACT)
    dx = factor * dz + dx_const + dx_linear * d
    if HAS_DKEPT:
        dx += tl.load(dkept_ptr + here, mask=mask).to(tl.float32)
    tl.store(dx_ptr + here, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def channel_block(c: int, tile: int) -> tuple[int, int]:
    """Rows and channels of a program's tile. Channels are a power of two, up to 128, that divides `c` if 32 does."""
    block = c & -c
    if block < 32:
        block = triton.next_power_of_2(c)  # the last block is masked
    block = min(block, 128)
    return tile // block, block


def summing(n: int, v: int, *widths: int) -> tuple[int, int, int]:
    """Rows and channels of a tile, and programs for each sample, of sweeps that sum over parts of these widths."""
    block = min(channel_block(c, SUM_TILE)[1] for c in widths)
    rows = SUM_TILE // block
    wanted = PROGRAMS // (n * triton.cdiv(max(widths), block))
    return rows, block, max(1, min(triton.cdiv(v, rows), wanted))


def even(v: int, c: int, rows: int, block: int) -> bool:
    """Returns whether tiles cover the tensor exactly, and need no mask."""
    return v % rows == 0 and c % block == 0


def _group_tile(per_group: int, programs: int) -> tuple[int, int]:
    wide = triton.next_power_of_2(per_group)
    return min(triton.next_power_of_2(programs), max(1, MERGE_TILE // wide)), wide


def _parts(x: Tensor, other: Tensor | None) -> list[tuple[Tensor, int]]:
    """The tensors that are normed together, and where the channels of each begin."""
    return [(x, 0)] if other is None else [(x, 0), (other, x.shape[1])]


def _fake_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, other: Tensor | None, *_: Any) -> Any:
    c = sum(part.shape[1] for part, _ in _parts(x, other))
    return empty(x, c), x.new_empty((TABLES, x.shape[0], c), dtype=torch.float32)


@operator(_fake_norm)
def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None,
    shift: Tensor | None,
    residual: Tensor | None,
    slopes: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    groups: int,
    eps: float,
    activation: str,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """The norm of arguments as `norm.NormArguments` has them, slopes (C_all,); and its tables for backward.

    Args:
        mean, variance: (C_all,), the statistics to take it by, of one sample; None takes it by those of the input.
    """
    parts = _parts(x, other)
    weight, bias, shift, slopes = (None if a is None else a.contiguous() for a in (weight, bias, shift, slopes))
    n, v, c = x.shape[0], x[0, 0].numel(), sum(part.shape[1] for part, _ in parts)
    y = empty(x, c)
    tables = torch.empty((TABLES, n, c), dtype=torch.float32, device=x.device)
    if mean is not None and variance is not None:
        running_triton.fill(mean, variance, tables, _COLUMNS, weight, bias, shift, eps)
    else:
        _fill(tables, parts, weight, bias, shift, groups, eps)
    for part, offset in parts:
        width = part.shape[1]
        rows, block = channel_block(width, APPLY_TILE)
        _norm_apply[(triton.cdiv(v, rows) * triton.cdiv(width, block), n)](
            part, residual, slopes, y, tables, v, width, c, offset, slope,
            ACT=activation, HAS_RESIDUAL=residual is not None, EVEN=even(v, width, rows, block),
            BLOCK_V=rows, BLOCK_C=block, num_warps=APPLY_WARPS,
        )  # fmt: skip
    return y, tables


_COLUMNS = tuple(row.value for row in (FACTOR, BIAS, CENTRE, RSTD, MEAN))


def _fill(
    tables: Tensor,
    parts: list[tuple[Tensor, int]],
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Tensor | None,
    groups: int,
    eps: float,
) -> None:
    """Fills the tables (TABLES, N, C_all) from the statistics of `parts`."""
    (n, c), v = tables.shape[1:], parts[0][0][0, 0].numel()
    per_group = c // groups
    rows, block, programs = summing(n, v, *(part.shape[1] for part, _ in parts))
    means, m2s = torch.empty((2, n, programs, c), dtype=torch.float32, device=tables.device)
    for part, offset in parts:
        width = part.shape[1]
        _norm_statistics[(programs * triton.cdiv(width, block), n)](
            part, means, m2s, v, width, c, offset, programs,
            EVEN=even(v, width, rows, block), BLOCK_V=rows, BLOCK_C=block, STAGES=SUM_STAGES, num_warps=SUM_WARPS,
        )  # fmt: skip
    slots, wide = _group_tile(per_group, programs)
    _norm_merge[(groups, n)](
        means, m2s, weight, bias, shift, tables, v, c, programs, eps, per_group,
        c if shift is not None and shift.dim() == 2 and n > 1 else 0,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, HAS_SHIFT=shift is not None,
        BLOCK_V=rows, BLOCK_P=slots, BLOCK_G=wide, num_warps=MERGE_WARPS,
    )  # fmt: skip


@operator(lambda *_: None, mutates=("mean", "variance", "count"))
def norm_running(
    mean: Tensor,
    variance: Tensor,
    count: Tensor | None,
    tables: Tensor,
    shift: Tensor | None,
    momentum: float | None,
    eps: float,
    values: int,
) -> None:
    """Adds a batch to running statistics; see `running_triton.add`. `tables` are those of the batch's norm."""
    rows = RSTD.value, MEAN.value
    running_triton.add(mean, variance, count, tables, rows, shift, momentum, eps, values)


def _fake_norm_backward(dy: Tensor, x: Tensor, other: Tensor | None, residual: Tensor | None, *_: Any) -> list[Tensor]:
    volumes = [empty(a, a.shape[1]) for a in (x, other, residual) if a is not None]
    return [x.new_empty((SUMS, *dy.shape[:2]), dtype=torch.float32), *volumes]


@operator(_fake_norm_backward)
def norm_backward(
    dy: Tensor,
    x: Tensor,
    other: Tensor | None,
    residual: Tensor | None,
    slopes: Tensor | None,
    tables: Tensor,
    d_kept: Tensor | None,
    d_kept_other: Tensor | None,
    groups: int,
    activation: str,
    slope: float,
    fixed: bool,
) -> list[Tensor]:
    """Returns what the parameters' gradients are made of, (SUMS, N, C_all), and the gradients of x, other and residual.

    Args:
        dy: of the norm; in any memory order.
        x, other, residual, slopes, groups, activation, slope: those of the norm.
        tables: those that it left.
        fixed: whether its statistics were given.
        d_kept, d_kept_other: of x and other as they were handed back; in any memory order.
    """
    dy = channels_last(dy)
    parts = _parts(x, other)
    n, c, v = x.shape[0], dy.shape[1], x[0, 0].numel()
    rows, block, programs = summing(n, v, *(part.shape[1] for part, _ in parts))
    sums = torch.empty((SUMS, n, c), dtype=torch.float32, device=x.device)
    partial = torch.empty((PARTIAL_SUMS, n, programs, c), dtype=torch.float32, device=x.device)
    d_residual = None if residual is None else empty(dy, c)
    for part, offset in parts:
        width = part.shape[1]
        _norm_sums[(programs * triton.cdiv(width, block), n)](
            part, dy, residual, d_residual, slopes, tables, partial, v, width, c, offset, programs, slope,
            ACT=activation, HAS_RESIDUAL=residual is not None, EVEN=even(v, width, rows, block),
            BLOCK_V=rows, BLOCK_C=block, STAGES=SUM_STAGES, num_warps=SUM_WARPS,
        )  # fmt: skip
    slots, wide = _group_tile(c // groups, programs)
    _norm_merge_sums[(groups, n)](
        partial, tables, sums, v, c, programs, c // groups,
        ACT=activation, FIXED=fixed, BLOCK_P=slots, BLOCK_G=wide, num_warps=MERGE_WARPS,
    )  # fmt: skip
    # With a residual the first sweep has written dz, the gradient in front of the activation.
    incoming, after = (dy, activation) if d_residual is None else (d_residual, "none")
    results = [sums]
    for (part, offset), d_handed in zip(parts, (d_kept, d_kept_other), strict=False):
        width = part.shape[1]
        rows, block = channel_block(width, APPLY_TILE)
        handed = None if d_handed is None else channels_last(d_handed)
        d_part = empty(part, width)
        _norm_apply_backward[(triton.cdiv(v, rows) * triton.cdiv(width, block), n)](
            part, incoming, handed, d_part, slopes, tables, sums, v, width, c, offset, slope,
            ACT=after, HAS_DKEPT=handed is not None, EVEN=even(v, width, rows, block),
            BLOCK_V=rows, BLOCK_C=block, num_warps=BACKWARD_WARPS,
        )  # fmt: skip
        results.append(d_part)
    return results if d_residual is None else [*results, d_residual]


def _definition(
    mean: Tensor | None,
    variance: Tensor | None,
    keep: bool,
    groups: int,
    eps: float,
    activation: Any,
    slope: float,
    *tensors: Any,
) -> tuple[Tensor, ...]:
    """Returns what `Norm` returns but the tables, in PyTorch's own functions."""
    from medddpm.fast.kernels import norm as beside  # which imports this module

    running = None if mean is None or variance is None else Running(mean, variance, fixed=True)
    x, weight, bias, other, shift, residual, slopes = tensors
    arguments = beside.NormArguments(
        x, groups, weight, bias, other, shift, residual, slopes, eps, activation, slope, running is not None, running
    )
    y = beside.group_norm_definition(arguments)
    return (y, *(a for a in (x, other) if keep and a is not None))


class Norm(torch.autograd.Function):
    """`norm.group_norm` by the kernels; `keep` also hands back the input, whose gradient backward adds in its sweep."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor | None,
        variance: Tensor | None,
        keep: bool,
        groups: int,
        eps: float,
        activation: str,
        slope: float,
        *tensors: Any,
    ) -> Any:
        """See `norm`, whose tensors these are, x to slopes.

        Returns:
            y and the tables; between them x, or x and other, with `keep`.
        """
        x, weight, bias, other, shift, residual, slopes = tensors
        y, tables = norm(
            x, weight, bias, other, shift, residual, slopes, mean, variance, groups, eps, activation, slope
        )
        ctx.mark_non_differentiable(tables)
        if not traced():  # `torch.compile` knows gradients of zeros only
            ctx.set_materialize_grads(False)
        if not traced():  # what gradients that are to be differentiated depend on as well
            ctx.beside = weight, bias, shift, slopes, mean, variance
        slopes = None if slopes is None else slopes.contiguous()
        ctx.save_for_backward(x, other, residual, slopes, tables)
        ctx.given = tuple(None if a is None else (a.dim(), a.dtype) for a in (weight, bias, shift, slopes))
        ctx.options, ctx.fixed = (groups, eps, activation, slope), mean is not None
        if not keep:
            return y, tables
        return (y, x, tables) if other is None else (y, x, other, tables)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Gradients of every tensor handed in."""
        x, other, residual, slopes, tables = ctx.saved_tensors
        dy, *dkept = grads[:-1]
        d_kept, d_kept_other, *_ = (*dkept, None, None)
        if dy is None:  # only what was handed through has been used
            return *(None,) * 7, d_kept, None, None, d_kept_other, None, None, None
        if twice():
            weight, bias, shift, own_slopes, mean, variance = ctx.beside
            given = x, weight, bias, other, shift, residual, own_slopes
            definition = functools.partial(_definition, mean, variance, len(grads) > 2, *ctx.options)
            return *(None,) * 7, *derivatives(definition, given, grads[:-1])
        groups, _, activation, slope = ctx.options
        sums, d_x, *rest = norm_backward(
            dy, x, other, residual, slopes, tables, d_kept, d_kept_other, groups, activation, slope, ctx.fixed
        )
        d_other = None if other is None else rest[0]
        d_residual = None if residual is None else rest[-1]
        d_weight, d_bias, d_shift, d_slopes = (
            None if given is None else _summed(sums[row], *given)
            for row, given in zip(_GRADIENTS, ctx.given, strict=True)
        )
        return *(None,) * 7, d_x, d_weight, d_bias, d_other, d_shift, d_residual, d_slopes


_GRADIENTS = tuple(row.value for row in (SUM_DZ_XHAT, SUM_DZ, SUM_DX, SUM_DSLOPE))  # of weight, bias, shift, slopes


def _summed(grad: Tensor, dimensions: int, dtype: torch.dtype) -> Tensor:
    """(N, C) gradients as the tensor was given: (N, C), or (C,) over all samples."""
    if dimensions == 1:
        grad = grad[0] if grad.shape[0] == 1 else grad.sum(0)
    return grad.to(dtype)
