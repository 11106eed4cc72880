"""`accelerate(model)`: the fast path for any 3-D network, ours or not, by one mechanism that `restore` undoes.

Modules get a stand-in for their forward as an instance attribute (`fast.forward.Forward`); their class, parameters,
names and state dict are untouched. `RULES` maps exact class paths to rules, so a package whose networks are not used
need not be installed. A rule takes the module and the features that are on, and returns the stand-in, or None to leave
the module alone; a class without a rule is left alone too. Outer modules come first, and the modules that a stand-in
lists as `handled` get none of their own. The root's stand-in is `Root`, around the one its own rule gave: it brings
inputs into the layout, casts weights and sets autocast around the whole forward.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.fast import layers, mednext, monai, monai_blocks, nnunet, norm_chains, unet
from medddpm.fast.as_contiguous import sees_layout
from medddpm.fast.forward import Forward, Rule, Weight, autocast_dtype, cast, hooked, transformed
from medddpm.fast.graphs import Graphs
from medddpm.kernels import cards, dispatch
from medddpm.kernels.layout import channels_last
from medddpm.kernels.operators import constant, traced
from medddpm.runtime import nested, reports

PRECISIONS = ("bf16", "tf32")
GRAPH = (True, False, "auto")
FEATURES = ("norm", "upsample", "residual", "few_channels", "attention", "casts", "hopper")
"""In this order: norms computed with their neighbours; resampling; residual sums without concatenation; convolutions
of few channels; scaled-dot-product attention; all weights cast at once; Hopper's kernels for the other convolutions."""

RULES: dict[str, Rule] = {
    **layers.RULES,
    **norm_chains.RULES,
    **monai.RULES,
    **monai_blocks.RULES,
    **mednext.RULES,
    **nnunet.RULES,
    **unet.RULES,
}
"""Rules by class path: `type(module).__module__ + "." + type(module).__qualname__`."""

ADDED = ("forward", "__getstate__", "__prepare_scriptable__", "_replicate_for_data_parallel")
"""Attributes that modules with a stand-in get; the last two only the root, which gets `acceleration` besides."""

PLAIN = (Forward, layers.Dropout, norm_chains.InstanceNorm)
"""Stand-ins under which PyTorch's own function computes the layer: it counts as left alone."""


@dataclass(frozen=True)
class Acceleration:
    """A record of what `accelerate` did; its string is the report.

    It is kept as `model.acceleration`, unless the network has an attribute of that name itself.

    Args:
        precision: "bf16" or "tf32".
        features: those that are on.
        replaced: name, class and stand-in of each module that has one.
        left: name and class of each layer that is left alone.
        note: why the model's device does not run the kernels, or that they are untested there; empty if neither.
        graphs: the CUDA graphs of its forward and backward pass, if they are wanted; its string says which there are.
    """

    precision: str
    features: tuple[str, ...]
    replaced: tuple[tuple[str, str, str], ...]
    left: tuple[tuple[str, str], ...]
    note: str = ""
    graphs: Graphs | None = field(default=None, compare=False)

    def __str__(self) -> str:
        replaced = Counter(f"{kind} ({what})" for _, kind, what in self.replaced)
        left = Counter(kind for _, kind in self.left)
        lines = [f"fast path: {self.precision}, {', '.join(self.features)}{self.note}"]
        for title, counts in (("replaced", replaced), ("left alone", left)):
            listed = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            lines.append(f"  {title}: {listed or 'nothing'}")
        if self.graphs is not None and (self.graphs.captured or self.graphs.why):
            lines.append(f"  CUDA graphs: {self.graphs}")
        return "\n".join(lines)


