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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from medddpm.errors import BadInput
from medddpm.fast import layers, monai, nnunet, norm_chains, unet
from medddpm.fast.forward import Forward, Rule, Weight, autocast_dtype, cast, hooked
from medddpm.kernels import cards, dispatch
from medddpm.kernels.layout import channels_last
from medddpm.runtime import reports

PRECISIONS = ("bf16", "tf32")
FEATURES = ("norm", "upsample", "residual", "few_channels", "attention", "casts", "hopper")
"""In this order: norms computed with their neighbours; resampling; residual sums without concatenation; convolutions
of few channels; scaled-dot-product attention; all weights cast at once; Hopper's kernels for the other convolutions."""

RULES: dict[str, Rule] = {
    **layers.RULES,
    **norm_chains.RULES,
    **monai.RULES,
    **nnunet.RULES,
    **unet.RULES,
}
"""Rules by class path: `type(module).__module__ + "." + type(module).__qualname__`."""


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
    """

    precision: str
    features: tuple[str, ...]
    replaced: tuple[tuple[str, str, str], ...]
    left: tuple[tuple[str, str], ...]
    note: str = ""

    def __str__(self) -> str:
        replaced = Counter(f"{kind} ({what})" for _, kind, what in self.replaced)
        left = Counter(kind for _, kind in self.left)
        lines = [f"fast path: {self.precision}, {', '.join(self.features)}{self.note}"]
        for title, counts in (("replaced", replaced), ("left alone", left)):
            listed = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            lines.append(f"  {title}: {listed or 'nothing'}")
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
        strides: by name, the former strides of every parameter whose memory was laid out anew.
    """

    what = "network"

    def __init__(
        self,
        module: nn.Module,
        inner: Forward | None,
        precision: str,
        weights: tuple[Weight, ...],
        strides: dict[str, tuple[int, ...]],
    ) -> None:
        super().__init__(module)
        self.inner = inner
        self.precision = precision
        self.weights = weights
        self.strides = strides
        self.attribute = not hasattr(module, "acceleration")  # which a network may have of its own
        self.reduced_on: tuple[str, ...] = ("cuda",)  # device types; a CPU has BF16 too, slowly: tests use it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the network's forward on any arguments. The network's own call runs its hooks, around this."""
        first = next((t for t in _tensors((args, kwargs)) if t.is_floating_point()), None)
        dense = first is None or first.is_contiguous()
        args = _mapped(args, _laid_out)
        kwargs = _mapped(kwargs, _laid_out)
        # The network's own call has already run its hooks.
        inner = self.inner
        held = inner is None or held_back(self.module) or any(hooked(module) for module in inner.handled)
        with self.arithmetic(first):
            out = self.original(*args, **kwargs) if inner is None or held else inner.computed(args, kwargs)
        if first is None:
            return out
        reduced = autocast_dtype(first.device.type)
        if reduced is not None:
            return _mapped(out, lambda t: _handed_back(t, reduced if t.dtype in layers.REDUCED else t.dtype, dense))
        return _mapped(out, lambda t: _handed_back(t, first.dtype, dense))

    @contextlib.contextmanager
    def arithmetic(self, x: Tensor | None) -> Iterator[None]:
        """Inside, products are in BF16 if the precision asks for it and `x`'s device has it."""
        if x is None or self.precision != "bf16" or not self.reduces(x):
            yield
            return
        with cast(self.weights, torch.bfloat16), torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            yield

    def reduces(self, x: Tensor) -> bool:
        """Whether the forward of `x` runs in BF16."""
        if x.dtype == torch.float64 or x.device.type not in self.reduced_on:
            return False
        return not x.is_cuda or (not dispatch.too_old(x.device) and sound())


