"""Triton kernels of `kernels.group_norm`: per-channel statistics merged by Chan et al. (1983, doi:10.2307/2683386).

Memory is rows × channels: a channels-last (N, C, D, H, W) tensor is N times V = D·H·W rows of C values. Every sweep
works channel by channel, and only a small second kernel knows of groups; so any group count costs the same, and two
tensors standing for their concatenation differ from one only in where their channels begin. A sweep that sums leaves
one partial result a program, merged in a fixed order: no atomics, the same bits each time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SUM_TILE, APPLY_TILE = 1024, 2048  # elements a program holds at once in a summing and in a writing sweep
PROGRAMS = 1056  # of a summing sweep, about: eight for each of an H200's 132 multiprocessors
WARPS = 2
NONE, SILU, LEAKY, PRELU = 0, 1, 2, 3  # what follows the norm
FACTOR, SUMMAND, CENTRE, RSTD, MEAN, TABLES = 0, 1, 2, 3, 4, 5  # rows of what forward keeps: (TABLES, N, C)
D_BIAS, D_WEIGHT, D_SLOPE, E0, E1, D_SHIFT, SUMS = 0, 1, 2, 3, 4, 5, 6  # rows of what backward sums: (SUMS, N, C)


@triton.jit
def _rows_of(p, v, programs, BR: tl.constexpr):
    """Rows that program `p` of a summing sweep sees: every `programs`-th tile from the end, the first perhaps short."""
    tiles = tl.cdiv(v, BR)
    return ((tiles - 1 - p) // programs + 1) * BR - tl.where(p == 0, tiles * BR - v, 0)


@triton.jit
def _norm_statistics(
    x, means, squares, v, c, total, offset, programs, EVEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    base = x + n * v * c
    # Sums of distances from the first row lose no digits to a mean that is large beside the spread.
    pilot = tl.load(base + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    plain = tl.zeros((BR, BC), tl.float32)
    square = tl.zeros((BR, BC), tl.float32)
    tiles = tl.cdiv(v, BR)
    for tile in range(p, tiles, programs):
        row = (tiles - 1 - tile).to(tl.int64) * BR + tl.arange(0, BR)  # what was written last is still in the cache
        there = base + row[:, None] * c + col[None, :]
        if EVEN:
            off = tl.load(there).to(tl.float32) - pilot
        else:
            mask = (row < v)[:, None] & (col < c)[None, :]
            off = tl.where(mask, tl.load(there, mask=mask, other=0.0).to(tl.float32) - pilot, 0.0)
        plain += off
        square += off * off
    rows = _rows_of(p, v, programs, BR).to(tl.float32)
    first = tl.sum(plain, axis=0)
    at = (n * programs + p) * total + offset + col
    tl.store(means + at, tl.sum(pilot, axis=0) + first / rows, mask=col < c)
    tl.store(squares + at, tl.maximum(tl.sum(square, axis=0) - first * first / rows, 0.0), mask=col < c)


@triton.jit
def _norm_merge(
    means, squares, weight, bias, shift, tables, v, c, programs, eps, per_group, shift_stride,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFT: tl.constexpr,
    BR: tl.constexpr, BP: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    g, n = tl.program_id(0), tl.program_id(1)
    lane, slot = tl.arange(0, BG), tl.arange(0, BP)
    inside = lane < per_group
    col = g * per_group + lane
    at = n * c + col
    part = tl.zeros((BP, BG), tl.float32)
    for first in range(0, programs, BP):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        rows = _rows_of(p, v, programs, BR).to(tl.float32)[:, None]
        part += tl.load(means + (n * programs + p)[:, None] * c + col[None, :], mask=mask, other=0.0) * (rows / v)
    channel = tl.sum(part, axis=0)
    moved = tl.zeros((BG,), tl.float32)
    if HAS_SHIFT:
        moved = tl.load(shift + n * shift_stride + col, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(tl.where(inside, channel + moved, 0.0), axis=0) / per_group
    part = tl.zeros((BP, BG), tl.float32)
    for first in range(0, programs, BP):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        rows = _rows_of(p, v, programs, BR).to(tl.float32)[:, None]
        where = (n * programs + p)[:, None] * c + col[None, :]
        off = tl.load(means + where, mask=mask, other=0.0) + moved[None, :] - mean
        part += tl.where(mask, tl.load(squares + where, mask=mask, other=0.0) + rows * off * off, 0.0)
    variance = tl.sum(tl.sum(part, axis=0), axis=0) / ((v * 1.0) * per_group)
    rstd = 1.0 / tl.sqrt(variance + eps)
    factor = tl.zeros((BG,), tl.float32) + rstd
    if HAS_WEIGHT:
        factor *= tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    summand = tl.zeros((BG,), tl.float32)
    if HAS_BIAS:
        summand = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    size = tl.num_programs(1) * c
    tl.store(tables + at, factor, mask=inside)
    tl.store(tables + size + at, summand, mask=inside)
    tl.store(tables + 2 * size + at, mean - moved, mask=inside)
    tl.store(tables + 3 * size + at, tl.zeros((BG,), tl.float32) + rstd, mask=inside)
    tl.store(tables + 4 * size + at, channel, mask=inside)


@triton.jit
def _norm_apply(
    x, residual, slopes, y, tables, v, c, total, offset, slope,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, EVEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    row = tl.program_id(0) // blocks * BR + tl.arange(0, BR)
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * total
    at = tables + n * total + offset + col
    factor = tl.load(at, mask=col < c, other=0.0)[None, :]
    summand = tl.load(at + size, mask=col < c, other=0.0)[None, :]
    centre = tl.load(at + 2 * size, mask=col < c, other=0.0)[None, :]
    mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
    line = (n * v + row)[:, None]
    z = factor * (tl.load(x + line * c + col[None, :], mask=mask).to(tl.float32) - centre) + summand
    if HAS_RESIDUAL:
        z += tl.load(residual + line * total + offset + col[None, :], mask=mask).to(tl.float32)
    if ACT == 1:
        z = z / (1.0 + tl.exp(-z))
    elif ACT == 2:
        z = tl.where(z > 0, z, z * slope)
    elif ACT == 3:
        z = tl.where(z > 0, z, z * tl.load(slopes + offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :])
    tl.store(y + line * total + offset + col[None, :], z.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _norm_sums(
    x, dy, residual, d_residual, slopes, tables, partial, v, c, total, offset, programs, slope,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, EVEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * total
    at = tables + n * total + offset + col
    factor = tl.load(at, mask=col < c, other=0.0)[None, :]
    summand = tl.load(at + size, mask=col < c, other=0.0)[None, :]
    centre = tl.load(at + 2 * size, mask=col < c, other=0.0)[None, :]
    rstd = tl.load(at + 3 * size, mask=col < c, other=0.0)
    steep = slope
    if ACT == 3:
        steep = tl.load(slopes + offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
    plain = tl.zeros((BR, BC), tl.float32)
    times = tl.zeros((BR, BC), tl.float32)
    below = tl.zeros((BR, BC), tl.float32)
    tiles = tl.cdiv(v, BR)
    for tile in range(p, tiles, programs):
        row = (tiles - 1 - tile).to(tl.int64) * BR + tl.arange(0, BR)
        mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
        line = (n * v + row)[:, None]
        here = line * total + offset + col[None, :]
        off = tl.load(x + line * c + col[None, :], mask=mask).to(tl.float32) - centre
        dz = tl.load(dy + here, mask=mask).to(tl.float32)
        z = factor * off + summand
        if HAS_RESIDUAL:
            z += tl.load(residual + here, mask=mask).to(tl.float32)
        if ACT == 3:
            below += _inside(tl.where(z > 0, 0.0, z * dz), mask, EVEN)
        dz = _before_activation(z, dz, steep, ACT)
        if HAS_RESIDUAL:
            dz = dz.to(d_residual.dtype.element_ty)
            tl.store(d_residual + here, dz, mask=mask)
            dz = dz.to(tl.float32)
        plain += _inside(dz, mask, EVEN)
        times += _inside(dz * off, mask, EVEN)
    to = partial + (n * programs + p) * total + offset + col
    all_programs = tl.num_programs(1) * programs * total
    tl.store(to, tl.sum(plain, axis=0), mask=col < c)
    tl.store(to + all_programs, tl.sum(times, axis=0) * rstd, mask=col < c)
    if ACT == 3:
        tl.store(to + 2 * all_programs, tl.sum(below, axis=0), mask=col < c)


@triton.jit
def _inside(value, mask, EVEN: tl.constexpr):
    return value if EVEN else tl.where(mask, value, 0.0)


@triton.jit
def _before_activation(z, dy, slope, ACT: tl.constexpr):
    if ACT == 1:
        gate = 1.0 / (1.0 + tl.exp(-z))
        dy = dy * gate * (1.0 + z * (1.0 - gate))
    elif ACT >= 2:
        dy = tl.where(z > 0, dy, dy * slope)
    return dy


@triton.jit
def _norm_merge_sums(
    partial, tables, sums, v, c, programs, per_group, ACT: tl.constexpr, BP: tl.constexpr, BG: tl.constexpr
):  # fmt: skip
    g, n = tl.program_id(0), tl.program_id(1)
    lane, slot = tl.arange(0, BG), tl.arange(0, BP)
    inside = lane < per_group
    col = g * per_group + lane
    at = n * c + col
    all_programs = tl.num_programs(1) * programs * c
    first_sum = tl.zeros((BP, BG), tl.float32)
    second_sum = tl.zeros((BP, BG), tl.float32)
    third_sum = tl.zeros((BP, BG), tl.float32)
    for first in range(0, programs, BP):
        p = first + slot
        mask = (p < programs)[:, None] & inside[None, :]
        where = partial + (n * programs + p)[:, None] * c + col[None, :]
        first_sum += tl.load(where, mask=mask, other=0.0)
        second_sum += tl.load(where + all_programs, mask=mask, other=0.0)
        if ACT == 3:
            third_sum += tl.load(where + 2 * all_programs, mask=mask, other=0.0)
    plain = tl.sum(first_sum, axis=0)
    times = tl.sum(second_sum, axis=0)
    size = tl.num_programs(1) * c
    factor = tl.load(tables + at, mask=inside, other=0.0)
    centre = tl.load(tables + 2 * size + at, mask=inside, other=0.0)
    rstd = tl.load(tables + 3 * size + at, mask=inside, other=0.0)
    channel = tl.load(tables + 4 * size + at, mask=inside, other=0.0)
    count = (v * 1.0) * per_group
    e0 = -tl.sum(factor * plain, axis=0) / count  # the factor is weight × rstd
    e1 = -rstd * tl.sum(factor * times, axis=0) / count
    tl.store(sums + at, plain, mask=inside)
    tl.store(sums + size + at, times, mask=inside)
    tl.store(sums + 2 * size + at, tl.sum(third_sum, axis=0), mask=inside)
    tl.store(sums + 3 * size + at, tl.zeros((BG,), tl.float32) + e0, mask=inside)
    tl.store(sums + 4 * size + at, e1, mask=inside)
    tl.store(sums + 5 * size + at, factor * plain + v * (e0 + e1 * (channel - centre)), mask=inside)


@triton.jit
def _norm_apply_backward(
    x, dy, more, dx, slopes, tables, sums, v, c, total, offset, slope,
    ACT: tl.constexpr, HAS_MORE: tl.constexpr, EVEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BC)
    row = tl.program_id(0) // blocks * BR + tl.arange(0, BR)
    col = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    size = tl.num_programs(1) * total
    at = n * total + offset + col
    factor = tl.load(tables + at, mask=col < c, other=0.0)[None, :]
    summand = tl.load(tables + size + at, mask=col < c, other=0.0)[None, :]
    centre = tl.load(tables + 2 * size + at, mask=col < c, other=0.0)[None, :]
    e0 = tl.load(sums + 3 * size + at, mask=col < c, other=0.0)[None, :]
    e1 = tl.load(sums + 4 * size + at, mask=col < c, other=0.0)[None, :]
    mask = None if EVEN else (row < v)[:, None] & (col < c)[None, :]
    line = (n * v + row)[:, None]
    here = line * c + col[None, :]
    off = tl.load(x + here, mask=mask).to(tl.float32) - centre
    grad = tl.load(dy + line * total + offset + col[None, :], mask=mask).to(tl.float32)
    if ACT == 3:
        steep = tl.load(slopes + offset + col, mask=col < c, other=0.0).to(tl.float32)[None, :]
        grad = _before_activation(factor * off + summand, grad, steep, ACT)
    else:
        grad = _before_activation(factor * off + summand, grad, slope, ACT)
    result = factor * grad + e0 + e1 * off
    if HAS_MORE:
        result += tl.load(more + here, mask=mask).to(tl.float32)
    tl.store(dx + here, result.to(dx.dtype.element_ty), mask=mask)


def channel_block(c: int, tile: int) -> tuple[int, int]:
    """Rows and channels of a program's tile: the largest power of two in `c`, up to 128, where that is 32 or more."""
    block = c & -c
    if block < 32:
        block = triton.next_power_of_2(c)  # the last block is masked
    block = min(block, 128)
    return tile // block, block


