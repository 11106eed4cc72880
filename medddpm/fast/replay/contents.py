"""What a value, a class or a function holds and reads that can change while it stays the same object."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import enum
import functools
import gc
import logging
import operator
import os
import random
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.functions import (
    cached_by_class,
    called_by,
    cells,
    global_names,
    imported,
    is_installed,
    is_known,
    is_others,
    modules_in,
    names_in,
    names_read,
    wrapped,
)
from medddpm.fast.graphs import nested

INTERNAL = frozenset(nn.Module().__dict__)  # attributes that PyTorch itself gives a module
NEVER = (type, BuiltinFunctionType, ModuleType, enum.Enum)
CONTAINERS = (list, dict, set, deque)
STAND_INS = f"{__package__.rpartition('.')[0]}."
CACHE = functools._lru_cache_wrapper
SMALL = 1 << 16  # bytes: of what is larger only the place is compared
PLACE: tuple[Callable[[Tensor], Any], ...] = (
    Tensor.data_ptr, Tensor.stride, Tensor.numel, Tensor.is_conj, Tensor.is_neg,
    operator.attrgetter("dtype"), operator.attrgetter("requires_grad"),
)  # fmt: skip


class Contents:
    """Something whose contents are not compared by `==`.

    Args:
        read: returns what stands for them now.
        of: the something, if it is one object.
    """

    def __init__(self, read: Callable[[], Any], of: object = None) -> None:
        self.read, self.of = read, of

    @property
    def now(self) -> Any:
        """What stands for them now."""
        return self.read()

    def __eq__(self, other: object) -> bool:
        return bool(self.read() == other)

    __hash__ = None  # type: ignore[assignment]


def copies(tables: Iterable[Any]) -> list[Any]:
    """What tables hold now, to be compared with them later."""
    return [table.now if isinstance(table, Contents) else table.copy() for table in tables]


def is_its_own(name: str, value: Any) -> bool:
    """Whether all of an attribute is looked into: an object with a private name may be another's, say a trainer."""
    return not name.startswith("_") or isinstance(value, (*CONTAINERS, tuple)) or _is_of_settings(value)


def _is_of_settings(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, SimpleNamespace | argparse.Namespace)


