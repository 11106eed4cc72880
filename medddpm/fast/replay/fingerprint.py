"""What a network's work depends on beside its inputs: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.hooks import hook_tables, hooks_for_all, hooks_within, modules_of
from medddpm.fast.replay.contents import INTERNAL, PLACE, Contents, Walk, copies, is_its_own, of_attribute, place
from medddpm.fast.replay.named import named
from medddpm.runtime import nested

MOST = 100_000  # values that a network's attributes may hold
# What `torch.compile` guards its graphs by: a number that is another once a dict was written to, and shapes and dtypes.
WRITES: Callable[[Any], int] = torch._C._dynamo.guards.dict_version
FORMS: Callable[..., Any] = torch._C._dynamo.guards.TensorGuards


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
        self.held = copies(self.tables)
        self.alike = all(self._lies(t) for t in self._tensors() if t is not None)
        self.places = self._now()
        self.writes: list[int] = []
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

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            if self._is_untouched():
                return True
            self.writes = []
            writes = self._noted_writes()  # before it is read: who writes meanwhile is seen the next time
            if not self._same() or self._now() != self.places or hooks_for_all():
                return False
            self.writes = writes
            return True
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

    def _noted_writes(self) -> list[int]:
        dicts = [table for table in self.tables if type(table) is dict]
        dicts += [own[name] for own in self.own for name in ("_parameters", "_buffers")]
        self.full, self.empty = [d for d in dicts if d], [d for d in dicts if not d]
        writes = list(map(WRITES, self.full))
        pairs = [pair for pair in zip(self.tables, self.held, strict=True) if type(pair[0]) is not dict]
        self.others, self.others_held = [t for t, _ in pairs], [held for _, held in pairs]
        self.lying = [t for t in self._tensors() if t is not None]
        if self.alike:
            sizes, strides = [list(t.shape) for t in self.lying], [list(t.stride()) for t in self.lying]
            self.forms = FORMS(*self.lying, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        return writes

    def _is_untouched(self) -> bool:
        """Whether no dict was written to since `holds` read them all, and all that is no dict is as it was.

        It takes a third of the time, of which a small network's GPU waits for each microsecond.
        """
        return (
            bool(self.writes)
            and self.alike
            and list(map(WRITES, self.full)) == self.writes
            and not any(self.empty)
            and list(map(PLACE[0], self.lying)) == self.places[0]
            # Within autocast and elsewhere no form is the same to PyTorch.
            and (self.forms.check(*self.lying) or [list(map(read, self.lying)) for read in PLACE] == self.places[:-1])
            and self.others == self.others_held
            and not any(self.hooks)
            and not hooks_for_all()
        )

    def works_alike(self) -> bool:
        """Whether the settings are as they were, and the parameters the same ones, wherever they lie."""
        try:
            return self._same() and list(map(id, self._tensors())) == self.places[-1]
        except Exception:
            return False

    def _same(self) -> bool:
        # It is asked before each replay, while a small network's GPU waits. Where all modules have the parts that they
        # had, there are no others; where all have their attributes, their hooks are in the same tables.
        return self.tables == self.held and not any(self.hooks)  # the same objects are equal without being compared
