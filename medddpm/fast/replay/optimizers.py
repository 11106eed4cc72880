"""Checks that an optimizer can be part of a CUDA graph, and keeps what it counts on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from medddpm.errors import BadInput
from medddpm.fast.functions import cells, global_names
from medddpm.fast.replay.graphs import UPDATE

NOT_FROM_ZERO = (torch.optim.NAdam, torch.optim.Rprop, torch.optim.ASGD)
FITTING = "use Adam, AdamW, RMSprop, or SGD with fused=True and without dampening"


def refuse(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, after: Any) -> None:
    """Raises BadInput for what no graph repeats and can be told without one, where nothing else might tell."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadInput("optimizer", f"{name} asks for the loss several times in an update", FITTING)
    odd = isinstance(optimizer, NOT_FROM_ZERO) or any(group.get("dampening") for group in groups)
    if odd and not optimizer.state:
        raise BadInput("optimizer", f"the state of {name} begins otherwise than with zeros", FITTING)
    # Of others' optimizers only their update on a GPU tells.
    is_pytorchs = type(optimizer).__module__.split(".")[:2] == ["torch", "optim"]
    unscaled = scaler is not None and scaler.is_enabled()
    able = all(group.get("fused") or ("capturable" in group and not unscaled) for group in groups)
    if is_pytorchs and not able:
        raise waits(optimizer)
    near = getattr(after, "__self__", None), *_around(after).values()
    if any(isinstance(value, AveragedModel) for value in near):
        remedy = "call its update_parameters after the step, or average with torch._foreach_lerp_"
        raise BadInput("after", "an AveragedModel counts on the host, which a graph does not repeat", remedy)


def rate(rate: Any, device: torch.device, others: Sequence[Tensor]) -> Tensor:
    """A learning rate as a tensor on the device: the user's own, who may fill it, if no other group has it."""
    fits = isinstance(rate, Tensor) and rate.device == device and rate.dtype == torch.float32 and rate.dim() == 0
    if fits and all(rate is not other for other in others):
        return rate
    return torch.tensor(float(rate), device=device)


def waits(optimizer: torch.optim.Optimizer) -> BadInput:
    """Says that the optimizer reads values on the host, which a graph cannot do."""
    on_a_gpu = not isinstance(optimizer, torch.optim.Adagrad)  # which has the fused update on a CPU alone
    fusing = on_a_gpu and "fused" in optimizer.defaults
    remedy = "make the optimizer with fused=True" if fusing else FITTING
    return BadInput("graphed_step", f"{UPDATE} waits for the device", remedy)


def numbers(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Returns the optimizer's numbers on the host, such as a count of updates, which a graph would freeze."""
    host = list(map(_numbers, _tables(optimizer)))
    for p, state in optimizer.state.items():
        host.append(_numbers(state))
        if isinstance(p, Tensor) and not p.is_cpu:
            host.append(
                {n: v.item() for n, v in state.items() if isinstance(v, Tensor) and v.is_cpu and v.numel() == 1}
            )
    return host


@contextlib.contextmanager
def gradients_restored(parameters: Sequence[Tensor]) -> Iterator[None]:
    """On leaving, the parameters have the gradients that they had: a graph that failed leaves memory never written."""
    gradients = [p.grad for p in parameters]
    try:
        yield
    finally:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient


@contextlib.contextmanager
def numbers_restored(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """On leaving, its numbers are as they were; new state that has some is dropped, and after an error all new state.

    Where memory was short, only some of a parameter's moments may be there.
    """
    tables = list(map(_numbers, _tables(optimizer)))
    before = {p: _numbers(state) for p, state in optimizer.state.items()}
    failed = True
    try:
        yield
        failed = False
    finally:
        for table, held in zip(_tables(optimizer), tables, strict=True):
            table.update(held)
        for p, state in list(optimizer.state.items()):
            if p in before:
                state.update(before[p])
            elif failed or _numbers(state):
                del optimizer.state[p]


def _tables(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [vars(optimizer), *optimizer.param_groups]


def _numbers(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if isinstance(value, int | float)}


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups' settings that a graph has in it: numbers, and which parameters."""
    return [
        {name: list(map(id, value)) if name == "params" else id(value) if isinstance(value, Tensor) else value
         for name, value in group.items()}
        for group in optimizer.param_groups
    ]  # fmt: skip


def changed(settings: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    """The names of the settings that are not as before."""
    pairs = zip(settings, before, strict=False)
    return ", ".join(sorted({n for new, old in pairs for n in new if new[n] != old.get(n)})) or "groups"


def _around(function: Any) -> dict[str, Any]:
    """Returns what is in a function's cells and in the globals that it names."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return {}
    space = function.__globals__
    return {name: space[name] for name in global_names(function.__code__) if name in space} | cells(function)
