"""What a test marked `gpu` needs of this machine. There is no other way to skip a test for want of a GPU.

    @pytest.mark.gpu                a GPU that PyTorch can use
    @pytest.mark.gpu(count=2)       so many of them
    @pytest.mark.gpu(kernels=True)  what the package's Triton kernels run on: a GPU with BF16, or Triton's interpreter
    @pytest.mark.gpu(hopper=True)   what its Hopper kernels run on

`tests/conftest.py` skips what `lacking` gives a reason for, `pytest -m gpu` selects them all, and `make test-gpu` runs
them and keeps a record.
"""

from __future__ import annotations

import torch

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.conv3d import GLUON

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU with Triton's interpreter serves the kernels too


def lacking(count: int = 1, kernels: bool = False, hopper: bool = False) -> str | None:
    """Why a test with this mark cannot run here; None if it can."""
    if kernels:
        served = dispatch.serves(torch.device(DEVICE))
        return None if served else "the kernels need a GPU with BF16 and Triton, or Triton's interpreter"
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < count:
        return f"needs {count} GPUs, and here is {found or 'none'}" if count > 1 else "needs a GPU"
    if hopper and not (GLUON and dispatch.is_hopper(torch.device(DEVICE))):
        return "the kernels need a Hopper GPU, and Triton with Gluon"
    return None
