"""What a network's work depends on beside its inputs: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import enum
import logging
import operator
import random
import sys
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.forward import HOOKS
from medddpm.runtime import nested

INTERNAL = frozenset(nn.Module().__dict__)  # attributes that PyTorch itself gives a module
NEVER = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, enum.Enum, logging.Logger)
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
                # An object with a private name is another program's: its trainer, say.
                elif not name.startswith("_") or isinstance(value, list | dict | set | tuple):
                    self.tables += _tables(value, seen)
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
        # It is asked before each replay, while a small network's GPU waits. Where all modules have the parts that they
        # had, there are no others; where all have their attributes, their hooks are in the same tables.
        try:
            same = all(map(operator.eq, self.tables, self.held))  # the same objects are equal without being compared
            same = same and not any(self.hooks) and self._now() == self.places
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False
        return same and not _hooks_for_all()


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


def _tables(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yields what is in a value and can change while the value stays the same object."""
    if type(value) in nested.PLAIN or isinstance(value, NEVER) or id(value) in seen:
        return
    if type(value).__module__.startswith(f"{__package__}."):  # a stand-in, or the record of what was accelerated
        return
    seen.add(id(value))
    parts: Collection[Any] = ()
    if isinstance(value, Tensor):
        yield _Contents(lambda: _of_tensor(value))
    elif isinstance(value, list | dict | set):
        yield value
        parts = value.values() if isinstance(value, dict) else value
    elif isinstance(value, tuple):
        parts = value
    elif (read := _reader(value)) is not None:
        yield _Contents(read)
    elif hasattr(value, "__dict__"):
        yield vars(value)
        parts = vars(value).values()
    for part in list(parts):
        yield from _tables(part, seen)


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
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        place = value.ctypes.data
        return lambda: (place, value.tobytes() if value.nbytes <= SMALL and value.dtype != object else None)
    if isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        bits = value.bit_generator if isinstance(value, numpy.random.Generator) else value._bit_generator
        return lambda: (repr(bits.state),)
    return None


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
