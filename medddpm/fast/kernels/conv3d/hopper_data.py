"""Gluon kernel of 3³ convolutions and of their adjoint on Hopper's matrix units; `hopper` says when to use it.

cuDNN's kernels fetch a tile of voxels again for each of the 27 taps. At 64 channels out, where a voxel is used 64 times
a fetch, the L2 cache cannot bring that fast enough (`16_fast_path` has the rates). Here a tile's voxels lie in shared
memory as rows, one above the other and one more at each end, and a fetch serves the three taps of a column: half the
traffic.

The weights are the left operand of a product (64 channels of the result), voxels the right one (128 in a row, two rows
for each warp group). One warp fetches by TMA, which reads zeros outside the volume: that is the padding. Volumes
(N, C, D, H, W) and weights (C_out, C_in, 3, 3, 3) are BF16 or FP16 and channels-last in memory; sums are float32, in a
fixed order.

    y[v] = Σ_tap weight[tap] · x[v + δ(tap)]        dx[v] = Σ_tap weight[tap]ᵀ · dy[v - δ(tap)]

The adjoint, on the right (Dumoulin and Visin 2016, arXiv:1603.07285, chapter 4), is the same kernel with ADJOINT: its
taps are mirrored and its weights transposed.
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
ROW, ROWS = 128, 4  # voxels in a row; rows in a tile, two for each of two warp groups
DEEP = 32  # channels fetched at once
SLOTS = 3  # fetches in shared memory
BYTES = 2  # of a value in BF16 or FP16

# The same, as a kernel may read them. A fetch brings the tile's rows, one more at each end, and the taps of a column.
_C, _ROW, _ROWS, _BYTES = (gl.constexpr(size) for size in (CHANNELS, ROW, ROWS, BYTES))
_FETCHED = gl.constexpr(ROWS + 2)

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
    x_desc,  # (N, D, H, W, C_x)
    weight_desc,  # (C_out, 27 · C_in)
    xs,  # shared: (S · FETCHED, ROW, KC)
    ws,  # shared: (S · 3, C, KC), or (S · 3, KC, C) for the adjoint
    full, empty, sizes, inner,
    KC: gl.constexpr, S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr, ADJOINT: gl.constexpr,
):  # fmt: skip
    tiles, blocks, tiles_w, tiles_h, tiles_d, chunks = sizes
    step = 0
    for work in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        n, d, h, w = place(work // blocks, tiles_w, tiles_h, tiles_d, BW, _ROWS, BD)
        c = work % blocks * _C
        for k in range(9 * chunks):
            kd = k // chunks // 3
            kw = k // chunks % 3
            deep = k % chunks * KC
            slot = step % S
            mbarrier.wait(empty.index(slot), (step // S & 1) ^ 1)
            arrived = full.index(slot)
            mbarrier.expect(arrived, (_FETCHED * _ROW + 3 * _C) * KC * _BYTES)
            for row in gl.static_range(_FETCHED):
                to = xs.index(slot * _FETCHED + row)._reinterpret(x_desc.dtype, [1, BD, 1, BW, KC], x_desc.layout)
                at = [n, d + kd - 1, h + row - 1, w + kw - 1, deep]
                tma.async_copy_global_to_shared(x_desc, at, arrived, to)
            for kh in gl.static_range(3):
                tap = kd * 9 + kh * 3 + kw
                at = [deep, (26 - tap) * inner + c] if ADJOINT else [c, tap * inner + deep]
                tma.async_copy_global_to_shared(weight_desc, at, arrived, ws.index(slot * 3 + kh))
            step += 1


@gluon.jit
def _give(y_desc, at, values, ys, BW: gl.constexpr, BD: gl.constexpr):
    tma.store_wait(0)
    gl.thread_barrier()
    ys.permute((1, 0)).store(values.to(y_desc.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(y_desc, at, ys._reinterpret(y_desc.dtype, [1, BD, 1, BW, _C], y_desc.layout))


@gluon.jit
def _multiply(
    HALF: gl.constexpr,  # of the tile's rows, which this warp group has
    y_desc,  # (N, D, H, W, C_y)
    bias_ptr,  # (C_y,)
    xs, ws, ys, full, empty, sizes, channels,
    S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr, ADJOINT: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _ROW, 16])
    tiles, blocks, tiles_w, tiles_h, tiles_d, chunks = sizes
    step = 0
    for work in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        n, d, h, w = place(work // blocks, tiles_w, tiles_h, tiles_d, BW, _ROWS, BD)
        c = work % blocks * _C
        acc_upper = warpgroup_mma_init(gl.zeros([_C, _ROW], gl.float32, layout))
        acc_lower = warpgroup_mma_init(gl.zeros([_C, _ROW], gl.float32, layout))
        for k in range(9 * chunks):
            slot = step % S
            mbarrier.wait(full.index(slot), step // S & 1)
            for kh in gl.static_range(3):
                a = ws.index(slot * 3 + kh)
                if ADJOINT:
                    a = a.permute((1, 0))
                row = slot * _FETCHED + 2 * HALF + kh
                acc_upper = warpgroup_mma(a, xs.index(row).permute((1, 0)), acc_upper, is_async=True)
                acc_lower = warpgroup_mma(a, xs.index(row + 1).permute((1, 0)), acc_lower, is_async=True)
                if kh == 0:  # when only these two are left, what came before is done: its slot is free
                    acc_upper, acc_lower = warpgroup_mma_wait(2, deps=[acc_upper, acc_lower])
                    mbarrier.arrive(empty.index((step + S - 1) % S), pred=k > 0)
            step += 1
        acc_upper, acc_lower = warpgroup_mma_wait(0, deps=[acc_upper, acc_lower])
        mbarrier.arrive(empty.index((step + S - 1) % S))
        if HAS_BIAS:
            channel = c + gl.arange(0, _C, gl.SliceLayout(1, layout))
            bias = gl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(gl.float32)[:, None]
            acc_upper += bias
            acc_lower += bias
        _give(y_desc, [n, d, h + 2 * HALF, w, c], acc_upper, ys.index(HALF), BW, BD)
        _give(y_desc, [n, d, h + 2 * HALF + 1, w, c], acc_lower, ys.index(HALF), BW, BD)
    tma.store_wait(0)


def _name(specialized: Any) -> str:
    return "_conv_adjoint" if specialized.constants["ADJOINT"] else "_conv"


@gluon.jit(do_not_specialize=_SIZES, repr=_name)
def _conv(
    x_desc,  # (N, D, H, W, C_x)
    weight_desc,  # (C_out, 27 · C_in)
    bias_ptr,  # (C_y,)
    y_desc,  # (N, D, H, W, C_y)
    channels, tiles, blocks, tiles_w, tiles_h, tiles_d, chunks, inner,
    KC: gl.constexpr, S: gl.constexpr, BW: gl.constexpr, BD: gl.constexpr,
    ADJOINT: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    rows: gl.constexpr = gl.NVMMASharedLayout(KC * _BYTES, 16, 2)
    full_rows: gl.constexpr = gl.NVMMASharedLayout(_C * _BYTES, 16, 2)
    xs = gl.allocate_shared_memory(x_desc.dtype, [S * _FETCHED, _ROW, KC], rows)
    if ADJOINT:
        ws = gl.allocate_shared_memory(x_desc.dtype, [S * 3, KC, _C], full_rows)
    else:
        ws = gl.allocate_shared_memory(x_desc.dtype, [S * 3, _C, KC], rows)
    ys = gl.allocate_shared_memory(x_desc.dtype, [2, _ROW, _C], full_rows)
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
            (
                _multiply,
                (upper_half, y_desc, bias_ptr, xs, ws, ys, full, empty, sizes, channels, S, BW, BD, ADJOINT, HAS_BIAS),
            ),
            (
                _multiply,
                (lower_half, y_desc, bias_ptr, xs, ws, ys, full, empty, sizes, channels, S, BW, BD, ADJOINT, HAS_BIAS),
            ),
            (_fetch, (x_desc, weight_desc, xs, ws, full, empty, sizes, inner, KC, S, BW, BD, ADJOINT)),
        ],
        [4, 1],
        [224, 40],
    )


def tile(space: torch.Size, voxels: int) -> tuple[float, int, int]:
    """Cuts a volume (…, D, H, W) into rows of `voxels`.

    Returns:
        the part of the rows' voxels that lies inside the volume; a row's voxels across and its planes.
    """
    d, _, w = space[-3:]
    choices = []
    for across in (128, 64, 32, 16):
        if across <= voxels:
            deep = voxels // across
            covers = triton.cdiv(w, across) * across * triton.cdiv(d, deep) * deep
            choices.append((d * w / covers, across, deep))
    return max(choices)


def volume(x: Tensor, across: int, deep: int, channels: int) -> TensorDescriptor:
    """Describes x (N, C, D, H, W) to TMA, which fetches one row of a tile, `channels` channels deep."""
    n, c, d, h, w = x.shape
    strides = [d * h * w * c, h * w * c, w * c, c, 1]
    layout = gl.NVMMASharedLayout(channels * BYTES, 16, 5)
    return TensorDescriptor(x, [n, d, h, w, c], strides, [1, deep, 1, across, channels], layout)


@functools.cache
def processors(device: torch.device) -> int:
    """Returns the number of the device's multiprocessors; each runs one program."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, adjoint: bool = False) -> Tensor:
    """Computes the convolution of x (N, C_in, …), or its adjoint, dx of a dy (N, C_out, …) given as x."""
    n, k, d, h, w = x.shape
    out, inner = weight.shape[:2]
    channels = inner if adjoint else out
    y = torch.empty((n, channels, d, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    _, across, deep = tile(x.shape, ROW)
    table = weight.permute(0, 2, 3, 4, 1).reshape(out, 27 * inner)
    block = [DEEP, CHANNELS] if adjoint else [CHANNELS, DEEP]
    weights = TensorDescriptor(
        table, [out, 27 * inner], [27 * inner, 1], block, gl.NVMMASharedLayout(block[1] * BYTES, 16, 2)
    )
    blocks, tiles_w, tiles_h, tiles_d = (
        triton.cdiv(a, b) for a, b in ((channels, CHANNELS), (w, across), (h, ROWS), (d, deep))
    )
    tiles = n * tiles_d * tiles_h * tiles_w
    _conv[(min(processors(x.device), tiles * blocks),)](
        volume(x, across, deep, DEEP), weights, y if bias is None else bias, volume(y, across, deep, CHANNELS),
        channels, tiles, blocks, tiles_w, tiles_h, tiles_d, triton.cdiv(k, DEEP), inner,
        KC=DEEP, S=SLOTS, BW=across, BD=deep, ADJOINT=adjoint, HAS_BIAS=bias is not None, num_warps=4,
    )  # fmt: skip
    return y
