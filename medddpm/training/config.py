"""The configuration of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medddpm.schedules import DENSITIES, LOSSES, PREDICTIONS, WEIGHTINGS
from medddpm.switches import SETTINGS
from medddpm.unet import RECOMPUTED


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of a run. The defaults are the published ones.

    Args:
        setting: a name in `medddpm.switches.SETTINGS`.
        image_size, model_channels, num_res_blocks, channel_mult, norm_groups: as for `UNet3D`.
        prediction, loss, weighting, density: as for `medddpm.diffusion.GaussianDiffusion`, where `loss` is `loss_kind`.
        learning_rate: Adam's.
        warm_up: steps over which the learning rate rises to that.
        decay: how the learning rate goes on: "none", or "cosine" down to 0 at `length`.
        length: the run's steps in all, where `decay` asks for them; 0 otherwise.
        batch_size: volumes in a micro-step, in each process.
        accumulation: micro-steps in a step, in each process. A run that goes on with other processes than it was begun
            with keeps their number in all.
        offset_noise: as for `medddpm.diffusion.GaussianDiffusion`.
        clip_norm: the largest norm of a step's gradient; a larger gradient is scaled down to it (0: never).
        ema_decay, ema_every: the decay of the average of the weights, and the steps between its updates.
        ema_start: up to this step the average equals the weights.
        ema_share: the width of the average as a share of the steps made (`medddpm.training.rates.average_decay`), which
            replaces `ema_decay` and `ema_start`; 0 for these.
        flips: mirrors volumes between left and right at random, each with its mask.
        deform: bends volumes at random, each with its mask, by the `share` of `medddpm.training.augmentation.deformed`.
        seed: determines the initial weights, the order of the volumes, their flips and deformations, the timesteps and
            the noise; of a data folder also the held-out volumes.
        holdout: the number of volumes that are not trained on (`medddpm.training.holdout`).
        init: the file whose weights the run starts from, by name and SHA-256 (`medddpm.training.initial`); empty for
            random weights.
        save_every, sample_every: steps between checkpoints, and between samples (0: none).
        keep: the number of newest checkpoints kept.
        read_every_loss: reads each micro-step's loss back to the host, as the published loop does; the device then
            waits.
        workers: processes that load volumes ahead; 0 loads them between steps.
        recompute: activations that the backward pass computes again instead of keeping, of `medddpm.unet.RECOMPUTED`:
            less memory for more time, and the same result.
        gradient_dtype: in which processes send each other their gradients, "fp32" or "bf16".
        bucket_mib: gradients, in MiB, that processes sum at a time while the backward pass goes on; 0 sums all at once
            after it.
    """

    setting: str = "BASE"
    image_size: int = 128
    model_channels: int = 64
    num_res_blocks: int = 1
    channel_mult: Sequence[int] | None = None
    norm_groups: int = 32
    prediction: str = "noise"
    loss: str = "l1"
    weighting: str = "none"
    density: str = "uniform"
    learning_rate: float = 1e-5
    warm_up: int = 0
    decay: str = "none"
    length: int = 0
    batch_size: int = 1
    accumulation: int = 2
    offset_noise: float = 0.0
    clip_norm: float = 0.0
    ema_decay: float = 0.995
    ema_every: int = 10
    ema_start: int = 2000
    ema_share: float = 0.0
    flips: bool = False
    deform: float = 0.0
    seed: int = 0
    holdout: int = 0
    init: str = ""
    save_every: int = 1000
    sample_every: int = 1000
    keep: int = 2
    read_every_loss: bool = False
    workers: int = 0
    recompute: str = "none"
    gradient_dtype: str = "fp32"
    bucket_mib: int = 32


DECAYS = ("none", "cosine")
LARGEST_SHARE = 0.28  # of `ema_share`: the plain mean over all steps, the widest average, has 1/√12 = 0.289
LARGEST_DEFORMATION = 0.05  # of `deform`: with more, places would often be taken twice

CHOICES: dict[str, tuple[str, ...]] = {
    "setting": tuple(SETTINGS),
    "recompute": RECOMPUTED,
    "gradient_dtype": ("fp32", "bf16"),
    "prediction": PREDICTIONS,
    "loss": LOSSES,
    "weighting": WEIGHTINGS,
    "density": DENSITIES,
    "decay": DECAYS,
}
"""The values that a field may have, where they are names."""

# A resumed run may change these; every other field affects what it computes.
FREE = {"save_every", "sample_every", "keep", "read_every_loss", "workers", "recompute", "bucket_mib"}
