"""What a network's work depends on beside its inputs: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import dis
import enum
import functools
import logging
import operator
import os
import random
import sys
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.as_contiguous import called_by, is_known, names_in, written
from medddpm.fast.forward import HOOKS
from medddpm.runtime import nested

INTERNAL = frozenset(nn.Module().__dict__)  # attributes that PyTorch itself gives a module
NEVER = (type, BuiltinFunctionType, ModuleType, enum.Enum, logging.Logger)
PACKAGES = {"site-packages", "dist-packages"}
CONTAINERS = (list, dict, set, deque)
SMALL = 1 << 16  # bytes: of what is larger only the place is compared
MOST = 100_000  # values that a network's attributes may hold
PLACE: tuple[Callable[[Tensor], Any], ...] = (
    Tensor.data_ptr, Tensor.stride, operator.attrgetter("dtype"), operator.attrgetter("requires_grad"),
)  # fmt: skip


class Fingerprint:
    """The modules of a network, their settings and what these hold, and where their tensors lie.

    Attributes:
        why: what of it no graph can stand for; empty if nothing is.
    """

    def __init__(self, network: nn.Module) -> None:
        self.own: list[dict[str, Any]] = []  # each module's attributes
        self.tables: list[Any] = []  # them, each module's parts, and whatever has contents of its own
        self.hooks: list[Any] = []
        self.why = ""
        names = {module: name for name, module in network.named_modules()}
        modules = list(_modules(network))
        seen = set(map(id, modules))
        for module in modules:
            own = module.__dict__
            self.tables += own, own["_modules"]
            self.own.append(own)
            hooks = [] if module is network else [own.get(name) for name in HOOKS]
            self.hooks += hooks
            if any(hooks):
                self.why = f"{names.get(module, 'a module')} has hooks"
            for name, value in own.items():
                if name in INTERNAL:
                    continue
                if isinstance(value, Tensor):
                    self.tables.append(_Contents(_Attribute(own, name)))
                elif _is_its_own(name, value):
                    self.tables += _tables(value, seen)
        for kind in dict.fromkeys(map(type, modules)):
            self.tables += _of_class(kind, seen)
        self.on_host = next((p.device.type == "cpu" for p in network.parameters()), True)
        self.held = [table.now if isinstance(table, _Contents) else table.copy() for table in self.tables]
        self.alike = all(self._lies(t) for t in self._tensors() if t is not None)
        self.places = self._now()
        if sum(map(len, self.held)) > MOST:
            self.why = "its modules' attributes hold too much to compare"
        if _hooks_for_all():
            self.why = "hooks for all modules are set"

    def _tensors(self) -> list[Tensor | None]:
        """Every parameter and buffer, None where there is none."""
        tables = ((own["_parameters"], own["_buffers"]) for own in self.own)
        return [t for parameters, buffers in tables for table in (parameters, buffers) for t in table.values()]

    def _now(self) -> list[Any]:
        """Which parameters and buffers there are, and where and how each lies in memory."""
        # An object of its own in the same memory has a gradient of its own; in another order it is another tensor.
        tensors = self._tensors()
        held = [t for t in tensors if t is not None]
        if self.alike:
            return [list(map(read, held)) for read in PLACE] + [list(map(id, tensors))]
        return [list(map(self._place, held)), list(map(id, tensors))]

    def _place(self, t: Tensor) -> Any:
        if self._lies(t):
            return [read(t) for read in PLACE]
        if is_lazy(t):
            return None
        if t.layout != torch.strided:
            return None if t.is_inference() else t._version
        return t.item()

    def _lies(self, t: Tensor) -> bool:
        """Whether it has a place in memory; beside tensors of another device, one without a dimension is a number."""
        if is_lazy(t) or t.layout != torch.strided:
            return False
        return self.on_host or t.is_cuda or t.dim() > 0

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            return self._same() and self._now() == self.places and not _hooks_for_all()
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

    def works_alike(self) -> bool:
        """Whether the settings are as they were, and the parameters the same ones, wherever they lie."""
        try:
            return self._same() and list(map(id, self._tensors())) == self.places[-1]
        except Exception:
            return False

    def _same(self) -> bool:
        # It is asked before each replay, while a small network's GPU waits. Where all modules have the parts that they
        # had, there are no others; where all have their attributes, their hooks are in the same tables.
        same = all(map(operator.eq, self.tables, self.held))  # the same objects are equal without being compared
        return same and not any(self.hooks)


class _Attribute:
    """A tensor that is a plain attribute of a module."""

    def __init__(self, own: dict[str, Any], name: str) -> None:
        self.own, self.name = own, name

    def __call__(self) -> Any:
        value = self.own.get(self.name)
        return _of_tensor(value) if isinstance(value, Tensor) else ()


class _Contents:
    """Something whose contents are not compared by `==`.

    Args:
        read: returns what stands for them now.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    @property
    def now(self) -> Any:
        return self.read()

    def __eq__(self, other: object) -> bool:
        return bool(self.read() == other)

    __hash__ = None  # type: ignore[assignment]


