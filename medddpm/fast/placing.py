"""Stand-ins put into a network's modules and taken out again, and the record of it, `Acceleration`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from medddpm.fast.forward import Forward
from medddpm.fast.replay.graphs import Graphs

ADDED = ("forward", "__getstate__", "_call_impl", "__prepare_scriptable__", "_replicate_for_data_parallel")
"""Attributes that modules with a stand-in get: `_call_impl` where hooks are called; the last two only the root, which
gets `acceleration` besides."""


@dataclass(frozen=True)
class Acceleration:
    """A record of what `accelerate` did; its string is the report, and says where the network is when it is made.

    It is kept as `model.acceleration`, unless the network has an attribute of that name itself.

    Args:
        precision: "bf16" or "tf32".
        features: those that are on.
        replaced: name, class and stand-in of each module that has one.
        left: name and class of each layer that is left alone.
        note: says why the device that the network is on now does not run the kernels, or that they are untested there;
            empty if neither.
        graphs: the CUDA graphs of its forward and backward pass, if they are wanted; its string says which there are.
        off: why the network was left as it is; empty if it was not.
        parts: the networks inside that have graphs of their own, by name, and these.
        flat: says that its convolutions are not 3-D, and what it has of the fast path nevertheless; empty if one is.
    """

    precision: str
    features: tuple[str, ...]
    replaced: tuple[tuple[str, str, str], ...]
    left: tuple[tuple[str, str], ...]
    note: Callable[[], str] = field(compare=False, repr=False)
    graphs: Graphs | None = field(default=None, compare=False)
    off: str = ""
    flat: str = ""
    parts: tuple[tuple[str, Graphs], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        if self.off:
            return f"fast path: off; {self.off}"
        replaced = Counter(f"{kind} ({what})" for _, kind, what in self.replaced)
        left = Counter(kind for _, kind in self.left)
        lines = [f"fast path: {self.precision}, {', '.join(self.features)}{self.note()}"]
        for title, counts in (("replaced", replaced), ("left alone", left)):
            listed = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            lines.append(f"  {title}: {listed or 'nothing'}")
        if self.flat:
            lines.append(f"  {self.flat}")
        if self.graphs is not None and (self.graphs.captured or self.graphs.why):
            lines.append(f"  CUDA graphs: {self.graphs}")
        for name, graphs in self.parts:
            lines.append(f"  CUDA graphs of {name} ({type(graphs.network).__name__}) alone: {graphs}")
        return "\n".join(lines)

    def let_go(self) -> None:
        """Keeps its words, and no longer the network, which is restored."""
        object.__setattr__(self, "note", functools.partial(str, self.note()))
        object.__setattr__(self, "graphs", None)
        object.__setattr__(self, "parts", ())


class State(dict[str, Any]):
    """The state of a module with a stand-in: without what `accelerate` added, which only deep copies and pickles take.

    A stand-in computes with the module that it was made for, whoever calls it. A shallow copy takes the entries as they
    are, and so computes as its class does; a deep copy or a pickle takes along the module that the stand-in holds.

    Args:
        whole: all of its state.
        added: the names of what `accelerate` added.
    """

    def __init__(self, whole: dict[str, Any], added: Collection[str]) -> None:
        super().__init__((name, value) for name, value in whole.items() if name not in added)
        self.whole = whole

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.whole.items())


def put(module: nn.Module, stand_in: Forward) -> None:
    """Gives a module its stand-in."""
    module.__dict__.update(forward=stand_in, __getstate__=functools.partial(_state, module))
    if "_call_impl" in module.__dict__:  # of a replica: the original's
        module.__dict__["_call_impl"] = stand_in.call_with_hooks


def _state(module: nn.Module) -> Any:
    """Returns what `copy` and `pickle` take of a module with a stand-in."""
    whole = type(module).__getstate__(module)
    return State(whole, _added(module)) if isinstance(whole, dict) else whole


def _added(module: nn.Module) -> list[str]:
    """The names of the attributes that `accelerate` gave the module."""
    attributes = module.__dict__
    if not isinstance(attributes.get("forward"), Forward):
        return []
    return [name for name, value in attributes.items() if name in ADDED or isinstance(value, Acceleration)]


def remove(model: nn.Module) -> nn.Module:
    """Takes out all stand-ins of an accelerated network and frees its graphs; returns it."""
    for module in model.modules():
        root: Any = module.__dict__.get("forward")
        if isinstance(getattr(root, "graphs", None), Graphs):
            root.graphs.free()
            root.graphs = None  # each holds the other, and so the network
        for name in _added(module):
            value = module.__dict__.pop(name)
            if isinstance(value, Acceleration):
                value.let_go()
    return model


def is_stray(module: nn.Module) -> bool:
    """Returns whether the module's stand-in belongs to no network, since the module was taken out of one or copied."""
    forward = module.__dict__.get("forward")
    if not isinstance(forward, Forward):
        return False
    network = None if forward.network is None else forward.network()
    return network is None or all(module is not part for part in network.modules())


def remove_strays(model: nn.Module) -> None:
    """Takes out stand-ins that belong to no network."""
    for module in filter(is_stray, model.modules()):
        for name in _added(module):
            del module.__dict__[name]
