"""Convolutions of images (N, H, W, C) in float32: a direct one, and one with shared-memory tiles and their halo."""

from __future__ import annotations

import functools

from numba import float32

from study.convnext.kernels.instructions import ALIGNMENT, cuda, load_four

LANES = 32  # output channels of a tiled kernel's block, a lane each
WARPS = 8
CHUNK = 16  # input channels that lie in shared memory at once


@cuda.jit
def conv2d_direct(x, weight, bias, out, stride, padding):
    """Computes one output a thread, every operand from global memory.

    Args:
        x: (N, H, W, I).
        weight: (K, K, I, O).
        bias: (O,).
        out: (N, H', W', O).
        stride, padding: of both axes.
    """
    images, rows, columns, outputs = out.shape
    place = cuda.grid(1)
    if place >= images * rows * columns * outputs:
        return
    output = place % outputs
    column = place // outputs % columns
    row = place // (outputs * columns) % rows
    image = place // (outputs * columns * rows)
    total = bias[output]
    for i in range(weight.shape[0]):
        y = row * stride + i - padding
        if 0 <= y < x.shape[1]:
            for j in range(weight.shape[1]):
                z = column * stride + j - padding
                if 0 <= z < x.shape[2]:
                    for channel in range(x.shape[3]):
                        total += x[image, y, z, channel] * weight[i, j, channel, output]
    out[image, row, column, output] = total


@cuda.jit
def depthwise_direct(x, weight, shift, out, padding):
    """Computes a depthwise convolution of stride 1: one output a thread, all from global memory.

    Args:
        x: (N, H, W, C).
        weight: (K, K, C).
        shift: (N, C), added to each image.
        out: (N, H', W', C).
        padding: of both axes.
    """
    images, rows, columns, channels = out.shape
    place = cuda.grid(1)
    if place >= images * rows * columns * channels:
        return
    channel = place % channels
    column = place // channels % columns
    row = place // (channels * columns) % rows
    image = place // (channels * columns * rows)
    total = shift[image, channel]
    for i in range(weight.shape[0]):
        y = row + i - padding
        if 0 <= y < x.shape[1]:
            for j in range(weight.shape[1]):
                z = column + j - padding
                if 0 <= z < x.shape[2]:
                    total += x[image, y, z, channel] * weight[i, j, channel]
    out[image, row, column, channel] = total


@functools.cache
def tiled_parts(side, stride, pixels, chunk):
    """Returns the device functions of the kernels with tiles, for K = `side`, a stride, `pixels` outputs a thread.

    Args:
        side, stride, pixels: as `conv2d_tiled` takes them.
        chunk: input channels that lie in shared memory at once, a multiple of four.

    Returns:
        where(out): this thread's (thread, lane, top, left, first, image, row, column): of the tile its first output row
            and column and channel, of the thread its own row and column in it.
        multiply(inside, weights, totals, near, tap): adds the products of a chunk to `totals`; the thread's first input
            is at `inside[near]`, its first weight at `weights[tap]`.
        write(out, totals, image, y, z, output): its outputs, as far as there are any.
    """
    high, wide = tile(pixels)
    across = wide // pixels  # warps side by side
    broad = (wide - 1) * stride + side

    @cuda.jit(device=True)
    def where(out):
        thread = cuda.threadIdx.x & (WARPS * LANES - 1)
        lane, warp = thread % LANES, thread // LANES
        tiles_across = (out.shape[2] + wide - 1) // wide
        top = cuda.blockIdx.x // tiles_across * high
        left = cuda.blockIdx.x % tiles_across * wide
        row, column = warp // across, warp % across * pixels
        return thread, lane, top, left, cuda.blockIdx.y * LANES, cuda.blockIdx.z, row, column

    @cuda.jit(device=True)
    def multiply(inside, weights, totals, near, tap):
        for i in range(side):
            for j in range(side):
                for channel in range(0, chunk, 4):
                    at = tap + ((i * side + j) * chunk + channel) * LANES
                    w0, w1 = weights[at], weights[at + LANES]
                    w2, w3 = weights[at + 2 * LANES], weights[at + 3 * LANES]
                    for p in range(pixels):
                        v0, v1, v2, v3 = load_four(inside, near + (i * broad + j + p * stride) * chunk + channel)
                        totals[p] += v0 * w0 + v1 * w1 + v2 * w2 + v3 * w3

    @cuda.jit(device=True)
    def write(out, totals, image, y, z, output):
        for p in range(pixels):
            if output < out.shape[3] and y < out.shape[1] and z + p < out.shape[2]:
                out[image, y, z + p, output] = totals[p]

    return where, multiply, write


@functools.cache
def conv2d_tiled(side, stride, pixels):
    """Returns the kernel for K = `side` and a stride: the input's tile and halo in shared memory, padding folded in.

    A block computes `WARPS` × `pixels` outputs of `LANES` channels each. A warp has `pixels` neighbours of one row, a
    lane one channel: with `pixels` 1 a thread has one output, as in the report; with more, each weight that it reads
    serves several.

    Args:
        side: K.
        stride: of both axes.
        pixels: outputs of a thread; 1, 2 or 4.

    Returns:
        a kernel of (x, weight, bias, out, padding), the arrays as `conv2d_direct` takes them; its grid is
        `tiles(out, pixels)`, its block `WARPS * LANES` threads.
    """
    high, wide = tile(pixels)
    tall, broad = (high - 1) * stride + side, (wide - 1) * stride + side
    threads = WARPS * LANES
    window = tall * broad * CHUNK
    taps = side * side * CHUNK * LANES
    where, multiply, write = tiled_parts(side, stride, pixels, CHUNK)

    @cuda.jit
    def conv2d_tiled_kernel(x, weight, bias, out, padding):
        inside = cuda.shared.array(window, float32, alignment=ALIGNMENT)
        weights = cuda.shared.array(taps, float32, alignment=ALIGNMENT)
        totals = cuda.local.array(pixels, float32)
        thread, lane, top, left, first, image, row, column = where(out)
        output = first + lane
        for p in range(pixels):
            totals[p] = bias[output] if output < out.shape[3] else float32(0)
        for start in range(0, x.shape[3], CHUNK):
            for place in range(thread, window, threads):
                channel = start + place % CHUNK
                y = top * stride + place // (CHUNK * broad) - padding
                z = left * stride + place // CHUNK % broad - padding
                here = 0 <= y < x.shape[1] and 0 <= z < x.shape[2] and channel < x.shape[3]
                inside[place] = x[image, y, z, channel] if here else float32(0)
            for place in range(thread, taps, threads):
                channel, other = start + place // LANES % CHUNK, first + place % LANES
                tap = place // (LANES * CHUNK)
                here = channel < x.shape[3] and other < out.shape[3]
                weights[place] = weight[tap // side, tap % side, channel, other] if here else float32(0)
            cuda.syncthreads()
            multiply(inside, weights, totals, (row * broad + column) * stride * CHUNK, lane)
            cuda.syncthreads()  # nobody loads the next channels before all have used these
        write(out, totals, image, top + row, left + column, output)

    return conv2d_tiled_kernel


def tile(pixels):
    """Returns rows and columns of the outputs of a block of `conv2d_tiled`."""
    return {1: (2, 4), 2: (4, 4), 4: (4, 8)}[pixels]


def tiles(shape, pixels):
    """Returns the grid of `conv2d_tiled` for an output of `shape` (N, H', W', O)."""
    high, wide = tile(pixels)
    images, rows, columns, outputs = shape
    return -(-rows // high) * -(-columns // wide), -(-outputs // LANES), images