def accelerate(
    model: nn.Module,
    precision: str = "bf16",
    only: Collection[str] | None = None,
    report: Callable[[str], object] | None = reports.report,
) -> nn.Module:
    """Puts a 3-D network on the fast path, in place.

    Outputs and gradients equal the network's own within the precision's tolerance; a layer without a rule runs as it
    does under autocast. PyTorch's functions replace the kernels without Triton, and on a CPU, there in the network's
    own precision; the report says so. A model on a card before capability 8.0 is left as it is, with a warning. The
    model stays trainable, can be pickled and copied, and can be called in parts. Accelerating it again replaces the
    former setting. On a GPU the kernels have first derivatives only.

    Args:
        model: any network; 5-D parameters are laid out channels-last in place, which an optimizer may hold already.
        precision: "bf16": products in BF16 from float32 weights, which stay float32 as do their gradients, statistics
            and the outputs. "tf32": float32 tensors; PyTorch's flags decide whether products round to TF32, and
            `switches.OPT1` sets them.
        only: the features to use, from `FEATURES`; None uses all.
        report: called with the report, one string. The default logs it at level INFO through the logger `medddpm`, on
            rank 0 only, which prints it to stderr if the program has set up no logging. None makes no report.

    Returns:
        `model`.

    Raises:
        BadInput: if a precision or feature does not exist; if a part of the model is accelerated by itself, or the
            model is part of an accelerated one; if its forward is already replaced by something else.
    """
    if precision not in PRECISIONS:
        raise BadInput("precision", f"{precision!r} is not known", f"use one of {', '.join(PRECISIONS)}")
    unknown = set(FEATURES if only is None else only) - set(FEATURES)
    if unknown:
        raise BadInput("only", f"no feature {', '.join(map(repr, sorted(unknown)))}", f"use {', '.join(FEATURES)}")
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
        done = _replace(model, precision, features)
    except BaseException:
        _remove(model)  # before any parameter was touched
        raise
    if report is not None:
        report(str(done))
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undoes `accelerate`: every forward, and every parameter's strides. Leaves any other model as it is.

    Args:
        model: the network, or a wrapper that holds it.

    Returns:
        `model`.
    """
    for network in list(model.modules()):  # it may stand in a wrapper
        root = network.__dict__.get("forward")
        if not isinstance(root, Root):
            continue
        former: dict[Any, Tensor] = {}
        for name, parameter in network.named_parameters():
            stride = root.strides.get(name)
            if stride is not None and parameter.dim() == len(stride) and parameter.stride() != stride:
                _share(parameter, former, functools.partial(_strided, stride=stride))
        _remove(network)
    return model


def _strided(data: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(data.shape, stride, dtype=data.dtype, device=data.device).copy_(data)


def _refuse(model: nn.Module) -> None:
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        remedy = "accelerate the network first, then wrap it"  # its buckets hold the gradients' old layout
        raise BadInput("model", "it is wrapped in DistributedDataParallel already", remedy)
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


def _replace(model: nn.Module, precision: str, features: tuple[str, ...]) -> Acceleration:
    names = {module: name for name, module in reversed(list(model.named_modules()))}
    stand_ins: dict[nn.Module, Forward] = {}
    handled: set[nn.Module] = set()
    for module in model.modules():
        rule = RULES.get(f"{type(module).__module__}.{type(module).__qualname__}")
        free = not (held_back(module) if module is model else hooked(module)) and "forward" not in module.__dict__
        if rule is None or module in handled or not free:
            continue
        stand_in = rule(module, frozenset(features))
        if stand_in is not None and not any(hooked(inner) for inner in stand_in.handled):
            stand_ins[module] = stand_in
            handled.update(stand_in.handled)

    weights = [w for s in stand_ins.values() for w in _weights(vars(s).values())]
    root = Root(model, stand_ins.get(model), precision, tuple(weights) if "casts" in features else (), {})
    replaced = [(names[m], type(m).__name__, s.what) for m, s in stand_ins.items() if s.what]
    left = [
        (name, type(module).__name__)
        for name, module in model.named_modules()
        if (module not in stand_ins or type(stand_ins[module]) is norm_chains.InstanceNorm)  # PyTorch's own
        and module not in handled
        and next(module.children(), None) is None
        if not layers.idle(module)
    ]
    for module, stand_in in stand_ins.items():
        module.__dict__["forward"] = stand_in
    model.__dict__["forward"] = root
    done = Acceleration(precision, features, tuple(replaced), tuple(left), _note(model, precision))
    if root.attribute:
        model.__dict__["acceleration"] = done
    laid_out: dict[Any, Tensor] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):  # it has no shape yet
            continue
        if parameter.dim() == 5 and not parameter.is_contiguous(memory_format=torch.channels_last_3d):
            root.strides[name] = parameter.stride()
            _share(parameter, laid_out, lambda data: data.contiguous(memory_format=torch.channels_last_3d))
    return done


def _share(parameter: nn.Parameter, done: dict[Any, Tensor], change: Callable[[Tensor], Tensor]) -> None:
    """Changes the memory of a parameter; parameters of the same memory, tied by `.data`, share the new one as well."""
    data = parameter.data
    key = (data.data_ptr(), data.shape, data.stride(), data.dtype, data.device) if data.numel() else id(parameter)
    if key not in done:
        done[key] = change(data)
    parameter.data = done[key]


def _weights(values: Iterable[object]) -> Iterator[Weight]:
    for value in values:
        if isinstance(value, Weight):
            yield value
        elif isinstance(value, tuple):
            yield from _weights(value)


def held_back(model: nn.Module) -> bool:
    """Whether hooks bar the network's own rule: they may change parameters that it holds itself."""
    return hooked(model) and len(model._parameters) > 0


def _remove(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), Forward):
            del module.__dict__["forward"]
    if isinstance(model.__dict__.get("acceleration"), Acceleration):
        del model.__dict__["acceleration"]


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


def _card(device: torch.device) -> str:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"compute capability {capability} of {torch.cuda.get_device_name(device)}"


def sound() -> bool:
    """Whether cuDNN's 3-D convolutions in BF16 are right: 9.8 to 9.14 get them wrong (pytorch/pytorch 163539)."""
    version = torch.backends.cudnn.version()
    return version is None or not 90800 <= version < 91500


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns `value` with `change` applied to every tensor in it, in any nesting of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)  # of its own class
        for key, each in value.items():
            changed[key] = _mapped(each, change)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(each, change) for each in value)
    return value


def _laid_out(x: Tensor) -> Tensor:
    return channels_last(x) if x.is_floating_point() else x


def _handed_back(y: Tensor, dtype: torch.dtype, dense: bool) -> Tensor:
    """Returns an output as the network itself would: in this dtype, and contiguous if the input was (`dense`)."""
    if not y.is_floating_point():
        return y
    return y.to(dtype, memory_format=torch.contiguous_format).contiguous() if dense else y.to(dtype)
