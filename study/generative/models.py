"""The generative models of Figure 2: read from models.toml, built with random weights, and given inputs.

Nothing is downloaded. The networks are those of `diffusers`, and where it has none, ours.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput


@dataclass(frozen=True)
class Cost:
    """What one training is published to have taken.

    Args:
        source: who states it and where, or why there is no number.
        gpu_hours: hours times GPUs; None where no such number was found.
        hardware: the GPU they were counted on; None without a number.
    """

    source: str
    gpu_hours: float | None = None
    hardware: str | None = None


@dataclass(frozen=True)
class Model:
    """A model of Figure 2, an entry of models.toml.

    Args:
        name: as the command line has it.
        title: as the figure has it.
        kind: "latent diffusion", "diffusion" or "GAN".
        network: module:class of the network.
        arguments: the network's, as published.
        inputs: what its forward pass is given, at the resolution it was trained at; see models.toml.
        resolution: the size of the image or volume, in pixels or voxels.
        source: where the configuration is published.
        cost: what its training took.
        tiny: `arguments` and `inputs` that make it a toy.
        parameters: the number published, and by how much it may be off; None where none is published.
    """

    name: str
    title: str
    kind: str
    network: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, Any]
    resolution: str
    source: str
    cost: Cost
    tiny: Mapping[str, Mapping[str, Any]] = field(repr=False)
    parameters: tuple[float, float] | None = None

    def build(self, device: torch.device | str, tiny: bool = False) -> nn.Module:
        """The network with random weights, made on `device` ("meta": without memory), in training mode.

        Raises:
            BadInput: diffusers is not installed, or has the class no longer.
        """
        module, _, name = self.network.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise BadInput(
                self.name, f"{module} has no {name} here ({error})", "install the version of requirements.lock"
            ) from None
        with torch.device(device):
            network: nn.Module = make(**{**self.arguments, **(self.tiny["arguments"] if tiny else {})})
        return network.train()

    def draw(self, device: torch.device, tiny: bool = False) -> dict[str, Any]:
        """The inputs of one step, by argument, batch 1."""
        inputs = {**self.inputs, **(self.tiny["inputs"] if tiny else {})}
        return {name: _drawn(given, device) for name, given in inputs.items()}


def _drawn(given: Any, device: torch.device) -> Any:
    """A new float32 or int64 tensor, or tensors by name."""
    if isinstance(given, list):
        return torch.randn(given, device=device)
    if "below" in given:
        return torch.randint(given["below"], given["shape"], device=device)
    return {name: _drawn(inner, device) for name, inner in given.items()}


def loss_of(output: Any) -> Tensor:
    """A scalar to train on: the network's own loss (a GAN's), or the squared error against fresh noise.

    Args:
        output: a tensor, or diffusers' output with the prediction in `sample`.
    """
    prediction: Tensor = output if isinstance(output, Tensor) else output.sample
    return prediction if prediction.dim() == 0 else nn.functional.mse_loss(prediction, torch.randn_like(prediction))


def parse_names(text: str) -> list[str]:
    """Model names from a comma-separated list; "all" is every one.

    Raises:
        BadInput: a name is unknown, or there is none.
    """
    names = list(MODELS) if text == "all" else [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in MODELS]:
        raise BadInput("--models", f"unknown: {', '.join(unknown)}", f"choose from {', '.join(MODELS)} or all")
    if not names:
        raise BadInput("--models", "names none", f"choose from {', '.join(MODELS)} or all")
    return names


def _read() -> dict[str, Model]:
    entries = tomllib.loads((resources.files(__package__) / "models.toml").read_text(encoding="utf-8"))
    return {name: Model(name, cost=Cost(**entry.pop("cost")), **entry) for name, entry in entries.items()}


MODELS: Mapping[str, Model] = MappingProxyType(_read())
"""Every model by its name, in the order of the figure's table."""
