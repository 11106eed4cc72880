"""Gluon kernel of 3³ convolutions and of their adjoint on Hopper's matrix units; `conv3d_hopper` says when to use it.

cuDNN's kernels fetch a tile of voxels again for each of the 27 taps. At 64 channels out, where a voxel is used 64 times
a fetch, the L2 cache cannot bring that fast enough: 535 TFLOP/s of the 780 that a large product reaches on an H200.
Here a tile's voxels lie in shared memory as rows, one above the other and one more at each end, and a fetch serves the
three taps of a column: half the traffic.

The weights are the left operand of a product (64 channels of the result), voxels the right one (128 a row, two rows a
warp group). One warp fetches by TMA, which reads zeros outside the volume: that is the padding. Volumes (N, C, D, H, W)
and weights (C_out, C_in, 3, 3, 3) are BF16 or FP16 and channels-last in memory; sums are float32, in a fixed order.
"""

from __future__ import annotations

import functools
from typing import Any

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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

CHANNELS = 64  # of the result, in a tile
ROW, ROWS = 128, 4  # voxels; a tile is four rows
DEEP = 32  # channels fetched at once
SLOTS = 3  # fetches in shared memory

_SIZES = ("channels", "tiles", "blocks", "tiles_w", "tiles_h", "tiles_d", "chunks", "inner")


@gluon.jit
def place(tile, tiles_w, tiles_h, tiles_d, BW: gl.constexpr, BH: gl.constexpr, BD: gl.constexpr):
    """Where a tile begins, (n, d, h, w); they follow each other across, down, and in depth."""
    w = tile % tiles_w * BW
    h = tile // tiles_w % tiles_h * BH
    d = tile // tiles_w // tiles_h % tiles_d * BD
    return tile // tiles_w // tiles_h // tiles_d, d, h, w


