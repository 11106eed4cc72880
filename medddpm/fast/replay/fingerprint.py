"""The short key of a network: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.graphs import nested
from medddpm.fast.hooks import hook_tables, hooks_for_all, hooks_within, modules_of

MOST = 100_000  # values that a network's attributes may hold
CONTAINERS = (list, dict, set, deque)
PLACE: tuple[Callable[[Tensor], Any], ...] = (
    Tensor.data_ptr, Tensor.numel, Tensor.stride, operator.attrgetter("dtype", "requires_grad"),
)  # fmt: skip


class Fingerprint:
    """A network's modules, their classes, hooks and plain attributes, and where their tensors lie.

    What a forward reads from elsewhere is not in it: of a known network (`fast.known`) there is nothing, of any other
    the caller has given his word.

    Attributes:
        why: what no graph can stand for; empty if nothing is.
    """

    def __init__(self, network: nn.Module) -> None:
        try:
            self._read(network)
        except Exception as error:  # of values that cannot be walked through, a scripted part's or nested too deep
            self.why = f"its modules cannot be compared ({type(error).__name__})"

    def _read(self, network: nn.Module) -> None:
        self.why = hooks_within(network)
        self.modules = list(modules_of(network))
        self.attributes = [module.__dict__ for module in self.modules]
        parts = [attributes["_modules"] for attributes in self.attributes]
        self.hooks = [table for module in self.modules if module is not network for table in hook_tables(module)]
        self.tables = self.attributes + [names for names in parts if names]
        self.leaves = [names for names in parts if not names]
        self.containers = list(_containers(self.attributes))  # which a user changes in place
        self.order = self._order()
        self.before, self.copies = [table.copy() for table in self.tables], [each.copy() for each in self.containers]
        self.classes = list(map(type, self.modules))
        self.loose = [(each, name) for each in self.attributes for name, t in each.items() if isinstance(t, Tensor)]
        self.on_host = next((p.device.type == "cpu" for p in network.parameters()), True)
        self.alike = all(self._lies(t) and not t.is_complex() for t in self._tensors())
        self.places = self._now()
        if sum(map(len, self.before + self.copies)) > MOST:
            self.why = "its modules' attributes hold too much to compare"

    def holds(self) -> bool:
        """Returns whether all is as it was."""
        try:
            return self._same() and self._now() == self.places and not hooks_for_all()
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

    def works_alike(self) -> bool:
        """Returns whether the settings are as they were, and the parameters the same ones, wherever they lie."""
        try:
            return self._same() and list(map(id, self._tensors())) == self.places[-1]
        except Exception:
            return False

    def _same(self) -> bool:
        # The same objects are equal without being compared.
        same = self.tables == self.before and self.containers == self.copies
        same = same and not any(self.leaves) and not any(self.hooks)
        # Equal dicts may be in another order, in which a sequence calls its parts, or a forward reads a setting.
        same = same and self._order() == self.order
        return same and list(map(type, self.modules)) == self.classes

    def _tensors(self) -> list[Tensor]:
        """Returns every parameter and buffer."""
        stores = [own["_parameters"] for own in self.attributes] + [own["_buffers"] for own in self.attributes]
        return [t for store in stores if store for t in store.values() if t is not None]

    def _order(self) -> list[list[Any]]:
        """Returns the names of each module's parts and the keys of each dict, in order, where there are several."""
        parts = [list(own["_modules"]) for own in self.attributes if len(own["_modules"]) > 1]
        return parts + [list(each) for each in self.containers if isinstance(each, dict) and len(each) > 1]

    def _now(self) -> list[Any]:
        """Returns which tensors there are, and where and how each lies in memory."""
        # An object of its own in the same memory has a gradient of its own; in another order it is another tensor.
        tensors = self._tensors()
        places = [list(map(read, tensors)) for read in PLACE] if self.alike else [list(map(self._place, tensors))]
        loose = [self._of_attribute(own[name]) for own, name in self.loose]
        return [*places, loose, list(map(id, tensors))]

    def _of_attribute(self, t: Tensor) -> Any:
        """Returns a plain attribute's place; of a number on the host, which a graph has in it, the number too."""
        return self._place(t), t.item() if t.dim() == 0 and t.device.type == "cpu" else None

    def _place(self, t: Tensor) -> Any:
        if self._lies(t):
            return [*(read(t) for read in PLACE), t.is_conj(), t.is_neg()]
        if is_lazy(t):
            return None
        return nested.version(t) if t.layout != torch.strided else t.item()

    def _lies(self, t: Tensor) -> bool:
        """Returns whether a tensor has a place in memory; a host's scalar among a device's tensors is a number."""
        if is_lazy(t) or t.layout != torch.strided:
            return False
        return self.on_host or t.is_cuda or t.dim() > 0


def _containers(attributes: list[dict[str, Any]]) -> Iterator[Any]:
    """Yields the lists, dicts, sets and deques among the attributes' values, and those inside them."""
    waiting = [value for own in attributes for name, value in own.items() if name not in INTERNAL]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, (*CONTAINERS, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        if not isinstance(value, tuple):
            yield value
        waiting += value.values() if isinstance(value, dict) else value


INTERNAL = frozenset(nn.Module().__dict__)  # attributes that PyTorch itself gives a module
