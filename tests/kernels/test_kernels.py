"""Fused norms, sums, edge convolutions and ×2: definitions against PyTorch's functions, kernels against definitions."""

from __future__ import annotations

import functools
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from medddpm import kernels
from medddpm.kernels import dispatch
from medddpm.kernels.conv3d import GLUON

DEVICE = "cuda"
BF16, FP16, FP32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
CLOSE = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-4}  # norm of the difference over the norm of what is right
TF32_CLOSE = {BF16: 1e-2, FP32: 2e-3}  # where FP32 operands are multiplied as TF32
CUBE, POINT = (3, 3, 3), (1, 1, 1)
ODD, LARGE = (33, 7, 3), (33, 33, 65)  # the large one: more tiles than programs, and a rest
CUBES = ((1, 1, 1), (3, 9, 128), (16, 16, 16))
Widths = tuple[int, ...]  # channels of x, or of x and other
CASE = ("widths", "space", "groups", "more", "activation")
CASES = [
    ((64,), (3, 1, 33), 32, "shift", "silu"),
    ((64,), (16, 16, 16), 32, "", "silu"),  # tiles without a rest
    ((96,), (7, 3, 2), 96, "residual", "leaky_relu"),
    ((192,), (1, 1, 3), 32, "one shift", "none"),
    ((320,), (3, 7, 1), 320, "residual slope shift", "prelu"),
    ((512,), POINT, 256, "shift", "silu"),  # a group is two values
    ((32, 64), (1, 7, 1), 3, "plain shift residual", "silu"),
    ((128, 64), ODD, 32, "one shift", "silu"),  # a group of 6 lies across the seam at 128
    ((256, 192), (7, 1, 3), 32, "shift residual one slope", "prelu"),
    ((20, 3), (1, 7, 33), 1, "plain residual", "none"),  # widths that fill no tile
]
SERVED = torch.cuda.is_available() and torch.cuda.get_device_capability() >= kernels.OLDEST
gpu = pytest.mark.skipif(not SERVED, reason="the kernels need a GPU with BF16")
HOPPER = SERVED and GLUON and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="the kernels need a Hopper GPU, and Triton with Gluon")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def volume(*shape: int, dtype: torch.dtype = F64, device: str = "cpu") -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device).contiguous(memory_format=torch.channels_last_3d)


def norm_inputs(
    widths: Widths, space: Widths, more: str = "", dtype: torch.dtype = F64, device: str = "cpu"
) -> dict[str, Tensor]:
    """Random arguments of `group_norm` by name: x, perhaps other, weight and bias unless plain, what `more` names."""
    c = sum(widths)
    like: Any = {"dtype": dtype if dtype in (F64, FP16) else FP32, "device": device}  # parameters stay wide beside BF16
    given = {"x": volume(2, widths[0], *space, dtype=dtype, device=device)}
    if len(widths) == 2:
        given["other"] = 2 * volume(2, widths[1], *space, dtype=dtype, device=device) + 1
    if "plain" not in more:
        given |= {"weight": 1 + 0.5 * torch.randn(c, **like), "bias": torch.randn(c, **like)}
    if "shift" in more:
        given["shift"] = torch.randn((c,) if "one shift" in more else (2, c), **like)
    if "residual" in more:
        given["residual"] = volume(2, c, *space, dtype=dtype, device=device)
    if "slope" in more:
        given["slopes"] = torch.rand(1 if "one slope" in more else c, **like)
    return given


def pytorchs_norm(given: dict[str, Tensor], groups: int, activation: str = "silu", slope: float = 0.01) -> Tensor:
    """What `group_norm` should give, by PyTorch's own group norm."""
    h = torch.cat([given["x"], given["other"]], 1) if "other" in given else given["x"]
    if "shift" in given:
        h = h + given["shift"].expand(h.shape[:2])[:, :, None, None, None]
    h = functional.group_norm(h, groups, given.get("weight"), given.get("bias"))
    if "residual" in given:
        h = h + given["residual"]
    if activation == "prelu":
        return functional.prelu(h, given["slopes"])
    return {"none": h, "silu": h * torch.sigmoid(h), "leaky_relu": torch.where(h > 0, h, slope * h)}[activation]


