"""Networks that see how a feature map lies in memory: by `x.view(…)`, or by noise drawn in its order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RESHAPES: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.view: Tensor.reshape,
    Tensor.view_as: Tensor.reshape_as,
}


DRAWS = (torch.rand_like, torch.randn_like)
NAMES = {"view", "view_as", "rand_like", "randn_like"}


class AsContiguous(TorchFunctionMode):
    """Inside, a channels-last map is viewed, and noise like it drawn, as if it were contiguous.

    `view` is `reshape`: the same view where there is one, else a copy of the same values. A seed gives the same noise.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RESHAPES and not kwargs and not any(isinstance(size, torch.dtype) for size in args[1:]):
            func = RESHAPES[func]
        if func in DRAWS:
            kwargs = {"memory_format": torch.contiguous_format} | kwargs
        return func(*args, **kwargs)


def sees_layout(kind: type[nn.Module]) -> bool:
    """Whether a method of this class, or a function that one calls by name, calls one of `NAMES`.

    PyTorch's own classes do it where they may. `AsContiguous` costs every call of a tensor's function some
    microseconds, so it is for these classes only.
    """
    found = (
        value for base in kind.__mro__ if not base.__module__.startswith("torch.") for value in vars(base).values()
    )
    functions = (inspect.unwrap(getattr(value, "__func__", value)) for value in found if callable(value))
    return any(_calls(f, set()) for f in functions if isinstance(f, FunctionType))


def _calls(function: FunctionType, seen: set[FunctionType]) -> bool:
    seen.add(function)
    names = set(_names([function.__code__]))
    if names & NAMES:
        return True
    known = (function.__globals__.get(name) for name in names)
    # Only of functions: what stands for a missing package, as in MONAI, raises at any attribute.
    called = (inspect.unwrap(f) for f in known if isinstance(f, FunctionType))
    return any(
        _calls(f, seen)
        for f in called
        if isinstance(f, FunctionType) and f not in seen and not f.__module__.startswith("torch.")
    )


def _names(codes: Iterable[object]) -> Iterator[str]:
    for code in codes:
        if isinstance(code, CodeType):
            yield from code.co_names
            yield from _names(code.co_consts)
