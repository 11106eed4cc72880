"""Copies into the other memory order, by PyTorch and by the kernel."""

from __future__ import annotations

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, FP32
from torch import Tensor

from medddpm.fast.kernels.relayout import copy_into, takes

SHAPES = [(3, 5, 3, 3, 3), (64, 64, 3, 3, 3), (7, 130, 1, 2, 2), (32, 2, 5, 5, 5), *[(4, 6, 3, 3, 3)] * 9]


def pairs(to_last: bool, dtypes: tuple[torch.dtype, torch.dtype], device: str | torch.device) -> list[list[Tensor]]:
    last, first = torch.channels_last_3d, torch.contiguous_format
    orders = (first, last) if to_last else (last, first)
    sources = [torch.randn(shape, device=device).to(dtypes[0]).contiguous(memory_format=orders[0]) for shape in SHAPES]
    copies = [torch.empty(shape, device=device, dtype=dtypes[1], memory_format=orders[1]) for shape in SHAPES]
    return [sources, copies]


@pytest.mark.parametrize("to_last", [True, False])
def test_each_tensor_has_its_copy(to_last: bool) -> None:
    sources, copies = pairs(to_last, (FP32, BF16), "cpu")
    sources += [torch.randn(4, 3), torch.randn(2, 2, 2).transpose(0, 1), torch.empty(0, 3, 1, 1, 1)]
    copies += [torch.empty(4, 3), torch.empty(2, 2, 2), torch.empty(0, 3, 1, 1, 1)]
    copy_into(sources, copies)
    for source, copy in zip(sources, copies, strict=True):
        assert torch.equal(copy, source.to(copy.dtype))


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("to_last", [True, False])
@pytest.mark.parametrize("dtypes", [(FP32, BF16), (BF16, FP32), (FP32, FP32)], ids=str)
def test_the_kernel_rounds_as_pytorch_does(to_last: bool, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    sources, copies = pairs(to_last, dtypes, DEVICE)
    assert all(map(takes, sources, copies))
    copy_into(sources, copies)
    for source, copy in zip(sources, copies, strict=True):
        assert torch.equal(copy, source.to(copy.dtype))
