"""Stand-ins for the forward of a module on the fast path, and the weights they compute with."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.kernels.operators import constant

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Forward:
    """Stands in for the forward of one module, as its instance attribute `forward`.

    The module keeps its class, parameters, names and state dict; deleting the attribute undoes it. A stand-in is a
    plain object that holds the module, so it is pickled and copied along with it. A subclass overrides `compute`, and
    holds a `Weight` for each parameter that it wants in the dtype of the products.

    Args:
        module: the module whose forward it replaces.
        features: those that are on, of `patch.FEATURES`; so a subclass can be a rule.
    """

    what = ""
    """In the report: what was put in place of the module's own forward."""

    handled: tuple[nn.Module, ...] = ()
    """Modules inside this one whose work `compute` does: they get no stand-in of their own."""

    def __init__(self, module: nn.Module, features: frozenset[str] = frozenset()) -> None:
        self.module: Any = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's forward: by `compute`, or as the class does if anything has hooks."""
        if not self.free:
            return self.original(*args, **kwargs)
        return self.computed(args, kwargs)

    def computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `compute`, whose parameters stand as those of the module's forward do, but may have other names."""
        if kwargs:
            bound = inspect.signature(type(self.module).forward).bind(self.module, *args, **kwargs)
            args, kwargs = bound.args[1:], bound.kwargs
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
        """Whether `compute` may run: neither the module nor those handled have hooks, which may change weights."""
        return not hooked(self.module) and not any(hooked(module) for module in self.handled) and self.fits()

    def fits(self) -> bool:
        """Whether the module's settings are still those that `compute` takes: a user may change them at any time."""
        return True

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Computes what the module's forward does, faster."""
        return self.original(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the forward of the module's class, for arguments that `compute` does not take."""
        return type(self.module).forward(self.module, *args, **kwargs)


Rule = Callable[[nn.Module, frozenset[str]], Forward | None]
"""Maps a module and the features that are on to its stand-in, or to None to leave the module alone."""


def hooked(module: nn.Module) -> bool:
    """Whether the module's forward must run as a whole: it has hooks, or its parameters are computed."""
    if any(getattr(module, name, None) for name in HOOKS) or "parametrizations" in module._modules:
        return True
    return torch.nn.modules.module._has_any_global_hook()


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
        module: the module that owns the parameter, which is read anew each time: it may have been replaced since.
        name: of the parameter; if the module has none of that name, or it is None, the call returns None.
    """

    def __init__(self, module: nn.Module, name: str = "weight") -> None:
        self.module = module
        self.name = name
        self.cast: Tensor | None = None

    @property
    def parameter(self) -> Tensor | None:
        """The parameter as the module holds it now."""
        return self.module._parameters.get(self.name)

    def __call__(self) -> Tensor | None:
        """Returns the cast tensor inside a forward in reduced precision, else the parameter itself."""
        return self.parameter if self.cast is None else self.cast

    def of(self, x: Tensor) -> Tensor:
        """Returns the weight in the dtype of `x`, cast now unless all are cast at once.

        Raises:
            TypeError: if the module has no such parameter.
        """
        weight = self()
        if weight is None:
            raise TypeError(f"{type(self.module).__name__} has no {self.name}")
        return weight.to(x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cast": None}


@contextlib.contextmanager
def cast(weights: Sequence[Weight], dtype: torch.dtype) -> Iterator[None]:
    """Inside, each float32 weight of `weights` returns its parameter in `dtype`; its gradient arrives in float32.

    All are cast by one launch, not one for each layer: the tensors are many and most are small.
    """
    parameters = {id(p): p for w in weights if (p := w.parameter) is not None and p.dtype == torch.float32}
    learned = [p for p in parameters.values() if p.requires_grad and torch.is_grad_enabled()]
    frozen = [p.detach() for p in parameters.values() if not (p.requires_grad and torch.is_grad_enabled())]
    keys = [id(p) for p in learned] + [k for k, p in parameters.items() if id(p) not in {id(q) for q in learned}]
    tensors: list[Tensor] = []
    if learned:
        tensors += _Cast.apply(dtype, *learned)  # type: ignore[no-untyped-call]
    if frozen:
        tensors += _copied(frozen, dtype)
    results = dict(zip(keys, tensors, strict=True))
    try:
        for weight in weights:
            weight.cast = results.get(id(weight.parameter))
        yield
    finally:
        for weight in weights:
            weight.cast = None


class _Cast(torch.autograd.Function):
    """Casts float32 parameters to `dtype`; a parameter that was not used gets no gradient."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copied(parameters, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [g for g in gradients if g is not None]
        again = torch.is_grad_enabled()  # to be differentiated once more
        wide = iter([g.float() for g in given] if again else _copied(given, torch.float32))
        return (None, *(None if g is None else next(wide) for g in gradients))


def _copied(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies `tensors` in `dtype`, each in its own layout.

    A tensor with gaps (the gradient of a padded weight) would make the whole list slow: it is copied by itself.
    """
    copies = [torch.empty_like(t, dtype=dtype) for t in tensors]
    alike = [(c, t) for c, t in zip(copies, tensors, strict=True) if c.stride() == t.stride()]
    others = [(c, t) for c, t in zip(copies, tensors, strict=True) if c.stride() != t.stride()]
    if alike:
        torch._foreach_copy_([c for c, _ in alike], [t for _, t in alike])
    for copy, tensor in others:
        copy.copy_(tensor)
    return copies
