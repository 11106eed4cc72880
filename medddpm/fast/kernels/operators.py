"""Kernels' launches as operators of PyTorch, `torch.ops.medddpm`, for what records a computation before it runs.

`torch.compile` would look into a launch and compile the kernels itself, which fails. It sees one opaque operator, with
a fake that tells shapes, dtypes and strides. Eager code calls the launch itself, for the dispatcher's way to an
operator in Python costs as much as a launch. The operators have no derivatives: those are of the `autograd.Function`s
that call the launches, which `torch.compile` can trace.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

F = TypeVar("F", bound=Callable[..., Any])
NAMES: list[str] = []
"""The registered operators: `torch.ops.medddpm.<name>`."""

# The kernels read memory by the strides that they were traced with.
_TAGS = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)


def traced() -> bool:
    """Returns whether operations are being recorded, or go through a mode that wants to see them."""
    return torch.compiler.is_compiling() or is_in_torch_dispatch_mode()


def twice() -> bool:
    """Returns whether a backward pass that runs now is to be differentiated itself: what a launch returns cannot be."""
    return torch.is_grad_enabled() and not traced()


def derivatives(
    function: Callable[..., Any], given: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of a function in PyTorch's own operations, which can be differentiated once more.

    Args:
        function: takes `given`, returns a tensor or a tuple of them.
        given: where a gradient is wanted of them, tensors that require it.
        gradients: of what the function returns; None where there is none.

    Returns:
        one for each of `given`; None where none is wanted.
    """
    with torch.enable_grad():
        apart = [None if t is None else t.view_as(t) for t in given]  # one tensor may be given in two places
        results = function(*apart)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [(y, g) for y, g in zip(results, gradients, strict=True) if g is not None and y.requires_grad]
        wanted = [t for t in apart if t is not None and t.requires_grad]
        outputs, directions = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, directions, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in apart]


def operator(fake: Callable[..., Any], mutates: Sequence[str] = ()) -> Callable[[F], F]:
    """Makes a launch an operator of the same name.

    Args:
        fake: takes the launch's arguments and returns empty tensors like its results.
        mutates: the arguments that the launch changes in place.

    Returns:
        a decorator of a launch: a function of tensors, numbers and strings, all positional, to new tensors. The
        operator's schema is made from its annotations.
    """

    def registered(launch: F) -> F:
        name = f"medddpm::{launch.__name__}"
        torch.library.define(name, torch.library.infer_schema(launch, mutates_args=mutates), tags=_TAGS)
        torch.library.impl(name, "default", launch)
        NAMES.append(launch.__name__)
        recorded = getattr(torch.ops.medddpm, launch.__name__).default

        def faked(*arguments: Any) -> Any:
            lowered_as_it_is(recorded)
            return fake(*arguments)

        torch.library.register_fake(name, faked)

        @functools.wraps(launch)
        def call(*arguments: Any) -> Any:
            return recorded(*arguments) if traced() else launch(*arguments)

        return call  # type: ignore[return-value]

    return registered


def lowered_as_it_is(recorded: torch._ops.OpOverload) -> None:
    """Tells a compiler that is at work to call this operator, which it would find out by itself.

    Before PyTorch 2.13 it then first writes out all that the operator's arguments were computed from, which takes
    minutes for a network whose blocks read a tensor twice.
    """
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is not None and recorded not in lowering.lowerings:
        strides = lowering.tag_to_layout_constraint(torch.Tag.needs_exact_strides)
        lowering.make_fallback(recorded, layout_constraint=strides, warn=False)


def constant(function: F) -> F:
    """Has `torch.compile` call a function of constants and keep what it returns, instead of tracing it.

    This is `torch.compiler.assume_constant_result` without its import of the compiler, which takes seconds.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