class Walk:
    """Finds what values, classes and functions hold and read that can change while they stay the same objects.

    Args:
        known: objects that are not looked into.

    Attributes:
        names: that functions read which it comes upon, unless they are of installed packages.
        private: values in classes by names that are private: see `is_its_own`.
    """

    def __init__(self, known: Iterable[object]) -> None:
        self.seen = set(map(id, known))
        self.names: set[str] = set()
        self.private: list[tuple[str, Any]] = []
        self.methods_of: set[type] = set()

    def tables(self, value: Any) -> Iterator[Any]:
        """Yields what is in a value and can change while the value stays the same object."""
        if isinstance(value, type) and issubclass(value, torch.autograd.Function) and _is_held(value):
            yield from self._of_a_class(value)
            return
        if type(value) in nested.PLAIN or isinstance(value, NEVER) or id(value) in self.seen:
            return
        if type(value).__module__.startswith(STAND_INS):  # a stand-in, or the record of what was accelerated
            return
        if isinstance(value, FunctionType):
            yield from self._of_function(value, None)
            return
        self.seen.add(id(value))
        parts: Collection[Any] = ()
        if isinstance(value, Tensor):
            yield from self._of_a_tensor(value)
        elif isinstance(value, CONTAINERS):
            yield value
            parts = value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple):
            parts = value
        elif isinstance(value, MethodType):
            parts = value.__self__, value.__func__
        elif isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
        elif isinstance(value, ContextVar):
            yield Contents(lambda: (value.get(None),), value)
            parts = (value.get(None),)
        elif isinstance(value, weakref.ref):  # compared by its number, for what holds it would keep the object alive
            yield Contents(lambda: (id(value()),), value)
            parts = (value(),)
        elif (read := _reader(value)) is not None:
            yield Contents(read, value)
        else:
            yield from self._of_an_object(value)
            parts = _cached(value) if isinstance(value, CACHE) else ()
        for part in list(parts):
            yield from self.tables(part)

    def of_class(self, kind: type) -> Iterator[Any]:
        """Yields the attributes of a module's class and of those above it, and what its forward reads beside them."""
        for base in kind.__mro__:
            if id(base) in self.seen or is_known(base.__module__):
                continue
            self.seen.add(id(base))
            yield vars(base)
            for name, value in list(vars(base).items()):
                if hasattr(type(value), "__get__"):  # a method or a property
                    continue
                if is_its_own(name, value):
                    yield from self.tables(value)
                else:
                    self.private.append((name, value))
        yield from self._of_function(getattr(kind, "forward", None), kind)

    def _of_a_tensor(self, t: Tensor) -> Iterator[Any]:
        yield Contents(lambda: _of_tensor(t), t)

    def _of_an_object(self, value: Any) -> Iterator[Any]:
        kind: type = type(value)
        own, slots = getattr(value, "__dict__", None), slots_of(kind)
        parts: list[Any] = []
        if isinstance(own, dict):
            yield own
            parts += own.values()
        if slots:
            yield Contents(lambda: [getattr(value, name, None) for name in slots])
            parts += (getattr(value, name, None) for name in slots)
        yield from self._of_methods(kind)
        for part in parts:
            yield from self.tables(part)

    def _of_a_class(self, kind: type) -> Iterator[Any]:
        """Yields what is in a class that a function names."""
        yield vars(kind)
        yield from self._of_methods(kind)

    def _of_methods(self, kind: type) -> Iterator[Any]:
        """Yields what the methods of a class and of those above it read."""
        for base in kind.__mro__:
            if is_known(base.__module__) or base in self.methods_of:
                continue
            self.methods_of.add(base)
            for part in list(vars(base).values()):
                yield from self._of_function(part, None)

    def _reads(self, function: FunctionType) -> None:
        if not is_installed(function):
            self.names |= names_read(function.__code__)

    def _of_function(self, function: object, kind: type | None) -> Iterator[Any]:
        """Yields what a function reads in its cells, in globals and in modules, by itself or in what it calls.

        Functions of installed packages are not looked into: what they keep in globals is caches, which calls fill.

        Args:
            function: a method of `kind`, or any other.
            kind: whose methods it may call.
        """
        waiting, reached = list(wrapped(function)), set[FunctionType]()
        while waiting:
            each = waiting.pop()
            if each in reached:
                continue
            reached.add(each)
            self._reads(each)
            if is_installed(each):
                continue
            names = names_in(each.__code__)
            bases = () if kind is None else [base for base in kind.__mro__ if not is_known(base.__module__)]
            methods = [vars(base)[name] for base in bases for name in names & vars(base).keys()]
            waiting += (f for value in (*called_by(each), *methods) for f in wrapped(value))
            for cache in (method for method in methods if isinstance(method, CACHE)):
                yield from self.tables(cache)
            if id(each) in self.seen:
                continue
            self.seen.add(id(each))
            if not names.isdisjoint({"environ", "getenv"}):
                yield from self.tables(os.environ)
            if "logging" in names | imported(each.__code__):
                yield from self.tables(logging.root.manager)
            named = [(name, each.__globals__, name) for name in global_names(each.__code__) & each.__globals__.keys()]
            others = [space[name] for _, space, name in named if _is_of_others(space[name])]
            others += [m for name in imported(each.__code__) if _is_of_others(m := sys.modules.get(name))]
            modules = [module for other in others for module in modules_in(other, names) if _is_of_others(module)]
            named += ((f"{m.__name__}.{name}", vars(m), name) for m in modules for name in names & vars(m).keys())
            yield from self._of_values(functools.partial(_values, [n for n in named if _is_held(n[1][n[2]])]))
            yield from self._of_values(functools.partial(cells, each))
            yield from self.tables(each.__defaults__)
            yield from self.tables(each.__kwdefaults__)
            if vars(each):
                yield from self.tables(vars(each))

    def _of_values(self, read: Callable[[], dict[str, Any]]) -> Iterator[Any]:
        values = list(read().values())
        if any(map(_is_held, values)):
            yield Contents(read)
        for value in values:
            if isinstance(value, type) and _is_held(value):
                yield from self._of_a_class(value)
            else:
                yield from self.tables(value)


