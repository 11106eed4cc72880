"""What a network's work depends on beside its inputs: compared before a CUDA graph of it is replayed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from medddpm.fast.hooks import hook_tables, hooks_for_all, hooks_within, modules_of
from medddpm.fast.replay.contents import INTERNAL, PLACE, Contents, Walk, copies, is_its_own, of_attribute, place
from medddpm.fast.replay.named import named
from medddpm.runtime import nested

MOST = 100_000  # values that a network's attributes may hold


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
        if sum(map(len, self.held)) > MOST:
            self.why = "its modules' attributes hold too much to compare"

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
            return self._same() and self._now() == self.places and not hooks_for_all()
        except Exception:  # of values that do not compare as a whole, and are other ones than before
            return False

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
