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
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

F = TypeVar("F", bound=Callable[..., Any])
NAMES: list[str] = []
"""The registered operators: `torch.ops.medddpm.<name>`."""

# The kernels read memory by the strides that they were traced with.
_TAGS = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)


def traced() -> bool:
    """Whether operations are being recorded, or go through a mode that wants to see them."""
    return torch.compiler.is_compiling() or is_in_torch_dispatch_mode()


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