def doubling(side: int) -> Tensor:
    """(2 side, side): trilinear ×2 along one axis, output o at (o + ½) / 2 - ½ between clamped inputs."""
    table = torch.zeros(2 * side, side, dtype=F64)
    for o in range(2 * side):
        at = max((o + 0.5) / 2 - 0.5, 0.0)
        table[o, int(at)] += 1 - at % 1
        table[o, min(int(at) + 1, side - 1)] += at % 1
    return table


@torch.no_grad()
def error(a: Tensor, right: Tensor) -> float:
    return float((a.double() - right.double()).norm() / right.double().norm())


@pytest.mark.parametrize(CASE, CASES)
def test_group_norm_is_pytorchs(widths: Widths, space: Widths, groups: int, more: str, activation: Any) -> None:
    given = norm_inputs(widths, space, more)
    right = pytorchs_norm(given, groups, activation)
    assert error(kernels.group_norm(groups=groups, activation=activation, **given), right) < 1e-12

    def tiny(*leaves: Tensor) -> Tensor:
        return kernels.group_norm(groups=2, activation=activation, **dict(zip(given, leaves, strict=True)))

    given = norm_inputs((2, 4)[: len(widths)], (1, 2, 3), more)
    assert gradcheck(tiny, tuple(a.requires_grad_() for a in given.values()))


@pytest.mark.parametrize(("c", "space"), [(32, (33, 1, 1)), (96, (3, 7, 1)), (320, (1, 2, 3))])
def test_instance_norm_is_pytorchs(c: int, space: Widths) -> None:
    given = norm_inputs((c,), space)
    right = functional.instance_norm(given["x"], weight=given["weight"], bias=given["bias"])
    assert error(kernels.instance_norm(**given), functional.leaky_relu(right, 0.01)) < 1e-12
    shift = torch.randn(2, c, dtype=F64, requires_grad=True)
    y = kernels.instance_norm(**given, shift=shift, slope=0.2)
    assert error(y, functional.leaky_relu(right, 0.2)) < 1e-12
    (gradient,) = torch.autograd.grad(y.square().sum(), shift)
    assert float(gradient.abs().max()) < 1e-9  # the mean takes a shift away
    single = volume(2, c, 1, 1, 1)  # functional.instance_norm refuses it
    assert error(kernels.instance_norm(single, residual=single, activation="none"), single) < 1e-12


@pytest.mark.parametrize(("dtype", "close"), [(BF16, 4e-3), (FP16, 5e-4), (FP32, 1e-5), (F64, 1e-12)])
def test_results_have_the_inputs_dtype_and_statistics_are_wider(dtype: torch.dtype, close: float) -> None:
    given = norm_inputs((32, 64), (3, 7, 3), "shift residual", dtype)
    x = given["x"] = given["x"] + 30  # 30 ± 1: statistics in BF16 would be lost
    y = kernels.group_norm(groups=3, **given)
    assert error(y, pytorchs_norm({name: a.double() for name, a in given.items()}, 3)) < close
    others = kernels.instance_norm(x), kernels.upsample(x), kernels.add(x, x, bias=torch.ones(32))
    convolution = kernels.conv3d(x, torch.randn(2, 32, 1, 1, 1, dtype=dtype), torch.ones(2))
    assert {a.dtype for a in (y, *others, convolution)} == {dtype}


@pytest.mark.parametrize("widths", [(4,), (4, 8)])
def test_kept_inputs_are_the_inputs_and_their_gradients_add_up(widths: Widths) -> None:
    given = norm_inputs(widths, (1, 3, 2), "shift")
    volumes = [given[name].requires_grad_() for name in ("x", "other") if name in given]
    y, x, other = kernels.kept_group_norm(groups=2, **given)
    kept = [x] if other is None else [x, other]
    assert [a.tolist() for a in kept] == [a.tolist() for a in volumes]
    got = torch.autograd.grad(y.square().sum() + sum(a.pow(3).sum() for a in kept), volumes)
    right = pytorchs_norm(given, 2).square().sum() + sum(a.pow(3).sum() for a in volumes)
    assert all(error(a, b) < 1e-12 for a, b in zip(got, torch.autograd.grad(right, volumes), strict=True))


