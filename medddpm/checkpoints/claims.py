"""Reads the claims of a checkpoint's pickle without building any of its objects.

Each opcode costs a constant: a container is only counted, and an object made from others is charged with their size. So
no memo index, no container mentioned a thousand times and no copy of a copy takes memory or time here; nor in PyTorch
afterwards, which reads no other opcodes than these.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Sequence
from typing import Any

import torch

MOST_OPCODES = 2**19  # of 15 000 tensors: a U-Net of 3000 with its optimizer
MOST_VALUES = 2**20  # in all, each as often as it is mentioned; a text counts by its length
WIDTHS = {"DoubleStorage": 8, "LongStorage": 8, "ComplexFloatStorage": 8, "FloatStorage": 4, "IntStorage": 4,
          "HalfStorage": 2, "BFloat16Storage": 2, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1,
          "BoolStorage": 1, "UntypedStorage": 1, "ComplexDoubleStorage": 16}  # fmt: skip
_PLAIN = {"collections OrderedDict", "collections Counter", "torch Size", "torch device", "_codecs encode",
          "torch.serialization _get_layout", *(f"{module} {name}" for module in ("__builtin__", "builtins")
          for name in ("bytes", "bytearray", "complex", "set"))}  # fmt: skip
"""The functions that `torch.load(weights_only=True)` calls beside those that build tensors: no code of the file."""
_KNOWN = {
    *_PLAIN,
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"{module} {name}" for name in WIDTHS for module in ("torch", "torch.storage")),
    *(f"torch {name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}

_ATOMS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_EMPTY = {"EMPTY_LIST": "list", "EMPTY_DICT": "table", "EMPTY_SET": "set"}
_PUT, _GET = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "EMPTY_TUPLE": 0}
_MARK = object()


class Foreign(Exception):
    """Raised for a pickle that asks for something other than tensors and plain values."""


class Storage:
    """A storage as the pickle describes it: its record's name, bytes, and number of elements."""

    __slots__ = ("bytes", "key", "length")

    def __init__(self, key: str, width: int, length: int) -> None:
        self.key, self.bytes, self.length = key, width * length, length


class _Value:
    """A container, a tensor or a function, reduced to its kind and the number of values inside.

    A tuple also holds its values, since it may be the arguments of a call.
    """

    __slots__ = ("hashable", "kind", "sealed", "values", "weight")

    def __init__(self, kind: str, weight: int = 1, values: Sequence[Any] = ()) -> None:
        self.kind, self.weight, self.values = kind, weight, values
        self.sealed, self.hashable = False, True


def storages_of(pickled: bytes) -> list[Storage]:
    """Returns the storages that a checkpoint's pickle asks for, once for each mention.

    Raises:
        Foreign: it names something other than tensors and plain values.
        Exception: one of a dozen kinds: it is broken, or claims more than its size can hold.
    """
    reader = _Reader()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
        if number > MOST_OPCODES:
            raise ValueError
        reader.read(opcode.name, argument, number)
    return reader.storages


