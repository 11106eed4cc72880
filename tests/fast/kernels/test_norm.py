"""The norm's definition against PyTorch's functions, and its kernels against the definition."""

from __future__ import annotations

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
    Widths,
    check,
    error,
    norm_inputs,
    volume,
)  # fmt: skip
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from medddpm.fast.kernels import dispatch, norm
from medddpm.fast.kernels.norm import NormArguments

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


def group_norm(**arguments: Any) -> Tensor:
    return norm.group_norm(NormArguments(**arguments))


def definition(**arguments: Any) -> Tensor:
    return norm.group_norm_definition(NormArguments(**arguments))


def kept(**arguments: Any) -> tuple[Tensor, ...]:
    """The norm and the inputs that were given."""
    return tuple(a for a in norm.group_norm_and_inputs(NormArguments(**arguments)) if a is not None)


def pytorchs_norm(given: dict[str, Tensor], groups: int, activation: str = "silu") -> Tensor:
    """What `group_norm` should give, by PyTorch's own group norm."""
    h = torch.cat([given["x"], given["other"]], 1) if "other" in given else given["x"]
    if "shift" in given:
        h = h + given["shift"].expand(h.shape[:2])[:, :, None, None, None]
    h = functional.group_norm(h, groups, given.get("weight"), given.get("bias"))
    if "residual" in given:
        h = h + given["residual"]
    if activation == "prelu":
        return functional.prelu(h, given["slopes"])
    return {"none": h, "silu": h * torch.sigmoid(h), "leaky_relu": torch.where(h > 0, h, 0.01 * h)}[activation]


@pytest.mark.parametrize(CASE, CASES)
def test_group_norm_is_pytorchs(widths: Widths, space: Widths, groups: int, more: str, activation: Any) -> None:
    given = norm_inputs(widths, space, more)
    right = pytorchs_norm(given, groups, activation)
    assert error(group_norm(groups=groups, activation=activation, **given), right) < 1e-12

    def tiny(*leaves: Tensor) -> Tensor:
        return group_norm(groups=2, activation=activation, **dict(zip(given, leaves, strict=True)))

    given = norm_inputs((2, 4)[: len(widths)], (1, 2, 3), more)
    assert gradcheck(tiny, tuple(a.requires_grad_() for a in given.values()))


@pytest.mark.parametrize(("c", "space"), [(32, (33, 1, 1)), (96, (3, 7, 1)), (320, (1, 2, 3))])
def test_a_group_for_each_channel_is_pytorchs_instance_norm(c: int, space: Widths) -> None:
    given: dict[str, Any] = norm_inputs((c,), space) | {"groups": c, "activation": "leaky_relu"}
    right = functional.instance_norm(given["x"], weight=given["weight"], bias=given["bias"])
    assert error(group_norm(**given), functional.leaky_relu(right, 0.01)) < 1e-12
    shift = torch.randn(2, c, dtype=F64, requires_grad=True)
    y = group_norm(**given, shift=shift, slope=0.2)
    assert error(y, functional.leaky_relu(right, 0.2)) < 1e-12
    (gradient,) = torch.autograd.grad(y.square().sum(), shift)
    assert float(gradient.abs().max()) < 1e-9  # the mean takes a shift away
    single = volume(2, c, 1, 1, 1)  # functional.instance_norm refuses it
    assert error(group_norm(x=single, groups=c, residual=single, activation="none"), single) < 1e-12


@pytest.mark.parametrize(("dtype", "close"), [(BF16, 4e-3), (FP16, 5e-4), (FP32, 1e-5), (F64, 1e-12)])
def test_results_have_the_inputs_dtype_and_statistics_are_wider(dtype: torch.dtype, close: float) -> None:
    given = norm_inputs((32, 64), (3, 7, 3), "shift residual", dtype)
    given["x"] = given["x"] + 30  # 30 ± 1: statistics in BF16 would be lost
    y = group_norm(groups=3, **given)
    assert error(y, pytorchs_norm({name: a.double() for name, a in given.items()}, 3)) < close
    assert y.dtype == dtype


@pytest.mark.parametrize("widths", [(4,), (4, 8)])
def test_kept_inputs_are_the_inputs_and_their_gradients_add_up(widths: Widths) -> None:
    given = norm_inputs(widths, (1, 3, 2), "shift")
    volumes = [given[name].requires_grad_() for name in ("x", "other") if name in given]
    y, *handed = kept(groups=2, **given)
    assert [a.tolist() for a in handed] == [a.tolist() for a in volumes]
    got = torch.autograd.grad(y.square().sum() + sum(a.pow(3).sum() for a in handed), volumes)
    right = pytorchs_norm(given, 2).square().sum() + sum(a.pow(3).sum() for a in volumes)
    assert all(error(a, b) < 1e-12 for a, b in zip(got, torch.autograd.grad(right, volumes), strict=True))