def test_add_is_a_sum_or_a_convolution_of_the_pair() -> None:
    shapes = *((2, c, 3, 1, 2) for c in (6, 2, 3)), (6, 5), (6,)
    h, x, other, weight, bias = inputs = tuple(torch.randn(s, dtype=F64, requires_grad=True) for s in shapes)
    assert gradcheck(lambda *a: kernels.add(*a[:3], weight=a[3], bias=a[4]), inputs)
    right = h + functional.conv3d(torch.cat([x, other], 1), weight[:, :, None, None, None], bias)
    assert error(kernels.add(h, x, other, weight=weight, bias=bias), right) < 1e-12
    right = h + torch.einsum("oi,nixyz->noxyz", weight[:, :2], x)
    assert error(kernels.add(h, x, weight=weight[:, :2]), right) < 1e-12
    assert error(kernels.add(h, 2 * h, bias=bias), 3 * h + bias[:, None, None, None]) < 1e-12


@pytest.mark.parametrize(("inside", "out"), [(3, 16), (16, 1), (16, 32)])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (POINT, POINT), (2, 1), (1, 0), ((1, 2, 2), (0, 1, 2))])
@pytest.mark.parametrize("kernel", [CUBE, POINT, (1, 3, 3)])
def test_conv3d_is_pytorchs(inside: int, out: int, kernel: Widths, stride: Any, padding: Any) -> None:
    x, weight, bias = volume(2, inside, 7, 3, 5), torch.randn(out, inside, *kernel, dtype=F64), torch.randn(out)
    right = functional.conv3d(x, weight, bias.double(), stride, padding)
    assert error(kernels.conv3d(x, weight, bias, stride, padding), right) < 1e-12
    assert error(kernels.conv3d(x.float(), weight.bfloat16(), bias, stride, padding), right) < 2e-2


def test_conv3d_of_a_point_as_a_matrix_product_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "serves", lambda device: True)
    x, weight = volume(2, 20, 3, 1, 7, dtype=FP32), torch.randn(6, 20, 1, 1, 1)
    for stride, padding in ((1, 0), (1, 1), (2, 0)):
        y = kernels.conv3d(x, weight, torch.ones(6, dtype=BF16), stride, padding)
        assert error(y, functional.conv3d(x, weight, torch.ones(6), stride, padding)) < 1e-6
    assert error(kernels.conv3d(x, weight.bfloat16()), functional.conv3d(x, weight)) < 2e-2


@pytest.mark.parametrize("space", [(1, 1, 1), (1, 3, 33), (7, 3, 1), (2, 7, 5)])
def test_upsample_is_linear_between_clamped_neighbours(space: Widths) -> None:
    x = volume(2, 3, *space)
    assert error(kernels.upsample(x), torch.einsum("ai,bj,ck,nvijk->nvabc", *map(doubling, space), x)) < 1e-12
    assert gradcheck(kernels.upsample, (x.requires_grad_(),))


def test_what_cannot_be_normalized_is_refused() -> None:
    x, one = torch.ones(1, 4, 2, 2, 2), torch.ones(1)
    for groups in (3, 0, -2):
        with pytest.raises(ValueError, match=f"{groups} groups do not divide 4 channels"):
            kernels.group_norm(x, groups)
    for arguments in ({"activation": "gelu"}, {"activation": "prelu"}, {"slopes": one}):
        with pytest.raises(ValueError, match=r"must be one of none, silu.*prelu comes with slopes"):
            kernels.group_norm(x, 2, **arguments)


