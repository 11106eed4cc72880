"""A released model: the averaged weights in one safetensors file, a format that cannot hold code.

Any safetensors reader reads it: weights under the network's published names, in BF16, and JSON metadata that rebuild
the network (config, timesteps, prediction), describe its training (layout, size, step, training) and recommend a
sampler (sampling).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from medddpm.checkpoints.fields import check_fields
from medddpm.checkpoints.weights import PREFIX, check_weights, is_network, with_published_names
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime.files import check_hollow, opened

SUFFIX = ".safetensors"
FORMAT = "medddpm 1"
LARGEST_HEADER = 2**22  # bytes; that of a U-Net of a thousand tensors has a tenth of a megabyte
FIELDS = ("config", "timesteps", "prediction", "layout", "size", "step", "training", "sampling", "evaluation")
"""The entries of a checkpoint that are stored beside the weights; `medddpm release` adds the last three."""


def write(content: Mapping[str, Any], file: Path, *, about: str = "") -> None:
    """Writes a checkpoint's averaged weights to a temporary path; the caller moves the file to its place.

    Args:
        content: from `checkpoints.files.read_checkpoint`, of a checkpoint of ours, with further `FIELDS` or without.
        file: the temporary path.
        about: a sentence about the training, for whoever opens the file.

    Raises:
        BadInput: the disk is full.
    """
    known = {**content, "timesteps": len(content["ema"]["betas"])}
    metadata = {key: json.dumps(known[key]) for key in FIELDS if key in known}
    weights = to_released(content["ema"])
    try:
        save_file(weights, file, {"format": FORMAT, "about": about, "digest": digest(weights), **metadata})
    except SafetensorError as error:  # also for a full disk
        raise BadInput(file, f"it could not be written: {error}", "make room, and try again") from None


def to_released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state's network weights as a released file has them: without the schedule, in BF16, on the CPU.

    A parameter then takes two bytes and has eight bits of mantissa.
    """
    return {k.removeprefix(PREFIX): v.bfloat16().cpu().contiguous() for k, v in state.items() if k.startswith(PREFIX)}


def from_released(weights: Mapping[str, Tensor], timesteps: int, prediction: str = "noise") -> dict[str, Tensor]:
    """Returns the weights of a released file as a checkpoint has them: in float32, with the schedule.

    Raises:
        BadArgument: the prediction cannot have so few timesteps.
    """
    schedule = GaussianDiffusion(torch.nn.Identity(), timesteps, prediction=prediction).state_dict()
    return {**{PREFIX + name: tensor.float() for name, tensor in weights.items()}, **schedule}


def read_released(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a released model as a checkpoint's content: "ema", in float32 and with the schedule, and its `FIELDS`.

    Raises:
        BadInput: the file is damaged, or `write` did not write it.
    """
    path = Path(path)
    return _content(*read_tensors(path), path)


def read_safetensors(path: Path) -> dict[str, Any]:
    """Reads a released model, or the weights of a bare network, which become both "model" and "ema".

    Raises:
        BadInput: as `read_released`.
    """
    metadata, weights = read_tensors(path)
    state = with_published_names(weights)
    if metadata.get("format") != FORMAT and is_network(state):
        return {"model": state, "ema": state}
    return _content(metadata, weights, path)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Reads the metadata and tensors of a safetensors file, of any network.

    Raises:
        BadInput: the file is missing or damaged; with a digest in its metadata, also if a weight differs.
    """
    check_utf8(os.fspath(path), path)
    try:
        with opened(path) as stream:
            check_hollow(path, stream)
            if int.from_bytes(stream.read(8), "little") > LARGEST_HEADER:
                raise ValueError
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except BadInput:
        raise
    except (SafetensorError, OSError, ValueError, TypeError):  # TypeError: of a dtype that PyTorch does not have
        raise BadInput(path, "it is damaged, or no safetensors file", "fetch it again") from None
    if "digest" in metadata and metadata["digest"] != digest(weights):  # a version before it had none
        raise BadInput(path, "it is damaged: its weights are not those that were written", "fetch it again")
    return metadata, weights


def _content(metadata: Mapping[str, str], weights: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    try:
        content = {key: json.loads(metadata[key]) for key in FIELDS if key in metadata}
        if metadata["format"] != FORMAT or not content.keys() >= {"config", "timesteps"}:
            raise ValueError
    except (KeyError, ValueError, RecursionError):
        raise BadInput(
            path, f"its metadata is not that of {FORMAT}", "give a file that `medddpm release` wrote"
        ) from None
    check_fields(content, FIELDS, path)
    check_weights({PREFIX + name: tensor for name, tensor in weights.items()}, path)
    if "training" in content:
        content["training"] = with_present_names(content["training"])
    state = from_released(weights, content["timesteps"], content.get("prediction", "noise"))
    return {**content, "about": metadata.get("about", ""), "ema": state}


def check_utf8(text: str, path: str | os.PathLike[str]) -> None:
    """Raises BadInput, for `path`, unless `text` is UTF-8, as safetensors has the names and texts of its files."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(path, "it is not in UTF-8, which safetensors asks for", "give another") from None


def digest(weights: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of weights, by name, dtype, shape and bytes; safetensors has no checksum."""
    checksum = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        checksum.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        checksum.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def with_present_names(training: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a `TrainConfig` from a file under their present names: `setting` was `switches`."""
    return {"setting" if name == "switches" else name: value for name, value in training.items()}
