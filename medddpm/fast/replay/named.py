"""What named attributes of objects hold that can change, where code names the attributes that it reads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.functions import ANY, is_known, names_read
from medddpm.fast.replay.contents import CACHE, INTERNAL, Contents, Walk, slots_of

PARTS = ("_parameters", "_buffers", "_modules")


def named(
    values: Sequence[object],
    known: Sequence[object],
    names: set[str],
    device: torch.device | None = None,
    kinds: Iterable[type] = (),
) -> tuple[list[Any], Named]:
    """What `values` and named methods of `kinds` hold and read, and the walk that found it; see `Named`."""
    count = -1
    while len(names) > count:  # a method that is found by one name reads others
        count = len(names)
        walk = Named(known, names, device)
        tables = [table for value in values for table in walk.tables(value)]
        tables += [table for kind in kinds for table in walk.of_methods(kind)]
    return tables, walk


class Named(Walk):
    """Looks, of objects of other classes than PyTorch's, at the attributes that are named in the code it comes upon.

    Args:
        known: objects that are not looked into.
        names: that are known by now; those that it finds are added.
        device: of its tensors only the places are compared; None is no device.

    Attributes:
        tensors: those on the device.
        modules: others than the known ones, and not scripted.
    """

    def __init__(self, known: Iterable[object], names: set[str], device: torch.device | None) -> None:
        super().__init__(known)
        self.names, self.device = names, device
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []

    def of_methods(self, kind: type) -> Iterator[Any]:
        """Yields what named methods of a known module read: `loss_fn` may call others than `forward`."""
        for base in kind.__mro__:
            if not is_known(base.__module__):
                for part in [part for name, part in vars(base).items() if name in self.names]:
                    yield from self._of_function(part, None)

    def _reads(self, function: FunctionType) -> None:
        self.names |= names_read(function.__code__)

    def _of_a_tensor(self, t: Tensor) -> Iterator[Any]:
        if t.device == self.device and type(t) in (Tensor, nn.Parameter) and t.layout == torch.strided:
            self.tensors.append(t)
        else:
            yield from super()._of_a_tensor(t)

    def _of_an_object(self, value: Any) -> Iterator[Any]:
        kind: type = type(value)
        if isinstance(value, torch.jit.ScriptModule):  # its tables are no dicts, and its mode is no attribute
            self.tensors += (t for t in (*value.parameters(), *value.buffers()) if t.device == self.device)
            yield Contents(lambda: [part.training for part in value.modules()])
            return
        if isinstance(value, nn.Module):
            self.modules.append(value)
        own = getattr(value, "__dict__", None)
        whole = self._may_read_all(kind)
        if isinstance(own, dict):
            yield own if whole else Contents(lambda: {n: v for n, v in own.items() if n in self.names})
            internal = INTERNAL if isinstance(value, nn.Module) else ()
            for name, part in list(own.items()):
                if name in PARTS or (name not in internal and (whole or name in self.names)):
                    yield from self.tables(part)
        slots = [name for name in slots_of(kind) if whole or name in self.names]
        if slots:
            yield Contents(lambda: {name: getattr(value, name, None) for name in slots})
            for name in slots:
                yield from self.tables(getattr(value, name, None))
        yield from self._of_a_class(kind)

    def _may_read_all(self, kind: type) -> bool:
        """Whether any attribute of this class's objects may be read: in PyTorch's own code, or by a computed name."""
        asks = getattr(kind, "__getattr__", None)
        return is_known(kind.__module__) or ANY in self.names or asks not in (None, nn.Module.__getattr__)

    def _of_a_class(self, kind: type) -> Iterator[Any]:
        """Yields what is named in a class and those above it, and what their methods read that are named or special."""
        for base in kind.__mro__ if not is_known(kind.__module__) else ():
            if base in (object, nn.Module) or id(base) in self.seen:
                continue
            self.seen.add(id(base))
            named = {name: v for name, v in vars(base).items() if name in self.names or _is_called_unnamed(name, v)}
            for part in named.values():
                function = inspect.unwrap(part) if isinstance(part, FunctionType) else None
                if isinstance(function, FunctionType):  # PyTorch's too: a user's class may be derived from one
                    self._reads(function)
                yield from self._of_function(part, None)
                if not hasattr(type(part), "__get__") or isinstance(part, CACHE):  # neither a method nor a property
                    yield from self.tables(part)
            if named and not is_known(base.__module__):
                yield Contents(functools.partial(_values, vars(base), list(named)))


def _is_called_unnamed(name: str, value: object) -> bool:
    """Whether it is a method that is called by no name, as `__call__`, but no part of every object, as `__init__`."""
    special = name.startswith("__") and name.endswith("__") and name not in vars(object)
    return isinstance(value, FunctionType) and (special or name == "forward")


def _values(space: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: space.get(name) for name in names}