def test_takes_channels_last_volumes_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    x = volume(2, 8, 3, 3, 3, dtype=BF16)
    assert not kernels.takes(x)  # a CPU tensor
    monkeypatch.setattr(dispatch, "serves", lambda device: True)
    assert kernels.takes(x, x[:1], volume(2, 4, 3, 3, 3, dtype=BF16))
    assert not kernels.takes(x, x.float())
    assert not any(kernels.takes(a) for a in (x.contiguous(), x[:0], x[:, :4], x.double(), x[0]))


def test_what_would_be_broadcast_is_not_handed_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(dispatch, "takes", lambda *volumes: bool(asked.append(len(volumes))))
    x, one = volume(2, 4, 3, 3, 3), volume(1, 4, 3, 3, 3)
    kernels.group_norm(x, 2, shift=torch.ones(1, 4))
    kernels.group_norm(x, 2, residual=volume(2, 1, 3, 3, 3))
    kernels.group_norm(x, 2, weight=torch.ones(1))
    kernels.add(x, one)
    kernels.add(x, x, bias=torch.ones(1))
    kernels.add(x, volume(2, 2, 3, 3, 3), weight=torch.ones(1, 2, dtype=F64))
    assert not asked
    kernels.group_norm(x, 2, shift=torch.ones(2, 4), residual=x)
    kernels.add(x, x, bias=torch.ones(4))
    assert asked == [2, 2]


