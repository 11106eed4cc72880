"""The CUDA report: a 2-D diffusion model of ConvNeXt blocks, its operators on a CPU, and kernels by hand for them.

Without an NVIDIA GPU this switches on numba's CUDA simulator, as NUMBA_ENABLE_CUDASIM=1 would: the same kernels, each
thread a thread of Python's. numba reads that once, when it is first imported, so it stands here.
"""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()
