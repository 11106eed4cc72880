"""Triton kernels of a bias's gradient: sums over voxels, merged in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.kernels.norm_triton import SUM_WARPS, even, summing
from medddpm.fast.kernels.operators import operator, twice


def bias_gradient(dy: Tensor, dtype: torch.dtype | None) -> Tensor | None:
    """The gradient (C,) of a bias of this dtype that was added to every voxel of a channel; None if there was none."""
    if dtype is None:
        return None
    if twice():
        return dy.sum((0, 2, 3, 4), dtype=torch.float32).to(dtype)
    return column_sums(dy).to(dtype)


@triton.jit
def _column_sums(
    x_ptr,  # (V, C)
    partial_ptr,  # (programs, C)
    v, c, programs, EVEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(c, BLOCK_C)
    p = tl.program_id(0) // blocks
    col = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_V, BLOCK_C), tl.float32)
    for tile in range(p, tl.cdiv(v, BLOCK_V), programs):
        row = tl.cast(tile, tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        ptrs = x_ptr + row[:, None] * c + col[None, :]
        if EVEN:
            acc += tl.load(ptrs).to(tl.float32)
        else:
            acc += tl.load(ptrs, mask=(row < v)[:, None] & (col < c)[None, :], other=0.0).to(tl.float32)
    tl.store(partial_ptr + p * c + col, tl.sum(acc, axis=0), mask=col < c)


def _fake_sums(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], dtype=torch.float32)


@operator(_fake_sums)
def column_sums(x: Tensor) -> Tensor:
    """Sums each channel of (N, C, D, H, W), in any memory order, over samples and voxels: (C,) float32."""
    x = channels_last(x)
    c = x.shape[1]
    v = x.numel() // c
    rows, block, programs = summing(1, v, c)
    partial = torch.empty((programs, c), dtype=torch.float32, device=x.device)
    _column_sums[(programs * triton.cdiv(c, block),)](
        x, partial, v, c, programs, EVEN=even(v, c, rows, block), BLOCK_V=rows, BLOCK_C=block, num_warps=SUM_WARPS
    )
    return partial.sum(0)
