"""Layer norm over the last axis of (rows, C) in float32: by a thread, a block or a warp a row, with shuffles."""

from __future__ import annotations

import functools
import math

from numba import float32

from study.convnext.kernels.instructions import cuda, shuffle_xor

THREADS = 256
WARPS = THREADS // 32


@cuda.jit
def layer_norm_direct(x, gain, bias, out, epsilon):
    """Computes the norm with one thread a row, each reading its row three times.

    Args:
        x, out: (rows, C).
        gain, bias: (C,).
        epsilon: added to the variance.
    """
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    channels = x.shape[1]
    mean = float32(0)
    for channel in range(channels):
        mean += x[row, channel]
    mean /= float32(channels)
    variance = float32(0)
    for channel in range(channels):
        variance += (x[row, channel] - mean) ** 2
    scale = float32(1) / math.sqrt(variance / float32(channels) + float32(epsilon))
    for channel in range(channels):
        out[row, channel] = (x[row, channel] - mean) * scale * gain[channel] + bias[channel]


@cuda.jit(device=True)
def warp_sum(value):
    """Returns the sum over the 32 lanes of a warp, in every lane, by five shuffles."""
    for power in range(5):
        value += shuffle_xor(value, 16 >> power)
    return value


@functools.cache
def layer_norm_shuffled(warps):
    """Returns the kernel in which `warps` warps of a block share a row: lanes by shuffles, warps through shared memory.

    Args:
        warps: 1, and a block has 8 rows, with no shared memory; or 8, and it has one, as in the report.

    Returns:
        a kernel of the arguments of `layer_norm_direct`, `THREADS` threads a block.
    """
    rows = WARPS // warps

    @cuda.jit
    def layer_norm_shuffled_kernel(x, gain, bias, out, epsilon):
        parts = cuda.shared.array((2, WARPS), float32)
        thread = cuda.threadIdx.x & (THREADS - 1)
        lane, warp = thread % 32, thread // 32
        row = cuda.blockIdx.x * rows + warp // warps
        channels = x.shape[1]
        first = warp % warps * 32 + lane
        here = row < x.shape[0]  # the last block's spare warps stay, for the barriers
        total = float32(0)
        if here:
            for channel in range(first, channels, warps * 32):
                total += x[row, channel]
        total = warp_sum(total)
        if warps > 1:
            if lane == 0:
                parts[0, warp] = total
            cuda.syncthreads()
            total = float32(0)
            for other in range(warps):
                total += parts[0, other]
        mean = total / float32(channels)
        total = float32(0)
        if here:
            for channel in range(first, channels, warps * 32):
                total += (x[row, channel] - mean) ** 2
        total = warp_sum(total)
        if warps > 1:
            if lane == 0:
                parts[1, warp] = total
            cuda.syncthreads()
            total = float32(0)
            for other in range(warps):
                total += parts[1, other]
        scale = float32(1) / math.sqrt(total / float32(channels) + float32(epsilon))
        if here:
            for channel in range(first, channels, warps * 32):
                out[row, channel] = (x[row, channel] - mean) * scale * gain[channel] + bias[channel]

    return layer_norm_shuffled_kernel
