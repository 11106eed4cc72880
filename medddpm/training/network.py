"""The network of a run, and whether the machine has room for it."""

from __future__ import annotations

import functools
import math
import os

import torch

from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.unet import UNet3D

MOST_OF_MEMORY = 0.9  # of the machine's that a training may claim


def unet_for(config: TrainConfig, volumes: Volumes) -> UNet3D:
    """Builds the network of a run, with the channels of its volumes and masks.

    Raises:
        BadInput: no such network has this width or takes volumes of this size.
    """
    layout = volumes.layout
    built = functools.partial(
        UNet3D,
        image_size=config.image_size,
        in_channels=layout.image_channels + layout.mask_channels,
        out_channels=layout.image_channels,
        model_channels=config.model_channels,
        num_res_blocks=config.num_res_blocks,
        channel_mult=config.channel_mult,
        norm_groups=config.norm_groups,
    )
    try:
        with torch.device("meta"):  # what it would take, before it takes it
            weights = sum(parameter.numel() for parameter in built().parameters())
        voxels = 0 if torch.cuda.is_available() else math.prod(volumes.size) * config.batch_size
        need_memory(weights, voxels * config.model_channels)
        unet = built()
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput("--channels", str(error), "choose 32, 64, 96 …, or other --norm-groups") from None
    if any(side % unet.stride for side in volumes.size):
        sides = "×".join(map(str, volumes.size))
        raise BadInput("--size", f"{sides} cannot be halved often enough", f"choose multiples of {unet.stride}")
    unet.recompute(config.recompute)
    return unet


def need_memory(weights: int, activations: int) -> None:
    """Checks that the host has what a training takes at the very least.

    Args:
        weights: float32 numbers: kept with their gradient, their average and Adam's two moments.
        activations: float32 numbers in a tensor of the first level, of which a step holds two at once.

    Raises:
        BadInput: it has not.
    """
    wanted, free = 4 * (5 * weights + 2 * activations), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > MOST_OF_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise BadInput(
            "--size",
            f"training takes at least {wanted / 2**30:.1f} GiB; {free / 2**30:.1f} are free here",
            "choose a smaller --size, --channels or --batch-size",
        )
