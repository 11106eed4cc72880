"""Reads from a Python function's compiled code which names it reads and which functions it calls."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from torch import nn

from medddpm.fast.graphs import nested

T = TypeVar("T")
LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
WHOLE = {"vars", "__dict__", "asdict", "astuple", "attrgetter"}  # what reads attributes without naming them
ANY = "*"
PACKAGES = {"site-packages", "dist-packages"}
NOT_FORWARD = {"__init__", "__repr__"}  # functions of a module's class that do not run within its forward


def is_known(module: str | None) -> bool:
    """Returns whether a module of this name is Python's builtins, PyTorch's or one of this package's."""
    module = module or ""  # of what `eval` or `exec` made
    return module in ("torch", "builtins") or module.startswith(("torch.", f"{__package__}."))


def is_others(module: str | None) -> bool:
    """Returns whether a module of this name is neither known nor of Python's standard library."""
    return not is_known(module) and (module or "").partition(".")[0] not in sys.stdlib_module_names


def is_installed(function: FunctionType) -> bool:
    """Returns whether a function is of an installed package, or of Python itself."""
    file = function.__code__.co_filename
    return file.startswith(os.path.dirname(os.__file__) + os.sep) or not PACKAGES.isdisjoint(file.split(os.sep))


def written(value: object) -> Iterator[FunctionType]:
    """The function that is behind a method or a decorator, if it is written in Python and not PyTorch's or ours."""
    yield from (f for f in _layers(value)[-1:] if not is_known(f.__module__))


def _layers(value: object) -> list[Any]:
    """A function with the decorators' functions around it, the outermost first; empty if it is none in Python."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    layers: list[Any] = []
    if callable(value):
        layers.append(inspect.unwrap(value, stop=lambda f: layers.append(f)))  # which returns None: it goes on
    return [f for f in layers if isinstance(f, FunctionType)]


def called_by(function: FunctionType) -> Iterator[object]:
    """The functions and classes that a function may call: by the names of globals, in its cells, in modules by names.

    Of classes those of others; a module's class is looked at where a network has such a module.
    """
    names = names_in(function.__code__)
    for value in (*(function.__globals__.get(name) for name in names), *cells(function).values()):
        # Of nothing else: what stands for a missing package, as in MONAI, raises at any attribute.
        if isinstance(value, functools.partial):
            yield value.func
        elif _is_called(value):
            yield value
        elif isinstance(value, ModuleType) and not is_known(value.__name__):
            for module in modules_in(value, names):
                yield from (part for name in names if _is_called(part := vars(module).get(name)))


def _is_called(value: object) -> bool:
    if isinstance(value, type) and not issubclass(value, nn.Module):
        return is_others(value.__module__)
    return isinstance(value, FunctionType)


def run_by(*values: object) -> frozenset[FunctionType]:
    """Returns the functions written by others that may run where these values are used, with those that they call.

    Of an object all functions of its class may run, of a list what is in it may be used.
    """
    waiting, seen, functions = list(values), dict[int, object](), set[FunctionType]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value  # kept: another object could have its place
        if isinstance(value, functools.partial):
            waiting.append(value.func)
        elif isinstance(value, MethodType):
            waiting += value.__func__, value.__self__
        elif isinstance(value, FunctionType):
            new = {function for function in written(value) if is_others(function.__module__)} - functions
            functions |= new
            waiting += (called for function in new for called in called_by(function))
        elif isinstance(value, list | tuple | dict):
            waiting += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, type):
            waiting.append(type(value))
        else:
            bases = [vars(base) for base in value.__mro__ if is_others(base.__module__)]
            skipped = NOT_FORWARD if issubclass(value, nn.Module) else ()
            parts = (part for base in bases for name, part in base.items() if name not in skipped)
            waiting += (function for part in parts for function in written(part))
    return frozenset(functions)


def cached_by_class(function: Callable[[type], T]) -> Callable[[type], T]:
    """Caches a function of a class by weak reference: what a class's methods close over may be large."""
    known = weakref.WeakKeyDictionary[type, T]()

    @functools.wraps(function)
    def cached(kind: type) -> T:
        if kind not in known:
            known[kind] = function(kind)
        return known[kind]

    return cached


_run: weakref.WeakKeyDictionary[type, list[weakref.ref[FunctionType]]] = weakref.WeakKeyDictionary()


def _run_by_class(kind: type) -> frozenset[FunctionType]:
    functions = [function() for function in _run.get(kind, ())]
    if kind not in _run or None in functions:
        current = run_by(kind)
        _run[kind] = list(map(weakref.ref, current))  # a method keeps its class
        return current
    return frozenset(filter(None, functions))


def run_in(module: nn.Module) -> Iterator[FunctionType]:
    """Yields the functions that a module's forward may run: its class's, and those of the public objects that it holds.

    The functions of its parts are not among them.
    """
    kind: Any = type(module)
    yield from _run_by_class(kind)
    for name, value in vars(module).items():
        held = not name.startswith("_") or isinstance(value, FunctionType | MethodType | functools.partial)
        if held and type(value) not in nested.PLAIN:
            yield from run_by(value)


def modules_in(module: ModuleType, names: Iterable[str]) -> list[ModuleType]:
    """A module, and those in it that code with these names may reach, as in `package.losses.term`."""
    modules = [module]
    for each in modules:
        parts = (vars(each).get(name) for name in names)
        modules += (p for p in parts if isinstance(p, ModuleType) and p not in modules and not is_known(p.__name__))
    return modules


@functools.cache
def names_in(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes in compiled code, and in that of the functions within it."""
    return frozenset(code.co_names).union(*map(names_in, _within(code)))


@functools.cache
def global_names(code: CodeType) -> frozenset[str]:
    """The globals that compiled code reads, by its instructions: among its names are those of attributes as well."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return frozenset(names).union(*map(global_names, _within(code)))


@functools.cache
def names_read(code: CodeType) -> frozenset[str]:
    """The globals and attributes that compiled code reads, and does not only write; `ANY` where no name tells."""
    names: set[str] = set()
    texts: list[str] | None = None  # since `getattr` or `hasattr` was named, whose call is to come
    for before, each in itertools.pairwise(dis.get_instructions(code)):
        if each.opname == "MATCH_CLASS":  # whose attributes are named behind it; those by place the class names
            names.update({ANY} if each.arg else before.argval)
        if each.opname in LOADS:
            names.add(each.argval)
            texts = [] if each.argval in ("getattr", "hasattr") else texts
        elif texts is None:
            continue
        elif each.opname == "LOAD_CONST" and isinstance(each.argval, str):
            texts.append(each.argval)
        elif each.opname.startswith(("CALL", "FORMAT_", "BINARY_OP")):  # the latter two compute a text
            names.update(texts if texts and each.opname.startswith("CALL") else {ANY})
            texts = None
    return frozenset(names if WHOLE.isdisjoint(names) else names | {ANY}).union(*map(names_read, _within(code)))


def cells(function: FunctionType) -> dict[str, Any]:
    """Returns the function's closure variables by name, skipping empty cells."""
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            contents[name] = cell.cell_contents
    return contents


def _within(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))
