"""What a user's functions read beside their arguments: compared before a CUDA graph of their work is replayed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.hooks import hook_tables, tables_of
from medddpm.fast.replay.contents import Contents, copies, place
from medddpm.fast.replay.fingerprint import MOST
from medddpm.fast.replay.named import named


class Readings:
    """The values that functions read in cells, globals, objects and containers, by themselves or in what they call.

    Of an object only the attributes that the functions name are compared: a trainer may count its steps.

    Args:
        functions: or any other callables; None is none.
        known: objects that are compared elsewhere, the model's modules among them.
        device: of the work. Of a tensor there only the place is compared, as a graph reads what is in it.

    Attributes:
        tensors, modules: on the device, and others than the known ones.
        why: what keeps them from being compared; empty if nothing does.
    """

    def __init__(self, functions: Sequence[object], known: Sequence[object], device: torch.device) -> None:
        self.why = ""
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        try:
            self._read(functions, known, device)
        except Exception as error:  # of values that cannot be walked through
            self.why = f"what the loss reads cannot be compared ({type(error).__name__})"

    def _read(self, functions: Sequence[object], known: Sequence[object], device: torch.device) -> None:
        kinds = dict.fromkeys(type(each) for each in known if isinstance(each, nn.Module))
        self.tables, walk = named(functions, known, set(), device, kinds)
        self.tensors, self.modules = walk.tensors, walk.modules
        self.tables.append(Contents(functools.partial(_places, self.tensors)))
        if self.modules:
            self.tables.append(Contents(functools.partial(_hooks, self.modules)))
        self.held = copies(self.tables)
        if sum(map(len, self.held)) > MOST:
            self.why = "what the loss reads is too much to compare"

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            return self.tables == self.held
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


def _places(tensors: list[Tensor]) -> list[Any]:
    return list(map(place, tensors))


def _hooks(modules: list[nn.Module]) -> list[tuple[int, ...]]:
    """The numbers of the hooks of modules and their parameters: no two of a process have the same."""
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    tables = [table for module in modules for table in hook_tables(module)]
    tables += [table for p in parameters for table in tables_of(p)]
    return [tuple(table) for table in tables if table]


def _alike(a: Mapping[Any, Any], b: Mapping[Any, Any], key: object) -> bool:
    """Whether an entry is the same in both, or equal as far as it compares."""
    try:
        return key in a and key in b and (a[key] is b[key] or bool(a[key] == b[key]))
    except Exception:
        return False