def test_what_cannot_be_normalized_is_refused() -> None:
    x, one = torch.ones(1, 4, 2, 2, 2), torch.ones(1)
    for groups in (3, 0, -2):
        with pytest.raises(ValueError, match=f"{groups} groups do not divide 4 channels"):
            NormArguments(x, groups)
    for arguments in ({"activation": "gelu"}, {"activation": "prelu"}, {"slopes": one}):
        with pytest.raises(ValueError, match=r"must be one of none, silu.*prelu comes with slopes"):
            NormArguments(x, 2, **arguments)


def test_what_would_be_broadcast_is_not_handed_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(dispatch, "takes", lambda *volumes: bool(asked.append(len(volumes))))
    x = volume(2, 4, 3, 3, 3)
    group_norm(x=x, groups=2, shift=torch.ones(1, 4))
    group_norm(x=x, groups=2, residual=volume(2, 1, 3, 3, 3))
    group_norm(x=x, groups=2, weight=torch.ones(1))
    assert not asked
    group_norm(x=x, groups=2, shift=torch.ones(2, 4), residual=x)
    assert asked == [2]


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(CASE, [*CASES, ((64,), LARGE, 32, "shift", "silu")])
def test_norm_kernels(widths: Widths, space: Widths, groups: int, more: str, activation: str, dtype: Any) -> None:
    given = norm_inputs(widths, space, more, dtype, DEVICE)
    assert dispatch.takes(*(a for a in given.values() if a.dim() == 5))
    options = {"groups": groups, "activation": activation}
    check(group_norm, definition, given, CLOSE[dtype], **options)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize(("widths", "dtype"), [((64,), FP16), ((64,), FP32), ((128, 64), BF16)])
def test_kept_norm_kernels(widths: Widths, dtype: torch.dtype) -> None:
    def kept_definition(**a: Any) -> tuple[Tensor, ...]:
        return definition(**a), *(a[name] * 1 for name in ("x", "other") if name in a)

    given = norm_inputs(widths, ODD, "shift", dtype, DEVICE)
    check(kept, kept_definition, given, CLOSE[dtype], groups=32)
    x = given["x"].requires_grad_()
    (only,) = torch.autograd.grad(kept(**given, groups=32)[1].sum(), x)  # the norm itself is not used
    assert torch.equal(only, torch.ones_like(x))


@pytest.mark.gpu(kernels=True)
def test_a_large_mean_hides_no_small_spread_and_other_memory_orders_agree() -> None:
    x, shift = volume(2, 64, *LARGE, dtype=FP32, device=DEVICE) + 1000, torch.randn(2, 64, device=DEVICE)
    right = definition(x=x.double(), groups=32, shift=shift, activation="none")
    assert error(group_norm(x=x, groups=32, shift=shift, activation="none"), right) < 1e-3
    y = group_norm(x=x, groups=64, activation="none")
    assert float((y.double().var((2, 3, 4), correction=0) - 1).abs().max()) < 1e-3
    other = x.contiguous()
    assert (dispatch.takes(x), dispatch.takes(other)) == (True, False)
    leaky = {"x": other, "groups": 64, "activation": "leaky_relu"}
    assert torch.equal(group_norm(**leaky), definition(**leaky))
    assert error(group_norm(x=other, groups=64, activation="none"), y) < 1e-3


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("groups", [1, 4, 32])
def test_a_shift_s_gradient_is_as_precise_as_a_sum_over_voxels(groups: int) -> None:
    """It is the sum of dx, and zero if a group is one channel; a large mean of dy must not hide that."""
    given = norm_inputs((32,), (9, 16, 16), "shift", FP32, DEVICE)
    dy = volume(2, 32, 9, 16, 16, dtype=FP32, device=DEVICE) + 30
    found, right = (
        torch.autograd.grad(
            function(groups=groups, activation="none", **leaves),
            (leaves["x"], leaves["shift"]),
            dy.to(leaves["x"].dtype),
        )
        for function, dtype in ((group_norm, FP32), (definition, F64))
        for leaves in [{name: a.detach().to(dtype).requires_grad_() for name, a in given.items()}]
    )
    assert (found[1] - right[1]).norm().item() < 1e-5 * right[0].norm().item()  # PyTorch's own: up to 1e-3
