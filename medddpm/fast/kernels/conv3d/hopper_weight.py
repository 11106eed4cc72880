"""Gluon kernel of a 3³ convolution's weight gradient on Hopper's matrix units; `hopper` says when to use it.

    dweight[tap] = Σ_v dy[v] · x[v + δ(tap)]ᵀ        (Dumoulin and Visin 2016, arXiv:1603.07285, chapter 4)

A program has 64 channels on either side and one of the three taps across, and walks down columns of the volume: three
planes of x and one of dy come in row by row, and a row serves nine taps while it lies in shared memory. Each of three
warp groups has one tap down the column, with all three in depth. The programs' sums are added up in a fixed order.
Volumes are BF16 or FP16 and channels-last in memory; sums are float32.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from medddpm.fast.kernels.conv3d.hopper_data import BYTES, CHANNELS, place, processors, tile, volume

STRIP, STRIP_ROWS = 64, 32  # voxels of a row; rows that a program walks down
SLOTS = 7  # rows of x in shared memory
AHEAD = 4  # rows of dy: with fewer than three the warps wait for each other in a ring

_C, _STRIP, _BYTES = (gl.constexpr(size) for size in (CHANNELS, STRIP, BYTES))  # as a kernel may read them

_SIZES = ("out", "inner", "items", "slabs", "tiles_w", "tiles_h", "tiles_d", "blocks", "rows")


@gluon.jit
def _fetch_rows(
    x_desc,  # (N, D, H, W, C_in)
    dy_desc,  # (N, D, H, W, C_out)
    xs,  # shared: (SX · 3, STRIP, C), by plane
    dys,  # shared: (SD, STRIP, C)
    full, empty, dfull, dempty, sizes, tiles_w, tiles_h, tiles_d,
    SX: gl.constexpr, SD: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr,
):  # fmt: skip
    items, slabs, blocks, rows = sizes
    part = gl.program_id(0) // slabs
    kw = part % 3
    inner = part // 3 % blocks * _C
    outer = part // 3 // blocks * _C
    count = 0
    row = 0
    for item in range(gl.program_id(0) % slabs, items, slabs):
        n, d, band, w = place(item, tiles_w, tiles_h, tiles_d, BW, 1, BD)
        h = band * rows
        for j in range(rows + 2):
            slot = count % SX
            mbarrier.wait(empty.index(slot), (count // SX & 1) ^ 1)
            arrived = full.index(slot)
            mbarrier.expect(arrived, 3 * _STRIP * _C * _BYTES)
            for kd in gl.static_range(3):
                to = xs.index(slot * 3 + kd)._reinterpret(x_desc.dtype, [1, BD, 1, BW, _C], x_desc.layout)
                tma.async_copy_global_to_shared(x_desc, [n, d + kd - 1, h + j - 1, w + kw - 1, inner], arrived, to)
            count += 1
            if j < rows:
                slot = row % SD
                mbarrier.wait(dempty.index(slot), (row // SD & 1) ^ 1)
                arrived = dfull.index(slot)
                mbarrier.expect(arrived, _STRIP * _C * _BYTES)
                to = dys.index(slot)._reinterpret(dy_desc.dtype, [1, BD, 1, BW, _C], dy_desc.layout)
                tma.async_copy_global_to_shared(dy_desc, [n, d, h + j, w, outer], arrived, to)
                row += 1


@gluon.jit
def _pass_over(full, empty, count, ROWS: gl.constexpr, SX: gl.constexpr):
    for j in gl.static_range(ROWS):
        mbarrier.wait(full.index((count + j) % SX), (count + j) // SX & 1)
        mbarrier.arrive(empty.index((count + j) % SX))


@gluon.jit
def _correlate(
    KH: gl.constexpr,  # this warp group's tap down the column
    partial_ptr,  # (slabs, C_out, 27, C_in)
    xs, dys, full, empty, dfull, dempty, sizes, out, inner,
    SX: gl.constexpr, SD: gl.constexpr,
):  # fmt: skip
    pair: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * _C, 16])
    single: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _C, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(_C * _BYTES, 16, 2)
    items, slabs, blocks, rows = sizes
    part = gl.program_id(0) // slabs
    acc01 = gl.zeros([_C, 2 * _C], gl.float32, pair)  # taps 0 and 1 in depth, side by side
    acc2 = gl.zeros([_C, _C], gl.float32, single)
    count = 0
    row = 0
    for _ in range(gl.program_id(0) % slabs, items, slabs):
        _pass_over(full, empty, count, KH, SX)  # rows above this warp group's first
        count += KH
        for j in range(rows):
            slot = count % SX
            mbarrier.wait(full.index(slot), count // SX & 1)
            mbarrier.wait(dfull.index(row % SD), row // SD & 1)
            a = dys.index(row % SD).permute((1, 0))
            b = xs.index(slot * 3)._reinterpret(xs.dtype, [_STRIP, 2 * _C], shared)
            acc01 = warpgroup_mma(a, b, acc01, is_async=True)
            acc2 = warpgroup_mma(a, xs.index(slot * 3 + 2), acc2, is_async=True)
            acc01, acc2 = warpgroup_mma_wait(2, deps=[acc01, acc2])
            mbarrier.arrive(empty.index((count + SX - 1) % SX), pred=j > 0)
            mbarrier.arrive(dempty.index((row + SD - 1) % SD), pred=j > 0)
            count += 1
            row += 1
        acc01, acc2 = warpgroup_mma_wait(0, deps=[acc01, acc2])
        mbarrier.arrive(empty.index((count + SX - 1) % SX))
        mbarrier.arrive(dempty.index((row + SD - 1) % SD))
        _pass_over(full, empty, count, 2 - KH, SX)  # and below its last
        count += 2 - KH
    slab_ptr = partial_ptr + (gl.program_id(0) % slabs).to(gl.int64) * out * 27 * inner
    tap = KH * 3 + part % 3
    i0 = part // 3 % blocks * _C
    c0 = part // 3 // blocks * _C
    c = c0 + gl.arange(0, _C, gl.SliceLayout(1, pair))
    i = gl.arange(0, 2 * _C, gl.SliceLayout(0, pair))
    at = (c[:, None] * 27 + (tap + i // _C * 9)[None, :]) * inner + (i0 + i % _C)[None, :]
    gl.store(slab_ptr + at, acc01, mask=(c < out)[:, None] & (i0 + i % _C < inner)[None, :])
    c = c0 + gl.arange(0, _C, gl.SliceLayout(1, single))
    i = i0 + gl.arange(0, _C, gl.SliceLayout(0, single))
    at = (c[:, None] * 27 + tap + 18) * inner + i[None, :]
    gl.store(slab_ptr + at, acc2, mask=(c < out)[:, None] & (i < inner)[None, :])


@gluon.jit(do_not_specialize=_SIZES)
def _conv_weight(
    x_desc,  # (N, D, H, W, C_in)
    dy_desc,  # (N, D, H, W, C_out)
    partial_ptr,  # (slabs, C_out, 27, C_in)
    out, inner, items, slabs, tiles_w, tiles_h, tiles_d, blocks, rows,
    SX: gl.constexpr, SD: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(_C * _BYTES, 16, 2)
    xs = gl.allocate_shared_memory(x_desc.dtype, [SX * 3, _STRIP, _C], layout)
    dys = gl.allocate_shared_memory(x_desc.dtype, [SD, _STRIP, _C], layout)
    full = gl.allocate_shared_memory(gl.int64, [SX, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SX, 1], mbarrier.MBarrierLayout())
    dfull = gl.allocate_shared_memory(gl.int64, [SD, 1], mbarrier.MBarrierLayout())
    dempty = gl.allocate_shared_memory(gl.int64, [SD, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SX):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=3)
    for slot in gl.static_range(SD):
        mbarrier.init(dfull.index(slot), count=1)
        mbarrier.init(dempty.index(slot), count=3)
    fence_async_shared()
    gl.thread_barrier()
    above: gl.constexpr = 0
    level: gl.constexpr = 1
    below: gl.constexpr = 2
    sizes = (items, slabs, blocks, rows)
    gl.warp_specialize(
        [
            (_correlate, (above, partial_ptr, xs, dys, full, empty, dfull, dempty, sizes, out, inner, SX, SD)),
            (_correlate, (level, partial_ptr, xs, dys, full, empty, dfull, dempty, sizes, out, inner, SX, SD)),
            (_correlate, (below, partial_ptr, xs, dys, full, empty, dfull, dempty, sizes, out, inner, SX, SD)),
            (
                _fetch_rows,
                (
                    x_desc,
                    dy_desc,
                    xs,
                    dys,
                    full,
                    empty,
                    dfull,
                    dempty,
                    sizes,
                    tiles_w,
                    tiles_h,
                    tiles_d,
                    SX,
                    SD,
                    BW,
                    BD,
                ),
            ),
        ],
        [4, 4, 1],
        [152, 152, 40],
    )


def weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """Computes dweight (C_out, C_in, 3, 3, 3), channels-last, of x (N, C_in, D, H, W) and dy (N, C_out, D, H, W)."""
    n, inner, d, h, w = x.shape
    out = dy.shape[1]
    _, across, deep = tile(x.shape, STRIP)
    rows = min(h, STRIP_ROWS)
    blocks, tiles_w, tiles_h, tiles_d = (
        triton.cdiv(a, b) for a, b in ((inner, CHANNELS), (w, across), (h, rows), (d, deep))
    )
    items = n * tiles_d * tiles_h * tiles_w
    parts = 3 * blocks * triton.cdiv(out, CHANNELS)  # a program has one of the three taps across
    slabs = max(1, min(items, processors(x.device) // parts))
    partial = torch.empty((slabs, out, 3, 3, 3, inner), device=x.device)
    _conv_weight[(parts * slabs,)](
        volume(x, across, deep, CHANNELS), volume(dy, across, deep, CHANNELS), partial, out, inner, items, slabs,
        tiles_w, tiles_h, tiles_d, blocks, rows, SX=SLOTS, SD=AHEAD, BW=across, BD=deep, num_warps=4,
    )  # fmt: skip
    return partial.sum(0).to(x.dtype).permute(0, 4, 1, 2, 3)