class _Reader:
    """A pickle's stack and memo."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._made = 0  # the number of values in the arguments of all calls

    def read(self, name: str, argument: Any, number: int) -> None:
        stack = self._stack
        if name in _PUT:
            if argument > number:  # a pickler counts them up
                raise ValueError
            self._memo[argument] = stack[-1]
        elif name in _GET:
            stack.append(self._memo[argument])
        elif name in _ATOMS:
            stack.append(argument)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(_together(self._since_mark()))
        elif name in _TUPLES:
            stack.append(_together([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, arguments))
        elif name == "BINPERSID":
            self._claim(stack.pop())
        elif name == "GLOBAL":
            stack.append(_global(argument))
        elif name in _EMPTY:
            stack.append(_Value(_EMPTY[name]))
        elif name == "APPEND":
            self._put("list", [stack.pop()])
        elif name == "APPENDS":
            self._put("list", self._since_mark())
        elif name == "ADDITEMS":
            self._put("set", self._since_mark())
        elif name == "SETITEM":
            self._put("table", [stack.pop(), stack.pop()][::-1])
        elif name == "SETITEMS":
            self._put("table", self._since_mark())
        elif name == "BUILD":
            self._put("ordered table", [stack.pop()])
        elif name not in ("PROTO", "STOP"):
            raise ValueError

    def _since_mark(self) -> list[Any]:
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _put(self, kind: str, values: Sequence[Any]) -> None:
        """Puts values into the container on top. A container inside another may not grow, so that sizes add up."""
        container = self._stack[-1]
        keys = values[::2] if kind == "table" else values if kind == "set" else ()
        if not isinstance(container, _Value) or not container.kind.endswith(kind) or not all(map(_is_key, keys)):
            raise ValueError
        container.hashable &= all(map(_is_key, values))
        container.weight += _seal(values)
        if container.sealed or container.weight > MOST_VALUES:
            raise ValueError

    def _call(self, function: _Value, arguments: _Value) -> _Value:
        if arguments.kind != "tuple":
            raise ValueError
        self._made += _seal([arguments])
        if self._made > MOST_VALUES:
            raise ValueError
        return _Value(_result(function.kind, arguments.values), arguments.weight)

    def _claim(self, claim: Any) -> None:
        kind, storage, key, _device, length = claim.values
        if kind != "storage" or not isinstance(key, str) or type(length) is not int or length < 0:
            raise ValueError
        self.storages.append(Storage(key, WIDTHS[storage.kind], length))
        self._stack.append(self.storages[-1])


def _global(name: str) -> _Value:
    """Returns the function or type of that name, if a pickle may name it."""
    if name not in _KNOWN:
        raise Foreign(name.replace(" ", ".", 1))
    return _Value(name.split()[1])


def _result(function: str, arguments: Sequence[Any]) -> str:
    """Returns the kind of value that the function of that name returns."""
    kinds = [value.kind if isinstance(value, _Value) else type(value).__name__ for value in arguments]
    if function == "_rebuild_tensor_v2":
        _check_tensor(*arguments)
        return "tensor"
    if function == "_rebuild_parameter" and kinds[0] == "tensor":
        return "tensor"
    if function in ("OrderedDict", "Counter") and (not arguments or (function == "Counter" and kinds == ["table"])):
        return "ordered table"
    if function == "set" and kinds == ["list"] and arguments[0].hashable:
        return "set"
    if function == "encode" and kinds[0] == "str" and arguments[1] in ("latin1", "latin-1"):
        return "bytes"
    if function in ("bytes", "bytearray") and set(kinds) <= {"bytes", "str"}:  # a number would be a length
        return "bytes"
    if function == "Size" and kinds == ["tuple"]:
        return "plain"
    if function in ("device", "_get_layout", "complex") and set(kinds) <= {"str", "int", "float"}:
        return "plain"
    raise ValueError


def _together(values: Sequence[Any]) -> _Value:
    return _Value("tuple", 1 + _seal(values), values)


def _seal(values: Sequence[Any]) -> int:
    """Returns the number of values in `values`, and seals them: they may not grow any more."""
    count = 0
    for value in values:
        if isinstance(value, _Value):
            value.sealed = True
        count += 1 + len(value) // 16 if isinstance(value, str) else getattr(value, "weight", 1)
    if count > MOST_VALUES:
        raise ValueError
    return count


def _is_key(value: object) -> bool:
    """Returns whether `value` is a key that is cheap to hash and cannot be made to collide."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**31)


def _check_tensor(storage: Storage, offset: int, sizes: _Value, strides: _Value, *_: object) -> None:
    """Refuses a tensor that reaches beyond its storage, or is larger than its storage (an expanded one)."""
    size, stride = sizes.values, strides.values
    whole = all(type(n) is int and n >= 0 for n in (offset, *size, *stride)) and len(size) == len(stride) <= 16
    if not whole or math.prod(size) > max(storage.length, 1):
        raise ValueError
    if math.prod(size) and offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= storage.length:
        raise ValueError