class Root(Forward):
    """The forward of the whole network.

    Floating 5-D inputs become channels-last. Inside, weights are cast and autocast is on if the device has BF16.
    Floating outputs come back in the dtype of the first floating input, or under the caller's own autocast in its dtype
    where the network's end is in reduced precision; contiguous if the first input was.

    Args:
        module: the network.
        inner: its own stand-in, if a rule gave one.
        precision: "bf16" or "tf32".
        weights: those of all stand-ins in it, to be cast at once.

    Attributes:
        graphs: what replays it from CUDA graphs; None if it never does.
    """

    what = "network"

    def __init__(
        self,
        module: nn.Module,
        inner: Forward | None,
        precision: str,
        weights: tuple[Weight, ...],
    ) -> None:
        super().__init__(module)
        self.inner = inner
        self.precision = precision
        self.weights = weights
        self.graphs: Graphs | None = None
        self.attribute = not hasattr(module, "acceleration")  # which a network may have of its own
        self.reduced_on: tuple[str, ...] = ("cuda",)  # device types; a CPU has BF16 too, slowly: tests use it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the network's forward on any arguments. The network's own call runs its hooks, around this."""
        if transformed():
            return self.original(*args, **kwargs)
        special = next((t for t in nested.tensors((args, kwargs)) if _has_its_own_functions(t)), None)
        if special is not None:
            return self.as_one_function(type(special), args, kwargs)
        return self.run((args, kwargs)) if self.graphs is None or traced() else self.graphs((args, kwargs))

    def run(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Runs the network's forward on `(args, kwargs)`, kernel by kernel."""
        first = next((t for t in nested.tensors(given) if t.is_floating_point()), None)
        dense = first is None or first.is_contiguous()
        args, kwargs = nested.mapped(given, _laid_out)
        # The network's own call has already run its hooks.
        inner = self.inner
        held = inner is None or held_back(self.module) or any(hooked(m) for m in inner.handled)
        with self.arithmetic(first):
            out = self.original(*args, **kwargs) if inner is None or held else inner.computed(args, kwargs)
        if first is None:
            return out
        reduced = autocast_dtype(first.device.type)
        if reduced is not None:
            return nested.mapped(
                out, lambda t: _handed_back(t, reduced if t.dtype in layers.REDUCED else t.dtype, dense)
            )
        return nested.mapped(out, lambda t: _handed_back(t, first.dtype, dense))

    def as_one_function(self, kind: type[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes with plain tensors, and gives the outputs the class that one PyTorch function would give them.

        Args:
            kind: a subclass of Tensor that extends PyTorch's functions, as MONAI's `MetaTensor` does.
            args, kwargs: those of the network.
        """
        out = self(*nested.mapped(args, _plain), **nested.mapped(kwargs, _plain))
        return nested.mapped(out, lambda y: kind.__torch_function__(lambda *_, **__: y, (kind,), args, kwargs))

    def scriptable(self) -> nn.Module:
        """Returns what `torch.jit.script` compiles: the network restored, of the same parameters and buffers."""
        shared = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        return restore(copy.deepcopy(self.module, shared))

    def replica(self) -> nn.Module:
        """Returns what `nn.DataParallel` fills with the parameters of one device."""
        made: nn.Module = type(self.module)._replicate_for_data_parallel(self.module)
        _put(made, Replica(self.module, made))
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
        """Whether the forward of `x` runs in BF16."""
        if x.dtype == torch.float64 or x.device.type not in self.reduced_on:
            return False
        return not x.is_cuda or _has_bf16(x.device)


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
                _put(replica, copy.deepcopy(forward, copied))
        return self.replica.forward(*args, **kwargs)


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


def accelerate(
    model: nn.Module,
    precision: str = "bf16",
    only: Collection[str] | None = None,
    graph: bool | str = "auto",
    report: Callable[[str], object] | None = reports.report,
) -> nn.Module:
    """Puts a 3-D network on the fast path, in place.

    Outputs and gradients equal the network's own within the precision's tolerance; a layer without a rule runs as it
    does under autocast. PyTorch's functions replace the kernels without Triton, and on a CPU, there in the network's
    own precision; the report says so. A model on a card before capability 8.0 is left as it is, with a warning. The
    model stays trainable, can be pickled and copied, and can be called in parts. Accelerating it again replaces the
    former setting. On a GPU the kernels have first derivatives only; within `torch.func` the network computes as it did
    before, and so does what `torch.jit.script` makes of it. A shallow copy (`copy.copy`) of the network or of a layer
    is not accelerated itself; the parts that it shares with the original are.

    Args:
        model: any network; its parameters stay as they are, in memory too, and an optimizer may hold them already.
            Channels-last parameters (`model.to(memory_format=torch.channels_last_3d)`) save a little of each step.
        precision: "bf16": products in BF16 from float32 weights, which stay float32 as do their gradients, statistics
            and the outputs. "tf32": float32 tensors; PyTorch's flags decide whether products round to TF32, and
            `switches.OPT1` sets them.
        only: the features to use, from `FEATURES`; None uses all.
        graph: "auto": on a CUDA device, the third call of a shape of inputs captures forward and backward pass
            as CUDA graphs, and later calls replay them; where that is not safe the network runs as it is, and
            `print(model.acceleration)` says why. The graphs' memory stays taken between the calls. True: what is in the
            way of a graph is an error. False: there are none.
        report: called with the report, one string. The default logs it at level INFO through the logger `medddpm`, on
            rank 0 only, which prints it to stderr if the program has set up no logging. None makes no report.

    Returns:
        `model`.

    Raises:
        BadInput: if a precision, feature or kind of graph does not exist; if a part of the model is accelerated by
            itself, or the model is part of an accelerated one; if its forward is already replaced by something else.
    """
    if precision not in PRECISIONS:
        raise BadInput("precision", f"{precision!r} is not known", f"use one of {', '.join(PRECISIONS)}")
    unknown = set(FEATURES if only is None else only) - set(FEATURES)
    if unknown:
        raise BadInput("only", f"no feature {', '.join(map(repr, sorted(unknown)))}", f"use {', '.join(FEATURES)}")
    if graph not in GRAPH:
        raise BadInput("graph", f"{graph!r} is not known", 'use True, False or "auto"')
    if not isinstance(model, nn.Module):
        raise BadInput("model", f"{type(model).__name__} is no torch.nn.Module", "pass the network itself")
    _refuse(model)
    restore(model)  # of a former setting
    old = next((parameter.device for parameter in model.parameters() if dispatch.too_old(parameter.device)), None)
    if old is not None:
        if reports.is_first():
            warnings.warn(f"accelerate: {_card(old)} is below 8.0: the model is left as it is", stacklevel=2)
        return model
    features = tuple(f for f in FEATURES if only is None or f in only)
    try:
        done = _replace(model, precision, features, graph)
    except BaseException:
        _remove(model)
        raise
    if report is not None:
        report(str(done))
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes `accelerate`. Leaves any other model as it is.

    Args:
        model: the network, or a wrapper that holds it.

    Returns:
        `model`.
    """
    for network in list(model.modules()):  # it may stand in a wrapper
        if isinstance(network.__dict__.get("forward"), Root):
            _remove(network)
    return model


def _refuse(model: nn.Module) -> None:
    own = model.__dict__.get("forward")
    if own is not None and not isinstance(own, Root):
        what = "it is part of an accelerated network" if isinstance(own, Forward) else "its forward is replaced already"
        raise BadInput("model", what, "undo that first")
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if module is not model and isinstance(forward, Root):
            raise BadInput("model", f"its part {name} is accelerated by itself", "call restore on that first")
        if own is None and isinstance(forward, Forward):
            raise BadInput("model", f"its part {name} belongs to an accelerated network", "accelerate that one only")


def _replace(model: nn.Module, precision: str, features: tuple[str, ...], graph: bool | str) -> Acceleration:
    names = {module: name for name, module in reversed(list(model.named_modules()))}
    stand_ins: dict[nn.Module, Forward] = {}
    handled: set[nn.Module] = set()
    for module in model.modules():
        rule = RULES.get(f"{type(module).__module__}.{type(module).__qualname__}")
        if module in handled or "forward" in module.__dict__:
            continue
        free = not (held_back(module) if module is model else hooked(module))
        stand_in = rule(module, frozenset(features)) if rule is not None and free else None
        if stand_in is not None and not any(hooked(inner) for inner in stand_in.handled):
            stand_ins[module] = stand_in
            handled.update(stand_in.handled)
        elif sees_layout(type(module)):
            stand_ins[module] = Forward(module)

    weights = [w for s in stand_ins.values() for w in _weights(vars(s).values())]
    root = Root(model, stand_ins.get(model), precision, tuple(weights) if "casts" in features else ())
    if graph:
        root.graphs = Graphs(model, root.run, strict=graph is True)
    replaced = [(names[m], type(m).__name__, s.what) for m, s in stand_ins.items() if s.what]
    left = [
        (name, type(module).__name__)
        for name, module in model.named_modules()
        if (module not in stand_ins or type(stand_ins[module]) in PLAIN)
        and module not in handled
        and next(module.children(), None) is None
        if not layers.idle(module)
    ]
    for module, stand_in in stand_ins.items():
        _put(module, stand_in)
    _put(model, root)
    model.__dict__.update(__prepare_scriptable__=root.scriptable, _replicate_for_data_parallel=root.replica)
    done = Acceleration(precision, features, tuple(replaced), tuple(left), _note(model, precision), root.graphs)
    if root.attribute:
        model.__dict__["acceleration"] = done
    return done


def _weights(values: Iterable[object]) -> Iterator[Weight]:
    for value in values:
        if isinstance(value, Weight):
            yield value
        elif isinstance(value, tuple):
            yield from _weights(value)


def held_back(model: nn.Module) -> bool:
    """Whether hooks bar the network's own rule: they may change parameters that it holds itself."""
    return hooked(model) and len(model._parameters) > 0


def _put(module: nn.Module, stand_in: Forward) -> None:
    module.__dict__.update(forward=stand_in, __getstate__=functools.partial(_state, module))


def _state(module: nn.Module) -> Any:
    """What `copy` and `pickle` take of a module with a stand-in."""
    whole = type(module).__getstate__(module)
    return State(whole, _added(module)) if isinstance(whole, dict) else whole


def _added(module: nn.Module) -> list[str]:
    """The names of the attributes that `accelerate` gave the module."""
    own = module.__dict__
    if not isinstance(own.get("forward"), Forward):
        return []
    return [name for name, value in own.items() if name in ADDED or isinstance(value, Acceleration)]


def _remove(model: nn.Module) -> None:
    for module in model.modules():
        for name in _added(module):
            del module.__dict__[name]


def _note(model: nn.Module, precision: str) -> str:
    """Says why the model's device does not run the kernels, or that they are untested there; empty if neither."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if device.type == "cuda" and dispatch.serves(device) and sound():
        unknown = cards.untested(torch.cuda.get_device_capability(device))
        return f"; {unknown}" if unknown else ""
    if device.type != "cuda":
        why = f"on {device.type}"
    else:
        why = "without Triton" if sound() else "with a cuDNN whose BF16 convolutions are wrong (9.8 to 9.14)"
    float32 = precision == "bf16" and why != "without Triton"
    return f"; {why}: computed by PyTorch's own functions{' in float32' if float32 else ''}"


@constant
def _has_bf16(device: torch.device) -> bool:
    """Whether this CUDA device and its cuDNN compute in BF16, and rightly."""
    return not dispatch.too_old(device) and sound()


def _card(device: torch.device) -> str:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"compute capability {capability} of {torch.cuda.get_device_name(device)}"


def sound() -> bool:
    """Whether cuDNN's 3-D convolutions in BF16 are right: 9.8 to 9.14 get them wrong (pytorch/pytorch 163539)."""
    version = torch.backends.cudnn.version()
    return version is None or not 90800 <= version < 91500


def _has_its_own_functions(x: Tensor) -> bool:
    kind: Any = type(x)
    if kind is Tensor or isinstance(x, nn.Parameter):
        return False
    extends = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    return extends and kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def _plain(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor) if _has_its_own_functions(x) else x


def _laid_out(x: Tensor) -> Tensor:
    return channels_last(x) if x.is_floating_point() else x


def _handed_back(y: Tensor, dtype: torch.dtype, dense: bool) -> Tensor:
    """Returns an output as the network itself would: in this dtype, and contiguous if the input was (`dense`)."""
    if not y.is_floating_point():
        return y
    return y.to(dtype, memory_format=torch.contiguous_format).contiguous() if dense else y.to(dtype)
