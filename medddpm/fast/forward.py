"""Stand-ins for the forward of a module on the fast path, and the weights they compute with."""

from __future__ import annotations

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from medddpm.fast.as_contiguous import AsContiguous, sees_layout, views_in_backward, with_contiguous_gradients
from medddpm.fast.graphs import nested
from medddpm.fast.hooks import HOOKS, hooks_for_all, modules_of
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.kernels.operators import constant, traced
from medddpm.fast.kernels.relayout import copy_into
from medddpm.fast.kinds import as_one_function, special


class Forward:
    """Stands in for the forward of one module, as its instance attribute `forward`.

    The module keeps its class, parameters, names and state dict; deleting the attribute undoes it. A stand-in is a
    plain object that holds the module, so it is pickled and deep-copied along with it. A subclass overrides `compute`,
    and holds a `Weight` for each parameter that it wants in the dtype of the products. This class itself stands in
    where a module only sees how its maps lie in memory: see `original`.

    Args:
        module: the module whose forward it replaces.
        features: those that are on, of `patch.FEATURES`; so a subclass can be a rule.
    """

    what = ""
    """In the report: what was put in place of the module's own forward."""

    handled: tuple[nn.Module, ...] = ()
    """Modules inside this one whose work `compute` does: they get no stand-in of their own."""

    network: weakref.ref[nn.Module] | None = None
    """The network that it was made for; a copy has none."""

    def __init__(self, module: nn.Module, features: frozenset[str] = frozenset()) -> None:
        self.module: Any = module
        self.own: Any = type(module).forward  # a user may put another in its place in the class, too
        self.sees_layout = sees_layout(module)
        self.views_in_backward = self.sees_layout and views_in_backward(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's forward: by `compute`, or as the class does if anything has hooks.

        Within the network, volumes stay channels-last. Where a part is called by itself, its outputs are laid out as
        the part itself would lay them out.
        """
        if traced() or _calls.inside or torch._C._current_graph_task_id() != -1:  # a checkpoint's second forward
            out = self.computed(args, kwargs) if self.free else self.original(*args, **kwargs)
            return out if traced() or "_call_impl" not in self.module.__dict__ else shown(out)
        first = chief((args, kwargs))
        last = False if first is None else hands_on_last(modules_of(self.module), first)
        with inside(None if first is None else lambda y: handed_back(y, last, y.dtype)):
            out = self.computed(args, kwargs) if self.free else self.original(*args, **kwargs)
        if first is None:
            return out
        return nested.mapped(out, nested.once(lambda y: handed_back(y, last, y.dtype)), frozenset())

    def call_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module, giving its hooks tensors in the dtype and the layout that the network itself has."""
        call = type(self.module)._call_impl
        show = None if traced() else _calls.show
        if show is None:
            return call(self.module, *args, **kwargs)
        lent = nested.Lent((args, kwargs), show)
        out = call(self.module, *lent.copy[0], **lent.copy[1])
        lent.returned(lambda t: t)
        return shown(out)  # hooks may have put others in its place, and hooks of its gradient come behind this

    def computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `compute`, whose parameters stand as those of the module's forward do, but may have other names."""
        if kwargs:
            bound = inspect.signature(type(self.module).forward).bind(self.module, *args, **kwargs)
            args, kwargs = bound.args[1:], bound.kwargs
        plain = not self.what or (not kwargs and all(type(each) is Tensor for each in args))  # asked at each call
        odd = None if plain else special((args, kwargs))
        if odd is not None:  # the parts of a module may ask for its class, a layer does not
            layer = not self.module._modules
            return as_one_function(self.compute, type(odd), args, kwargs) if layer else self.original(*args, **kwargs)
        return self.compute(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the module's own forward, for `inspect.signature` and what stands on it."""
        return inspect.signature(type(self.module).forward.__get__(self.module))

    @property
    def __code__(self) -> CodeType:
        """That of the module's own forward: `torch.export` asks for the line where it stands."""
        return inspect.unwrap(type(self.module).forward).__code__

    @property
    def free(self) -> bool:
        """Returns whether `compute` may run: the module is `intact`, without hooks and under no function transform."""
        return not transformed() and not hooked(self.module) and self.intact

    @property
    def intact(self) -> bool:
        """Returns whether `compute` does what the module does now: no handled part has hooks, and the settings fit."""
        if not traced() and type(self.module).forward is not self.own:
            return False
        return not any(hooked(module) for module in self.handled) and self.fits()

    def fits(self) -> bool:
        """Returns whether `compute` takes the module's parts and settings, which a user may change at any time."""
        return True

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Computes what the module's forward does, faster."""
        return self.original(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        left = "network", "own", "asked", "parts"
        kept = {name: value for name, value in self.__dict__.items() if name not in left}
        return kept if type(self.module).forward is self.own else kept | {"own": None}  # a copy leaves it to the class

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"own": type(state["module"]).forward} | state)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the forward of the module's class, which may take volumes for contiguous ones."""
        if not self.sees_layout:
            return type(self.module).forward(self.module, *args, **kwargs)
        with AsContiguous():
            out = type(self.module).forward(self.module, *args, **kwargs)
        if self.views_in_backward and not traced() and not transformed():
            with_contiguous_gradients(out, (args, kwargs))
        return out


class _Calls(threading.local):
    inside = False
    show: Callable[[Tensor], Tensor] | None = None


_calls = _Calls()


@contextlib.contextmanager
def inside(show: Callable[[Tensor], Tensor] | None = None) -> Iterator[None]:
    """Around the forward of whatever was called by the user: modules called inside hand volumes to each other.

    Args:
        show: makes of a tensor inside what the network itself would have there; hooks are given that.
    """
    before = _calls.inside, _calls.show
    _calls.inside, _calls.show = True, show
    try:
        yield
    finally:
        _calls.inside, _calls.show = before


def shown(out: Any) -> Any:
    """Returns tensors as the network itself would have them, whose gradients will be contiguous."""
    out = out if _calls.show is None else nested.mapped(out, _calls.show, frozenset())
    for t in nested.tensors(out):
        if t.grad_fn is not None and t.layout == torch.strided:
            t.register_hook(Tensor.contiguous)
    return out


def chief(value: object) -> Tensor | None:
    """Returns the tensor whose dtype and layout outputs take: the first volume, or else the first floating tensor."""
    floating = [t for t in nested.tensors(value) if t.is_floating_point()]
    return next((t for t in floating if t.dim() == 5), floating[0] if floating else None)


def taken_in(x: Tensor) -> Tensor:
    """Returns a floating volume channels-last, unless it is sparse; its gradient comes in the layout that x has."""
    if not x.is_floating_point() or x.layout != torch.strided:
        return x
    y = channels_last(x)
    if y is x or traced():
        return y
    if x.shape[1] > 1 and x.requires_grad and torch.is_grad_enabled() and not _is_last(x):
        return _LaidOut.apply(x)  # type: ignore[no-untyped-call]
    if not y.is_inference():
        return y
    with torch.inference_mode(False):  # nothing tells whether an inference tensor was written into
        return channels_last(x)


def handed_back(y: Tensor, last: bool, dtype: torch.dtype) -> Tensor:
    """Returns an output in `dtype`, and contiguous unless PyTorch would hand it on channels-last."""
    if y.requires_grad and not torch.is_grad_enabled():  # of a region that asked for gradients
        with torch.enable_grad():
            return handed_back(y, last, dtype)
    if last or y.layout != torch.strided:
        return y.to(dtype)
    return y.to(dtype, memory_format=torch.contiguous_format).contiguous()


def hands_on_last(parts: Iterable[nn.Module], first: Tensor | None) -> bool:
    """Returns whether PyTorch's layers would hand volumes on channels-last: the first one given or a weight is so."""
    if first is not None and _is_last(first):
        return True
    return any(_is_last(p) for part in parts for p in part._parameters.values() if p is not None)


def _is_last(x: Tensor) -> bool:
    """Returns whether x is channels-last, or cropped from such a volume, by the strides that PyTorch's layers read.

    They tell the two orders of one channel apart by its stride, though the memory is the same.
    """
    if isinstance(x, UninitializedTensorMixin) or x.layout != torch.strided or x.dim() != 5:
        return False
    least = 0
    for dim in (1, 4, 3, 2, 0):
        size, stride = x.shape[dim], x.stride(dim)
        if size == 0 or stride < least or (dim == 0 and least == x.stride(1)):  # vectors are in neither order
            return False
        least = stride * size
    return x.stride(1) > 0


class _LaidOut(torch.autograd.Function):
    """`channels_last`, whose gradient is contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return channels_last(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


Rule = Callable[[nn.Module, frozenset[str]], Forward | None]
"""Maps a module and the features that are on to its stand-in, or to None to leave the module alone."""


def hooked(module: nn.Module) -> bool:
    """Returns whether the module must be called as it is: for hooks, another's forward or computed parameters."""
    if any(getattr(module, name, None) for name in HOOKS) or "parametrizations" in module._modules:
        return True
    forward = module.__dict__.get("forward")
    if forward is not None and not isinstance(forward, Forward):
        return True
    return hooks_for_all()


def replaced_in_class(module: nn.Module) -> bool:
    """Returns whether its class has another forward than the one that was written with it."""
    base = next(base for base in type(module).__mro__ if "forward" in vars(base))
    forward: Any = vars(base)["forward"]
    written = getattr(forward, "__module__", None), getattr(forward, "__qualname__", None)
    return written != (base.__module__, f"{base.__qualname__}.forward") or hasattr(forward, "__wrapped__")


def transformed() -> bool:
    """Returns whether a transform is at work: `torch.func`, forward differentiation, `fx`, `jit.trace`, an ONNX export.

    They ask more of a function than the kernels and `cast` have, so modules compute as they always did.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or (_symbolic_trace.is_fx_symbolic_tracing() and not traced())
        or (torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export())  # which imports torch.onnx
    )


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype that autocast casts to on devices of this type now; None where it is off, or not known there."""
    if not _has_autocast(device_type) or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


@constant
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


class Weight:
    """A parameter as the fast path computes with it: cast with all the others when the network's forward begins.

    Args:
        module: the module that owns the parameter, which is read anew each time: it may have been replaced since, by
            a buffer or a plain tensor too.
        name: of the parameter; if the module has none of that name, or it is None, the call returns None.
    """

    def __init__(self, module: nn.Module, name: str = "weight") -> None:
        self.module = module
        self.name = name
        self.cast: Tensor | None = None
        self.state = (0, 0, 0)  # of the parameter when it was cast

    @property
    def parameter(self) -> Tensor | None:
        """The parameter as the module holds it now, or what it has by that name instead."""
        parameters = self.module._parameters
        return parameters[self.name] if self.name in parameters else getattr(self.module, self.name, None)

    def __call__(self) -> Tensor | None:
        """Returns the cast tensor inside a forward in reduced precision, else the parameter itself.

        That forward may have regions where autocast is off, or casts to another dtype; or where gradients are wanted
        and were not when it was cast, as in a forward on another thread. Or it may itself change or replace the
        parameter, as `functional_call` does.
        """
        cast, parameter = self.cast, self.parameter
        if cast is None or parameter is None or autocast_dtype(cast.device.type) != cast.dtype:
            return parameter
        if id(parameter) != self.state[0] or _state(parameter) != self.state:
            return parameter
        lacks = parameter.requires_grad and not cast.requires_grad and torch.is_grad_enabled()
        return parameter if lacks or (cast.is_inference() and not torch.is_inference_mode_enabled()) else cast

    def of(self, x: Tensor) -> Tensor:
        """Returns the weight in the dtype of `x`, cast now unless all are cast at once; if 5-D, channels-last.

        Raises:
            TypeError: if the module has no such parameter.
        """
        weight = self()
        if weight is None:
            raise TypeError(f"{type(self.module).__name__} has no {self.name}")
        return channels_last(weight.to(x.dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cast": None}


def weights_in(values: Iterable[object]) -> Iterator[Weight]:
    """The weights that a stand-in holds: those among the values of its attributes, in tuples too."""
    for value in values:
        if isinstance(value, Weight):
            yield value
        elif isinstance(value, tuple):
            yield from weights_in(value)


def _state(parameter: Tensor) -> tuple[int, int, int]:
    """Who a tensor is, where its memory lies, and how often it was written to, which inference tensors do not count."""
    return id(parameter), parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version


@contextlib.contextmanager
def cast(weights: Sequence[Weight], dtype: torch.dtype) -> Iterator[None]:
    """Inside, each float32 weight of `weights` returns its parameter in `dtype`, a 5-D one channels-last.

    Parameters stay as they are in memory, and their gradients arrive in float32 and in the parameters' own strides.
    Those that are channels-last already are cast by one launch, not one for each layer: they are many and most small.
    """
    # Of parameters only: what is computed anew for each call, as by old hooks, may still be the last call's now.
    held = (w.module._parameters.get(w.name) for w in weights)
    known = (p for p in held if p is not None and p.dtype == torch.float32)
    # Of FSDP's, which are subclasses, a module has its own part only, until its own hooks gather the rest.
    parameters = {id(p): p for p in known if type(p) in (Tensor, nn.Parameter)}
    learned = [p for p in parameters.values() if p.requires_grad and torch.is_grad_enabled()]
    frozen = [p.detach() for p in parameters.values() if not (p.requires_grad and torch.is_grad_enabled())]
    keys = [id(p) for p in learned] + [k for k, p in parameters.items() if id(p) not in {id(q) for q in learned}]
    tensors: list[Tensor] = []
    if learned:
        tensors += _Cast.apply(dtype, *learned)  # type: ignore[no-untyped-call]
    if frozen:
        tensors += _copies(frozen, dtype)
    results = dict(zip(keys, tensors, strict=True))
    states = {key: _state(p) for key, p in parameters.items()}
    try:
        for weight in weights:
            key = id(weight.parameter)
            weight.cast, weight.state = results.get(key), states.get(key, (0, 0, 0))
        yield
    finally:
        for weight in weights:
            weight.cast = None


class _Cast(torch.autograd.Function):
    """Casts float32 parameters to `dtype`; a parameter that was not used gets no gradient."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.strides = [p.stride() for p in parameters]
        return tuple(_copies(parameters, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or any(map(_of_many, gradients)):  # to be differentiated once more, or batched
            return (None, *(None if g is None else g.float() for g in gradients))
        given = [(g, stride) for g, stride in zip(gradients, ctx.strides, strict=True) if g is not None]
        wide = [
            torch.empty_strided(g.shape, stride, dtype=torch.float32, device=g.device)
            if 0 not in stride  # of an expanded parameter
            else torch.empty_like(g, dtype=torch.float32)
            for g, stride in given
        ]
        copy_into([g for g, _ in given], wide)
        copies = iter(wide)
        return (None, *(None if g is None else next(copies) for g in gradients))


def _of_many(gradient: Tensor | None) -> bool:
    """Returns whether a gradient is a batch of them, for which most functions that write in place have no rule."""
    return gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient)


def _copies(parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies parameters into `dtype`: a 5-D one channels-last, others in their own strides."""
    copies = []
    for parameter in parameters:
        other = parameter.dim() == 5 and not parameter.is_contiguous(memory_format=torch.channels_last_3d)
        layout = torch.channels_last_3d if other else torch.preserve_format
        copies.append(torch.empty_like(parameter, dtype=dtype, memory_format=layout))
    copy_into(parameters, copies)
    return copies
