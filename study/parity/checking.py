"""Checks parity runs before the first of them trains for hours; a fault would otherwise end its process later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from medddpm.checkpoints.files import checkpoints_of, load_checkpoint
from medddpm.data.checking import check_folder
from medddpm.data.layouts import BRATS as BRATS_LAYOUT
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.quality.distances import ms_ssim_scales
from medddpm.runtime.files import check_writable
from medddpm.training.network import unet_for
from medddpm.training.run_folder import claim
from medddpm.unet import UNet3D
from study.parity.plans import BRATS, TrainingRun
from study.parity.results import RESULT
from study.parity.subjects import volumes_of

OTHER_DATA = "give --data a folder with seg/ t1/ t1ce/ t2/ flair/"


def check_runs(runs: Sequence[TrainingRun], out: Path, data: Path) -> None:
    """Checks that each run can be trained, evaluated and written.

    Args:
        runs: of `plans.planned`.
        out: gets a folder for each run.
        data: holds the subjects.

    Raises:
        BadInput: a volume is too small or of no size that the network takes, a model is of other volumes, a case is
            damaged, or a run's folder is another's or may not be written.
    """
    for case in sorted({run.data for run in runs if run.data is not None}):
        _check_case(Path(case))
    models = {run.checkpoint: _Model(run.checkpoint) for run in runs if run.checkpoint is not None}
    for run in runs:
        _check_comparable(run)
        volumes, _ = volumes_of(run, data)
        if run.checkpoint is None:
            with torch.device("meta"):  # its shapes alone are looked at
                unet_for(run.config, volumes)
        else:
            models[run.checkpoint].check(run, volumes)
    for run in runs:
        folder = out / run.key
        check_writable(folder / RESULT)
        if run.checkpoint is None and checkpoints_of(folder / "train"):
            claim(folder / "train", run.config, volumes_of(run, data)[0])


class _Model:
    """The properties of a checkpoint, read once for all runs that draw from it."""

    def __init__(self, path: str) -> None:
        diffusion = load_checkpoint(path)
        self.schedule = GaussianDiffusion(torch.nn.Identity(), diffusion.timesteps)  # without the network's memory
        network = cast(UNet3D, diffusion.denoise_fn)
        self.channels = network.in_channels, network.out_channels

    def check(self, run: TrainingRun, volumes: Volumes) -> None:
        """Checks that the model draws volumes like the run's, by each of the run's samplers."""
        image, mask = volumes.layout.image_channels, volumes.layout.mask_channels
        if self.channels != (image + mask, image):
            problem = f"its network makes {self.channels[1]} channels of {self.channels[0]}, {image} of {image + mask}"
            raise BadInput(str(run.checkpoint), f"{problem} are wanted", f"give --plan {run.plan} another --checkpoint")
        for by in run.samplers:
            try:
                self.schedule.checked_steps(by.steps, by.sampler)
            except BadInput:
                problem = f"its model has {self.schedule.timesteps} steps, and {by.sampler} is to take {by.steps}"
                raise BadInput(str(run.checkpoint), problem, "give --samplers that it can take") from None


def _check_comparable(run: TrainingRun) -> None:
    try:
        ms_ssim_scales(run.size)
    except BadInput as error:
        if run.checkpoint is not None:
            raise BadInput(run.checkpoint, f"its {error.problem}", "draw from a model of larger volumes") from None
        raise BadInput("--size", error.problem, error.remedy) from None


def _check_case(folder: Path) -> None:
    report = check_folder(folder)
    if report.problems:
        raise report.problems[0]
    if report.layout != BRATS_LAYOUT:
        raise BadInput(folder, f"no case of the plan {BRATS} is there", OTHER_DATA)