def _is_its_own(name: str, value: Any) -> bool:
    """Whether an attribute of this name is looked into: an object with a private one is another's, say a trainer."""
    return not name.startswith("_") or isinstance(value, (*CONTAINERS, tuple)) or _is_of_settings(value)


def _is_of_settings(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, SimpleNamespace | argparse.Namespace)


def _tables(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yields what is in a value and can change while the value stays the same object."""
    if type(value) in nested.PLAIN or isinstance(value, NEVER) or id(value) in seen:
        return
    if type(value).__module__.startswith(f"{__package__}."):  # a stand-in, or the record of what was accelerated
        return
    if isinstance(value, FunctionType):
        yield from _of_function(value, None, seen)
        return
    seen.add(id(value))
    parts: Collection[Any] = ()
    if isinstance(value, Tensor):
        yield _Contents(lambda: _of_tensor(value))
    elif isinstance(value, CONTAINERS):
        yield value
        parts = value.values() if isinstance(value, dict) else value
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, MethodType):
        parts = value.__self__, value.__func__
    elif isinstance(value, functools.partial):
        parts = value.func, value.args, value.keywords
    elif (read := _reader(value)) is not None:
        yield _Contents(read)
    else:
        kind: type = type(value)
        own, slots = getattr(value, "__dict__", None), _slots(kind)
        if isinstance(own, dict):
            yield own
            parts = list(own.values())
        if slots:
            yield _Contents(lambda: [getattr(value, name, None) for name in slots])
            parts = [*parts, *(getattr(value, name, None) for name in slots)]
    for part in list(parts):
        yield from _tables(part, seen)


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class hold elsewhere than in a `__dict__`."""
    kinds = (base for base in kind.__mro__ if not is_known(base.__module__))
    return tuple(name for base in kinds for name, part in vars(base).items() if type(part) is MemberDescriptorType)


def _of_class(kind: type, seen: set[int]) -> Iterator[Any]:
    """Yields the attributes of a module's class and of those above it, and what its forward reads beside them."""
    for base in kind.__mro__:
        if id(base) in seen or is_known(base.__module__):
            continue
        seen.add(id(base))
        yield vars(base)
        for name, value in list(vars(base).items()):
            if not hasattr(type(value), "__get__") and _is_its_own(name, value):  # neither a method nor a property
                yield from _tables(value, seen)
    for function in written(getattr(kind, "forward", None)):
        yield from _of_function(function, kind, seen)


def _of_function(function: FunctionType, kind: type | None, seen: set[int]) -> Iterator[Any]:
    """Yields what a function reads in its cells, in globals and in modules, by itself or in what it calls.

    Functions of installed packages are not looked into: what they keep in globals is caches, which calls fill.

    Args:
        function: a method of `kind`, or any other.
        kind: whose methods it may call.
        seen: the objects that need not be looked into.
    """
    waiting, reached = list(written(function)), set[FunctionType]()
    while waiting:
        each = waiting.pop()
        if each in reached or _is_installed(each):
            continue
        reached.add(each)
        names = set(names_in([each.__code__]))
        methods = [] if kind is None else [getattr(kind, name, None) for name in names]
        waiting += (f for value in (*called_by(each, names), *methods) for f in written(value))
        if id(each) in seen:
            continue
        seen.add(id(each))
        named = [(each.__globals__, name) for name in global_names(each.__code__) & each.__globals__.keys()]
        spaces = [vars(space[name]) for space, name in named if _is_a_program_s(space[name])]
        named += ((space, name) for space in spaces for name in names & space.keys())
        yield from _of_values(functools.partial(_values, [n for n in named if _is_held(n[0][n[1]])]), seen)
        yield from _of_values(functools.partial(_cells, each), seen)


@functools.cache
def global_names(code: CodeType) -> frozenset[str]:
    """The globals that compiled code reads, by its instructions: among its names are those of attributes as well."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return frozenset(own).union(*(global_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _of_values(read: Callable[[], list[Any]], seen: set[int]) -> Iterator[Any]:
    values = read()
    if any(map(_is_held, values)):
        yield _Contents(read)
    for value in values:
        if isinstance(value, type) and _is_held(value):
            yield vars(value)
        else:
            yield from _tables(value, seen)


def _is_held(value: Any) -> bool:
    """Whether a value that a function names is a setting or holds some: it is no function, module or known class."""
    if isinstance(value, type):
        return not is_known(value.__module__) and not issubclass(value, nn.Module)
    return not isinstance(value, NEVER)


def _is_installed(function: FunctionType) -> bool:
    file = function.__code__.co_filename
    return file.startswith(os.path.dirname(os.__file__) + os.sep) or not PACKAGES.isdisjoint(file.split(os.sep))


def _is_a_program_s(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in {"torch", *sys.stdlib_module_names}


def _values(named: list[tuple[dict[str, Any], str]]) -> list[Any]:
    return [space[name] for space, name in named]


def _cells(function: FunctionType) -> list[Any]:
    """What a function has of those around it; None where a cell is not filled yet."""
    return [_content(cell) for cell in function.__closure__ or ()]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _of_tensor(t: Tensor) -> tuple[Any, ...]:
    """A tensor's place; and on the host, unless it is learned, what is in it: a graph reads it on the device only."""
    if type(t) not in (Tensor, nn.Parameter) or t.layout != torch.strided:
        return (id(t),)
    if t.device.type != "cpu" or isinstance(t, nn.Parameter):
        return (t.data_ptr(),)
    version = None if t.is_inference() else t._version
    if t.numel() * t.element_size() > SMALL or not t.numel() or t.is_quantized:
        return t.data_ptr(), version
    return t.data_ptr(), version, t.detach().flatten().view(torch.uint8).numpy().tobytes()


def _reader(value: Any) -> Callable[[], Any] | None:
    """What reads the contents of an array or of a generator of random numbers; None for any other object."""
    if isinstance(value, torch.Generator):
        return lambda: (value.get_state().numpy().tobytes(),)
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


def has_hooks(network: nn.Module) -> bool:
    """Whether a part of the network has hooks, or any module."""
    parts = (module.__dict__ for module in _modules(network) if module is not network)
    return _hooks_for_all() or any(own.get(name) for own in parts for name in HOOKS)


def _hooks_for_all() -> bool:
    return bool(torch.nn.modules.module._has_any_global_hook())


def _modules(network: nn.Module) -> Iterator[nn.Module]:
    """Every module once, in a third of the time of `modules()`."""
    stack, seen = [network], {network}
    while stack:
        module = stack.pop()
        yield module
        inner = [m for m in module.__dict__["_modules"].values() if m is not None and m not in seen]
        stack += inner
        seen.update(inner)
