"""Med-DDPM's 3-D U-Net and diffusion, the paper's switches, and the study that measures them (ICPE '26)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medddpm.checkpoints.files import load_checkpoint
    from medddpm.diffusion import GaussianDiffusion
    from medddpm.fast.patch import accelerate, restore
    from medddpm.fast.replay.step import graphed_step
    from medddpm.switches import BASE, FAST, OPT1, OPT2, OPT12
    from medddpm.unet import UNet3D

__version__ = "0.1.0"

__all__ = [
    "BASE",
    "FAST",
    "OPT1",
    "OPT2",
    "OPT12",
    "GaussianDiffusion",
    "UNet3D",
    "accelerate",
    "graphed_step",
    "load_checkpoint",
    "restore",
]

_HOME = {
    "BASE": "switches",
    "OPT1": "switches",
    "OPT2": "switches",
    "OPT12": "switches",
    "FAST": "switches",
    "GaussianDiffusion": "diffusion",
    "UNet3D": "unet",
    "accelerate": "fast.patch",
    "graphed_step": "fast.replay.step",
    "load_checkpoint": "checkpoints.files",
    "restore": "fast.patch",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: importing PyTorch takes seconds, which `medddpm --help` should not.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
