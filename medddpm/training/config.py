"""What a training run is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    """What a run is made of. The defaults are the published ones.

    Args:
        switches: a name of `medddpm.switches.SETTINGS`.
        image_size, model_channels, num_res_blocks, channel_mult, norm_groups: as for `UNet3D`.
        learning_rate: Adam's.
        batch_size: volumes of a micro-step, in each process.
        accumulation: micro-steps of a step.
        offset_noise: of `medddpm.diffusion.GaussianDiffusion`.
        clip_norm: a step's gradient is scaled down to this norm where it is larger (0: never).
        ema_decay, ema_every: the average's, and the steps between its updates.
        ema_start: the step up to which the average is the weights.
        seed: of the initial weights, the order of the volumes, the timesteps and the noise.
        save_every, sample_every: steps between checkpoints, and between samples (0: none).
        keep: checkpoints kept, the newest.
        read_every_loss: brings each micro-step's loss to the host, as the published loop does; the device then waits.
        workers: processes that prepare volumes ahead; 0 prepares them in between.
    """

    switches: str = "BASE"
    image_size: int = 128
    model_channels: int = 64
    num_res_blocks: int = 1
    channel_mult: Sequence[int] | None = None
    norm_groups: int = 32
    learning_rate: float = 1e-5
    batch_size: int = 1
    accumulation: int = 2
    offset_noise: float = 0.0
    clip_norm: float = 0.0
    ema_decay: float = 0.995
    ema_every: int = 10
    ema_start: int = 2000
    seed: int = 0
    save_every: int = 1000
    sample_every: int = 1000
    keep: int = 2
    read_every_loss: bool = False
    workers: int = 0


# A run may be resumed with another value of these; every other field is part of what the run computes.
FREE = {"save_every", "sample_every", "keep", "read_every_loss", "workers"}
