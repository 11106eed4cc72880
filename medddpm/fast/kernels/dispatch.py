"""Decides which tensors the kernels serve; the definitions in plain PyTorch compute everything else."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from medddpm.fast.kernels.operators import constant

TRITON = importlib.util.find_spec("triton") is not None
REDUCED = (torch.bfloat16, torch.float16)
DTYPES = (*REDUCED, torch.float32)
OLDEST = (8, 0)  # compute capability; BF16 arithmetic begins there
HOPPER = (9, 0)  # the only one with the matrix instructions of conv3d.hopper


@constant
def serves(device: torch.device) -> bool:
    """Returns whether the kernels run on `device`: Triton on a card with BF16 arithmetic, or its interpreter."""
    return _serves(device)


@functools.cache
def _serves(device: torch.device) -> bool:
    if not TRITON:
        return False
    if device.type == "cuda":
        return not too_old(device)
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def too_old(device: torch.device) -> bool:
    """Returns whether `device` is a card from before BF16 arithmetic."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST


@constant
def is_hopper(device: torch.device) -> bool:
    """Returns whether `device` is a card that `conv3d.hopper` is written for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def takes(*tensors: Tensor) -> bool:
    """Returns whether the kernels serve these tensors: 5-D, one dtype and device, channels-last, not empty."""
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


def may_round(x: Tensor) -> bool:
    """Returns whether a convolution may round `x`: float32 to TF32 only where PyTorch's flag lets cuDNN do it."""
    return x.dtype != torch.float32 or _has_tf32()


@constant
def _has_tf32() -> bool:
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv.fp32_precision == "tf32"


def same_places(*volumes: Tensor) -> bool:
    """Returns whether all volumes have the same batch size and the same sides."""
    return len({(a.shape[0], *a.shape[2:]) for a in volumes}) == 1


def is_volume(x: Tensor) -> bool:
    """Returns whether the kernels serve `x` in any memory order: they copy it first."""
    return serves(x.device) and x.dim() == 5 and x.numel() > 0 and x.dtype in DTYPES
