"""Tensors in any nesting of tuples, lists, dicts and dataclasses: a module's arguments, or what it returns."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)

HOLDERS = (list, tuple, deque, set, frozenset, MappingProxyType)

NOT_RECORDS = (torch.nn.Module, type, ModuleType, FunctionType, MethodType, enum.Enum)  # may hold anything else, too


def tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in `value`, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
    elif _is_dataclass(value):
        for each in attributes(value).values():
            yield from tensors(each)


def distinct(value: object) -> list[Tensor]:
    """Every tensor in `value` once, in order: one may be given as two arguments."""
    return list({id(t): t for t in tensors(value)}.values())


def mapped(value: Any, change: Callable[[Tensor], Tensor], into: frozenset[int] | None = None) -> Any:
    """Returns `value` with `change` applied to every tensor in it, in order.

    Args:
        value: in any nesting.
        change: of a tensor.
        into: None: objects that are no dataclasses stay as they are, and so do sets, deques and mapping proxies.
            A set: what these hold and objects' attributes are looked into as well, and copies hold what is changed,
            except of objects that have these `id`s. An iterator is never looked into.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {} if type(value) is dict else copy.copy(value)  # of its own class
        for key, each in value.items():
            changed[key] = mapped(each, change, into)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(each, change, into) for each in value))
    if type(value) in (tuple, list) or type(value).__module__ == "torch.return_types":  # as `max` has
        return type(value)(mapped(each, change, into) for each in value)
    sequence = isinstance(value, tuple | list)  # of a class of the user's
    if _is_dataclass(value) and not sequence:
        return _with(value, {name: mapped(each, change, into) for name, each in attributes(value).items()})
    if into is None and not sequence:
        return value
    if type(value) in PLAIN or isinstance(value, NOT_RECORDS) or (into and id(value) in into):
        return value
    into = None if into is None else into | {id(value)}
    changes: list[bool] = []

    def noted(t: Tensor) -> Tensor:
        changed = change(t)
        changes.append(changed is not t)
        return changed

    if isinstance(value, HOLDERS):
        held = value.values() if isinstance(value, MappingProxyType) else value
        items = [mapped(each, noted, into) for each in held]
        return _holding(value, items) if any(changes) else value
    values = {name: mapped(each, noted, into) for name, each in attributes(value).items()}
    return _with(value, values) if any(changes) else value


