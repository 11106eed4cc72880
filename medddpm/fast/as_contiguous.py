"""Networks that see how a feature map lies in memory: by `x.view(…)`, by noise drawn in its order, or by a fault."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from medddpm.fast.functions import cached_by_class, names_in, run_by, run_in
from medddpm.fast.graphs import nested
from medddpm.fast.kernels.operators import traced

RESHAPES: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.view: Tensor.reshape,
    Tensor.view_as: Tensor.reshape_as,
}
STRIDED = (Tensor.as_strided, torch.as_strided, torch.view_as_complex)
DRAWS = (torch.rand_like, torch.randn_like, torch.randint_like)
BACKWARDS = ("backward", "vjp")
INSTANCE_NORMS = (functional.instance_norm, torch.instance_norm)
NAMES = {"view", "view_as", "view_as_complex", "as_strided", "rand_like", "randn_like", "randint_like", "instance_norm"}


class AsContiguous(TorchFunctionMode):
    """Inside, a channels-last map is viewed, and noise like it drawn, as if it were contiguous.

    `view` is `reshape`: the same view where there is one, else a copy of the same values; what is then written into
    the copy or the map is written into the other, before anything else is computed. A seed gives the same noise.

    On a CPU the backward pass of an instance norm of one volume reads a channels-last gradient as if it were
    contiguous, and gives wrong gradients for input, weight and bias (seen in PyTorch 2.13); so its gradient is made
    contiguous first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copied] = []
        self.writes: Counter[int] = Counter()  # into inference tensors, which have no versions, by their storage

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS and (args[0] if args else kwargs["input"]).dim() == 5:  # other maps have the layout they had
            kwargs = {"memory_format": torch.contiguous_format} | kwargs
        of_dtype = bool(kwargs) or any(isinstance(size, torch.dtype) for size in args[1:])
        if func in RESHAPES and not of_dtype:
            return self.viewed(args[0], lambda x: RESHAPES[func](x, *args[1:]))
        strided = func in STRIDED or func in RESHAPES
        if strided and args[0].dim() == 5 and args[0].is_contiguous(memory_format=torch.channels_last_3d):
            whole = self.viewed(args[0], _wide if func is torch.view_as_complex else Tensor.contiguous)
            view = func(whole, *args[1:], **kwargs)
            if view._base is None:  # of another dtype: it does not hold what it is a view of
                vars(view).update(whole=whole)
            return view
        result = func(*args, **kwargs)
        if func in INSTANCE_NORMS and result.requires_grad and not result.is_cuda:
            result.register_hook(Tensor.contiguous)
        if self.copies:
            if _writes(func, kwargs) and args and isinstance(args[0], Tensor) and args[0].is_inference():
                self.writes[args[0].untyped_storage().data_ptr()] += 1
            self.copies = [copied for copied in self.copies if copied.follows(self.version)]
        return result

    def version(self, t: Tensor) -> int:
        """A number that changes when `t` is written into."""
        return self.writes[t.untyped_storage().data_ptr()] if t.is_inference() else t._version

    def viewed(self, x: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns `view(x)`, and follows what is written into it if that is a copy."""
        if traced():
            return view(x)
        with torch.inference_mode(False) if x.is_inference() else contextlib.nullcontext():
            y = view(x)  # outside that mode, a view of it holds it
        if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            self.copies.append(Copied(x, y, (self.version(x), self.version(y))))
        return y


class Copied:
    """A map and a copy of it, of the same values in the order of a contiguous one.

    Args:
        x: the map.
        y: of as many elements.
        versions: theirs.
    """

    def __init__(self, x: Tensor, y: Tensor, versions: tuple[int, int]) -> None:
        self.x, self.y, self.versions = weakref.ref(x), weakref.ref(y), versions

    def follows(self, version: Callable[[Tensor], int]) -> bool:
        """Writes into one what has been written into the other; False if either is gone."""
        x, y = self.x(), self.y()
        if x is None or y is None:
            return False
        if version(y) != self.versions[1]:
            x.copy_(y.reshape(x.shape))
        elif version(x) != self.versions[0]:
            y.copy_(x.reshape(y.shape))
        self.versions = version(x), version(y)
        return True


def _wide(x: Tensor) -> Tensor:
    """Contiguous, and of a dtype that complex numbers have: there are none of BF16."""
    return x.contiguous().float() if x.dtype == torch.bfloat16 else x.contiguous()


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether a function writes into its first argument, by its name and options."""
    name = func.__name__
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or name.startswith("__i") or bool(kwargs.get("inplace"))


def sees_layout(module: nn.Module) -> bool:
    """Returns whether a method of this module or of what it holds, or a function that one calls, calls one of `NAMES`.

    PyTorch's own classes do it where they may. `AsContiguous` costs every call of a tensor's function some
    microseconds, so it is for these modules only.
    """
    return any(map(_views, run_in(module)))


def views_in_backward(module: nn.Module) -> bool:
    """Returns whether a method that `sees_layout` finds is the backward of an `autograd.Function` of the user's."""
    return any(function.__name__ in BACKWARDS and _views(function) for function in run_in(module))


def with_contiguous_gradients(out: Any, given: Any) -> None:
    """Has functions of the user's that view in their backward be given the contiguous gradients that they had been.

    Args:
        out: what a module returned, in any nesting.
        given: to it: what computed that is not looked at.
    """
    stack: list[Any] = [t.grad_fn for t in nested.tensors(out) if t.grad_fn is not None]
    seen = {t.grad_fn for t in nested.tensors(given)}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) and _views_gradients(node._forward_cls):  # type: ignore[attr-defined]
            node.register_prehook(_contiguous)
        stack += (above for above, _ in node.next_functions if above is not None)


def _contiguous(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(g if g is None or g.layout != torch.strided else g.contiguous() for g in gradients)


@cached_by_class
def _views_gradients(kind: Any) -> bool:
    return any(map(_views, run_by(*(getattr(kind, name) for name in BACKWARDS))))


def _views(function: FunctionType) -> bool:
    return not NAMES.isdisjoint(names_in(function.__code__))
