"""Channels-last memory (N, D, H, W, C), which the kernels read as rows of channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """Returns a 5-D tensor with its memory as N, D, H, W, C: `x` itself if it has that layout or is not 5-D.

    With one channel the strides alone cannot tell the layouts apart, and PyTorch then assumes the contiguous one:
    the channel's stride is set to 1.
    """
    if x.dim() != 5 or x.numel() == 0:
        return x
    if x.shape[1] == 1 and x.stride(1) != 1:
        return x.squeeze(1).contiguous().unsqueeze(4).permute(0, 4, 1, 2, 3)
    return x.contiguous(memory_format=torch.channels_last_3d)


def empty(like: Tensor, channels: int, sides: Sequence[int] | None = None) -> Tensor:
    """Allocates (N, channels, *sides), channels-last, of `like`'s dtype and device; the sides default to `like`'s."""
    shape = (like.shape[0], channels, *(sides or like.shape[2:]))
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last_3d)


def over_voxels(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Reshapes (C,) or (N, C) so that it broadcasts over (N, C, D, H, W)."""
    return a.to(dtype).reshape(-1, a.shape[-1], 1, 1, 1)
