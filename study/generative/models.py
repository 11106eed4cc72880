"""The generative models of Figure 2: read from models.toml, built with random weights, and given inputs.

Nothing is downloaded. The networks come from `diffusers`, or from this package if `diffusers` lacks them.
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
    """The published cost of one training.

    Args:
        source: of the number, or the reason why there is none.
        gpu_hours: hours times GPUs; None if no number was published.
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
        inputs: of its forward pass, at the resolution it was trained at; see models.toml.
        resolution: the size of the image or volume, in pixels or voxels.
        source: of the published configuration.
        cost: of its training.
        tiny: `arguments` and `inputs` that make it a toy.
        parameters: the published number and its tolerance; None if none is published.
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
        """Builds the network with random weights on `device` ("meta": without memory), in training mode.

        Raises:
            BadInput: diffusers is not installed, or no longer has the class.
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
        """Draws the inputs of one step, by argument, batch 1."""
        inputs = {**self.inputs, **(self.tiny["inputs"] if tiny else {})}
        return {name: _tensors(shape, device) for name, shape in inputs.items()}


def _tensors(shape: Any, device: torch.device) -> Any:
    """Draws a float32 or int64 tensor of a shape, or tensors by name."""
    if isinstance(shape, list):
        return torch.randn(shape, device=device)
    if "below" in shape:
        return torch.randint(shape["below"], shape["shape"], device=device)
    return {name: _tensors(inner, device) for name, inner in shape.items()}


def loss_of(output: Any) -> Tensor:
    """Returns a scalar loss: the network's output if it is one (a GAN's), or the squared error against fresh noise.

    Args:
        output: a tensor, or diffusers' output with the prediction in `sample`.
    """
    prediction: Tensor = output if isinstance(output, Tensor) else output.sample
    return prediction if prediction.dim() == 0 else nn.functional.mse_loss(prediction, torch.randn_like(prediction))


def parse_names(text: str) -> list[str]:
    """Reads model names from a comma-separated list; "all" is every model.

    Raises:
        BadInput: a name is unknown, or the list is empty.
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
