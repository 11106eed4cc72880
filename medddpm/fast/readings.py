"""What a user's functions read beside their arguments: compared before a CUDA graph of their work is replayed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.contents import CACHE, Contents, Walk, copies, place, slots_of
from medddpm.fast.fingerprint import INTERNAL, MOST
from medddpm.fast.functions import ANY, is_known, names_read

PARTS = ("_parameters", "_buffers", "_modules")


class Readings:
    """The values that functions read in cells, globals, objects and containers, by themselves or in what they call.

    Of an object only the attributes that the functions name are compared: a trainer may count its steps.

    Args:
        functions: or any other callables; None is none.
        known: objects that are compared elsewhere, the model's modules among them.
        device: of the work. Of a tensor there only the place is compared, as a graph reads what is in it.

    Attributes:
        why: what keeps them from being compared; empty if nothing does.
    """

    def __init__(self, functions: Sequence[object], known: Sequence[object], device: torch.device) -> None:
        self.why = ""
        try:
            self._read(functions, known, device)
        except Exception as error:  # of values that cannot be walked through
            self.why = f"what the loss reads cannot be compared ({type(error).__name__})"

    def _read(self, functions: Sequence[object], known: Sequence[object], device: torch.device) -> None:
        names: set[str] = set()
        count = -1
        while len(names) > count:  # a method that is found by one name reads others
            count = len(names)
            walk = Named(known, device, names)
            self.tables = [table for function in functions for table in walk.tables(function)]
            kinds = dict.fromkeys(type(each) for each in known if isinstance(each, nn.Module))
            self.tables += [table for kind in kinds for table in walk.of_methods(kind)]
        self.tables.append(Contents(functools.partial(_places, walk.tensors)))
        self.held = copies(self.tables)
        if sum(map(len, self.held)) > MOST:
            self.why = "what the loss reads is too much to compare"

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            return all(map(operator.eq, self.tables, self.held))
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

    def changed(self) -> list[str]:
        """The names of what is not as it was, as far as it has names."""
        names: set[str] = set()
        for table, held in zip(self.tables, self.held, strict=True):
            with contextlib.suppress(Exception):  # of what is there no more, or does not compare
                now = table.now if isinstance(table, Contents) else table
                if isinstance(held, dict):
                    names.update(str(key) for key in held.keys() | now.keys() if not _alike(held, now, key))
                elif now != held:
                    names |= self._names_of(table.of if isinstance(table, Contents) else table)
        return sorted(names)

    def _names_of(self, value: object) -> set[str]:
        named = (held.items() for held in self.held if isinstance(held, dict))
        return {str(name) for items in named for name, each in items if each is value and value is not None}


class Named(Walk):
    """Looks, of objects of other classes than PyTorch's, at the attributes that are named in the code it comes upon.

    Args:
        known: objects that are not looked into.
        device: of its tensors only the places are compared.
        names: that are known by now; those that it finds are added.

    Attributes:
        tensors: those on the device.
    """

    def __init__(self, known: Iterable[object], device: torch.device, names: set[str]) -> None:
        super().__init__(known)
        self.device, self.names = device, names
        self.tensors: list[Tensor] = []

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


def _places(tensors: list[Tensor]) -> list[Any]:
    return list(map(place, tensors))


def _alike(a: Mapping[Any, Any], b: Mapping[Any, Any], key: object) -> bool:
    """Whether an entry is the same in both, or equal as far as it compares."""
    try:
        return key in a and key in b and (a[key] is b[key] or bool(a[key] == b[key]))
    except Exception:
        return False
