"""Depthwise convolution and its transpose: the kernels against PyTorch's functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, CLOSE, F64, FP32, Widths, check, error, volume
from torch import Tensor

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.depthwise import depthwise, depthwise_definition

if dispatch.TRITON:
    from medddpm.fast.kernels.depthwise import planes_triton as as_planes
    from medddpm.fast.kernels.depthwise import volume_triton, weight_triton

Triple = tuple[int, int, int]
CASES = [  # channels, sides, kernel, stride, padding, output_padding, whether there is a bias
    (32, (4, 3, 4), (2, 2, 3), 1, 1, None, True),
    (20, (3, 5, 4), (3, 1, 3), 2, 1, None, False),
    (130, (2, 3, 2), (1, 3, 1), 1, (0, 1, 0), None, False),
    (8, (5, 3, 4), (1, 2, 7), (1, 2, 1), (0, 1, 3), None, True),
    (32, (2, 3, 2), (3, 2, 2), 2, 1, 0, True),
    (20, (2, 2, 2), (1, 5, 3), 2, (0, 2, 1), 1, False),
    (16, (5, 3, 4), (3, 1, 2), (2, 1, 1), (1, 0, 0), (1, 0, 0), True),
]


def triple(value: Any) -> Any:
    return value if isinstance(value, tuple) or value is None else (value,) * 3


@pytest.fixture
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter takes as long for a small program as for a large one."""
    if DEVICE == "cpu":
        wide = volume_triton.Tile(4096, 4, 4)
        monkeypatch.setattr(volume_triton, "TILES", (wide,))
        monkeypatch.setattr(weight_triton, "WEIGHT", wide)


