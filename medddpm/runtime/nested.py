"""Tensors in any nesting of tuples, lists and dicts: a module's arguments, or what it returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)


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


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns `value` with `change` applied to every tensor in it, in order."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {} if type(value) is dict else copy.copy(value)  # of its own class
        for key, each in value.items():
            changed[key] = mapped(each, change)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(each, change) for each in value))
    if type(value) in (tuple, list):
        return type(value)(mapped(each, change) for each in value)
    return value


def filled(value: Any, with_tensors: Iterable[Tensor]) -> Any:
    """Returns `value` with these tensors in place of its own, in order."""
    each = iter(with_tensors)
    return mapped(value, lambda _: next(each))


def shape_of(value: Any) -> Hashable:
    """Everything of `value` but the tensors' contents: equal for two values that differ in nothing else.

    Raises:
        TypeError: it holds what is no tensor, no plain value and none of the nestings, or a subclass of Tensor.
    """
    if type(value) in (Tensor, torch.nn.Parameter):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (type(value), *map(shape_of, value))
    if isinstance(value, dict):
        return type(value), tuple((key, shape_of(each)) for key, each in value.items())
    if type(value) in PLAIN:
        return type(value), str(value) if isinstance(value, slice) else value
    raise TypeError(type(value).__name__)
