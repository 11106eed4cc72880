"""The settings that trainings are compared under: those of `medddpm.switches`, and PyTorch's BF16 autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.switches import SETTINGS

AUTOCAST = "autocast"
"""OPT1 with the network's forward pass under BF16 autocast, as in the row of that name in the bench records."""

CHOICES = (*SETTINGS, AUTOCAST)


def usual(device: torch.device) -> str:
    """Returns the setting of a training that names none."""
    return "FAST" if device.type == "cuda" else "BASE"


def switches_of(setting: str) -> str:
    """Returns the name in `medddpm.switches.SETTINGS` that a setting of `CHOICES` stands on."""
    return "OPT1" if setting == AUTOCAST else setting


@contextlib.contextmanager
def computing(setting: str, network: nn.Module) -> Iterator[None]:
    """Puts the process and a network under a setting, and both back on exit; may be nested on one network.

    Under autocast the network returns float32, so that the loss and a sampler's sums have that precision, as in FAST.

    Args:
        setting: of `CHOICES`.
        network: returns a tensor.
    """
    with contextlib.ExitStack() as undo:
        undo.enter_context(SETTINGS[switches_of(setting)].on(network))
        if setting == AUTOCAST:
            undo.enter_context(_autocast(network))
        yield


@contextlib.contextmanager
def _autocast(network: nn.Module) -> Iterator[None]:
    forward, before = network.forward, vars(network).get("forward")

    def cast(x: Tensor, *further: Any) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            result: Tensor = forward(x, *further)
        return result.float()

    network.forward = cast
    try:
        yield
    finally:
        if before is None:
            del network.forward
        else:
            network.forward = before
