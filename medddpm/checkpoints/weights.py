"""Checks the weights of this model: their names, their numbers, and the memory that they take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import torch
from torch import Tensor

from medddpm.errors import BadInput

PREFIX = "denoise_fn."  # of the network's names, in a diffusion's
UNREAD = {"posterior_mean_coef3"}  # a schedule buffer of published checkpoints that nothing reads
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_FIRST = "input_blocks.0.0.weight"  # every network has one
_COUNTED = "n_averaged"  # what `torch.optim.swa_utils.AveragedModel` adds


def is_state(value: object) -> TypeGuard[Mapping[str, Tensor]]:
    """Returns whether `value` is a non-empty map of names to tensors."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def is_network(state: Mapping[str, Tensor]) -> bool:
    """Returns whether `state` holds weights under the names of a checkpoint."""
    return PREFIX + _FIRST in state


def with_published_names(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns weights under the names of `GaussianDiffusion.state_dict()`, however the model was wrapped when saved.

    Removes a prefix that all names share, before or after `PREFIX`: ``module.`` (DistributedDataParallel),
    ``_orig_mod.`` (`torch.compile`) or any other. Adds `PREFIX` to the weights of a bare `UNet3D`. Other weights stay
    as they are.
    """
    heads = [name.removesuffix(_FIRST) for name in state if name.endswith(_FIRST)]
    if len(heads) != 1:
        return state
    head = heads[0]
    outer = head.partition(PREFIX)[0] if PREFIX in head else head  # without it, all are the network's
    weights = {
        PREFIX + name.removeprefix(head) if name.startswith(head) else name.removeprefix(outer): tensor
        for name, tensor in state.items()
        if name != _COUNTED
    }
    alike = all(name.startswith(outer) for name in state if name != _COUNTED)
    return weights if alike and len(weights) == len(state.keys() - {_COUNTED}) else state


def check_weights(state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Checks that weights and schedule hold usable numbers.

    Raises:
        BadInput: a tensor is not of floating-point numbers, or holds a number that is not finite in float32, or the
            schedule holds an impossible probability.
    """
    if other := [f"{name}: {tensor.dtype}" for name, tensor in state.items() if tensor.dtype not in FLOATS]:
        problem = f"its weights are not floating-point numbers ({some(other)})"
        raise BadInput(path, problem, "save them as float32: {name: tensor.float() …}")
    if broken := not_finite(state):
        raise BadInput(path, f"its weights are not finite ({some(broken)})", "use an earlier checkpoint")
    schedule = {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX) and tensor.numel()}
    most = {"betas": 1.0, "alphas_cumprod": 1.0, "alphas_cumprod_prev": 1.0}
    if absurd := [
        name
        for name, tensor in schedule.items()
        if "log" not in name and (tensor.min() < 0 or tensor.max() > most.get(name, float("inf")))
    ]:
        problem = f"its noise schedule holds numbers that none has ({some(absurd)})"
        raise BadInput(path, problem, "give the file that the training wrote")


def not_finite(state: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of the tensors that hold NaN, infinity, or numbers that are infinite in float32."""
    return [name for name, tensor in state.items() if tensor.is_floating_point() and not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.float().isfinite().all())


def check_memory(state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Checks that tensors do not share memory, since a network built from them would take more.

    Raises:
        BadInput: together they are larger than their storages.
    """
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in state.values()}
    if sum(tensor.nbytes for tensor in state.values()) > sum(storages.values()):
        raise BadInput(path, "its weights share memory, as no network's do", "give the file that the training wrote")


def are_losses(value: object, step: object) -> bool:
    """Returns whether `value` holds the loss of each step up to `step`, (step,)."""
    return (
        type(step) is int
        and isinstance(value, Tensor)
        and value.shape == (step,)
        and value.dtype in FLOATS
        and _is_finite(value)
    )


def some(names: Iterable[str]) -> str:
    """Joins the first three of `names`, sorted."""
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (", …" if len(ordered) > 3 else "")
