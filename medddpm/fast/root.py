"""The forward of a whole accelerated network: what comes in and goes out, its arithmetic, its graphs, its replicas."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.fast.as_contiguous import sees_layout
from medddpm.fast.forward import (
    Forward,
    Weight,
    autocast_dtype,
    cast,
    chief,
    handed_back,
    hands_on_last,
    hooked,
    inside,
    taken_in,
    transformed,
    weights_in,
)
from medddpm.fast.graphs import nested
from medddpm.fast.graphs.pool import forward_ended
from medddpm.fast.hooks import HOOKS, has_users_hooks, hook_tables, hooks_for_all, modules_of
from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.conv3d import shared
from medddpm.fast.kernels.operators import constant, traced
from medddpm.fast.kinds import as_one_function, may_be_asked, special
from medddpm.fast.placing import put, remove
from medddpm.fast.replay.graphs import Graphs


class Root(Forward):
    """The forward of the whole network.

    Floating 5-D inputs become channels-last. Inside, weights are cast and autocast is on if the device has BF16.
    Outputs in BF16 come back in the dtype of the network's parameters, or under the caller's own autocast in its dtype;
    contiguous unless the first volume given is channels-last, or a weight; a tensor that comes twice does so again.

    Args:
        module: the network.
        inner: its own stand-in, if a rule gave one.
        precision: "bf16" or "tf32".
        casts: whether the weights of all stand-ins in it are cast at once.

    Attributes:
        weights: that are cast at once: those of the parts that it has.
        graphs: what replays it from CUDA graphs; None if it never does.
    """

    what = "network"

    asked: tuple[Any, bool] = None, False
    """The answer of `may_be_asked`, and the parts that it was asked of."""

    parts: Sequence[nn.Module] = ()
    """Those that it has looked at."""

    def __init__(
        self,
        module: nn.Module,
        inner: Forward | None,
        precision: str,
        casts: bool,
    ) -> None:
        super().__init__(module)
        self.inner = inner
        self.precision = precision
        self.casts, self.weights = casts, tuple[Weight, ...]()
        self.graphs: Graphs | None = None
        self.attribute = not hasattr(module, "acceleration")  # which a network may have of its own
        self.reduced_on: tuple[str, ...] = ("cuda",)  # device types; a CPU has BF16 too, slowly: tests use it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the network's forward on any arguments. The network's own call runs its hooks, around this."""
        if transformed():
            with inside():  # its parts compute as they did, too, and hand on what they computed
                return self.original(*args, **kwargs)
        odd = special((args, kwargs))
        if odd is not None and (traced() or not self.may_be_asked(odd)):
            return as_one_function(self, type(odd), args, kwargs)
        return self.run((args, kwargs)) if self.graphs is None or traced() else self.graphs((args, kwargs))

    def run(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Runs the network's forward on `(args, kwargs)`, kernel by kernel."""
        first, parts = chief(given), list(modules_of(self.module))
        end = self._ending(first, parts)
        if traced():
            return nested.mapped(self._computed(nested.mapped(given, taken_in), first, end), end)
        self._look_at(parts)
        lent = nested.Lent(given, taken_in)
        with shared():
            out = self._computed(lent.copy, first, end)
        forward_ended()
        end = nested.once(end)
        lent.returned(end)
        return nested.mapped(out, end, frozenset())

    def _computed(
        self, given: tuple[tuple[Any, ...], dict[str, Any]], first: Tensor | None, end: Callable[[Tensor], Tensor]
    ) -> Any:
        args, kwargs = given
        inner = self.inner
        # The network's own call has already run its hooks.
        free = inner is not None and inner.intact and not held_back(self.module)
        shown = contextlib.nullcontext() if traced() else inside(None if first is None else end)
        with self.arithmetic(first), shown:
            return inner.computed(args, kwargs) if inner is not None and free else self.original(*args, **kwargs)

    def look_again(self) -> None:
        """Gives stand-ins to layers put into the network since that view their maps, and to parts with users' hooks."""
        self._look_at(list(modules_of(self.module)))

    def _look_at(self, parts: list[nn.Module]) -> None:
        new, everywhere = parts != self.parts, hooks_for_all()
        self.parts = parts
        if new and self.casts:  # a part that was taken out since is neither cast nor kept
            self.weights = tuple(self._weights(parts))
        for part in parts[1:]:
            attributes = part.__dict__
            shows = everywhere or any(map(attributes.get, HOOKS))
            shows = shows and has_users_hooks(part) and not isinstance(part, torch.jit.ScriptModule)
            if "forward" not in attributes and (shows or (new and sees_layout(part))):
                stand_in = Forward(part)
                stand_in.network = weakref.ref(self.module)
                put(part, stand_in)
            if not shows:
                attributes.pop("_call_impl", None)
            elif type(part)._call_impl is nn.Module._call_impl and isinstance(attributes["forward"], Forward):
                attributes["_call_impl"] = attributes["forward"].call_with_hooks

    def _weights(self, parts: list[nn.Module]) -> Iterator[Weight]:
        """The weights of these parts that the network's own stand-ins hold."""
        roots = [part for part in parts[1:] if isinstance(part.__dict__.get("forward"), Root)]
        held = set(parts).difference(*(root.modules() for root in roots))  # a network within casts its own
        for stand_in in (self.inner, *(part.__dict__.get("forward") for part in parts[1:])):
            if not isinstance(stand_in, Forward) or isinstance(stand_in, Root):
                continue
            if stand_in.network is None or stand_in.network() is self.module:
                yield from (w for w in weights_in(vars(stand_in).values()) if w.module in held)

    def _ending(self, first: Tensor | None, parts: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
        """Gives an output the dtype and the layout that the network itself would give it."""
        outer = None if first is None else autocast_dtype(first.device.type)
        reduced = outer is None and first is not None and self.precision == "bf16" and self.reduces(first)
        own = self.own_dtype(first.dtype) if first is not None and reduced else None
        last = hands_on_last(parts, first)

        def end(y: Tensor) -> Tensor:
            dtype = y.dtype
            if outer is not None:
                dtype = outer if dtype in dispatch.REDUCED else dtype
            elif own is not None and first is not None:
                # What the network itself cast, as to float64, is left so; what autocast widened in one of FP16 is not.
                widened = dtype == torch.float32 and own in dispatch.REDUCED and first.dtype in dispatch.REDUCED
                dtype = own if dtype == torch.bfloat16 or widened else dtype
            return handed_back(y, last, dtype)

        return end

    def own_dtype(self, given: torch.dtype) -> torch.dtype:
        """The dtype that products have without autocast: that of the parameters; `given` where they have several."""
        dtypes = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        one = next(dtypes, given)
        return one if one == given or all(one == other for other in dtypes) else given

    def may_be_asked(self, x: Tensor) -> bool:
        """Returns whether the forward may ask for the class of x; looks again after parts or hooks have changed."""
        parts = list(modules_of(self.module))
        hooks = [list(table) for part in parts for table in hook_tables(part) if table]
        key = type(x), set(vars(x)), list(map(type, parts)), hooks
        if self.asked[0] != key:
            self.asked = key, may_be_asked(self.module, x)
        return self.asked[1]

    def scriptable(self) -> nn.Module:
        """Returns what `torch.jit.script` compiles: the network restored, of the same parameters and buffers."""
        shared = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        return remove(copy.deepcopy(self.module, shared))

    def replica(self) -> nn.Module:
        """Returns what `nn.DataParallel` fills with the parameters of one device."""
        made: nn.Module = type(self.module)._replicate_for_data_parallel(self.module)
        put(made, Replica(self.module, made))
        return made

    @contextlib.contextmanager
    def arithmetic(self, x: Tensor | None) -> Iterator[None]:
        """Inside, products are in BF16 if the precision asks for it and `x`'s device has it."""
        if x is None or self.precision != "bf16" or not self.reduces(x):
            yield
            return
        # A compiler casts each weight where it is used, if it is used.
        once = contextlib.nullcontext() if traced() else cast(self.weights, torch.bfloat16)
        with once, torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            yield

    def reduces(self, x: Tensor) -> bool:
        """Returns whether the forward of `x` runs in BF16."""
        if x.dtype == torch.float64 or x.device.type not in self.reduced_on:
            return False
        return not x.is_cuda or _has_bf16(x.device)


def root_of(network: nn.Module) -> Root | None:
    """The stand-in that `accelerate` gave this network, whatever forward it has now; None for any other module."""
    root = getattr(network.__dict__.get("__prepare_scriptable__"), "__self__", None)
    return root if isinstance(root, Root) and root.module is network else None


class Replica(Forward):
    """The forward of a copy that `nn.DataParallel` makes: when it is called, the copy has its parts and parameters."""

    def __init__(self, module: nn.Module, replica: nn.Module) -> None:
        super().__init__(module)
        self.replica: Any = replica

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Gives every part of the copy a stand-in of its own, then runs the copy."""
        pairs = list(zip(self.module.modules(), self.replica.modules(), strict=True))
        copied: dict[int, Any] = {id(module): replica for module, replica in pairs}
        for module, replica in pairs:
            replica._parameters = {name: replica.__dict__.get(name) for name in module._parameters}
            forward = module.__dict__.get("forward")
            if isinstance(forward, Forward):
                put(replica, copy.deepcopy(forward, copied))
        return self.replica.forward(*args, **kwargs)


def held_back(model: nn.Module) -> bool:
    """Returns whether hooks bar the network's own rule: they may change parameters that it holds itself."""
    return hooked(model) and len(model._parameters) > 0


@constant
def _has_bf16(device: torch.device) -> bool:
    """Returns whether this CUDA device and its cuDNN compute in BF16, and rightly."""
    return not dispatch.too_old(device) and sound()


def sound() -> bool:
    """Returns whether cuDNN's 3-D convolutions in BF16 are right; those of 9.8 to 9.14 are not (pytorch #163539)."""
    version = torch.backends.cudnn.version()
    return version is None or not 90800 <= version < 91500