def _cached(cache: object) -> list[Tensor]:
    """The tensors in what an `lru_cache` holds now: whoever looks at them keeps what a graph reads after the cache.

    Its keys may hold other networks, which are not looked into.
    """
    return [t for each in gc.get_referents(cache) for t in nested.tensors(each)]


@cached_by_class
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class hold elsewhere than in a `__dict__`."""
    kinds = (base for base in kind.__mro__ if not is_known(base.__module__))
    return tuple(name for base in kinds for name, part in vars(base).items() if type(part) is MemberDescriptorType)


def _is_held(value: Any) -> bool:
    """Whether a value that a function names is a setting or holds some: it is no function, module or known class."""
    if isinstance(value, type):
        return not is_known(value.__module__) and not issubclass(value, nn.Module)
    return not isinstance(value, NEVER)


def _is_of_others(value: Any) -> bool:
    return isinstance(value, ModuleType) and is_others(value.__name__)


def _levels() -> list[Any]:
    """What is logged: by all loggers, for those that are made meanwhile take the levels of others."""
    known = logging.root.manager.loggerDict
    levels = [(name, each.level, each.disabled) for name, each in known.items() if isinstance(each, logging.Logger)]
    own = [each for each in levels if any(each[1:])]
    return [logging.root.manager.disable, logging.root.level, *own]


def _values(named: list[tuple[str, dict[str, Any], str]]) -> dict[str, Any]:
    return {shown: space[name] for shown, space, name in named}


def of_attribute(own: dict[str, Any], name: str) -> tuple[Any, ...]:
    """What stands for a tensor that is a plain attribute of a module; nothing where it is no tensor any more."""
    value = own.get(name)
    return _of_tensor(value) if isinstance(value, Tensor) else ()


def _of_tensor(t: Tensor) -> tuple[Any, ...]:
    """A tensor's place; and on the host, unless it is learned, what is in it: a graph reads it on the device only."""
    if type(t) not in (Tensor, nn.Parameter) or t.layout != torch.strided:
        return (id(t),)
    if t.device.type != "cpu" or isinstance(t, nn.Parameter):
        return place(t)
    version = nested.version(t)
    if t.numel() * t.element_size() > SMALL or not t.numel() or t.is_quantized:
        return *place(t), version
    return *place(t), version, t.detach().flatten().view(torch.uint8).numpy().tobytes()


def place(t: Tensor) -> tuple[Any, ...]:
    """Where and how a strided tensor lies in memory; another view of the same memory is another place."""
    return tuple(read(t) for read in PLACE)


def _reader(value: Any) -> Callable[[], Any] | None:
    """What reads the contents of an array or of a generator of random numbers; None for any other object."""
    if isinstance(value, torch.Generator):
        return lambda: (value.get_state().numpy().tobytes(),)
    if isinstance(value, logging.Logger):
        return lambda: (value.getEffectiveLevel(), value.disabled, value.manager.disable)
    if isinstance(value, logging.Manager):
        return _levels
    if value is os.environ:
        return os.environ.copy
    if isinstance(value, random.Random):
        return value.getstate
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        place = value.ctypes.data
        return lambda: (place, value.tobytes() if value.nbytes <= SMALL and value.dtype != object else None)
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        bits = value.bit_generator if isinstance(value, numpy.random.Generator) else value._bit_generator
        return lambda: (repr(bits.state),)
    if isinstance(value, bytearray | array | ctypes.Array | ctypes._SimpleCData):  # as multiprocessing.Value holds
        return lambda: (bytes(value),)
    if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
        return lambda: (object(),)  # nothing tells whether it has advanced
    return None
