"""Maps that a network views as if they were contiguous: what is written through a view, and who makes one."""

from __future__ import annotations

import contextlib
import copy
import functools
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.networks import block, check_near, distance, passed, volume
from torch import Tensor, nn

from medddpm.fast.as_contiguous import sees_layout, views_in_backward
from medddpm.fast.patch import accelerate

X = volume(2, 3, 6, 6, 6)


class Writes(nn.Module):
    """A block whose map is changed through a view, or viewed and then changed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.block, self.last, self.kind = block(), nn.Conv3d(2, 2, 1), kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        n, c = y.shape[:2]
        if self.kind == "a view of it":
            y.view(n, c, -1)[:, 0] = 1.0
        if self.kind == "a view of a view":
            part = y.view(n, -1)[:, 3:50]
            part.mul_(2)
        if self.kind == "by another's strides":
            y.as_strided((n, 100), (y.numel() // n, 1), 7).add_(3)
        if self.kind == "itself":
            flat = y.view(n, -1)
            y[:, 1] = 0.5
            return self.last(y) * flat.sum()
        if self.kind == "both in turn":
            flat = y.view(n, -1)
            flat.mul_(2)
            y.add_(1)
            flat.sub_(3)
            return self.last(y) + flat.mean()
        if self.kind == "by a function in place":
            nn.functional.relu(y.view(n, -1), inplace=True)
        if self.kind == "read by strides":
            return self.last(y) + torch.as_strided(y, (4,), (1,), 3).sum()
        return self.last(y)  # type: ignore[no-any-return]


KINDS = (
    "a view of it", "a view of a view", "by another's strides", "itself", "both in turn", "by a function in place",
    "read by strides",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_through_a_view(kind: str) -> None:
    torch.manual_seed(0)
    network = Writes(kind)
    fast = accelerate(copy.deepcopy(network), report=None)
    check_near(passed(fast, X), passed(network, X), 1e-5, 1e-3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_without_gradients(kind: str, mode: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    network = Writes(kind)
    fast = accelerate(copy.deepcopy(network), report=None)
    with mode():
        assert distance(fast(X), network(X)) < 1e-5


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "view_as_complex": torch.view_as_complex,
    "view": lambda y: y.view(torch.complex64),
    "view by name": lambda y: y.view(dtype=torch.complex64),
}


class Complex(nn.Module):
    """Takes pairs for complex numbers, and doubles one of them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.view, self.last = nn.Conv3d(3, 4, 1), COMPLEX[how], nn.Conv3d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).clone()
        self.view(y)[:, 0].mul_(2)
        return self.last(y) + torch.view_as_complex(y).abs().sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("how", "reduced"), [*((how, False) for how in COMPLEX), ("view_as_complex", True)])
def test_maps_of_pairs_viewed_as_complex(how: str, reduced: bool) -> None:
    torch.manual_seed(0)
    network, x = Complex(how), X[..., :2].contiguous()
    fast = accelerate(copy.deepcopy(network), report=None)
    if reduced:
        fast.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    check_near(passed(fast, x), passed(network, x), *((2e-2, 5e-2) if reduced else (1e-5, 1e-3)))


def flat(x: Tensor) -> Tensor:
    return x.view(len(x), -1)


def through(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def around(x: Tensor) -> Tensor:
        return function(x)

    return around


class Helper:
    def in_rows(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


class Static:
    @staticmethod
    def in_rows(x: Tensor) -> Tensor:
        return x.view(len(x), -1)


class Holds(nn.Module):
    """Calls what it holds."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = self._private = function
        if isinstance(function, FunctionType):
            del self.function
        self.block = block()

    def forward(self, x: Tensor) -> Tensor:
        function = self._private[0] if isinstance(self._private, list) else self._private
        function = getattr(function, "in_rows", function)
        return function(self.block(x)).sum(1)  # type: ignore[no-any-return]


class CallsAClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = block()

    def forward(self, x: Tensor) -> Tensor:
        return Static.in_rows(self.block(x)).sum(1)


class CallsAModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = block()

    def forward(self, x: Tensor) -> Tensor:
        return tools.made(self.block(x)).sum(1)  # type: ignore[no-any-return]


tools: Any = ModuleType("tools")
exec(textwrap.dedent("""
    def made(x):
        return inner(x)

    def inner(x):
        return x.view(len(x), -1)
"""), vars(tools))  # fmt: skip


def bound() -> Callable[[Tensor], Tensor]:
    own = flat
    return lambda x: own(x)


HELD: dict[str, Callable[[], nn.Module]] = {
    "a function": lambda: Holds(flat),
    "a lambda's cell": lambda: Holds(bound()),
    "a decorated function": lambda: Holds(through(flat)),
    "a partial": lambda: Holds(functools.partial(flat)),
    "an object": lambda: Holds(Helper()),
    "a method": lambda: Holds(Helper().in_rows),
    "an object in a list": lambda: Holds([Helper()]),
    "a class's function": CallsAClass,
    "a function of a module": CallsAModule,
}


@pytest.mark.parametrize("name", HELD)
def test_views_by_whatever_a_module_calls(name: str) -> None:
    network = HELD[name]()
    fast = accelerate(copy.deepcopy(network), report=None)
    assert sees_layout(network)
    check_near(passed(fast, X), passed(network, X), 1e-5, 1e-3)


def test_the_mode_costs_nothing_where_nobody_views() -> None:
    assert not any(map(sees_layout, block().modules()))
    assert not sees_layout(Holds(torch.relu))
    assert not sees_layout(Holds(Path))
    assert not sees_layout(Holds(contextlib.nullcontext()))


class ByRows(torch.autograd.Function):
    """Scales a map, and in its backward views the gradient by rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (factor,) = ctx.saved_tensors
        by_rows = flat(gradients[0])
        return (by_rows * factor).view_as(gradients[0]), by_rows.sum()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return ByRows.apply(x, self.factor)  # type: ignore[no-any-return, no-untyped-call]


class Within(nn.Module):
    """Calls the function amid its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.factor = nn.Conv3d(3, 4, 1), nn.Conv3d(4, 2, 1), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(ByRows.apply(self.first(x), self.factor).relu())  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_a_gradient_that_a_function_views(within: bool, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the backward of one's own function the gradient lies in memory as the network itself hands it over."""
    if graphs:
        recordings.stand_in(monkeypatch)
    torch.manual_seed(0)
    network = Within() if within else nn.Sequential(nn.Conv3d(3, 4, 1), Scaled(), nn.Conv3d(4, 2, 1))
    fast = accelerate(copy.deepcopy(network), "tf32", report=None)
    for _ in range(4):
        check_near(passed(fast, X), passed(network, X), 1e-5, 1e-3)
    assert fast.acceleration.graphs.captured == graphs  # type: ignore[union-attr]


def test_gradients_are_copied_for_those_functions_only() -> None:
    assert views_in_backward(Scaled())
    assert not views_in_backward(Holds(flat))
