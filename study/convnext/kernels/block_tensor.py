"""The ConvNeXt block in one launch with its products on Tensor Cores in BF16, and with asynchronous copies."""

from __future__ import annotations

import functools
import math

from numba import float32, int32

from study.convnext.kernels.instructions import (
    ALIGNMENT,
    copy_async,
    cuda,
    end_copies,
    multiply_bf16,
    pack_bf16,
    wait_copies,
)
from study.convnext.kernels.norm import warp_sum
from study.convnext.kernels.pointwise import gelu_of

TILE = 4  # rows and columns of a block's pixels: 16 of them are the rows of a product
PIXELS = TILE * TILE
SIDE = 7  # of the depthwise convolution
REACH = TILE + SIDE - 1
THREADS = 256
WARPS = THREADS // 32
CHUNK = 16  # channels whose tile and halo lie in shared memory at once
CHANNELS = (16, 32, 64, 128)  # that the kernel serves
SPARE = 4  # words between rows of a matrix in shared memory, so that a warp's reads fall into 32 banks


@functools.cache
def block_tensor(channels, asynchronous):
    """Returns the kernel for C = `channels`, one of `CHANNELS`.

    Args:
        channels: C.
        asynchronous: whether the next channels' tile is copied (cp.async) while this one's is convolved.

    Returns:
        a kernel of (x, depthwise, shift, gain, bias, expand, expand_bias, project, project_bias, out, epsilon): x a
        flat array of (N, H, W, C), out (N, H, W, C), depthwise (49, C), shift (N, C), gain and bias (C,); expand (4C,
        C/2) and project (C, 2C) int32, each a pair of neighbours in BF16. Its grid is `tiles(out)`, its block `THREADS`
        threads.
    """
    hidden = 4 * channels
    window = REACH * REACH * CHUNK
    buffers = 2 if asynchronous else 1
    chunks = channels // CHUNK
    pairs, hidden_pairs = channels // 2, hidden // 2
    stride, hidden_stride = pairs + SPARE, hidden_pairs + SPARE
    # An array's size must be one name or number to the compiler.
    inside_size, convolved_size = buffers * window, PIXELS * channels
    normed_size, raised_size = PIXELS * stride, PIXELS * hidden_stride

    @cuda.jit(device=True)
    def begin(x, inside, to, start, image, top, left, rows, columns, thread):
        """Brings the tile of 16 channels from `start` on, with its halo, into shared memory."""
        for place in range(thread, window // 4, THREADS):
            pixel, four = place // (CHUNK // 4), place % (CHUNK // 4) * 4
            y, z = top + pixel // REACH - SIDE // 2, left + pixel % REACH - SIDE // 2
            here = 0 <= y < rows and 0 <= z < columns
            source = ((image * rows + y) * columns + z) * channels + start + four if here else 0
            if asynchronous:
                copy_async(inside, to + place * 4, x, source, int32(16 if here else 0))
            else:
                for k in range(4):
                    inside[to + place * 4 + k] = x[source + k] if here else float32(0)
        if asynchronous:
            end_copies()

    @cuda.jit
    def block_tensor_kernel(x, depthwise, shift, gain, bias, expand, expand_bias, project, project_bias, out, epsilon):
        inside = cuda.shared.array(inside_size, float32, alignment=ALIGNMENT)
        convolved = cuda.shared.array(convolved_size, float32, alignment=ALIGNMENT)
        normed = cuda.shared.array(normed_size, int32)  # pairs of BF16, a row a pixel
        raised = cuda.shared.array(raised_size, int32)
        thread = cuda.threadIdx.x & (THREADS - 1)
        lane, warp = thread % 32, thread // 32
        rows, columns = out.shape[1], out.shape[2]
        image = cuda.blockIdx.y
        tiles_across = (columns + TILE - 1) // TILE
        top, left = cuda.blockIdx.x // tiles_across * TILE, cuda.blockIdx.x % tiles_across * TILE

        # Depthwise 7×7: a thread has one pixel and one channel of each 16.
        pixel, own = thread // CHUNK, thread % CHUNK
        near = (pixel // TILE * REACH + pixel % TILE) * CHUNK + own
        begin(x, inside, 0, 0, image, top, left, rows, columns, thread)
        for chunk in range(chunks):
            if asynchronous:
                if chunk + 1 < chunks:
                    to = (chunk + 1) % 2 * window
                    begin(x, inside, to, (chunk + 1) * CHUNK, image, top, left, rows, columns, thread)
                else:
                    end_copies()  # an empty group, so that the wait below is for this chunk each time
                wait_copies(1)
            cuda.syncthreads()
            channel = chunk * CHUNK + own
            base = chunk % buffers * window + near
            total = shift[image, channel]
            for i in range(SIDE):
                for j in range(SIDE):
                    total += inside[base + (i * REACH + j) * CHUNK] * depthwise[i * SIDE + j, channel]
            convolved[pixel * channels + channel] = total
            cuda.syncthreads()
            if not asynchronous and chunk + 1 < chunks:
                begin(x, inside, 0, (chunk + 1) * CHUNK, image, top, left, rows, columns, thread)

        # Layer norm: a warp has a pixel at a time, a lane pairs of neighbouring channels.
        for p in range(warp, PIXELS, WARPS):
            total = float32(0)
            for pair in range(lane, pairs, 32):
                total += convolved[p * channels + 2 * pair] + convolved[p * channels + 2 * pair + 1]
            mean = warp_sum(total) / float32(channels)
            total = float32(0)
            for pair in range(lane, pairs, 32):
                total += (convolved[p * channels + 2 * pair] - mean) ** 2
                total += (convolved[p * channels + 2 * pair + 1] - mean) ** 2
            scale = float32(1) / math.sqrt(warp_sum(total) / float32(channels) + float32(epsilon))
            for pair in range(lane, pairs, 32):
                first = (convolved[p * channels + 2 * pair] - mean) * scale * gain[2 * pair] + bias[2 * pair]
                second = (convolved[p * channels + 2 * pair + 1] - mean) * scale
                second = second * gain[2 * pair + 1] + bias[2 * pair + 1]
                normed[p * stride + pair] = pack_bf16(first, second)
        cuda.syncthreads()

        # 1×1 and GELU: products of 16 pixels × 16 channels and 8 hidden ones; `multiply_bf16` says who holds what.
        g, t = lane // 4, lane % 4
        for tile in range(warp, hidden // 8, WARPS):
            output = tile * 8 + 2 * t
            c0, c1 = expand_bias[output], expand_bias[output + 1]
            c2, c3 = c0, c1
            for k in range(0, pairs, 8):
                a = g * stride + k + t
                c0, c1, c2, c3 = multiply_bf16(
                    normed[a], normed[a + 8 * stride], normed[a + 4], normed[a + 8 * stride + 4],
                    expand[tile * 8 + g, k + t], expand[tile * 8 + g, k + t + 4], c0, c1, c2, c3,
                )  # fmt: skip
            raised[g * hidden_stride + tile * 4 + t] = pack_bf16(gelu_of(c0), gelu_of(c1))
            raised[(g + 8) * hidden_stride + tile * 4 + t] = pack_bf16(gelu_of(c2), gelu_of(c3))
        cuda.syncthreads()

        # 1×1 back, and the residual in float32.
        for tile in range(warp, channels // 8, WARPS):
            output = tile * 8 + 2 * t
            c0, c1 = project_bias[output], project_bias[output + 1]
            c2, c3 = c0, c1
            for k in range(0, hidden_pairs, 8):
                a = g * hidden_stride + k + t
                c0, c1, c2, c3 = multiply_bf16(
                    raised[a], raised[a + 8 * hidden_stride], raised[a + 4], raised[a + 8 * hidden_stride + 4],
                    project[tile * 8 + g, k + t], project[tile * 8 + g, k + t + 4], c0, c1, c2, c3,
                )  # fmt: skip
            for half in range(2):
                p = g + 8 * half
                y, z = top + p // TILE, left + p % TILE
                if y < rows and z < columns:
                    source = ((image * rows + y) * columns + z) * channels + output
                    out[image, y, z, output] = x[source] + (c0 if half == 0 else c2)
                    out[image, y, z, output + 1] = x[source + 1] + (c1 if half == 0 else c3)

    return block_tensor_kernel


def tiles(shape):
    """Returns the grid of `block_tensor` for images of `shape` (N, H, W, C)."""
    return -(-shape[1] // TILE) * -(-shape[2] // TILE), shape[0]
