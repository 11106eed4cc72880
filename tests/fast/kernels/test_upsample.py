"""Trilinear upsampling against its formula, and its kernels against the definition."""

from __future__ import annotations

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, CLOSE, F64, FP32, LARGE, POINT, Widths, check, error, volume
from torch import Tensor
from torch.autograd import gradcheck

from medddpm.fast.kernels.upsample import upsample, upsample_definition


def doubling(side: int) -> Tensor:
    """(2 side, side): trilinear ×2 along one axis, output o at (o + ½) / 2 - ½ between clamped inputs."""
    table = torch.zeros(2 * side, side, dtype=F64)
    for o in range(2 * side):
        at = max((o + 0.5) / 2 - 0.5, 0.0)
        table[o, int(at)] += 1 - at % 1
        table[o, min(int(at) + 1, side - 1)] += at % 1
    return table


@pytest.mark.parametrize("space", [(1, 1, 1), (1, 3, 33), (7, 3, 1), (2, 7, 5)])
def test_upsample_is_linear_between_clamped_neighbours(space: Widths) -> None:
    x = volume(2, 3, *space)
    assert error(upsample(x), torch.einsum("ai,bj,ck,nvijk->nvabc", *map(doubling, space), x)) < 1e-12
    assert gradcheck(upsample, (x.requires_grad_(),))


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize(
    ("c", "space", "dtype"),  # past a row's last output lies the next row's first
    [(512, (7, 33, 3), BF16), (64, (2, 7, 33), FP32), (64, POINT, BF16), (3, (1, 33, 7), FP32)],
)
def test_upsample_kernels(c: int, space: Widths, dtype: torch.dtype) -> None:
    x = volume(2, c, *space, dtype=dtype, device=DEVICE)
    check(upsample, upsample_definition, {"x": x}, CLOSE[dtype])


@pytest.mark.gpu(kernels=True)
def test_another_memory_order_gives_the_same() -> None:
    x = volume(2, 64, *LARGE, dtype=FP32, device=DEVICE) + 1000
    assert error(upsample(x.contiguous()), upsample(x)) < 1e-6
