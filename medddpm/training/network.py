"""Builds the network of a run, after a check that the machine has room for it."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable

import torch
from torch import nn

from medddpm.data.grid import Size
from medddpm.data.layouts import HEAD, Layout
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.unet import UNet3D

MOST_OF_MEMORY = 0.9  # of the machine's that a training may claim
MOST_LEVELS = 11  # of a network: with so many a side of 1024 ends as one voxel


def unet_for(config: TrainConfig, volumes: Volumes) -> UNet3D:
    """Builds the network of a run, with the channels of its volumes and masks.

    Raises:
        BadInput: as `check_network`.
    """
    unet = check_network(config, volumes.layout, volumes.size)()
    unet.recompute(config.recompute)
    return unet


def diffusion_of(config: TrainConfig, network: nn.Module) -> GaussianDiffusion:
    """Returns the process that a run trains a network under."""
    return GaussianDiffusion(
        network,
        offset_noise=config.offset_noise,
        prediction=config.prediction,
        loss_kind=config.loss,
        weighting=config.weighting,
        density=config.density,
    )


def check_network(config: TrainConfig, layout: Layout, size: Size) -> Callable[[], UNet3D]:
    """Checks that a run can be trained here, and returns a function that builds its network.

    Args:
        config: the run's.
        layout, size: of its volumes.

    Raises:
        BadInput: no such network has this width or takes volumes of this size, or the machine has too little memory.
    """
    build = functools.partial(
        UNet3D,
        image_size=config.image_size,
        in_channels=layout.image_channels + layout.mask_channels,
        out_channels=layout.image_channels,
        model_channels=config.model_channels,
        num_res_blocks=config.num_res_blocks,
        channel_mult=config.channel_mult,
        norm_groups=config.norm_groups,
    )
    if (levels := len(config.channel_mult or ())) > MOST_LEVELS:
        raise BadInput("--channel-mult", f"no volume can be halved for {levels} levels", f"give at most {MOST_LEVELS}")
    if config.model_channels % config.norm_groups:
        problem = f"{config.model_channels} is no multiple of {config.norm_groups}, the groups of each norm"
        has_option = config.norm_groups != TrainConfig.norm_groups  # of the commands only `train` has an option for it
        remedy = f"choose a multiple of {config.norm_groups}{', or another --norm-groups' * has_option}"
        raise BadInput("--channels", problem, remedy)
    planned = _planned(build)
    if any(side % planned.stride for side in size):
        sides = "×".join(map(str, size))
        raise BadInput("--size", f"{sides} cannot be halved often enough", f"choose multiples of {planned.stride}")
    voxels = 0 if torch.cuda.is_available() else math.prod(size) * config.batch_size
    need_memory(sum(weight.numel() for weight in planned.parameters()), voxels * config.model_channels)
    return build


def checkpoint_bytes(unet: UNet3D) -> int:
    """Returns the size of a checkpoint: the float32 weights, their average, and Adam's two moments of each."""
    return 4 * 4 * sum(weight.numel() for weight in unet.parameters())


def check_cube(side: int, channels: int) -> None:
    """Checks that the published network of that base width can be trained here on cubes of `side` voxels.

    Raises:
        BadInput: as `check_network`.
    """
    check_network(TrainConfig(image_size=side, model_channels=channels), HEAD, (side, side, side))


def _planned(build: Callable[[], UNet3D]) -> UNet3D:
    """Builds the network without memory for its weights, to count them.

    Raises:
        BadInput: a weight has more bytes than PyTorch counts.
    """
    try:
        with torch.device("meta"):
            return build()
    except RuntimeError:
        problem, remedy = "a weight has more bytes than can be counted", "choose smaller numbers, or fewer --channels"
        raise BadInput("--channel-mult", problem, remedy) from None


def need_memory(weights: int, activations: int) -> None:
    """Checks that the host has the memory that a training needs at the very least.

    Args:
        weights: the number of float32 weights; each has a gradient, an average and Adam's two moments.
        activations: the number of float32 values in a tensor of the first level; a step holds two at once.

    Raises:
        BadInput: it has less.
    """
    needed, free = 4 * (5 * weights + 2 * activations), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > MOST_OF_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise BadInput(
            "--size",
            f"training takes at least {needed / 2**30:.1f} GiB; {free / 2**30:.1f} are free here",
            "choose a smaller --size, --channels, --channel-mult or --batch-size",
        )