def once(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Returns `change` that gives the same result for a tensor that it has had before."""
    done: dict[int, tuple[Tensor, Tensor]] = {}

    def changed(t: Tensor) -> Tensor:
        if id(t) not in done:
            done[id(t)] = t, change(t)  # held, or a new tensor could get its number
        return done[id(t)][1]

    return changed


def filled(value: Any, with_tensors: Iterable[Tensor]) -> Any:
    """Returns `value` with these tensors in place of its `distinct` ones, in order."""
    others = {id(t): other for t, other in zip(distinct(value), with_tensors, strict=True)}
    return mapped(value, lambda t: others[id(t)])


def shape_of(value: Any) -> Hashable:
    """Everything of `value` but the tensors' contents: equal for two values that differ in nothing else.

    Which of its tensors are the same one belongs to it.

    Raises:
        TypeError: it holds what is no tensor, no plain value and none of the nestings, or an odd kind of Tensor.
    """
    shape, given = _shape_of(value), list(map(id, tensors(value)))
    return shape if len(set(given)) == len(given) else (shape, tuple(map(given.index, given)))


def _shape_of(value: Any) -> Hashable:
    if type(value) in (Tensor, torch.nn.Parameter):
        if value.layout != torch.strided:
            raise TypeError(f"{value.layout} tensor")
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (type(value), *map(_shape_of, value))
    if isinstance(value, dict):
        return type(value), tuple((key, _shape_of(each)) for key, each in value.items())
    if _is_dataclass(value):
        return type(value), tuple((name, _shape_of(each)) for name, each in attributes(value).items())
    if type(value) in PLAIN:
        return type(value), str(value) if isinstance(value, float | complex | slice) else value  # 0.0 equals -0.0
    raise TypeError(type(value).__name__)


class Lent:
    """A `mapped` copy of a value, for a function that may write into it as it would into the value.

    Args:
        value: in any nesting.
        change: as for `mapped`.

    Attributes:
        copy: for the function.
    """

    def __init__(self, value: Any, change: Callable[[Tensor], Tensor]) -> None:
        copies = {id(t): change(t) for t in distinct(value)}
        self.copy = mapped(value, lambda t: copies[id(t)])
        self._pairs = [(original, copied, _state(copied)) for original, copied in _pairs(value, self.copy)]

    def returned(self, change: Callable[[Tensor], Tensor]) -> None:
        """Writes into the value what was written into the copy, with `change` applied to tensors that are new in it."""
        if all(_state(copied) == before for _, copied, before in self._pairs):
            return
        originals = {id(copied): original for original, copied, _ in self._pairs}

        def original_of(each: Any) -> Any:
            if id(each) in originals:
                return originals[id(each)]
            return mapped(each, lambda t: originals[id(t)] if id(t) in originals else change(t))

        for original, copied, before in self._pairs:
            if _state(copied) == before:
                continue
            if isinstance(original, Tensor):
                # Of one channel the copy may be a view.
                if original is not copied and original.data_ptr() != copied.data_ptr():
                    original.copy_(copied)
            elif isinstance(original, list):
                original[:] = map(original_of, copied)
            elif isinstance(original, dict):
                for name in original.keys() - copied.keys():
                    del original[name]
                for name, each in copied.items():
                    original[name] = original_of(each)
            else:
                now = attributes(copied)
                for name in attributes(original).keys() - now.keys():
                    object.__delattr__(original, name)
                _set(original, {name: original_of(each) for name, each in now.items()})


def _is_dataclass(value: object) -> bool:
    # None first: `torch.compile` of PyTorch 2.11 cannot ask its class for fields.
    return value is not None and dataclasses.is_dataclass(value) and not isinstance(value, type)


def attributes(value: Any) -> dict[str, Any]:
    """Returns what an object has in its `__dict__` and in slots."""
    values = dict(getattr(value, "__dict__", {}))
    kinds = (vars(base) for base in type(value).__mro__ if "__slots__" in vars(base))
    slots = (name for kind in kinds for name, part in kind.items() if type(part) is MemberDescriptorType)
    return values | {name: getattr(value, name) for name in slots if hasattr(value, name)}


def _set(value: Any, values: dict[str, Any]) -> None:
    for name, each in values.items():
        object.__setattr__(value, name, each)  # of a frozen dataclass too


def _with(value: Any, values: dict[str, Any]) -> Any:
    changed = copy.copy(value)
    _set(changed, values)
    return changed


def _holding(value: Any, items: list[Any]) -> Any:
    """A copy of one of `HOLDERS` that has these items."""
    if isinstance(value, MappingProxyType):
        return MappingProxyType(dict(zip(value, items, strict=True)))
    kind: Any = next(kind for kind in HOLDERS if isinstance(value, kind))
    if kind in (tuple, frozenset):  # a class of the user's may have a constructor of other arguments
        made = kind.__new__(type(value), items)
        _set(made, attributes(value))
        return made
    made = copy.copy(value)
    kind.clear(made)
    (kind.update if kind is set else kind.extend)(made, items)
    return made


def _pairs(value: Any, copied: Any) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of what may be written into, in a value and in its copy; a shared tensor too."""
    if isinstance(value, Tensor):
        yield value, copied
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        yield value, copied
        parts = ((value[key], copied[key]) for key in value)
    elif isinstance(value, tuple | list):
        if isinstance(value, list):
            yield value, copied
        parts = zip(value, copied, strict=True)
    elif _is_dataclass(value):
        yield value, copied
        now = attributes(copied)
        parts = ((each, now[name]) for name, each in attributes(value).items())
    for each, other in parts:
        yield from _pairs(each, other)


def version(t: Tensor) -> int | None:
    """Returns how often a tensor was written to; None for an inference tensor, which has no count."""
    return None if t.is_inference() else t._version


def _state(value: Any) -> Hashable:
    """Changes when it is written into."""
    if isinstance(value, Tensor):
        return version(value)
    if isinstance(value, list):
        return tuple(map(id, value))
    return tuple((name, id(each)) for name, each in (value if isinstance(value, dict) else attributes(value)).items())
