"""What a network's work depends on beside its inputs: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.graphs import nested
from medddpm.fast.hooks import hook_tables, hooks_for_all, hooks_within, modules_of
from medddpm.fast.replay.contents import INTERNAL, PLACE, Contents, Walk, copies, is_its_own, of_attribute, place
from medddpm.fast.replay.named import named

MOST = 100_000  # values that a network's attributes may hold
# What `torch.compile` guards its graphs by: a number that is another once a dict was written to, and shapes and dtypes.
WRITES: Callable[[Any], int] = torch._C._dynamo.guards.dict_version
FORMS: Callable[..., Any] = torch._C._dynamo.guards.TensorGuards
# Python 3.13.0 counts no write to an attribute (python/cpython#125608); without Python's lock no count is safe.
COUNTED = sys.version_info[:3] != (3, 13, 0) and getattr(sys, "_is_gil_enabled", lambda: True)()


class Fingerprint:
    """The modules of a network, their settings and what these hold, and where their tensors lie.

    Attributes:
        why: what of it no graph can stand for; empty if nothing is.
    """

    def __init__(self, network: nn.Module) -> None:
        try:
            self._read(network)
        except Exception as error:  # of values that cannot be walked through, a scripted part's or nested too deep
            self.why = f"its modules cannot be compared ({type(error).__name__})"

    def _read(self, network: nn.Module) -> None:
        self.own: list[dict[str, Any]] = []  # each module's attributes
        self.tables: list[Any] = []  # them, each module's parts, and whatever has contents of its own
        self.hooks: list[Any] = []
        self.why = hooks_within(network)
        modules = list(modules_of(network))
        walk = Walk(modules)
        for module in modules:
            own = module.__dict__
            self.tables += own, own["_modules"]
            self.own.append(own)
            self.hooks += [] if module is network else hook_tables(module)
            for name, value in own.items():
                if name in INTERNAL:
                    continue
                if isinstance(value, Tensor):
                    self.tables.append(Contents(functools.partial(of_attribute, own, name)))
                elif is_its_own(name, value):
                    self.tables += walk.tables(value)
                else:
                    walk.private.append((name, value))
        for kind in dict.fromkeys(map(type, modules)):
            self.tables += walk.of_class(kind)
        self.tables += named([value for name, value in walk.private if name in walk.names], modules, walk.names)[0]
        self.on_host = next((p.device.type == "cpu" for p in network.parameters()), True)
        self.parts = [own["_modules"] for own in self.own if len(own["_modules"]) > 1]
        self.held, self.order = copies(self.tables), list(map(list, self.parts))
        self.alike = all(self._lies(t) for t in self._tensors() if t is not None)
        self.places = self._now()
        self._prepare()
        if sum(map(len, self.held)) > MOST:
            self.why = "its modules' attributes hold too much to compare"
        if not self.why:
            self.holds()  # from now on in less time

    def _tensors(self) -> list[Tensor | None]:
        """Every parameter and buffer, None where there is none."""
        tensors: list[Tensor | None] = []
        for own in self.own:  # asked before each replay: most modules have an empty table, of which no view is made
            for table in (own["_parameters"], own["_buffers"]):
                if table:
                    tensors += table.values()
        return tensors

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
            return place(t)
        if is_lazy(t):
            return None
        if t.layout != torch.strided:
            return nested.version(t)
        return t.item()

    def _lies(self, t: Tensor) -> bool:
        """Whether it has a place in memory; beside tensors of another device, one without a dimension is a number."""
        if is_lazy(t) or t.layout != torch.strided:
            return False
        return self.on_host or t.is_cuda or t.dim() > 0

    def _prepare(self) -> None:
        """Sorts what `_is_untouched` asks."""
        pairs = list(zip(self.tables, self.held, strict=True))
        self.dicts = [pair for pair in pairs if type(pair[0]) is dict]
        self.others = [pair for pair in pairs if type(pair[0]) is not dict]
        stores = [own[name] for own in self.own for name in ("_parameters", "_buffers")]
        self.stores = [store for store in stores if store]
        tables = [table for table, _ in self.dicts] + stores
        self.full, self.empty = [table for table in tables if table], [table for table in tables if not table]
        self.writes: list[int] = []
        self.counts = COUNTED and self.alike and all(type(store) is dict for store in stores)
        if self.counts:
            lying = self._lying()
            sizes, strides = [list(t.shape) for t in lying], [list(t.stride()) for t in lying]
            self.forms = FORMS(*lying, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)

    def _lying(self) -> list[Tensor]:
        """The tensors of `stores`, in the order of `_tensors`; they are not kept, or who replaced one had both."""
        return [t for t in chain.from_iterable(map(dict.values, self.stores)) if t is not None]

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            # Counted before all is read: who writes meanwhile is seen the next time.
            writes = list(map(WRITES, self.full)) if self.counts else []
            if writes and writes == self.writes and self._is_untouched():
                return True
            self.writes = []
            if not self._same() or self._now() != self.places or hooks_for_all():
                return False
            self.writes = writes if self._is_itself() else []
            return True
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

    def _is_untouched(self) -> bool:
        """Whether all is as it was, if no dict was written to since it was.

        It takes a third of the time of reading everything, and a small network's GPU waits for each microsecond.
        """
        if any(self.empty) or any(self.hooks) or hooks_for_all():
            return False
        lying = self._lying()
        if list(map(PLACE[0], lying)) != self.places[0]:
            return False
        # Within autocast and elsewhere no form is the same to PyTorch.
        alike = self.forms.check(*lying) or [list(map(read, lying)) for read in PLACE] == self.places[:-1]
        return bool(alike) and all(other == held and _is_of_one_kind(other, held) for other, held in self.others)

    def _is_itself(self) -> bool:
        """Whether the dicts hold the very objects that they held: what is merely equal may change unseen."""
        return all(all(map(_is_same, table.values(), held.values())) for table, held in self.dicts)

    def works_alike(self) -> bool:
        """Whether the settings are as they were, and the parameters the same ones, wherever they lie."""
        try:
            return self._same() and list(map(id, self._tensors())) == self.places[-1]
        except Exception:
            return False

    def _same(self) -> bool:
        # Where all modules have the parts that they had, there are no others; where all have their attributes, their
        # hooks are in the same tables. The same objects are equal without being compared; two dicts are in any order.
        same = self.tables == self.held and not any(self.hooks) and list(map(list, self.parts)) == self.order
        return same and all(map(_is_of_one_kind, self.tables, self.held))


def _is_same(now: object, then: object) -> bool:
    return now is then or type(now) in nested.PLAIN


def _is_of_one_kind(table: Any, held: Any) -> bool:
    """Whether equal tables hold plain values of the same kind and sign: 1 equals True and 1.0, and 0.0 equals -0.0."""
    if type(table) is dict and not all(map(operator.is_, table.values(), held.values())):
        return all(_is_alike(value, held[name]) for name, value in table.items())
    return type(table) is not list or all(map(_is_alike, table, held))


def _is_alike(now: object, then: object) -> bool:
    if now is then or type(then) not in nested.PLAIN:
        return True
    return type(now) is type(then) and (type(now) not in (float, complex) or repr(now) == repr(then))
