"""How the learning rate, and the average of the weights, go with the step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from medddpm.errors import BadArgument
from medddpm.training.config import LARGEST_SHARE, TrainConfig

SMALLEST_SHARE = 0.001


def learning_rate(config: TrainConfig, step: int) -> float:
    """Returns the learning rate of the step after `step` others.

    It rises linearly over `config.warm_up` steps, then stays, or falls to 0 at `config.length` along half a cosine
    (Loshchilov & Hutter 2017, without restarts).
    """
    if step < config.warm_up:
        return config.learning_rate * (step + 1) / config.warm_up
    if config.decay == "none":
        return config.learning_rate
    done = (step - config.warm_up) / max(config.length - config.warm_up, 1)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def varies(config: TrainConfig) -> bool:
    """Returns whether the learning rate is another at some steps."""
    return config.warm_up > 0 or config.decay != "none"


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate: in place if it is a tensor, which a captured step reads; the host does not wait."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def average_start(config: TrainConfig) -> int:
    """Returns the step up to which the average equals the weights."""
    return config.ema_every if config.ema_share else config.ema_start


def average_decay(config: TrainConfig, step: int) -> float:
    """Returns the share of the average that its update at `step` leaves: fixed as published, or of a power function.

    The power function (Karras et al. 2024, "Analyzing and improving the training dynamics of diffusion models",
    section 3.1) weighs the weights of step τ by τ^γ, so the average spans the same share of a run at any length.
    """
    if not config.ema_share:
        return config.ema_decay
    # Of one step it is (1 − 1/t)^(γ + 1), and of the steps since the last update the product of those.
    return (1 - config.ema_every / step) ** (exponent(config.ema_share) + 1)


def exponent(share: float) -> float:
    """Returns the γ of the profile τ^γ whose standard deviation is `share` of the steps made (Karras et al. 2024).

    Raises:
        BadArgument: no profile is as wide, or it is hardly an average.
    """
    if not SMALLEST_SHARE <= share <= LARGEST_SHARE:
        remedy = f"give a share from {SMALLEST_SHARE:g} to {LARGEST_SHARE:g}"
        raise BadArgument("ema_share", f"there is no average of width {share:g}", remedy)
    # share² = (γ + 1) / ((γ + 2)² (γ + 3)), whose largest solution is the one that falls with the share
    roots = np.roots([1.0, 7.0, 16.0 - share**-2, 12.0 - share**-2])
    return float(roots[np.isreal(roots)].real.max())


def check_rates(config: TrainConfig, steps: int = 0) -> None:
    """Checks that a run's length is known where the learning rate depends on it, and that it makes no more steps.

    Raises:
        BadArgument: it is not, or `steps` go beyond; or as `exponent`.
    """
    if config.ema_share:
        exponent(config.ema_share)
    if config.decay != "none" and not config.length:
        raise BadArgument("length", f"{config.decay} decay ends nowhere", "give the number of the run's steps")
    if config.decay != "none" and steps > config.length:
        problem = f"the learning rate is 0 from step {config.length} on, and the run would make {steps} steps"
        raise BadArgument("steps", problem, "give at most as many")
