"""Depthwise convolution and its transpose: the kernels against PyTorch's functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, CLOSE, FP32, Widths, check, volume

from medddpm.kernels import dispatch
from medddpm.kernels.depthwise import depthwise, depthwise_definition

CASES = [
    (32, (5, 4, 9), 3, 1, 1, None),
    (20, (6, 5, 7), 3, 2, 1, None),
    (130, (3, 4, 2), 5, 1, 2, None),
    (8, (9, 3, 8), (1, 3, 7), (1, 2, 1), (0, 1, 3), None),
    (32, (3, 4, 5), 3, 2, 1, 0),
    (20, (4, 3, 3), 5, 2, 2, 1),
    (16, (5, 3, 4), (3, 1, 2), (2, 1, 1), (1, 0, 0), (1, 0, 0)),
]


def triple(value: Any) -> Any:
    return value if isinstance(value, tuple) or value is None else (value,) * 3


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("c", "sides", "kernel", "stride", "padding", "more"), CASES)
def test_depthwise_kernels(
    c: int, sides: Widths, kernel: Any, stride: Any, padding: Any, more: Any, biased: bool, dtype: torch.dtype
) -> None:
    given = {"x": volume(2, c, *sides, dtype=dtype, device=DEVICE)}
    given["weight"] = torch.randn(c, 1, *triple(kernel), device=DEVICE).to(dtype)
    if biased:
        given["bias"] = torch.randn(c, device=DEVICE)
    assert dispatch.takes(given["x"])
    options = {"stride": triple(stride), "padding": triple(padding), "output_padding": triple(more)}
    check(depthwise, depthwise_definition, given, CLOSE[dtype], **options)


@pytest.mark.gpu(kernels=True)
def test_a_larger_volume_in_more_tiles_than_programs() -> None:
    given = {"x": volume(1, 32, 33, 17, 65, dtype=FP32, device=DEVICE)}
    given["weight"] = torch.randn(32, 1, 3, 3, 3, device=DEVICE)
    check(depthwise, depthwise_definition, given, CLOSE[FP32], stride=(1, 1, 1), padding=(1, 1, 1))


def test_what_the_kernels_do_not_take_is_pytorch_s() -> None:
    x, weight = volume(1, 4, 5, 5, 5), torch.randn(4, 1, 3, 3, 3, dtype=torch.float64)
    right = torch.nn.functional.conv3d(x, weight, padding=1, groups=4)
    assert torch.equal(depthwise(x, weight, padding=(1, 1, 1)), right)
    up = torch.nn.functional.conv_transpose3d(x, weight, None, 2, 1, 1, groups=4)
    assert torch.equal(depthwise(x, weight, None, (2, 2, 2), (1, 1, 1), (1, 1, 1)), up)