@pytest.mark.gpu(kernels=True)
@pytest.mark.usefixtures("_few_programs")
@pytest.mark.parametrize("dtype", [BF16, FP32] if DEVICE == "cuda" else [FP32])
@pytest.mark.parametrize(("c", "sides", "kernel", "stride", "padding", "more", "biased"), CASES)
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
@pytest.mark.parametrize("tile", [(256, 24, 4), (256, 16, 4), (128, 4, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_tile_computes_the_same(tile: tuple[int, int, int], stride: int) -> None:
    sides, shape = (1, 3, 27), ((1, 1, 3), (1, 1, stride), (0, 0, 1))
    x, weight = volume(1, 64, *sides, dtype=FP32, device=DEVICE), torch.randn(64, 1, 1, 1, 3, device=DEVICE)
    wide = x.double().requires_grad_()
    y = depthwise_definition(wide, weight.double(), None, *shape[1:])
    dy = volume(*y.shape, dtype=FP32, device=DEVICE)
    (dx,) = torch.autograd.grad(y, wide, dy.double())
    taps, held = weight.flatten(1).t().contiguous(), volume_triton.Tile(*tile)
    for given, right, adjoint in ((x, y, False), (dy, dx, True)):
        found = torch.full_like(right, float("nan"), dtype=FP32, memory_format=torch.channels_last_3d)
        volume_triton.gathered(given, taps, None, found, shape, adjoint, held)
        assert error(found, right) < CLOSE[FP32]


@pytest.mark.gpu(kernels=True)
def test_weight_gradients_of_more_tiles_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_triton, "PROGRAMS", 2)
    x, dy = (volume(1, 64, 2, 3, 17, dtype=FP32, device=DEVICE) for _ in range(2))
    weight = torch.zeros(64, 1, 1, 3, 2, dtype=F64, device=DEVICE, requires_grad=True)
    y = depthwise_definition(x.double(), weight, None, (1, 1, 1), (0, 1, 1))[..., :-1]
    (right,) = torch.autograd.grad(y, weight, dy.double())
    for many in (1, 10**9):  # voxels from which on a program has several lines of taps
        monkeypatch.setattr(weight_triton, "MANY", many)
        found = weight_triton.weight_gradient(x, dy, ((1, 3, 2), (1, 1, 1), (0, 1, 1)))
        assert error(found.t().reshape(weight.shape), right) < CLOSE[FP32]


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize(
    ("n", "inside", "kernel", "padding"), [(2, (1, 2, 9), (7, 7, 7), (3, 3, 3)), (1, (8, 1, 9), (8, 7, 9), (0, 3, 2))]
)
def test_as_products_of_planes(
    n: int, inside: Triple, kernel: Triple, padding: Triple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_planes, "DEPTH", 3)
    dtype = BF16 if DEVICE == "cuda" else FP32  # the interpreter has no products in BF16, the kernels none in float32
    shape, c = (kernel, (1, 1, 1), padding), 2
    x, bias = volume(n, c, *inside, dtype=dtype, device=DEVICE), torch.randn(c, device=DEVICE)
    weight = torch.randn(c, 1, *kernel, device=DEVICE).to(dtype)
    wide = x.double().requires_grad_(), weight.double().requires_grad_()
    y = depthwise_definition(*wide, bias.double(), (1, 1, 1), padding)
    dy = torch.randn_like(y).to(dtype).contiguous(memory_format=torch.channels_last_3d)
    dx, d_weight = torch.autograd.grad(y, wide, dy.double())
    sides = tuple(y.shape[2:])
    found = as_planes.convolved(as_planes.planes(x, sides, kernel, padding), weight, bias, sides, False)
    assert error(found, y) < CLOSE[dtype]
    padded = as_planes.planes(dy, inside, kernel, as_planes.turned(kernel, padding))
    assert error(as_planes.convolved(padded, weight, None, inside, True), dx) < CLOSE[dtype]
    sums = as_planes.weight_gradient(padded, x, kernel)
    assert error(sums.t().reshape(weight.shape), d_weight) < CLOSE[FP32]
    assert as_planes.suits(x.to(BF16), sides, shape, 1)
    for other in ((kernel, (1, 2, 1), padding), ((3, 7, 7), (1, 1, 1), (0, 0, 0)), (kernel, (1, 1, 1), kernel)):
        assert not as_planes.suits(x.to(BF16), sides, other, 1)
    assert not as_planes.suits(x.float(), sides, shape, 1)
    assert not as_planes.suits(x.to(BF16), sides, shape, 10**4)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("least", [1, 10**9])
def test_large_volumes_go_by_planes(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and weights where the least allows; x's gradient the one way or the other."""
    monkeypatch.setattr(as_planes, "suits", lambda x, sides, shape, size: size == 1)
    monkeypatch.setattr(as_planes, "LEAST", least)
    monkeypatch.setattr(as_planes, "LEAST_WEIGHT", 1)
    if DEVICE == "cpu":
        monkeypatch.setattr(volume_triton, "TILES", (volume_triton.Tile(4096, 4, 4),))
    dtype = BF16 if DEVICE == "cuda" else FP32
    given = {"x": volume(1, 2, 2, 1, 3, dtype=dtype, device=DEVICE)}
    given["weight"] = torch.randn(2, 1, 2, 1, 3, device=DEVICE).to(dtype)
    given["bias"] = torch.randn(2, device=DEVICE)
    seen: list[Tensor] = []
    convolved = as_planes.convolved
    monkeypatch.setattr(as_planes, "convolved", lambda *a: seen.append(a[0]) or convolved(*a))
    check(depthwise, depthwise_definition, given, CLOSE[dtype], stride=(1, 1, 1), padding=(1, 0, 1))
    assert bool(seen) == (least == 1)


def test_what_the_kernels_do_not_take_is_pytorch_s() -> None:
    x, weight = volume(1, 4, 5, 5, 5), torch.randn(4, 1, 3, 3, 3, dtype=torch.float64)
    right = torch.nn.functional.conv3d(x, weight, padding=1, groups=4)
    assert torch.equal(depthwise(x, weight, padding=(1, 1, 1)), right)
    up = torch.nn.functional.conv_transpose3d(x, weight, None, 2, 1, 1, groups=4)
    assert torch.equal(depthwise(x, weight, None, (2, 2, 2), (1, 1, 1), (1, 1, 1)), up)