def summing(n: int, v: int, *widths: int) -> tuple[int, int, int]:
    """Rows and channels of a tile and programs a sample, for sweeps that sum over parts of so many channels."""
    block = min(channel_block(c, SUM_TILE)[1] for c in widths)
    rows = SUM_TILE // block
    wanted = PROGRAMS // (n * triton.cdiv(max(widths), block))
    return rows, block, max(1, min(triton.cdiv(v, rows), wanted))


def even(v: int, c: int, rows: int, block: int) -> bool:
    """Whether tiles cover the tensor without a rest, and need no mask."""
    return v % rows == 0 and c % block == 0


def _group_tile(per_group: int, programs: int) -> tuple[int, int]:
    wide = triton.next_power_of_2(per_group)
    return min(triton.next_power_of_2(programs), max(1, 4096 // wide)), wide


def channels_last(x: Tensor) -> Tensor:
    """`x` in channels-last memory: itself where it is so."""
    return x.contiguous(memory_format=torch.channels_last_3d)


def empty(like: Tensor, channels: int) -> Tensor:
    """Channels-last memory of `like`'s volume, dtype and device, of `channels` channels."""
    n, _, *space = like.shape
    return torch.empty(
        (n, channels, *space), dtype=like.dtype, device=like.device, memory_format=torch.channels_last_3d
    )


class Norm(torch.autograd.Function):
    """`kernels.group_norm` by the kernels; `keep` also hands back the input, whose gradient backward adds in its sweep.

    weight, bias and slopes are (C,), shift (C,) or (N, C); all of them any float dtype.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        other: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        shift: Tensor | None,
        residual: Tensor | None,
        slopes: Tensor | None,
        groups: int,
        eps: float,
        act: int,
        slope: float,
        keep: bool,
    ) -> Any:
        """See `kernels.group_norm`. Returns y, or (y, x) or (y, x, other) where `keep`."""
        parts = [(x, 0)] if other is None else [(x, 0), (other, x.shape[1])]
        n, c, v = x.shape[0], sum(part.shape[1] for part, _ in parts), x[0, 0].numel()
        per_sample = shift is not None and shift.dim() == 2 and n > 1
        y = empty(x, c)
        tables = torch.empty((TABLES, n, c), dtype=torch.float32, device=x.device)
        rows, block, programs = summing(n, v, *(part.shape[1] for part, _ in parts))
        partial = torch.empty((2, n, programs, c), dtype=torch.float32, device=x.device)
        for part, offset in parts:
            width = part.shape[1]
            _norm_statistics[(programs * triton.cdiv(width, block), n)](
                part, partial[0], partial[1], v, width, c, offset, programs,
                EVEN=even(v, width, rows, block), BR=rows, BC=block, num_warps=WARPS,
            )  # fmt: skip
        slots, wide = _group_tile(c // groups, programs)
        _norm_merge[(groups, n)](
            partial[0], partial[1], weight, bias, shift, tables, v, c, programs, eps, c // groups,
            c if per_sample else 0, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
            HAS_SHIFT=shift is not None, BR=rows, BP=slots, BG=wide, num_warps=8,
        )  # fmt: skip
        for part, offset in parts:
            width = part.shape[1]
            rows, block = channel_block(width, APPLY_TILE)
            _norm_apply[(triton.cdiv(v, rows) * triton.cdiv(width, block), n)](
                part, residual, slopes, y, tables, v, width, c, offset, slope,
                ACT=act, HAS_RESIDUAL=residual is not None, EVEN=even(v, width, rows, block),
                BR=rows, BC=block, num_warps=WARPS,
            )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, other, residual, slopes, tables)
        ctx.arguments = (groups, act, slope)
        ctx.given = [None if a is None else (a.shape, a.dtype) for a in (weight, bias, shift, slopes)]
        if not keep:
            return y
        return (y, x) if other is None else (y, x, other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Gradients of every tensor handed in."""
        x, other, residual, slopes, tables = ctx.saved_tensors
        groups, act, slope = ctx.arguments
        dy, *more = grads
        if dy is None:  # only what was handed through has been used
            return (*more, *[None] * (12 - len(more)))
        dy = channels_last(dy)
        parts = [(x, 0)] if other is None else [(x, 0), (other, x.shape[1])]
        n, c, v = x.shape[0], dy.shape[1], x[0, 0].numel()
        tall, broad, programs = summing(n, v, *(part.shape[1] for part, _ in parts))
        sums = torch.empty((SUMS, n, c), dtype=torch.float32, device=x.device)
        partial = torch.empty((3, n, programs, c), dtype=torch.float32, device=x.device)
        d_residual = None if residual is None else empty(dy, c)
        for part, offset in parts:
            width = part.shape[1]
            _norm_sums[(programs * triton.cdiv(width, broad), n)](
                part, dy, residual, d_residual, slopes, tables, partial, v, width, c, offset, programs, slope,
                ACT=act, HAS_RESIDUAL=residual is not None, EVEN=even(v, width, tall, broad),
                BR=tall, BC=broad, num_warps=WARPS,
            )  # fmt: skip
        slots, wide = _group_tile(c // groups, programs)
        _norm_merge_sums[(groups, n)](
            partial, tables, sums, v, c, programs, c // groups, ACT=act, BP=slots, BG=wide, num_warps=8
        )
        # With a residual the first sweep has written what stands before the activation.
        behind, after = (dy, act) if d_residual is None else (d_residual, NONE)
        results: list[Tensor | None] = []
        for i, (part, offset) in enumerate(parts):
            width = part.shape[1]
            rows, block = channel_block(width, APPLY_TILE)
            handed = more[i] if i < len(more) else None
            handed = None if handed is None else channels_last(handed)
            dx = empty(part, width)
            _norm_apply_backward[(triton.cdiv(v, rows) * triton.cdiv(width, block), n)](
                part, behind, handed, dx, slopes, tables, sums, v, width, c, offset, slope,
                ACT=after, HAS_MORE=handed is not None, EVEN=even(v, width, rows, block),
                BR=rows, BC=block, num_warps=WARPS,
            )  # fmt: skip
            results.append(dx)
        if other is None:
            results.append(None)
        small = [
            None if given is None else _summed(sums[row], given)
            for row, given in zip((D_WEIGHT, D_BIAS, D_SHIFT, D_SLOPE), ctx.given, strict=True)
        ]
        return (*results, *small[:3], d_residual, small[3], *[None] * 5)


def _summed(grad: Tensor, given: tuple[torch.Size, torch.dtype]) -> Tensor:
    """(N, C) gradients as the tensor was given: (N, C), or (C,) over all samples."""
    shape, dtype = given
    if len(shape) == 1:
        grad = grad[0] if grad.shape[0] == 1 else grad.sum(0)
    return grad.to(dtype)
