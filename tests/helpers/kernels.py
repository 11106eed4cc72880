"""What the kernels' tests share: random volumes, and kernels held against their definitions on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.gpu import DEVICE

BF16, FP16, FP32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
CLOSE = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-4}  # norm of the difference over the norm of what is right
TF32_CLOSE = {BF16: 1e-2, FP32: 2e-3}  # where FP32 operands are multiplied as TF32
POINT = (1, 1, 1)
ODD, LARGE = (33, 7, 3), (33, 33, 65)  # the large one: more tiles than programs, and a rest
Widths = tuple[int, ...]  # channels of x, or of x and other; or a volume's sides


def volume(*shape: int, dtype: torch.dtype = F64, device: str = "cpu") -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device).contiguous(memory_format=torch.channels_last_3d)


def norm_inputs(
    widths: Widths, space: Widths, more: str = "", dtype: torch.dtype = F64, device: str = "cpu"
) -> dict[str, Any]:
    """Random arguments of `group_norm` by name: x, perhaps other, weight and bias unless plain, what `more` names."""
    c = sum(widths)
    like: Any = {"dtype": dtype if dtype in (F64, FP16) else FP32, "device": device}  # parameters stay wide beside BF16
    given = {"x": volume(2, widths[0], *space, dtype=dtype, device=device)}
    if len(widths) == 2:
        given["other"] = 2 * volume(2, widths[1], *space, dtype=dtype, device=device) + 1
    if "plain" not in more:
        given |= {"weight": 1 + 0.5 * torch.randn(c, **like), "bias": torch.randn(c, **like)}
    if "shift" in more:
        given["shift"] = torch.randn((c,) if "one shift" in more else (2, c), **like)
    if "residual" in more:
        given["residual"] = volume(2, c, *space, dtype=dtype, device=device)
    if "slope" in more:
        given["slopes"] = torch.rand(1 if "one slope" in more else c, **like)
    return given


@torch.no_grad()
def error(a: Tensor, right: Tensor) -> float:
    return float((a.double() - right.double()).norm() / right.double().norm())


# On a GPU. A new flag, dtype or tile compiles anew: cases share them.


def poison() -> None:
    """Leaves NaN in the allocator's free blocks of every size, so that an output nobody wrote shows."""
    blocks = [torch.full((1 << size,), float("nan"), device=DEVICE) for size in range(7, 25)]
    del blocks


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def outputs_and_gradients(function: Any, given: dict[str, Tensor], incoming: list[Tensor]) -> dict[str, Tensor]:
    leaves = {name: a.detach().requires_grad_() for name, a in given.items()}
    poison()
    results = as_tuple(function(**leaves))
    poison()
    gradients = torch.autograd.grad(results, list(leaves.values()), incoming)
    return {f"result {i}": a for i, a in enumerate(results)} | dict(zip(leaves, gradients, strict=True))


def second_derivatives(function: Any, given: dict[str, Tensor], incoming: list[Tensor]) -> dict[str, Tensor]:
    """Of the sum of the gradients' squares: what a penalty on them trains by."""
    leaves = {name: a.detach().requires_grad_() for name, a in given.items()}
    dys = {f"incoming {i}": dy.detach().requires_grad_() for i, dy in enumerate(incoming)}
    first = torch.autograd.grad(
        as_tuple(function(**leaves)), list(leaves.values()), list(dys.values()), create_graph=True
    )
    penalty = torch.stack([g.square().mean() for g in first if g.requires_grad]).sum()
    sought = leaves | dys
    found = torch.autograd.grad(penalty, list(sought.values()), allow_unused=True)
    return {name: a.detach() for name, a in zip(sought, found, strict=True) if a is not None}


def check(kernel: Any, definition: Any, given: dict[str, Tensor], close: float, **options: Any) -> None:
    """Kernels three times, the third with incoming gradients in another memory order, and the definition in float64."""
    kernel, definition = partial(kernel, **options), partial(definition, **options)
    incoming = [torch.randn_like(a) for a in as_tuple(kernel(**given))]
    orders = incoming, incoming, [a.contiguous() for a in incoming]
    first, again, turned = (outputs_and_gradients(kernel, given, dys) for dys in orders)
    wide, dys = {name: a.double() for name, a in given.items()}, [a.double() for a in incoming]
    right = outputs_and_gradients(definition, wide, dys)
    for name, a in first.items():
        assert torch.equal(a, again[name]), f"{name}: other bits the second time, or NaN"
        assert a.dtype == given.get(name, given["x"]).dtype, name
        # Gradients may cancel, as where a group is two values: then they are small beside what came in.
        scale = max(float(b.detach().norm()) for b in (right[name], *dys))
        assert max(float((b.double() - right[name]).detach().norm()) for b in (a, turned[name])) < close * scale, name
        if name in ("x", "h", "other", "residual") or "result" in name:
            assert a.is_contiguous(memory_format=torch.channels_last_3d), name
    if all(a.dtype == FP32 for a in given.values()):
        check_twice(kernel, definition, given, incoming, close)


def check_twice(kernel: Any, definition: Any, given: dict[str, Tensor], incoming: list[Tensor], close: float) -> None:
    """Second derivatives, which PyTorch's functions compute: nothing of them may be missing."""
    wide, dys = {name: a.double() for name, a in given.items()}, [a.double() for a in incoming]
    ours, right = second_derivatives(kernel, given, incoming), second_derivatives(definition, wide, dys)
    assert ours.keys() == right.keys()
    scale = max(float(b.norm()) for b in right.values())
    for name, a in ours.items():
        assert float((a.double() - right[name]).norm()) < 4 * close * scale, f"second derivative of {name}"
