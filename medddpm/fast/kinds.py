"""Tensors of classes that extend PyTorch's functions, as MONAI's `MetaTensor` does: the kernels know plain ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.functions import global_names, is_installed, names_in, names_read, run_by, run_in
from medddpm.fast.graphs import nested
from medddpm.fast.hooks import hook_tables, modules_of


def special(value: object) -> Tensor | None:
    """The first tensor in `value` whose class extends PyTorch's functions, if there is one."""
    return next((t for t in nested.tensors(value) if type(t) is not Tensor and _extends(type(t))), None)


@functools.cache
def _extends(kind: Any) -> bool:
    if issubclass(kind, nn.Parameter):
        return False
    extends = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    return extends and kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def as_one_function(
    function: Callable[..., Any], kind: type[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Computes with plain tensors, and gives the outputs the class that one PyTorch function would give them.

    Args:
        function: what is called.
        kind: of `special` tensors among the arguments.
        args, kwargs: for it.
    """
    lent = nested.Lent((args, kwargs), _plain)
    out = function(*lent.copy[0], **lent.copy[1])

    @nested.once
    def of_kind(y: Tensor) -> Tensor:
        made: Tensor = kind.__torch_function__(lambda *_, **__: y, (kind,), args, kwargs)
        return made

    lent.returned(of_kind)
    return nested.mapped(out, of_kind, frozenset())


def _plain(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor) if special(x) is not None else x


def may_be_asked(network: nn.Module, x: Tensor) -> bool:
    """Returns whether code that a network or its hooks run may tell a special tensor from a plain one.

    It names the tensor's class; or, unless it is of an installed package, an attribute that plain ones lack, or `type`.
    """
    kinds = {kind for kind in type(x).__mro__ if not issubclass(Tensor, kind)}
    names = {name for name in {*dir(type(x)), *vars(x)} - set(dir(Tensor)) if not name.startswith("__")}
    functions: set[FunctionType] = set()
    for module in modules_of(network):
        functions.update(run_in(module), *(run_by(table) for table in hook_tables(module) if table))
    return any(_asks(function, kinds, names) for function in functions)


def _asks(function: FunctionType, kinds: set[type], names: set[str]) -> bool:
    code = function.__code__
    named = names_in(code)
    values = map(function.__globals__.get, global_names(code))  # it may have been imported by another name
    if any(kind.__name__ in named for kind in kinds) or any(isinstance(v, type) and v in kinds for v in values):
        return True
    return not is_installed(function) and not (names | {"__class__", "type"}).isdisjoint(named | names_read(code))