@gluon.jit
def _fetch(
    x, weight, xs, ws, full, empty, sizes, inner,
    KC: gl.constexpr, S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    tiles, blocks, tiles_w, tiles_h, tiles_d, chunks = sizes
    step = 0
    for work in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        n, d, h, w = place(work // blocks, tiles_w, tiles_h, tiles_d, BW, 4, BD)
        c = work % blocks * 64
        for k in range(9 * chunks):
            kd = k // chunks // 3
            kw = k // chunks % 3
            deep = k % chunks * KC
            slot = step % S
            mbarrier.wait(empty.index(slot), (step // S & 1) ^ 1)
            arrived = full.index(slot)
            mbarrier.expect(arrived, (6 * 128 + 3 * 64) * KC * 2)
            for row in gl.static_range(6):
                to = xs.index(slot * 6 + row)._reinterpret(x.dtype, [1, BD, 1, BW, KC], x.layout)
                tma.async_copy_global_to_shared(x, [n, d + kd - 1, h + row - 1, w + kw - 1, deep], arrived, to)
            for kh in gl.static_range(3):
                tap = kd * 9 + kh * 3 + kw
                at = [deep, (26 - tap) * inner + c] if TURNED else [c, tap * inner + deep]
                tma.async_copy_global_to_shared(weight, at, arrived, ws.index(slot * 3 + kh))
            step += 1


@gluon.jit
def _give(y, at, values, out, BW: gl.constexpr, BD: gl.constexpr):
    tma.store_wait(0)
    gl.thread_barrier()
    out.permute((1, 0)).store(values.to(y.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(y, at, out._reinterpret(y.dtype, [1, BD, 1, BW, 64], y.layout))


@gluon.jit
def _multiply(
    HALF: gl.constexpr, y, bias, xs, ws, ys, full, empty, sizes, channels,
    S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr, TURNED: gl.constexpr, BIASED: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    tiles, blocks, tiles_w, tiles_h, tiles_d, chunks = sizes
    step = 0
    for work in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        n, d, h, w = place(work // blocks, tiles_w, tiles_h, tiles_d, BW, 4, BD)
        c = work % blocks * 64
        upper = warpgroup_mma_init(gl.zeros([64, 128], gl.float32, layout))
        lower = warpgroup_mma_init(gl.zeros([64, 128], gl.float32, layout))
        for k in range(9 * chunks):
            slot = step % S
            mbarrier.wait(full.index(slot), step // S & 1)
            for kh in gl.static_range(3):
                a = ws.index(slot * 3 + kh)
                if TURNED:
                    a = a.permute((1, 0))
                upper = warpgroup_mma(a, xs.index(slot * 6 + 2 * HALF + kh).permute((1, 0)), upper, is_async=True)
                lower = warpgroup_mma(a, xs.index(slot * 6 + 2 * HALF + kh + 1).permute((1, 0)), lower, is_async=True)
                if kh == 0:  # when only these two are left, what came before is done: its slot is free
                    upper, lower = warpgroup_mma_wait(2, deps=[upper, lower])
                    mbarrier.arrive(empty.index((step + S - 1) % S), pred=k > 0)
            step += 1
        upper, lower = warpgroup_mma_wait(0, deps=[upper, lower])
        mbarrier.arrive(empty.index((step + S - 1) % S))
        if BIASED:
            channel = c + gl.arange(0, 64, gl.SliceLayout(1, layout))
            more = gl.load(bias + channel, mask=channel < channels, other=0.0).to(gl.float32)[:, None]
            upper += more
            lower += more
        _give(y, [n, d, h + 2 * HALF, w, c], upper, ys.index(HALF), BW, BD)
        _give(y, [n, d, h + 2 * HALF + 1, w, c], lower, ys.index(HALF), BW, BD)
    tma.store_wait(0)


def _name(specialized: Any) -> str:
    return "_conv_adjoint" if specialized.constants["TURNED"] else "_conv"


@gluon.jit(do_not_specialize=_SIZES, repr=_name)
def _conv(
    x, weight, bias, y, channels, tiles, blocks, tiles_w, tiles_h, tiles_d, chunks, inner,
    KC: gl.constexpr, S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr, TURNED: gl.constexpr, BIASED: gl.constexpr,
):  # fmt: skip
    rows: gl.constexpr = gl.NVMMASharedLayout(KC * 2, 16, 2)
    full_rows: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    xs = gl.allocate_shared_memory(x.dtype, [S * 6, 128, KC], rows)
    if TURNED:
        ws = gl.allocate_shared_memory(x.dtype, [S * 3, KC, 64], full_rows)
    else:
        ws = gl.allocate_shared_memory(x.dtype, [S * 3, 64, KC], rows)
    ys = gl.allocate_shared_memory(x.dtype, [2, 128, 64], full_rows)
    full = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(S):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()
    gl.thread_barrier()
    upper_half: gl.constexpr = 0
    lower_half: gl.constexpr = 1
    sizes = (tiles, blocks, tiles_w, tiles_h, tiles_d, chunks)
    gl.warp_specialize(
        [
            (_multiply, (upper_half, y, bias, xs, ws, ys, full, empty, sizes, channels, S, BW, BD, TURNED, BIASED)),
            (_multiply, (lower_half, y, bias, xs, ws, ys, full, empty, sizes, channels, S, BW, BD, TURNED, BIASED)),
            (_fetch, (x, weight, xs, ws, full, empty, sizes, inner, KC, S, BW, BD, TURNED)),
        ],
        [4, 1],
        [224, 40],
    )


def tile(space: torch.Size, voxels: int) -> tuple[float, int, int]:
    """How a volume (…, D, H, W) is cut into rows of `voxels`: what part of them lies inside; voxels across, planes."""
    d, _, w = space[-3:]
    found = []
    for across in (128, 64, 32, 16):
        if across <= voxels:
            deep = voxels // across
            covers = triton.cdiv(w, across) * across * triton.cdiv(d, deep) * deep
            found.append((d * w / covers, across, deep))
    return max(found)


def volume(x: Tensor, across: int, deep: int, channels: int) -> TensorDescriptor:
    """x (N, C, D, H, W) as TMA fetches it: a row of a tile, so many channels of it."""
    n, c, d, h, w = x.shape
    strides = [d * h * w * c, h * w * c, w * c, c, 1]
    layout = gl.NVMMASharedLayout(2 * channels, 16, 5)
    return TensorDescriptor(x, [n, d, h, w, c], strides, [1, deep, 1, across, channels], layout)


@functools.cache
def processors(device: torch.device) -> int:
    """Of the device: each runs one program."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, turned: bool = False) -> Tensor:
    """The convolution, or with `turned` its adjoint: of the result's gradient (N, C_out, …) that of x (N, C_in, …)."""
    n, k, d, h, w = x.shape
    out, inner = weight.shape[:2]
    channels = inner if turned else out
    y = torch.empty((n, channels, d, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    _, across, deep = tile(x.shape, ROW)
    table = weight.permute(0, 2, 3, 4, 1).reshape(out, 27 * inner)
    block = [DEEP, CHANNELS] if turned else [CHANNELS, DEEP]
    weights = TensorDescriptor(
        table, [out, 27 * inner], [27 * inner, 1], block, gl.NVMMASharedLayout(2 * block[1], 16, 2)
    )
    blocks, tiles_w, tiles_h, tiles_d = (
        triton.cdiv(a, b) for a, b in ((channels, CHANNELS), (w, across), (h, ROWS), (d, deep))
    )
    tiles = n * tiles_d * tiles_h * tiles_w
    _conv[(min(processors(x.device), tiles * blocks),)](
        volume(x, across, deep, DEEP), weights, y if bias is None else bias, volume(y, across, deep, CHANNELS),
        channels, tiles, blocks, tiles_w, tiles_h, tiles_d, triton.cdiv(k, DEEP), inner,
        KC=DEEP, S=SLOTS, BW=across, BD=deep, TURNED=turned, BIASED=bias is not None, num_warps=4,
    )  # fmt: skip
    return y
