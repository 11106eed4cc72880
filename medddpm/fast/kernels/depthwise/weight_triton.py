"""Triton kernel of a depthwise convolution's weight gradient; it holds values as those of `volume_triton` do."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.norm_triton import PROGRAMS, channel_block

Triple = tuple[int, int, int]


class Tile(NamedTuple):
    """The registers that one program fills."""

    elements: int  # lines · channels of one tensor
    across: int  # such tensors, neighbours along W
    warps: int


WEIGHT = Tile(256, 8, 4)
TOGETHER, MANY = 49, 8192  # sums that a thread may hold for one channel; voxels from which on several kh are worth it


@no_type_check  # tuples that grow
@triton.jit
def _conv_weight_depthwise(
    x_ptr,  # (N, D, H, W, C), gathered
    dy_ptr,  # (N, OD, OH, OW, C)
    partial_ptr,  # (P, KD · KH · KW, C)
    lines, d, h, w, od, oh, ow, programs,
    C: tl.constexpr, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_X: tl.constexpr,
):  # fmt: skip
    """A program sums over every `programs`-th tile, for one kd, ROWS neighbouring kh and all kw."""
    blocks, tiles = tl.cdiv(C, BLOCK_C), tl.cdiv(ow, BLOCK_X)
    p = tl.program_id(0) // blocks
    kd, kh = tl.program_id(1) // (KH // ROWS), tl.program_id(1) % (KH // ROWS) * ROWS
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    cols = tl.broadcast_to(col[None, :], (BLOCK_L, BLOCK_C))
    wide = cols < C
    total = ()
    for _ in tl.static_range(ROWS * KW):
        total = total + (tl.zeros((BLOCK_L, BLOCK_C), tl.float32),)
    for tile in range(p, tl.cdiv(lines, BLOCK_L) * tiles, programs):
        ox = tile % tiles * BLOCK_X
        line = tile // tiles * BLOCK_L + tl.arange(0, BLOCK_L)[:, None]
        n = (line // (od * oh)).to(tl.int64)
        oz, oy = line // oh % od, line % oh
        here = wide & (line < lines)
        ptrs = dy_ptr + (line.to(tl.int64) * ow + ox) * C + cols
        dys = ()
        for j in tl.static_range(BLOCK_X):
            dys = dys + (tl.load(ptrs + j * C, mask=here & (ox + j < ow), other=0.0).to(tl.float32),)
        z, x = oz * SD - PD + kd, ox * SW - PW
        here = here & (z >= 0) & (z < d)
        added = ()
        for r in tl.static_range(ROWS):
            y = oy * SH - PH + kh + r
            inside = here & (y >= 0) & (y < h)
            ptrs = x_ptr + (((n * d + z) * h + y) * w + x) * C + cols
            values = ()
            for i in tl.static_range((BLOCK_X - 1) * SW + KW):
                value = tl.load(ptrs + i * C, mask=inside & (x + i >= 0) & (x + i < w), other=0.0)
                values = values + (value.to(tl.float32),)
            for kw in tl.static_range(KW):
                acc = total[r * KW + kw]
                for j in tl.static_range(BLOCK_X):
                    acc += dys[j] * values[j * SW + kw]
                added = added + (acc,)
        total = added
    ptrs = partial_ptr + ((p * KD + kd) * KH + kh) * KW * C + col
    for k in tl.static_range(ROWS * KW):
        tl.store(ptrs + k * C, tl.sum(total[k], axis=0), mask=col < C)


def weight_gradient(x: Tensor, dy: Tensor, shape: tuple[Triple, ...], tile: Tile | None = None) -> Tensor:
    """Sums dy · x over the voxels of dy, for each tap. Returns (KD · KH · KW, C), float32.

    Args:
        x: (N, C, …), dy: (N, C, …); both channels-last.
        shape: kernel, stride, padding.
        tile: of a program; None takes the fastest.
    """
    tile = tile or WEIGHT
    c, (od, oh, ow) = x.shape[1], dy.shape[2:]
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = shape
    lines = dy.shape[0] * od * oh
    rows, block = channel_block(c, tile.elements)
    across = min(tile.across, triton.next_power_of_2(ow))
    height = kh if kh * kw <= TOGETHER and lines * ow >= MANY else 1
    planes = kd * kh // height
    tiles = triton.cdiv(lines, rows) * triton.cdiv(ow, across)
    programs = max(1, min(tiles, PROGRAMS // (triton.cdiv(c, block) * planes)))
    partial = torch.empty((programs, kd * kh * kw, c), dtype=torch.float32, device=x.device)
    _conv_weight_depthwise[(programs * triton.cdiv(c, block), planes)](
        x, dy, partial, lines, *x.shape[2:], od, oh, ow, programs,
        C=c, KD=kd, KH=kh, KW=kw, SD=sd, SH=sh, SW=sw, PD=pd, PH=ph, PW=pw,
        ROWS=height, BLOCK_L=rows, BLOCK_C=block, BLOCK_X=across, num_warps=tile.warps,
    )  # fmt: skip
    return partial.sum(0)
