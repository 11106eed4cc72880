"""A whole ConvNeXt block in one launch, in float32: no intermediate leaves the multiprocessor."""

from __future__ import annotations

import functools
import math

from numba import float32

from study.convnext.kernels.instructions import ALIGNMENT, cuda, load_four
from study.convnext.kernels.norm import warp_sum
from study.convnext.kernels.pointwise import gelu_of

HIGH, WIDE = 2, 4  # pixels of a block's tile: as many as it has warps
PIXELS = HIGH * WIDE
SIDE = 7  # of the depthwise convolution
TALL, BROAD = HIGH + SIDE - 1, WIDE + SIDE - 1
THREADS = 256
CHUNK = 32  # channels whose tile and halo lie in shared memory at once
CHANNELS = (32, 64, 128)  # that the kernel serves


@functools.cache
def block_fused(channels):
    """Returns the kernel for C = `channels`, one of `CHANNELS`.

    Returns:
        a kernel of (x, depthwise, shift, gain, bias, expand, expand_bias, project, project_bias, out, epsilon), with x
        and out (N, H, W, C), depthwise (49, C), shift (N, C), gain and bias (C,), expand (C, 4C), project (4C, C). Its
        grid is `tiles(out)`, its block `THREADS` threads.
    """
    hidden = 4 * channels
    groups = THREADS // channels  # of threads that share the sum over hidden channels
    part = hidden // groups
    # An array's size must be one name or number to the compiler.
    window, normed_size, raised_size, parts_size = (
        TALL * BROAD * CHUNK,
        channels * PIXELS,
        hidden * PIXELS,
        THREADS * PIXELS,
    )

    @cuda.jit
    def block_fused_kernel(x, depthwise, shift, gain, bias, expand, expand_bias, project, project_bias, out, epsilon):
        inside = cuda.shared.array(window, float32)
        normed = cuda.shared.array(normed_size, float32, alignment=ALIGNMENT)  # (C, pixels)
        raised = cuda.shared.array(raised_size, float32, alignment=ALIGNMENT)  # (4C, pixels)
        parts = cuda.shared.array(parts_size, float32)  # (groups, pixels, C)
        totals = cuda.local.array(PIXELS, float32)
        thread = cuda.threadIdx.x & (THREADS - 1)
        lane, warp = thread % 32, thread // 32
        image = cuda.blockIdx.y
        tiles_across = (x.shape[2] + WIDE - 1) // WIDE
        top, left = cuda.blockIdx.x // tiles_across * HIGH, cuda.blockIdx.x % tiles_across * WIDE

        # Depthwise 7×7: warp p has pixel p, a lane one channel.
        row, column = warp // WIDE, warp % WIDE
        for start in range(0, channels, CHUNK):
            for place in range(thread, window, THREADS):
                y = top + place // (CHUNK * BROAD) - SIDE // 2
                z = left + place // CHUNK % BROAD - SIDE // 2
                here = 0 <= y < x.shape[1] and 0 <= z < x.shape[2]
                inside[place] = x[image, y, z, start + place % CHUNK] if here else float32(0)
            cuda.syncthreads()
            total = shift[image, start + lane]
            for i in range(SIDE):
                for j in range(SIDE):
                    tap = depthwise[i * SIDE + j, start + lane]
                    total += inside[((row + i) * BROAD + column + j) * CHUNK + lane] * tap
            normed[(start + lane) * PIXELS + warp] = total
            cuda.syncthreads()

        # Layer norm: warp p still has pixel p, and no other warp reads it before the barrier.
        total = float32(0)
        for channel in range(lane, channels, 32):
            total += normed[channel * PIXELS + warp]
        mean = warp_sum(total) / float32(channels)
        total = float32(0)
        for channel in range(lane, channels, 32):
            total += (normed[channel * PIXELS + warp] - mean) ** 2
        scale = float32(1) / math.sqrt(warp_sum(total) / float32(channels) + float32(epsilon))
        for channel in range(lane, channels, 32):
            value = (normed[channel * PIXELS + warp] - mean) * scale
            normed[channel * PIXELS + warp] = value * gain[channel] + bias[channel]
        cuda.syncthreads()

        # 1×1 and GELU: a thread has a hidden channel of all pixels, so each weight is read once a block.
        for output in range(thread, hidden, THREADS):
            for p in range(PIXELS):
                totals[p] = expand_bias[output]
            for channel in range(channels):
                factor = expand[channel, output]
                for p in range(0, PIXELS, 4):
                    v0, v1, v2, v3 = load_four(normed, channel * PIXELS + p)
                    totals[p] += v0 * factor
                    totals[p + 1] += v1 * factor
                    totals[p + 2] += v2 * factor
                    totals[p + 3] += v3 * factor
            for p in range(PIXELS):
                raised[output * PIXELS + p] = gelu_of(totals[p])
        cuda.syncthreads()

        # 1×1 back: a thread has an output channel of all pixels and its group's share of the hidden channels.
        group, output = thread // channels, thread % channels
        for p in range(PIXELS):
            totals[p] = float32(0)
        for channel in range(group * part, (group + 1) * part):
            factor = project[channel, output]
            for p in range(0, PIXELS, 4):
                v0, v1, v2, v3 = load_four(raised, channel * PIXELS + p)
                totals[p] += v0 * factor
                totals[p + 1] += v1 * factor
                totals[p + 2] += v2 * factor
                totals[p + 3] += v3 * factor
        for p in range(PIXELS):
            parts[(group * PIXELS + p) * channels + output] = totals[p]
        cuda.syncthreads()
        for place in range(thread, PIXELS * channels, THREADS):
            output, p = place % channels, place // channels
            y, z = top + p // WIDE, left + p % WIDE
            if y < x.shape[1] and z < x.shape[2]:
                total = project_bias[output] + x[image, y, z, output]
                for other in range(groups):
                    total += parts[other * PIXELS * channels + place]
                out[image, y, z, output] = total

    return block_fused_kernel


def tiles(shape):
    """Returns the grid of `block_fused` for images of `shape` (N, H, W, C)."""
    return -(-shape[1] // HIGH) * -(-shape[2] // WIDE), shape[0]
