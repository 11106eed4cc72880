"""3-D convolutions against PyTorch's, by whatever kernels."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import (
    BF16,
    CLOSE,
    F64,
    FP16,
    FP32,
    LARGE,
    ODD,
    POINT,
    TF32_CLOSE,
    Widths,
    check,
    error,
    volume,
)  # fmt: skip
from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.conv3d import conv3d, shared

CUBE = (3, 3, 3)
CUBES = ((1, 1, 1), (3, 9, 128), (16, 16, 16))


@pytest.mark.parametrize(("inside", "out"), [(3, 16), (16, 1), (16, 32)])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (POINT, POINT), (2, 1), (1, 0), ((1, 2, 2), (0, 1, 2))])
@pytest.mark.parametrize("kernel", [CUBE, POINT, (1, 3, 3)])
def test_conv3d_is_pytorchs(inside: int, out: int, kernel: Widths, stride: Any, padding: Any) -> None:
    x, weight, bias = volume(2, inside, 7, 3, 5), torch.randn(out, inside, *kernel, dtype=F64), torch.randn(out)
    right = functional.conv3d(x, weight, bias.double(), stride, padding)
    assert error(conv3d(x, weight, bias, stride, padding), right) < 1e-12
    assert error(conv3d(x.float(), weight.bfloat16(), bias, stride, padding), right) < 2e-2


def test_conv3d_of_a_point_as_a_matrix_product_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "serves", lambda device: True)
    x, weight = volume(2, 20, 3, 1, 7, dtype=FP32), torch.randn(6, 20, 1, 1, 1)
    for stride, padding in ((1, 0), (1, 1), (2, 0)):
        y = conv3d(x, weight, torch.ones(6, dtype=BF16), stride, padding)
        assert error(y, functional.conv3d(x, weight, torch.ones(6), stride, padding)) < 1e-6
    assert error(conv3d(x, weight.bfloat16()), functional.conv3d(x, weight)) < 2e-2


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("inside", "out"), [(1, 64), (3, 64), (8, 64), (64, 1), (320, 4), (64, 192)])
def test_convolution_kernels(inside: int, out: int, dtype: torch.dtype) -> None:
    side = 3 if min(inside, out) <= 8 else 1
    weight = volume(out, inside, side, side, side, dtype=dtype, device=DEVICE) / (inside * side**3) ** 0.5
    given = {"weight": weight, "bias": torch.randn(out, device=DEVICE)}
    for space in (ODD, LARGE):
        given["x"] = volume(2, inside, *space, dtype=dtype, device=DEVICE)
        check(conv3d, lambda x, **a: functional.conv3d(x, **a), given, TF32_CLOSE[dtype], padding=side // 2)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(
    ("inside", "out", "side", "stride"),
    [(3, 3, 3, 1), (8, 8, 3, 1), (5, 1, 3, 1), (1, 32, 3, 2), (3, 6, 3, 2), (1, 16, 5, 1), (4, 48, 5, 2), (4, 3, 5, 1)],
)
def test_few_channels_on_both_sides_or_of_a_loaded_volume(
    inside: int, out: int, side: int, stride: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network's first convolution has it; the gradient of x only where there is a kernel of it."""
    from medddpm.fast.kernels.conv3d import few_triton

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    calls = Counter[str]()
    own = few_triton.FewIn.apply
    monkeypatch.setattr(few_triton.FewIn, "apply", lambda *a: calls.update(["few"]) or own(*a))
    learns = side == 3 and stride == 1
    for space in (ODD, LARGE):
        tensors = [
            volume(2, inside, *space, dtype=dtype, device=DEVICE),
            volume(out, inside, side, side, side, dtype=dtype, device=DEVICE) / (inside * side**3) ** 0.5,
            torch.randn(out, device=DEVICE),
        ]
        results = []
        for kind in (dtype, FP32 if dtype == BF16 else F64):
            x, weight, bias = (t.to(kind).requires_grad_(learns or t is not tensors[0]) for t in tensors)
            y = (conv3d if kind == dtype else functional.conv3d)(x, weight, bias, stride, side // 2)
            torch.manual_seed(1)
            dy = torch.randn(y.shape, device=DEVICE).to(dtype)
            wanted = [t for t in (x, weight, bias) if t.requires_grad]
            results.append([y, *torch.autograd.grad(y, wanted, dy.to(kind), retain_graph=True)])
            if dtype == FP32:  # a penalty on gradients
                dy = dy.to(kind).requires_grad_()
                slopes = torch.autograd.grad(y, wanted, dy, create_graph=True)
                results[-1] += torch.autograd.grad([g.square().mean() for g in slopes], [dy, *wanted[:-2]])
        for place, (ours, right) in enumerate(zip(*results, strict=True)):
            assert ours.shape == right.shape
            assert error(ours, right) < TF32_CLOSE[dtype] * (1 if place <= len(wanted) else 2)  # of second derivatives
    assert calls == {"few": 2}


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("narrow", [BF16, torch.float16])
def test_few_channels_of_float32_are_rounded_as_they_are_read(narrow: torch.dtype, learns: bool) -> None:
    x = volume(2, 3, *ODD, dtype=FP32, device=DEVICE).requires_grad_(learns)
    weight = volume(8, 3, *CUBE, dtype=narrow, device=DEVICE).requires_grad_()
    results = []
    for given in (x, x.to(narrow)):
        y = conv3d(given, weight, padding=1)
        results.append([y, *torch.autograd.grad(y, [x, weight] if learns else [weight], torch.ones_like(y))])
    assert [t.dtype for t in results[0]] == [narrow, FP32, narrow] if learns else [narrow, narrow]
    assert all(map(torch.equal, *results))


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [FP32, F64, torch.int32])
def test_few_channels_of_any_dtype_meet_a_narrow_weight_of_any_stride(dtype: torch.dtype) -> None:
    x = (3 * volume(1, 2, *ODD, dtype=FP32, device=DEVICE)).to(dtype)
    for side, stride, learns in ((3, 1, False), (3, 2, False), (5, 2, False), (3, 1, dtype == FP32)):
        weight = volume(4, 2, side, side, side, dtype=torch.float16, device=DEVICE).requires_grad_()
        given = x.clone().requires_grad_(learns)
        y = conv3d(given, weight, None, stride, side // 2)
        right = functional.conv3d(given.half().float(), weight.float(), None, stride, side // 2)
        assert y.dtype == torch.float16
        assert error(y, right) < TF32_CLOSE[BF16]
        wanted = [weight, given] if learns else [weight]
        ours, theirs = (
            torch.autograd.grad(out.float().square().mean(), wanted, create_graph=True) for out in (y, right)
        )
        assert all(error(*pair) < 2 * TF32_CLOSE[BF16] for pair in zip(ours, theirs, strict=True))
        twice = [
            torch.autograd.grad(sum(g.float().square().mean() for g in found), weight)[0] for found in (ours, theirs)
        ]
        assert error(*twice) < 4 * TF32_CLOSE[BF16]


@pytest.mark.gpu(kernels=True)
def test_convolutions_of_one_volume_keep_one_copy_of_it_for_as_long_as_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    x, other = (volume(1, 2, *ODD, dtype=FP32, device=DEVICE) for _ in range(2))
    weights = [volume(out, 2, *CUBE, dtype=FP32, device=DEVICE).requires_grad_() for out in (16, 3)]
    kept: list[Tensor] = []

    def copies(*volumes: Tensor) -> int:
        """How many tensors of a bordered volume's size their convolutions keep."""
        kept.clear()
        ys = [
            conv3d(v, weight, None, stride, 1) for v in volumes for weight, stride in zip(weights, (1, 2), strict=True)
        ]
        assert all(y.requires_grad for y in ys)
        return len({t.data_ptr() for t in kept if t.shape[0] == 1})

    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        assert copies(x) == 2, "no one says that they may share it"
        with shared():
            assert copies(x, other) == 2
            first = conv3d(x, weights[0], padding=1)
            x.mul_(2)
            assert torch.allclose(conv3d(x, weights[0], padding=1), 2 * first)
            assert copies(x.requires_grad_()) == 1, "x itself, at stride 1"


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize(("inside", "out"), [(1, 16), (5, 20)])
def test_float32_is_rounded_to_the_nearest_tf32(inside: int, out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not cut off, by which all products would be 0.9 thousandths too small; sums of no product are exact."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    almost = 1 + 0.9 * 2**-10
    x = torch.full((1, inside, 5, 6, 7), almost, device=DEVICE).contiguous(memory_format=torch.channels_last_3d)
    weight = torch.ones(out, inside, *CUBE, device=DEVICE, requires_grad=True)
    bias = torch.zeros(out, device=DEVICE, requires_grad=True)
    y = conv3d(x, weight, bias, padding=1)
    assert float((y[..., 1:-1, 1:-1, 1:-1].detach() / (27 * inside * almost) - 1).abs().max()) < 2e-4
    d_weight, d_bias = torch.autograd.grad(y, (weight, bias), torch.full_like(y, almost))
    assert float((d_weight[:, :, 1, 1, 1] / (210 * almost**2) - 1).abs().max()) < 4e-4
    assert float((d_bias / (210 * almost) - 1).abs().max()) < 1e-6


@pytest.mark.gpu(kernels=True)
def test_float32_is_not_rounded_where_cudnn_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x, weight = volume(1, 3, *ODD, dtype=FP32, device=DEVICE), volume(16, 3, *CUBE, dtype=FP32, device=DEVICE)
    assert not dispatch.may_round(x)
    right = functional.conv3d(x.double(), weight.double(), padding=1)
    assert error(conv3d(x, weight, padding=1), right) < 1e-6
    assert dispatch.may_round(x.bfloat16())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert dispatch.may_round(x)


@pytest.mark.gpu(hopper=True)
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(
    ("inside", "out", "spaces"), [(64, 64, (ODD, LARGE)), (200, 40, ((5, 6, 64),)), (32, 96, CUBES)]
)
def test_hopper_kernels(
    inside: int, out: int, spaces: tuple[Widths, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they would be slower than cuDNN they must be right too."""
    from medddpm.fast.kernels.conv3d import hopper

    assert hopper.works(torch.device(DEVICE, torch.cuda.current_device()))
    calls = Counter[str]()
    for name in ("convolve", "weight_gradient"):
        function = getattr(hopper, name)
        monkeypatch.setattr(hopper, name, lambda *a, f=function, n=name, **k: calls.update([n]) or f(*a, **k))
    for name in ("pays", "gradient_pays"):
        monkeypatch.setattr(hopper, name, lambda *_: True)
    weight = volume(out, inside, *CUBE, dtype=dtype, device=DEVICE) / (inside * 27) ** 0.5
    given = {"weight": weight, "bias": torch.randn(out, device=DEVICE)}
    for space in spaces:
        given["x"] = volume(2, inside, *space, dtype=dtype, device=DEVICE)
        check(conv3d, lambda x, **a: functional.conv3d(x, **a), given, CLOSE[dtype], padding=1)
    assert calls == {"convolve": 7 * len(spaces), "weight_gradient": 3 * len(spaces)}  # forward 4 times, backward 3


@pytest.mark.gpu(hopper=True)
def test_cudnn_is_used_where_the_hopper_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from medddpm.fast.kernels.conv3d import hopper

    monkeypatch.setattr(hopper, "works", functools.cache(hopper.works.__wrapped__))
    monkeypatch.setattr(hopper, "convolve", lambda x, weight, bias=None, adjoint=False: torch.zeros_like(x))
    x, weight = volume(1, 64, 64, 64, 64, dtype=BF16, device=DEVICE), volume(64, 64, *CUBE, dtype=BF16, device=DEVICE)
    assert hopper.pays(x, 64)
    with pytest.warns(UserWarning, match="cuDNN's are used"):
        y = conv3d(x, weight, None, 1, 1)
    assert torch.equal(y, functional.conv3d(x, weight, padding=1))
