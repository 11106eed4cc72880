"""Volumes that a run does not train on: which they are, and their loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from medddpm.data.volumes import Volumes
from medddpm.errors import BadArgument, BadInput
from medddpm.fast.graphs import cuda_graphs
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer

TIMES = 8  # timesteps at which each volume's loss is computed; a choice
STREAM = 2**63  # of random numbers: those of the orders of epochs begin at 0


def parted(count: int, holdout: int, seed: int) -> tuple[list[int], list[int]]:
    """Divides `count` volumes into those to train on and `holdout` others, which the seed chooses; each in order.

    Raises:
        BadInput: none would be left to train on.
    """
    if holdout >= count:
        problem = f"of {count} volumes, {holdout} cannot be held out"
        raise BadInput("--holdout", problem, f"give at most {count - 1}" if count > 1 else "give more volumes")
    order = np.random.default_rng([seed, STREAM]).permutation(count).tolist()
    return sorted(order[holdout:]), sorted(order[:holdout])


def check_holdout(config: TrainConfig, held_out: Volumes | None) -> None:
    """Checks that a run has as many held-out volumes as its configuration says.

    Raises:
        BadArgument: it has not.
    """
    count = len(held_out) if held_out is not None else 0
    if count != config.holdout:
        problem = f"there are {count} volumes, and the configuration's holdout is {config.holdout}"
        raise BadArgument("held_out", problem, "give as many")


def held_out_loss(trainer: Trainer, volumes: Volumes) -> float:
    """Returns the mean loss of volumes under a run's averaged weights.

    Each volume is noised at `TIMES` timesteps, in the middles of equal shares of the density from which training draws
    them, with noise that is the same at each call: so two values differ by the weights alone. Volumes are neither
    flipped nor deformed.
    """
    diffusion = trainer.averaged
    times, losses = _times(trainer.config, diffusion.timesteps), []
    with torch.no_grad(), SETTINGS[trainer.config.setting].on(diffusion.denoise_fn):
        for index in range(len(volumes)):
            image, mask = (tensor[None].to(trainer.device) for tensor in volumes[index])
            for place, time in enumerate(times.tolist()):
                generator = torch.Generator().manual_seed(index * TIMES + place)
                t = torch.tensor([time], device=trainer.device)
                losses.append(diffusion.loss(image, mask, t=t, generator=generator))
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    return torch.stack(losses).mean().item()


def _times(config: TrainConfig, timesteps: int) -> Tensor:
    """Returns timesteps in the middles of `TIMES` equal shares of the configured density, (TIMES,) int64."""
    shares = (torch.arange(TIMES, dtype=torch.float64) + 0.5) / TIMES
    places = torch.special.ndtri(shares).sigmoid() if config.density == "logit-normal" else shares
    return (places * timesteps).long()