@pytest.mark.parametrize(("triton", "capability"), [(True, (8, 0)), (True, (7, 5)), (False, (9, 0))])
def test_serves_bf16_cards_with_triton(monkeypatch: pytest.MonkeyPatch, triton: bool, capability: Widths) -> None:
    monkeypatch.setattr(dispatch, "TRITON", triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert dispatch.serves.__wrapped__(torch.device("cuda:0")) == (triton and capability >= (8, 0))


# The kernels, on a GPU. A new flag, dtype or tile compiles anew: cases share them.


def poison() -> None:
    """Leaves NaN in the allocator's free blocks of every size, so that an output nobody wrote shows."""
    blocks = [torch.full((1 << size,), float("nan"), device=DEVICE) for size in range(7, 25)]
    del blocks


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def outputs_and_gradients(function: Any, given: dict[str, Tensor], incoming: list[Tensor]) -> dict[str, Tensor]:
    leaves = {name: a.detach().requires_grad_() for name, a in given.items()}
    poison()
    results = as_tuple(function(**leaves))
    poison()
    gradients = torch.autograd.grad(results, list(leaves.values()), incoming)
    return {f"result {i}": a for i, a in enumerate(results)} | dict(zip(leaves, gradients, strict=True))


def check(kernel: Any, definition: Any, given: dict[str, Tensor], close: float, **options: Any) -> None:
    """Kernels three times, the third with incoming gradients in another memory order, and the definition in float64."""
    kernel, definition = partial(kernel, **options), partial(definition, **options)
    incoming = [torch.randn_like(a) for a in as_tuple(kernel(**given))]
    orders = incoming, incoming, [a.contiguous() for a in incoming]
    first, again, turned = (outputs_and_gradients(kernel, given, dys) for dys in orders)
    wide, dys = {name: a.double() for name, a in given.items()}, [a.double() for a in incoming]
    right = outputs_and_gradients(definition, wide, dys)
    for name, a in first.items():
        assert torch.equal(a, again[name]), f"{name}: other bits the second time, or NaN"
        assert a.dtype == given.get(name, given["x"]).dtype, name
        # Gradients may cancel, as where a group is two values: then they are small beside what came in.
        scale = max(float(b.detach().norm()) for b in (right[name], *dys))
        assert max(float((b.double() - right[name]).detach().norm()) for b in (a, turned[name])) < close * scale, name
        if name in ("x", "h", "other", "residual") or "result" in name:
            assert a.is_contiguous(memory_format=torch.channels_last_3d), name


@gpu
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(CASE, [*CASES, ((64,), LARGE, 32, "shift", "silu")])
def test_norm_kernels(widths: Widths, space: Widths, groups: int, more: str, activation: str, dtype: Any) -> None:
    given = norm_inputs(widths, space, more, dtype, DEVICE)
    assert kernels.takes(*(a for a in given.values() if a.dim() == 5))
    options = {"groups": groups, "activation": activation}
    check(kernels.group_norm, kernels.group_norm_definition, given, CLOSE[dtype], **options)


@gpu
@pytest.mark.parametrize(("widths", "dtype"), [((64,), FP16), ((64,), FP32), ((128, 64), BF16)])
def test_kept_norm_kernels(widths: Widths, dtype: torch.dtype) -> None:
    def kernel(**a: Any) -> tuple[Tensor, ...]:
        return tuple(b for b in kernels.kept_group_norm(**a) if b is not None)

    def definition(**a: Any) -> tuple[Tensor, ...]:
        return kernels.group_norm_definition(**a), *(a[name] * 1 for name in ("x", "other") if name in a)

    given = norm_inputs(widths, ODD, "shift", dtype, DEVICE)
    check(kernel, definition, given, CLOSE[dtype], groups=32)
    x = given["x"].requires_grad_()
    (only,) = torch.autograd.grad(kernel(**given, groups=32)[1].sum(), x)  # the norm itself is not used
    assert torch.equal(only, torch.ones_like(x))


@gpu
def test_a_large_mean_hides_no_small_spread_and_other_memory_orders_agree() -> None:
    x, shift = volume(2, 64, *LARGE, dtype=FP32, device=DEVICE) + 1000, torch.randn(2, 64, device=DEVICE)
    right = kernels.group_norm_definition(x.double(), 32, shift=shift, activation="none")
    assert error(kernels.group_norm(x, 32, shift=shift, activation="none"), right) < 1e-3
    y = kernels.instance_norm(x, activation="none")
    assert float((y.double().var((2, 3, 4), correction=0) - 1).abs().max()) < 1e-3
    other = x.contiguous()
    assert (kernels.takes(x), kernels.takes(other)) == (True, False)
    assert torch.equal(kernels.instance_norm(other), kernels.group_norm_definition(other, 64, activation="leaky_relu"))
    assert error(kernels.instance_norm(other, activation="none"), y) < 1e-3
    assert error(kernels.upsample(other), kernels.upsample(x)) < 1e-6


@gpu
@pytest.mark.parametrize(
    ("c", "space", "dtype"),  # past a row's last output lies the next row's first
    [(512, (7, 33, 3), BF16), (64, (2, 7, 33), FP32), (64, POINT, BF16), (3, (1, 33, 7), FP32)],
)
def test_upsample_kernels(c: int, space: Widths, dtype: torch.dtype) -> None:
    x = volume(2, c, *space, dtype=dtype, device=DEVICE)
    check(kernels.upsample, kernels.upsample_definition, {"x": x}, CLOSE[dtype])


@gpu
@pytest.mark.parametrize(("c", "widths"), [(96, (96,)), (64, (128, 64)), (320, (256, 192)), (96, (20,))])
@pytest.mark.parametrize(("space", "dtype"), [(ODD, BF16), ((1, 7, 33), FP32)])
def test_add_kernels(c: int, widths: Widths, space: Widths, dtype: torch.dtype) -> None:
    parts = [volume(2, width, *space, dtype=dtype, device=DEVICE) for width in (c, *widths)]
    assert kernels.takes(*parts)
    given = dict(zip(("h", "x", "other"), parts, strict=False)) | {"bias": torch.randn(c, device=DEVICE)}
    if widths != (c,):
        given["weight"] = (torch.randn(c, sum(widths), device=DEVICE) / sum(widths) ** 0.5).to(dtype)
    check(kernels.add, kernels.add_definition, given, TF32_CLOSE[dtype])


@gpu
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("inside", "out"), [(1, 64), (3, 64), (8, 64), (64, 1), (320, 4), (64, 192)])
def test_convolution_kernels(inside: int, out: int, dtype: torch.dtype) -> None:
    side = 3 if min(inside, out) <= 8 else 1
    weight = volume(out, inside, side, side, side, dtype=dtype, device=DEVICE) / (inside * side**3) ** 0.5
    given = {"weight": weight, "bias": torch.randn(out, device=DEVICE)}
    for space in (ODD, LARGE):
        given["x"] = volume(2, inside, *space, dtype=dtype, device=DEVICE)
        check(kernels.conv3d, lambda x, **a: functional.conv3d(x, **a), given, TF32_CLOSE[dtype], padding=side // 2)


@hopper
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(
    ("inside", "out", "spaces"), [(64, 64, (ODD, LARGE)), (200, 40, ((5, 6, 64),)), (32, 96, CUBES)]
)
def test_kernels_of_many_channels(
    inside: int, out: int, spaces: tuple[Widths, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they would be slower than cuDNN they must be right too."""
    from medddpm.kernels import conv3d_hopper

    assert conv3d_hopper.works(torch.device(DEVICE, torch.cuda.current_device()))
    calls = Counter[str]()
    for name in ("convolve", "weight_gradient"):
        function = getattr(conv3d_hopper, name)
        monkeypatch.setattr(conv3d_hopper, name, lambda *a, f=function, n=name, **k: calls.update([n]) or f(*a, **k))
    for name in ("pays", "gradient_pays"):
        monkeypatch.setattr(conv3d_hopper, name, lambda *_: True)
    weight = volume(out, inside, *CUBE, dtype=dtype, device=DEVICE) / (inside * 27) ** 0.5
    given = {"weight": weight, "bias": torch.randn(out, device=DEVICE)}
    for space in spaces:
        given["x"] = volume(2, inside, *space, dtype=dtype, device=DEVICE)
        check(kernels.conv3d, lambda x, **a: functional.conv3d(x, **a), given, CLOSE[dtype], padding=1)
    assert calls == {"convolve": 7 * len(spaces), "weight_gradient": 3 * len(spaces)}  # forward 4 times, backward 3


@hopper
def test_many_channels_have_cudnn_where_the_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from medddpm.kernels import conv3d_hopper

    monkeypatch.setattr(conv3d_hopper, "works", functools.cache(conv3d_hopper.works.__wrapped__))
    monkeypatch.setattr(conv3d_hopper, "convolve", lambda x, weight, bias=None, turned=False: torch.zeros_like(x))
    x, weight = volume(1, 64, 64, 64, 64, dtype=BF16, device=DEVICE), volume(64, 64, *CUBE, dtype=BF16, device=DEVICE)
    assert conv3d_hopper.pays(x, 64)
    with pytest.warns(UserWarning, match="cuDNN's are used"):
        y = kernels.conv3d(x, weight, None, 1, 1)
    assert torch.equal(y, functional.conv3d(x, weight, padding=1))


@gpu
def test_a_graph_replays_the_same_bits() -> None:
    """Every kernel in one captured forward and backward."""
    image = volume(2, 3, *ODD, dtype=BF16, device=DEVICE)
    shapes = (64, 3, 3, 3, 3), (1, 128, 3, 3, 3), (128, 128), (128,), (128,), (2, 128), (64,)
    leaves = [(0.3 * torch.randn(s, device=DEVICE)).to(BF16 if i < 3 else FP32) for i, s in enumerate(shapes)]
    inwards, outwards, product, weight, bias, shift, half = (a.requires_grad_() for a in leaves)

    def step() -> list[Tensor]:
        x = kernels.conv3d(image, inwards, half, 1, 1)
        y = kernels.instance_norm(x, half, shift=half)
        y, x, other = kernels.kept_group_norm(x, 32, weight, bias, other=y, shift=shift)
        h = kernels.upsample(kernels.add(y, x, other, weight=product, bias=bias))
        y = kernels.conv3d(kernels.add(h, h, bias=bias), outwards, half[:1], 1, 1)
        return [y, *torch.autograd.grad(y.float().square().mean(), leaves)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    image.copy_(torch.randn_like(image))  # a replay must read what is new
    graph.replay()
    assert all(torch.equal(a, b) and a.any() for a, b in zip(captured, step(), strict=True))
