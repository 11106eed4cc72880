"""Operators of the fast path for channels-last 3-D tensors, each beside its definition in plain PyTorch.

An operator takes its Triton kernels (`*_triton`, on Hopper also `conv3d_hopper`) where they apply: Triton installed, a
CUDA tensor of BF16, FP16 or FP32 whose memory is channels-last. Anything else goes through the definition, so every
input has an answer and a CPU needs no Triton. The kernels neither wait for the device nor use atomics: they can be
captured in a CUDA graph and give the same bits each time. They have first derivatives only; the definitions have all.
"""

from medddpm.kernels.add import add, add_definition
from medddpm.kernels.conv3d import conv3d, few_channels
from medddpm.kernels.dispatch import OLDEST, serves, takes
from medddpm.kernels.norm import Activation, group_norm, group_norm_definition, instance_norm, kept_group_norm
from medddpm.kernels.upsample import upsample, upsample_definition

__all__ = [
    "OLDEST",
    "Activation",
    "add",
    "add_definition",
    "conv3d",
    "few_channels",
    "group_norm",
    "group_norm_definition",
    "instance_norm",
    "kept_group_norm",
    "serves",
    "takes",
    "upsample",
    "upsample_definition",
]
