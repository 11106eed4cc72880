"""Which tensors the kernels serve; everything else is computed by the definitions in plain PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OLDEST = (8, 0)  # compute capability; BF16 arithmetic begins there


@functools.cache
def serves(device: torch.device) -> bool:
    """Whether the kernels run on `device`: Triton, and a card that has BF16 arithmetic (or Triton's interpreter)."""
    if not TRITON:
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= OLDEST
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels serve these tensors: 5-D, of one dtype and device, channels-last in memory, not empty."""
    first = tensors[0]
    return serves(first.device) and all(
        x.dim() == 5
        and x.numel() > 0
        and x.dtype == first.dtype
        and x.dtype in DTYPES
        and x.device == first.device
        and x.is_contiguous(memory_format=torch.channels_last_3d)
        for x in tensors
    )


def same_places(*volumes: Tensor) -> bool:
    """Whether these are as many samples of the same sides."""
    return len({(a.shape[0], *a.shape[2:]) for a in volumes}) == 1


def over_voxels(a: Tensor, dtype: torch.dtype) -> Tensor:
    """(C,) or (N, C) as what broadcasts over (N, C, D, H, W)."""
    return a.to(dtype).reshape(-1, a.shape[-1], 1, 1, 1)


def is_volume(x: Tensor) -> bool:
    """Whether the kernels serve `x` in any memory order: they copy it first."""
    return serves(x.device) and x.dim() == 5 and x.numel() > 0 and x.dtype in DTYPES
