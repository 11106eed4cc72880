"""What a Python function reads and calls, told from its compiled code."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def is_known(module: str | None) -> bool:
    """Whether a module of this name is Python's builtins, PyTorch's or one of this package's."""
    module = module or ""  # of what `eval` or `exec` made
    return module in ("torch", "builtins") or module.startswith(("torch.", f"{__package__}."))


def written(value: object) -> Iterator[FunctionType]:
    """The function that is behind a method or a decorator, if it is written in Python and not PyTorch's or ours."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    f = inspect.unwrap(value) if callable(value) else None
    if isinstance(f, FunctionType) and not is_known(f.__module__):
        yield f


def called_by(function: FunctionType) -> Iterator[object]:
    """The functions that this one may call: by the names of globals and of parts of modules, and those in its cells."""
    names = names_in(function.__code__)
    for value in (*(function.__globals__.get(name) for name in names), *cells(function).values()):
        # Of nothing else: what stands for a missing package, as in MONAI, raises at any attribute.
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, functools.partial):
            yield value.func
        elif isinstance(value, ModuleType) and not is_known(value.__name__):
            yield from (part for name in names if isinstance(part := vars(value).get(name), FunctionType))


@functools.cache
def names_in(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes in compiled code, and in that of the functions within it."""
    return frozenset(code.co_names).union(*map(names_in, _within(code)))


@functools.cache
def global_names(code: CodeType) -> frozenset[str]:
    """The globals that compiled code reads, by its instructions: among its names are those of attributes as well."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return frozenset(own).union(*map(global_names, _within(code)))


def cells(function: FunctionType) -> dict[str, Any]:
    """What a function has of those around it, by name; without those that are not filled yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _within(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))
