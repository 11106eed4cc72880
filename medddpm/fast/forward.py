"""What stands in for a module's forward on the fast path, and the weights it computes with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Forward:
    """Stands in for the forward of one module, as its instance attribute `forward`.

    Class, parameters, names and state dict of the module stay what they are; deleting the attribute undoes it. Being a
    plain object that holds the module, it is pickled and copied along with it. A subclass says what it computes in
    `compute`, and holds a `Weight` for each parameter that it wants in the type of the products.

    Args:
        module: whose forward it is.
        features: that are on, of `accelerate.FEATURES`; so a subclass can be a rule.
    """

    what = ""
    """In the report: what was put in place of the module's own forward."""

    handled: tuple[nn.Module, ...] = ()
    """Modules inside that `compute` does the work of: they get no forward of their own."""

    def __init__(self, module: nn.Module, features: frozenset[str] = frozenset()) -> None:
        self.module: Any = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module calls in place of its forward."""
        if not self.free:
            return self.original(*args, **kwargs)
        return self.compute(*args, **kwargs)

    @property
    def free(self) -> bool:
        """Whether nothing hangs on the module or on those handled: it would want to be called, or change weights."""
        return not hooked(self.module) and not any(hooked(module) for module in self.handled)

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's forward computes, faster."""
        return self.original(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the module's class, for arguments that `compute` does not take."""
        return type(self.module).forward(self.module, *args, **kwargs)


Rule = Callable[[nn.Module, frozenset[str]], Forward | None]
"""Given a module of the class it is registered for and the features that are on: its stand-in, or None to leave it."""


def hooked(module: nn.Module) -> bool:
    """Whether its forward must run as a whole: something is to be called with it, or its parameters are computed."""
    if any(getattr(module, name, None) for name in HOOKS) or "parametrizations" in module._modules:
        return True
    return torch.nn.modules.module._has_any_global_hook()


class Weight:
    """A parameter as the fast path computes with it: cast with all the others when the network's forward begins.

    Args:
        module: whose parameter it is. It is read from there anew each time: it may have been replaced since.
        name: of the parameter; where the module has none of that name, or it is None, the call returns None.
    """

    def __init__(self, module: nn.Module, name: str = "weight") -> None:
        self.module = module
        self.name = name
        self.cast: Tensor | None = None

    @property
    def parameter(self) -> Tensor | None:
        """As the module holds it."""
        return self.module._parameters.get(self.name)

    def __call__(self) -> Tensor | None:
        """The cast tensor inside a forward of the whole network in reduced precision, else the parameter itself."""
        return self.parameter if self.cast is None else self.cast

    def of(self, x: Tensor) -> Tensor:
        """The weight in the dtype of `x`: the cast one, or cast now where that is not done for all at once.

        Raises:
            TypeError: where the module has no such parameter.
        """
        weight = self()
        if weight is None:
            raise TypeError(f"{type(self.module).__name__} has no {self.name}")
        return weight.to(x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cast": None}


@contextlib.contextmanager
def cast(weights: Sequence[Weight], dtype: torch.dtype) -> Iterator[None]:
    """Inside, each float32 one of `weights` gives its parameter in `dtype`; gradients reach the parameter in float32.

    One launch for all of them, not one a layer: the tensors are many and most are small.
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
    """(dtype, float32 parameters…) to the same in `dtype`; a parameter that was not used keeps no gradient."""

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
    """Copies of `tensors` in `dtype` and in their own layouts.

    A tensor with gaps (the gradient of a padded weight) would send the whole list down the slow way: it goes alone.
    """
    copies = [torch.empty_like(t, dtype=dtype) for t in tensors]
    alike = [(c, t) for c, t in zip(copies, tensors, strict=True) if c.stride() == t.stride()]
    others = [(c, t) for c, t in zip(copies, tensors, strict=True) if c.stride() != t.stride()]
    if alike:
        torch._foreach_copy_([c for c, _ in alike], [t for _, t in alike])
    for copy, tensor in others:
        copy.copy_(tensor)
    return copies
