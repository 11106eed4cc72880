"""Reads published, our own and released checkpoints as tensors only; writes ours whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medddpm.checkpoints import released
from medddpm.checkpoints.archive import check_archive, damaged
from medddpm.checkpoints.fields import check_fields
from medddpm.checkpoints.weights import (
    PREFIX,
    UNREAD,
    check_memory,
    check_weights,
    is_network,
    is_state,
    some,
    with_published_names,
)
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.fast.reports import log
from medddpm.runtime.files import replacing
from medddpm.unet import UNet3D, config_from_tensors

_STEP = re.compile(r"step-\d+\.pt")  # the names of a run's checkpoints
MOST_TENSORS = 4096  # of a network: reading its configuration off them takes that times itself
TIMESTEPS = 250  # as published, where a file holds the network alone


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes `content` (tensors, numbers, strings, and lists and dicts of them) to `path`, atomically.

    Args:
        path: the file; its folder is made if missing.
        content: for `load_checkpoint` "ema" or "model" or both, each the `state_dict` of a `GaussianDiffusion`; and
            "config", its `UNet3D.config`; without it the network is read as a published one, with 32 groups a norm; and
            "prediction", its diffusion's; without it the network predicts the noise. For `sample_to_files` also
            "size", [H, W, D], if the volumes are no cubes of the network's image size.

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


def checkpoints_of(run: Path) -> list[Path]:
    """Returns the checkpoints in a run's folder, oldest first."""
    numbered = {path: _STEP.fullmatch(path.name) for path in (run / "checkpoints").glob("step-*.pt")}
    return sorted((path for path, match in numbered.items() if match), key=lambda path: int(path.stem[5:]))


def newest_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Returns the newest checkpoint of a run's folder; a file is returned as it is.

    Raises:
        BadInput: the folder has none.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    checkpoints = checkpoints_of(path)
    if not checkpoints:
        raise BadInput(path, "this folder has no checkpoints/step-*.pt", "give a run's folder or a checkpoint's file")
    return checkpoints[-1]


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, and never runs code from it.

    Raises:
        BadInput: the file is missing or damaged, carries code, or is not a checkpoint of this model.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(
            path, "no such checkpoint", "give a checkpoint's file or a run's folder, or train one with `medddpm train`"
        )
    if path.suffix == released.SUFFIX:
        return released.read_safetensors(path)
    check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a dozen kinds, by where the reader fails
        raise damaged(path) from None
    if is_state(content) and is_network(with_published_names(content)):  # of `torch.save(network.state_dict(), …)`
        content = {"model": content, "ema": content}
    states = {kind: content.get(kind) for kind in ("model", "ema")} if isinstance(content, dict) else {}
    named = {kind: with_published_names(state) for kind, state in states.items() if is_state(state)}
    if not named:
        raise BadInput(
            path,
            "it holds no 'model' or 'ema' map of named tensors",
            "give a checkpoint of this model: {'step': …, 'model': {…}, 'ema': {…}}",
        )
    check_fields(
        content, ("config", "size", "sampling", "prediction"), path
    )  # what sampling reads; training and release read more
    return {**content, **named}


def load_checkpoint(
    path: str | os.PathLike[str], weights: str = "ema", device: str | torch.device = "cpu"
) -> GaussianDiffusion:
    """Builds the model of a checkpoint; a published one's configuration is read off its tensors.

    Args:
        path: the checkpoint, or a run's folder, whose newest checkpoint is read.
        weights: "ema", which sampling uses, or "model".
        device: the model's.

    Returns:
        the diffusion, in evaluation mode.

    Raises:
        BadInput: there is no such file, the folder has no checkpoint, the file is damaged or holds no such weights, or
            tensors are missing, extra or of another shape; the message names them.
    """
    path = newest_checkpoint(path)
    return diffusion_from(read_checkpoint(path), path, weights).to(device).eval()


def diffusion_from(content: Mapping[str, Any], path: str | os.PathLike[str], weights: str = "ema") -> GaussianDiffusion:
    """Builds the model of a checkpoint already read; `path` is for messages."""
    state = content.get(weights)
    if not is_state(state):
        others = [name for name in ("ema", "model") if is_state(content.get(name))]
        maps = f"its maps are: {', '.join(map(str, content))}"
        remedy = f"ask for '{others[0]}' (weights=, --weights)" if others else maps
        raise BadInput(path, f"it has no '{weights}' weights", remedy)
    if len(state) > MOST_TENSORS:
        raise BadInput(path, f"it holds {len(state)} tensors, more than any network of this kind", "give another")
    network_state = {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}
    if network_state and len(network_state) == len(state):
        state = {**state, **GaussianDiffusion(torch.nn.Identity(), TIMESTEPS).state_dict()}
        log.warning(f"{os.fspath(path)}: it names no schedule; the published one of {TIMESTEPS} timesteps is taken")
    try:
        config: Mapping[str, Any] = content.get("config") or config_from_tensors(network_state)
        timesteps = len(state["betas"]) if "betas" in state else TIMESTEPS  # without it, it is named as missing
        prediction = content.get("prediction", "noise")
        fields = {"config": config, "timesteps": timesteps, "prediction": prediction}
        check_fields(fields, fields, path)
        if config.get("num_res_blocks", 1) * max(len(config.get("channel_mult") or ()), 1) > len(network_state):
            raise ValueError("the configuration has more blocks than there are weights")
        with torch.device("meta"):  # its names and shapes, before it takes memory
            shapes = {PREFIX + name: tensor for name, tensor in UNet3D(**config).state_dict().items()}
        _same_tensors(shapes, {name: tensor for name, tensor in state.items() if name.startswith(PREFIX)}, path)
        check_memory(state, path)
        diffusion = GaussianDiffusion(UNet3D(**config), timesteps, prediction=prediction)
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, ArithmeticError):
        raise BadInput(
            path,
            "its tensors are not those of this network",
            "give a checkpoint of Med-DDPM's U-Net, whose names begin with denoise_fn.input_blocks.0.0",
        ) from None
    load_state(diffusion, state, path)
    return diffusion


def load_state(diffusion: GaussianDiffusion, state: object, path: str | os.PathLike[str]) -> None:
    """Copies `state` into `diffusion`; every name and shape must match, and every number must be finite.

    Raises:
        BadInput: tensors are missing, extra or of another shape (the message names them), or as `check_weights`.
    """
    if not is_state(state):
        raise BadInput(path, "it has no map of named tensors where its weights should be", "use an earlier checkpoint")
    expected = diffusion.state_dict()
    _same_tensors(expected, state, path)
    check_weights(state, path)
    diffusion.load_state_dict({name: state[name] for name in expected})


def _same_tensors(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    missing = expected.keys() - state.keys()
    extra = state.keys() - expected.keys() - UNREAD
    other = [name for name in expected.keys() & state.keys() if expected[name].shape != state[name].shape]
    if missing or extra or other:
        parts = [
            f"{len(names)} {fault} ({some(names)})"
            for fault, names in (("missing", missing), ("extra", extra), ("of another shape", other))
            if names
        ]
        raise BadInput(
            path,
            f"its tensors do not fit the network: {', '.join(parts)}",
            "it was made for another configuration: give the checkpoint of this one",
        )
