"""The ConvNeXt block in one Triton kernel, as `block_tensor`, with the compiler choosing layouts and copies."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PIXELS = 16  # the fewest rows that a product takes
SLICE = 64  # hidden channels that are computed at once
SIDE = tl.constexpr(7)


@triton.jit
def _convnext_block(
    x_ptr,  # (N, H, W, C)
    depthwise_ptr,  # (49, C)
    shift_ptr,  # (N, C)
    gain_ptr, bias_ptr,  # (C,)
    expand_ptr,  # (4C, C), the dtype that products take
    expand_bias_ptr,  # (4C,)
    project_ptr,  # (C, 4C), the same
    project_bias_ptr,  # (C,)
    out_ptr,  # (N, H, W, C)
    high, wide, epsilon,
    C: tl.constexpr, PIXELS: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // wide, pixel % wide
    inside = pixel < high * wide
    channel = tl.arange(0, C)
    total = tl.zeros((PIXELS, C), tl.float32) + tl.load(shift_ptr + image * C + channel)[None, :]
    for i in range(SIDE):
        y = row + i - SIDE // 2
        for j in range(SIDE):
            z = column + j - SIDE // 2
            here = inside & (y >= 0) & (y < high) & (z >= 0) & (z < wide)
            place = ((image * high + y) * wide + z)[:, None] * C + channel[None, :]
            value = tl.load(x_ptr + place, mask=here[:, None], other=0.0)
            total += value * tl.load(depthwise_ptr + (i * SIDE + j) * C + channel)[None, :]
    centred = total - (tl.sum(total, axis=1) / C)[:, None]
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / C + epsilon)
    normed = centred * scale[:, None] * tl.load(gain_ptr + channel)[None, :] + tl.load(bias_ptr + channel)[None, :]
    normed = normed.to(expand_ptr.dtype.element_ty)
    result = tl.zeros((PIXELS, C), tl.float32) + tl.load(project_bias_ptr + channel)[None, :]
    for start in range(0, 4 * C, SLICE):
        hidden = start + tl.arange(0, SLICE)
        expand = tl.load(expand_ptr + hidden[None, :] * C + channel[:, None])
        raised = tl.dot(normed, expand) + tl.load(expand_bias_ptr + hidden)[None, :]
        raised = 0.5 * raised * (1 + tl.erf(raised * 0.7071067811865476))
        project = tl.load(project_ptr + channel[None, :] * (4 * C) + hidden[:, None])
        result = tl.dot(raised.to(project_ptr.dtype.element_ty), project, result)
    place = ((image * high + row) * wide + column)[:, None] * C + channel[None, :]
    mask = inside[:, None] & (channel[None, :] < C)
    tl.store(out_ptr + place, result + tl.load(x_ptr + place, mask=mask, other=0.0), mask=mask)


def convnext_block(x: Tensor, shift: Tensor, vectors: tuple[Tensor, ...], out: Tensor, epsilon: float) -> None:
    """Launches the kernel.

    Args:
        x, out: (N, H, W, C) float32, dense; C a power of 2 from 16 on.
        shift: (N, C).
        vectors: depthwise (49, C), gain, bias (C,), expand (4C, C), its bias, project (C, 4C), its bias;
            the two products are taken in the dtype of expand and project.
        epsilon: the norm's.
    """
    depthwise, gain, bias, expand, expand_bias, project, project_bias = vectors
    images, high, wide, channels = x.shape
    grid = (triton.cdiv(high * wide, PIXELS), images)
    _convnext_block[grid](
        x, depthwise, shift, gain, bias, expand, expand_bias, project, project_bias, out, high, wide, epsilon,
        C=channels, PIXELS=PIXELS, SLICE=min(SLICE, 4 * channels), num_warps=4,
    )  # fmt: skip
