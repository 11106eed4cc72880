"""The kernels' launches as operators: what `torch.compile` is told of each of them is what it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, FP32, volume
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from medddpm.fast.graphs.nested import tensors
from medddpm.fast.kernels import operators
from medddpm.fast.kernels.add import add
from medddpm.fast.kernels.conv3d import GLUON, conv3d
from medddpm.fast.kernels.depthwise import depthwise
from medddpm.fast.kernels.norm import NormArguments, group_norm
from medddpm.fast.kernels.relayout import copy_into
from medddpm.fast.kernels.upsample import upsample

SPACE = (3, 4, 2)


def vol(c: int, dtype: torch.dtype = FP32, space: tuple[int, ...] = SPACE) -> Tensor:
    return volume(2, c, *space, dtype=dtype, device=DEVICE)


def vec(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def norm_cases() -> list[tuple[Any, ...]]:
    plain = (vol(8), None, None, None, None, None, None, None, None, 2, 1e-5, "silu", 0.0)
    shifted = (
        vol(4, BF16),
        vec(4),
        vec(4),
        None,
        vec(2, 4),
        vol(4, BF16),
        None,
        None,
        None,
        4,
        1e-5,
        "leaky_relu",
        0.1,
    )
    both = (vol(4), vec(12), vec(12), vol(8), vec(12), None, vec(12), None, None, 3, 1e-5, "prelu", 0.0)
    known = (vol(4)[:1], vec(4), None, None, None, None, None, vec(4), vec(4).abs(), 4, 1e-5, "none", 0.0)
    return [plain, shifted, both, known]


def norm_backward_cases() -> list[tuple[Any, ...]]:
    found = []
    for x, *_, other, _, residual, slopes, mean, _, groups, _, activation, slope in norm_cases():
        c = x.shape[1] + (0 if other is None else other.shape[1])
        kept = [torch.randn_like(x), None if other is None else torch.randn_like(other).contiguous()]
        for d_kept in ([None, None], kept):
            dy, tables = vol(c, x.dtype)[: len(x)].contiguous(), vec(5, len(x), c)
            given = (groups, activation, slope, mean is not None)
            found.append((dy, x, other, residual, slopes, tables, *d_kept, *given))
    return found


def convolution_cases(inside: int, out: int, backward: Any = None) -> list[tuple[Any, ...]]:
    dtype = FP32 if min(inside, out) < 16 else BF16  # the interpreter cannot do few channels in BF16
    x, weight, bias = vol(inside, dtype), volume(out, inside, 3, 3, 3, dtype=dtype, device=DEVICE), vec(out)
    if backward is None:
        return [(x, weight, bias), (x, weight, None)]
    dy = vol(out, dtype).contiguous()
    return [(dy, backward(x), weight, *wanted) for wanted in ((True, True), (False, True), (True, False))]


def few_cases(backward: bool) -> list[tuple[Any, ...]]:
    """With a stride behind the tensors: of few channels to many, and with a stride of 2."""
    weight = vec(4, 2, 3, 3, 3)
    if not backward:
        whole = [(bordered(x), *rest, 1) for x, *rest in convolution_cases(2, 16)]
        return [*whole, (bordered(vol(2)), weight, None, 2), (bordered(vol(2)), weight, vec(4), 1)]
    whole = [(*case[:3], 1, *case[3:]) for case in convolution_cases(2, 16, bordered)]
    small = (vol(4, space=(2, 2, 1)).contiguous(), bordered(vol(2)), weight, 2, False, True)
    return [*whole, small, (vol(4).contiguous(), bordered(vol(2)), weight, 1, True, True)]


def last(*shape: int) -> Tensor:
    return torch.empty(shape, device=DEVICE, memory_format=torch.channels_last_3d)


def bordered(x: Tensor) -> Tensor:
    n, f, d, h, w = x.shape
    return vec(n, d + 2, h + 2, w + 2, f, dtype=x.dtype)


def depthwise_cases(backward: bool) -> list[tuple[Any, ...]]:
    weight, options = vec(6, 1, 3, 3, 3), ([2, 2, 2], [1, 1, 1], False)
    if not backward:
        return [(vol(6), weight, vec(6), [2, 2, 1], *options), (vol(6), weight, None, [2, 2, 1], *options)]
    dy = vol(6, space=(2, 2, 1)).contiguous()
    return [(dy, vol(6), weight, *wanted, *options) for wanted in ((True, True), (False, True), (True, False))]


CASES = {
    "norm": norm_cases,
    "norm_running": lambda: [
        (vec(4), vec(4), torch.tensor(2, device=DEVICE), vec(5, 1, 4), None, m, 1e-5, 24) for m in (0.1, None)
    ],
    "depthwise": lambda: depthwise_cases(False),
    "depthwise_backward": lambda: depthwise_cases(True),
    "norm_backward": norm_backward_cases,
    "add": lambda: [
        (vol(16), vol(16), None, None, vec(16)),
        (vol(16, BF16), vol(16, BF16), None, None, None),
        (vol(16), vol(16), vol(32), vec(16, 48), vec(16)),
    ],
    "add_backward": lambda: [
        (vol(16).contiguous(), vol(32), None, vec(16, 32)),
        (vol(16, BF16), vol(16, BF16), vol(32, BF16), vec(16, 48, dtype=BF16)),
    ],
    "relay": lambda: [
        ([vec(3, 5, 3, 3, 3), vec(20, 7, 3, 3, 3)], [last(3, 5, 3, 3, 3), last(20, 7, 3, 3, 3)]),
        ([last(6, 70, 1, 2, 2).normal_()], [vec(6, 70, 1, 2, 2)]),
    ],
    "column_sums": lambda: [(vol(5, BF16),), (vol(32).contiguous(),)],
    "upsample": lambda: [(vol(6),), (vol(16, BF16, (1, 1, 3)),)],
    "upsample_backward": lambda: [(vol(6, FP32, (2, 4, 6)),), (vol(16, BF16, (2, 2, 6)).contiguous(),)],
    "few_in": lambda: [*few_cases(False), (vec(2, 7, 8, 6, 1), vec(3, 1, 5, 5, 5), None, 1)],
    "few_in_backward": lambda: few_cases(True),
    "few_out": lambda: convolution_cases(16, 2),
    "few_out_backward": lambda: convolution_cases(16, 2, lambda x: x),
    "conv3d_hopper": lambda: convolution_cases(32, 40),
    "conv3d_hopper_backward": lambda: convolution_cases(32, 40, lambda x: x),
}


@pytest.mark.gpu(kernels=True)
def test_every_operator_has_a_case() -> None:
    assert all(map(callable, (add, conv3d, copy_into, depthwise, group_norm, upsample)))  # which register them
    assert {name for name in CASES if GLUON or "hopper" not in name} == set(operators.NAMES)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("name", CASES)
def test_shapes_dtypes_and_strides_are_as_told(name: str) -> None:
    if "hopper" in name and not GLUON:
        pytest.skip("Triton without Gluon")
    recorded = getattr(torch.ops.medddpm, name).default
    for arguments in CASES[name]():
        torch.library.opcheck(recorded, arguments, test_utils=("test_schema", "test_faketensor"))
        with FakeTensorMode() as mode:  # opcheck compares no strides on a CPU
            told = recorded(*tree_map_only(Tensor, mode.from_tensor, arguments))
        for a, b in zip(tensors(told), tensors(recorded(*arguments)), strict=True):
            assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


@pytest.mark.gpu(kernels=True)
def test_eager_code_goes_past_the_dispatcher_and_a_mode_sees_the_operator() -> None:
    x = vol(8).requires_grad_()
    with torch.profiler.profile() as eager:
        y = group_norm(NormArguments(x, 2))
    assert not any(event.name.startswith("medddpm::") for event in eager.events() or [])
    with FlopCounterMode(display=False), torch.profiler.profile() as seen:
        again = group_norm(NormArguments(x, 2))
    assert any(event.name == "medddpm::norm" for event in seen.events() or [])
    assert torch.equal(y, again)


class Product(torch.autograd.Function):
    """x · y, whose backward pass is a launch: what it returns has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, none: None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * y, x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        if operators.twice():
            return tuple(operators.derivatives(lambda x, y, none: (x * y, x.exp()), (x, y, None), grads))
        dy, of_exp = (torch.zeros_like(x) if g is None else g.detach() for g in grads)
        return (dy * y + of_exp * x.exp()).detach(), (dy * x).detach(), None


def test_gradients_that_are_differentiated_are_those_of_the_definition() -> None:
    found = []
    for product in (lambda *a: Product.apply(*a, None), lambda x, y: (x * y, x.exp())):
        x = torch.linspace(0.5, 2.0, 4, dtype=torch.float64, requires_grad=True)
        for first, second in (product(x, x), product(2 * x, x.detach())):  # one tensor in two places; one without
            (slope,) = torch.autograd.grad(first.sum() + second.square().sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.square().sum(), x, retain_graph=True)
            found.append((slope, bend, torch.autograd.grad(first.sum(), x)[0]))
    for ours, right in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(ours, right)
