"""The residual sum's definition against PyTorch's functions, and its kernels against the definition."""

from __future__ import annotations

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, F64, FP32, ODD, TF32_CLOSE, Widths, check, error, volume
from torch.autograd import gradcheck
from torch.nn import functional

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.add import add, add_definition


def test_add_is_a_sum_or_a_convolution_of_the_pair() -> None:
    shapes = *((2, c, 3, 1, 2) for c in (6, 2, 3)), (6, 5), (6,)
    h, x, other, weight, bias = inputs = tuple(torch.randn(s, dtype=F64, requires_grad=True) for s in shapes)
    assert gradcheck(lambda *a: add(*a[:3], weight=a[3], bias=a[4]), inputs)
    right = h + functional.conv3d(torch.cat([x, other], 1), weight[:, :, None, None, None], bias)
    assert error(add(h, x, other, weight=weight, bias=bias), right) < 1e-12
    right = h + torch.einsum("oi,nixyz->noxyz", weight[:, :2], x)
    assert error(add(h, x, weight=weight[:, :2]), right) < 1e-12
    assert error(add(h, 2 * h, bias=bias), 3 * h + bias[:, None, None, None]) < 1e-12


def test_what_would_be_broadcast_is_not_handed_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(dispatch, "takes", lambda *volumes: bool(asked.append(len(volumes))))
    x, one = volume(2, 4, 3, 3, 3), volume(1, 4, 3, 3, 3)
    add(x, one)
    add(x, x, bias=torch.ones(1))
    add(x, volume(2, 2, 3, 3, 3), weight=torch.ones(1, 2, dtype=F64))
    assert not asked
    add(x, x, bias=torch.ones(4))
    assert asked == [2]


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize(("c", "widths"), [(96, (96,)), (64, (128, 64)), (320, (256, 192)), (96, (20,))])
@pytest.mark.parametrize(("space", "dtype"), [(ODD, BF16), ((1, 7, 33), FP32)])
def test_add_kernels(c: int, widths: Widths, space: Widths, dtype: torch.dtype) -> None:
    parts = [volume(2, width, *space, dtype=dtype, device=DEVICE) for width in (c, *widths)]
    assert dispatch.takes(*parts)
    given = dict(zip(("h", "x", "other"), parts, strict=False)) | {"bias": torch.randn(c, device=DEVICE)}
    if widths != (c,):
        given["weight"] = (torch.randn(c, sum(widths), device=DEVICE) / sum(widths) ** 0.5).to(dtype)
    check(add, add_definition, given, TF32_CLOSE[dtype])
