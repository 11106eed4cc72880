"""Batch norm as the norm of one sample: its definition against PyTorch's, and its kernels against the definition."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, CLOSE, F64, FP32, LARGE, ODD, POINT, Widths, check, error, norm_inputs, volume
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn import functional

from medddpm.fast.kernels import norm
from medddpm.fast.kernels.norm import NormArguments
from medddpm.fast.kernels.running import Running

CASE = ("widths", "space", "more", "activation")
CASES = [
    ((64,), (3, 1, 33), "one shift", "silu"),
    ((32,), (16, 8, 8), "", "leaky_relu"),  # tiles without a rest
    ((96,), (7, 3, 2), "residual", "leaky_relu"),
    ((20,), (3, 7, 1), "residual slopes one shift", "prelu"),
    ((130,), POINT, "", "none"),  # two values a channel
    ((32, 64), (1, 7, 1), "plain one shift residual", "silu"),
    ((5,), ODD, "plain", "elu"),
]


def statistics(c: int, fixed: bool, momentum: float | None = 0.1, device: str = "cpu") -> Running:
    mean, variance = torch.randn(c, device=device), 0.5 + torch.rand(c, device=device)
    return Running(mean, variance, torch.tensor(3, device=device), momentum, fixed)


def batch_norm(running: Running | None, **given: Any) -> Tensor:
    return norm.group_norm(NormArguments(groups=channels(given), joined=True, running=running, **given))


def definition(running: Running | None, **given: Any) -> Tensor:
    arguments = NormArguments(groups=channels(given), joined=True, running=running, **given)
    return norm.group_norm_definition(arguments)


def channels(given: dict[str, Any]) -> int:
    return int(given["x"].shape[1] + (given["other"].shape[1] if "other" in given else 0))


def pytorchs(given: dict[str, Any], running: Running, activation: str) -> Tensor:
    """By PyTorch's batch norm, which leaves its statistics in a layer's copy of `running`."""
    h = torch.cat([given["x"], given["other"]], 1) if "other" in given else given["x"]
    if "shift" in given:
        h = h + given["shift"][:, None, None, None]
    mean, variance = running.mean.to(h.dtype), running.variance.to(h.dtype)
    h = functional.batch_norm(h, mean, variance, given.get("weight"), given.get("bias"), not running.fixed, 0.1)
    h = h + given.get("residual", 0)
    if activation == "prelu":
        return functional.prelu(h, given["slopes"])
    by_name = {"none": lambda a: a, "silu": functional.silu, "leaky_relu": functional.leaky_relu}
    return functional.elu(h, 0.01) if activation == "elu" else by_name[activation](h)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(CASE, CASES)
def test_batch_norm_is_pytorchs(widths: Widths, space: Widths, more: str, activation: Any, fixed: bool) -> None:
    given, running = norm_inputs(widths, space, more), statistics(sum(widths), fixed)
    right = pytorchs(given, running, activation)
    assert error(batch_norm(running, activation=activation, **given), right) < 1e-12

    given = norm_inputs((2, 4)[: len(widths)], (1, 2, 3), more)
    running = statistics(channels(given), fixed)

    def tiny(*leaves: Tensor) -> Tensor:
        return batch_norm(running if fixed else None, activation=activation, **dict(zip(given, leaves, strict=True)))

    assert gradcheck(tiny, tuple(a.requires_grad_() for a in given.values()))


def layers_and(momentum: float | None, dtype: torch.dtype, device: str) -> tuple[nn.BatchNorm3d, Running]:
    layer = nn.BatchNorm3d(40, momentum=momentum).to(device, dtype)
    nn.init.normal_(layer.running_mean)
    twin = copy.deepcopy(layer)
    return layer, Running(twin.running_mean, twin.running_var, twin.num_batches_tracked, momentum)


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
@pytest.mark.parametrize("dtype", [F64, FP32])
def test_running_statistics_are_pytorchs(momentum: float | None, dtype: torch.dtype) -> None:
    layer, running = layers_and(momentum, dtype, "cpu")
    for side in (3, 5):
        x = 3 * volume(2, 40, side, 4, 3, dtype=dtype) + 1
        layer(x)
        definition(running, x=x)
    assert error(running.mean, layer.running_mean) < (1e-12 if dtype == F64 else 1e-6)
    assert error(running.variance, layer.running_var) < (1e-12 if dtype == F64 else 1e-6)
    assert running.count == layer.num_batches_tracked == 2


def test_what_is_no_batch_norm_is_refused() -> None:
    for options in ({"groups": 2, "joined": True}, {"groups": 4, "running": statistics(4, True)}):
        with pytest.raises(ValueError, match="a batch norm is joined and has a group for each channel"):
            NormArguments(torch.ones(1, 4, 2, 2, 2), **options)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(CASE, [*CASES, ((64,), LARGE, "one shift", "silu")])
def test_batch_norm_kernels(
    widths: Widths, space: Widths, more: str, activation: str, fixed: bool, dtype: torch.dtype
) -> None:
    given = norm_inputs(widths, space, more, dtype, DEVICE)
    running = statistics(sum(widths), fixed, device=DEVICE)
    arguments = NormArguments(
        groups=channels(given), joined=True, running=running, **given, **{"activation": activation}
    )
    assert arguments.served()

    def by_definition(**a: Any) -> Tensor:
        return definition(running if fixed else None, **a)

    def by_kernels(**a: Any) -> Tensor:
        return batch_norm(running, **a)

    check(by_kernels, by_definition, given, CLOSE[dtype], activation=activation)


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_running_statistics_of_the_kernels(momentum: float | None) -> None:
    layer, running = layers_and(momentum, FP32, DEVICE)
    shift = torch.randn(40, device=DEVICE)
    for side in (3, 5):
        x = 3 * volume(2, 40, side, 4, 3, dtype=FP32, device=DEVICE) + 1
        layer(x + shift[:, None, None, None])
        batch_norm(running, x=x, shift=shift)
    assert error(running.mean, layer.running_mean) < 1e-5
    assert error(running.variance, layer.running_var) < 1e-5
    assert running.count == 2
