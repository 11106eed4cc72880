"""The tiled convolution with asynchronous copies: the next input channels arrive while these are multiplied."""

from __future__ import annotations

import functools

from numba import float32, int32

from study.convnext.kernels.conv import LANES, WARPS, tile, tiled_parts
from study.convnext.kernels.instructions import (
    ALIGNMENT,
    copy_async,
    cuda,
    end_copies,
    wait_copies,
)

CHUNK = 8  # input channels of a stage
STAGES = 3  # in shared memory at once: one is multiplied, two are on their way
FOURS = CHUNK // 4
MULTIPLE = 4  # of both numbers of channels: a copy moves four


@functools.cache
def conv2d_async(side, stride, pixels):
    """Returns the kernel for K = `side` and a stride: `conv.conv2d_tiled` with cp.async and `STAGES` stages.

    With one image a card has one thread block for each SM, too few to hide the latency of a load that a thread waits
    for. Here no thread waits for its own loads, and a stage has one barrier.

    Args:
        side: K.
        stride: of both axes.
        pixels: outputs of a thread; 1, 2 or 4.

    Returns:
        a kernel of (x, weight, bias, out, padding): x a flat array of (N, H, W, I), weight one of (K, K, I, O), bias
        (O,), out (N, H', W', O), and (H, W, I) as three numbers; I and O are multiples of `MULTIPLE`. Its grid is
        `conv.tiles(out, pixels)`, its block `WARPS * LANES` threads.
    """
    high, wide = tile(pixels)
    tall, broad = (high - 1) * stride + side, (wide - 1) * stride + side
    threads = WARPS * LANES
    window = tall * broad * CHUNK
    taps = side * side * CHUNK * LANES
    # An array's size must be one name or number to the compiler.
    inside_size, weights_size = STAGES * window, STAGES * taps
    where, multiply, write = tiled_parts(side, stride, pixels, CHUNK)

    @cuda.jit(device=True)
    def begin(x, weight, inside, weights, stage, start, corner, shape, thread):
        """Brings the channels from `start` on of the tile, its halo and the weights, where there are such channels."""
        image, y0, z0, first = corner
        rows, columns, channels, outputs = shape
        if start < channels:
            for place in range(thread, window // 4, threads):
                pixel, channel = place // FOURS, start + place % FOURS * 4
                y, z = y0 + pixel // broad, z0 + pixel % broad
                here = 0 <= y < rows and 0 <= z < columns and channel < channels
                source = ((image * rows + y) * columns + z) * channels + channel if here else 0
                copy_async(inside, stage * window + place * 4, x, source, int32(16 if here else 0))
            for place in range(thread, taps // 4, threads):
                four, row = place % (LANES // 4) * 4, place // (LANES // 4)
                channel, output = start + row % CHUNK, first + four
                here = channel < channels and output < outputs
                source = (row // CHUNK * channels + channel) * outputs + output if here else 0
                copy_async(weights, stage * taps + place * 4, weight, source, int32(16 if here else 0))
        end_copies()  # without channels an empty group, so that the wait is for the same number each time

    @cuda.jit
    def conv2d_async_kernel(x, weight, bias, out, padding, rows, columns, channels):
        inside = cuda.shared.array(inside_size, float32, alignment=ALIGNMENT)
        weights = cuda.shared.array(weights_size, float32, alignment=ALIGNMENT)
        totals = cuda.local.array(pixels, float32)
        thread, lane, top, left, first, image, row, column = where(out)
        output = first + lane
        corner = image, top * stride - padding, left * stride - padding, first
        shape = rows, columns, channels, out.shape[3]
        for p in range(pixels):
            totals[p] = bias[output] if output < out.shape[3] else float32(0)
        for stage in range(STAGES - 1):
            begin(x, weight, inside, weights, stage, stage * CHUNK, corner, shape, thread)
        for chunk in range((channels + CHUNK - 1) // CHUNK):
            wait_copies(1)
            cuda.syncthreads()  # all copies of this stage are seen, and nobody reads the one that is filled next
            ahead = chunk + STAGES - 1
            begin(x, weight, inside, weights, ahead % STAGES, ahead * CHUNK, corner, shape, thread)
            near = chunk % STAGES * window + (row * broad + column) * stride * CHUNK
            multiply(inside, weights, totals, near, chunk % STAGES * taps + lane)
        write(out, totals, image, top + row, left + column, output)

    return conv2d_async_kernel
