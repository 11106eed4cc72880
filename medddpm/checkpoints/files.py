"""Reads published, our own and released checkpoints as tensors only; writes ours whole or not at all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from medddpm.checkpoints import released
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from medddpm.unet import UNet3D, config_from_tensors

# A schedule buffer of published checkpoints that neither training nor sampling reads.
UNREAD = {"posterior_mean_coef3"}


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes `content` (tensors, numbers, strings, and lists and dicts of them) to `path`, atomically.

    Raises:
        BadInput: the disk is full or not writable; the old file at `path` stays as it was.
    """
    with replacing(path) as temporary:
        try:
            with open(temporary, "wb") as stream:
                torch.save(dict(content), stream)
        except RuntimeError as error:
            # On a full disk the archive's writer then fails to close the file, which hides the first error.
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, and never runs code from it.

    Raises:
        BadInput: the file is missing or damaged, carries code, or is not a checkpoint of this model.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(path, "no such checkpoint", "give the path of a .pt file, or train one with `medddpm train`")
    if path.suffix == released.SUFFIX:
        return released.read_released(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "unsupported global" in str(error).lower():
            raise BadInput(
                path,
                "it carries code beside its tensors, which loading would run",
                "have its author save tensors only: torch.save({'step': …, 'model': model.state_dict(), 'ema': …})",
            ) from None
        raise damaged(path) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        # Which of these a truncated or foreign file raises depends on where the reader fails.
        raise damaged(path) from None
    states = [content.get(key) for key in ("model", "ema")] if isinstance(content, dict) else []
    if not states or not any(is_state(state) for state in states):
        raise BadInput(
            path,
            "it holds no 'model' or 'ema' map of named tensors",
            "give a checkpoint of this model: {'step': …, 'model': {…}, 'ema': {…}}",
        )
    return content


def load_checkpoint(
    path: str | os.PathLike[str], weights: str = "ema", device: str | torch.device = "cpu"
) -> GaussianDiffusion:
    """Builds the model of a checkpoint; a published one's configuration is read off its tensors.

    Args:
        path: the checkpoint.
        weights: "ema", which sampling uses, or "model".
        device: the model's.

    Returns:
        the diffusion, in evaluation mode.

    Raises:
        BadInput: as `read_checkpoint`; or names the tensors that are missing, extra or of another shape.
    """
    return diffusion_from(read_checkpoint(path), path, weights).to(device).eval()


def diffusion_from(content: Mapping[str, Any], path: str | os.PathLike[str], weights: str = "ema") -> GaussianDiffusion:
    """Builds the model of a checkpoint already read; `path` is for messages."""
    state = content.get(weights)
    if not is_state(state):
        raise BadInput(path, f"it has no '{weights}' weights", f"its maps are: {', '.join(map(str, content))}")
    prefix = "denoise_fn."
    network_state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    try:
        config = content.get("config") or config_from_tensors(network_state)
        timesteps = state["betas"].shape[0] if "betas" in state else 250
        diffusion = GaussianDiffusion(UNet3D(**config), timesteps)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError):
        raise BadInput(
            path,
            "its tensors are not those of this network",
            "give a checkpoint of Med-DDPM's U-Net, whose names begin with denoise_fn.input_blocks.0.0",
        ) from None
    load_state(diffusion, state, path)
    return diffusion


def load_state(diffusion: GaussianDiffusion, state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Copies `state` into `diffusion`; every name and shape must match.

    Raises:
        BadInput: names the tensors that are missing, extra or of another shape.
    """
    own = diffusion.state_dict()
    missing = own.keys() - state.keys()
    extra = state.keys() - own.keys() - UNREAD
    other = [name for name in own.keys() & state.keys() if own[name].shape != state[name].shape]
    if missing or extra or other:
        parts = [
            f"{len(names)} {what} ({some(names)})"
            for what, names in (("missing", missing), ("extra", extra), ("of another shape", other))
            if names
        ]
        raise BadInput(
            path,
            f"its tensors do not fit the network: {', '.join(parts)}",
            "it was made for another configuration: give the checkpoint of this one",
        )
    diffusion.load_state_dict({name: state[name] for name in own})


def is_state(value: object) -> TypeGuard[Mapping[str, Tensor]]:
    """Whether `value` is a non-empty map of names to tensors."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def damaged(path: Path) -> BadInput:
    """The error for a file that is not a whole checkpoint."""
    return BadInput(path, "it is damaged, or no PyTorch checkpoint", "fetch it again, or use an earlier one")


def some(names: Iterable[str], at_most: int = 3) -> str:
    """The first few of `names`, sorted."""
    ordered = sorted(names)
    return ", ".join(ordered[:at_most]) + (", …" if len(ordered) > at_most else "")
