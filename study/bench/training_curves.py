"""Loss and time of every training step under each setting, the paper's (Section 6) and ours, from the same seed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
import torch

from medddpm.data.volumes import Volumes
from medddpm.runtime.processes import wait
from medddpm.switches import SETTINGS, Switches
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer


def training_curves(
    config: TrainConfig, volumes: Volumes, steps: int, device: torch.device, settings: Iterable[str] = tuple(SETTINGS)
) -> pd.DataFrame:
    """Trains from the same weights, volumes, timesteps and noise under each setting.

    The clock starts once the volumes are prepared and stops when the device is done, so that `step_ms` is the device's
    time for the micro-steps and the update.

    Args:
        config: the run's configuration; each setting in turn replaces its own.
        volumes: the training set.
        steps: training steps under each setting.
        device: where the network is trained.
        settings: names of `medddpm.switches.SETTINGS`.

    Returns:
        a row for each setting and step: setting, step (from 1), loss, step_ms.
    """
    for index in range(len(volumes)):
        volumes[index]  # fills the data set's cache
    rows = []
    curves: dict[Switches, list[tuple[int, float, float]]] = {}
    for name in settings:
        # TF32 is a mode of the GPU: on a CPU, settings that differ only in it share one training's rows.
        computed = replace(SETTINGS[name], name="", tf32=SETTINGS[name].tf32 and device.type == "cuda")
        if computed not in curves:
            curves[computed] = _curve(replace(config, setting=name), volumes, steps, device)
        rows += [(name, *row) for row in curves[computed]]
    return pd.DataFrame(rows, columns=["setting", "step", "loss", "step_ms"])


def _curve(config: TrainConfig, volumes: Volumes, steps: int, device: torch.device) -> list[tuple[int, float, float]]:
    """Returns step (from 1), loss and time in ms of every step of one training."""
    rows = []
    trainer = Trainer(config, volumes, device)
    with SETTINGS[config.setting].on(trainer.unet):
        for _ in range(steps):
            wait(device)
            begin = time.perf_counter()
            trainer.train_step()
            wait(device)
            spent = 1000 * (time.perf_counter() - begin)
            rows.append((trainer.step, trainer.read_losses()[0], spent))
    return rows
