"""Triton kernels of `running.Running`, beside those of `norm_triton`, whose tables they read and write."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # channels that a program holds at once


@triton.jit
def _norm_running_add(
    tables_ptr,  # (TABLES, C)
    shift_ptr,  # (C,)
    mean_ptr,  # (C,), read and written
    variance_ptr,  # (C,), read and written
    count_ptr,  # (), read and written
    c, eps, momentum, unbiased,
    RSTD: tl.constexpr, MEAN: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_COUNT: tl.constexpr,
    AVERAGES: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program for all channels, one warp: what it counts is read before it is written."""
    weight = momentum
    if HAS_COUNT:
        count = tl.load(count_ptr) + 1
        if AVERAGES:
            weight = 1.0 / count.to(tl.float32)
        tl.debug_barrier()
        tl.store(count_ptr, count)
    for first in range(0, c, BLOCK_C):
        col = first + tl.arange(0, BLOCK_C)
        inside = col < c
        new_mean = tl.load(tables_ptr + MEAN * c + col, mask=inside, other=0.0)
        if HAS_SHIFT:
            new_mean += tl.load(shift_ptr + col, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(tables_ptr + RSTD * c + col, mask=inside, other=1.0)
        new_variance = tl.maximum(1.0 / (rstd * rstd) - eps, 0.0) * unbiased
        mean = tl.load(mean_ptr + col, mask=inside, other=0.0).to(tl.float32)
        variance = tl.load(variance_ptr + col, mask=inside, other=0.0).to(tl.float32)
        mean += weight * (new_mean - mean)
        variance += weight * (new_variance - variance)
        tl.store(mean_ptr + col, mean.to(mean_ptr.dtype.element_ty), mask=inside)
        tl.store(variance_ptr + col, variance.to(variance_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_running_tables(
    mean_ptr,  # (C,)
    variance_ptr,  # (C,)
    weight_ptr,  # (C,)
    bias_ptr,  # (C,)
    shift_ptr,  # (C,)
    tables_ptr,  # (TABLES, C)
    c, eps,
    FACTOR: tl.constexpr, BIAS: tl.constexpr, CENTRE: tl.constexpr, RSTD: tl.constexpr, MEAN: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SHIFT: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = col < c
    centre = tl.load(mean_ptr + col, mask=inside, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        centre -= tl.load(shift_ptr + col, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.load(variance_ptr + col, mask=inside, other=1.0).to(tl.float32) + eps)
    factor = rstd
    if HAS_WEIGHT:
        factor *= tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    bias = tl.zeros((BLOCK_C,), tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(tables_ptr + FACTOR * c + col, factor, mask=inside)
    tl.store(tables_ptr + BIAS * c + col, bias, mask=inside)
    tl.store(tables_ptr + CENTRE * c + col, centre, mask=inside)
    tl.store(tables_ptr + RSTD * c + col, rstd, mask=inside)
    tl.store(tables_ptr + MEAN * c + col, centre, mask=inside)


def add(
    mean: Tensor,
    variance: Tensor,
    count: Tensor | None,
    tables: Tensor,
    rows: tuple[int, int],
    shift: Tensor | None,
    momentum: float | None,
    eps: float,
    values: int,
) -> None:
    """Adds a batch to running statistics, as `Running.add` does, in one launch.

    Args:
        mean, variance, count: of `Running`, changed in place.
        tables: (TABLES, 1, C), float32: those that the norm's forward has made of the batch. A variance far below
            `eps` is lost in them.
        rows: which of the tables are the reciprocal deviation and the mean.
        shift: (C,), what the norm adds to its input.
        momentum: of `Running`.
        eps: the norm's.
        values: how many values of each channel the batch has.
    """
    _norm_running_add[(1,)](
        tables, shift, mean, variance, count, tables.shape[-1], eps, momentum or 0.0, values / max(1, values - 1),
        RSTD=rows[0], MEAN=rows[1], HAS_SHIFT=shift is not None, HAS_COUNT=count is not None,
        AVERAGES=momentum is None and count is not None, BLOCK_C=BLOCK, num_warps=1,
    )  # fmt: skip


def fill(
    running_mean: Tensor,
    running_variance: Tensor,
    tables: Tensor,
    rows: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Tensor | None,
    eps: float,
) -> None:
    """Fills the norm's tables (TABLES, 1, C) from running statistics, where forward would from the batch's.

    Args:
        running_mean, running_variance: (C,).
        tables: written.
        rows: which of the tables are factor, bias, centre, reciprocal deviation and mean.
        weight, bias, shift: (C,), the norm's.
        eps: added to the variance.
    """
    c = tables.shape[-1]
    factor, constant, centre, rstd, mean = rows
    _norm_running_tables[(triton.cdiv(c, BLOCK),)](
        running_mean, running_variance, weight, bias, shift, tables, c, eps,
        FACTOR=factor, BIAS=constant, CENTRE=centre, RSTD=rstd, MEAN=mean,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, HAS_SHIFT=shift is not None,
        BLOCK_C=BLOCK, num_warps=1,
    )  # fmt: skip
