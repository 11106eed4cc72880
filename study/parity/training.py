"""The training of a parity run: that of `medddpm train`, watched on held-out subjects."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.fast.graphs import cuda_graphs
from medddpm.runtime.files import read_json, write_json
from medddpm.runtime.processes import wait
from medddpm.runtime.signals import deferred_signals
from medddpm.switches import SETTINGS
from medddpm.training import run_folder
from medddpm.training.device_cache import DeviceCache
from medddpm.training.run_folder import claim, newest
from medddpm.training.trainer import Trainer
from study.parity.plans import SamplerSteps, TrainingRun

SAVE_SECONDS = 75.0  # between checkpoints, and a killed run loses no more
QUICK = SamplerSteps("sde-dpm++", 25)  # of samples along the way
WATCH_SEED = 20_000
WATCH = "watch.json"  # held-out losses and times, in a run's folder

Slices = dict[str, npt.NDArray[np.uint8]]


@dataclass
class Reached:
    """The state of a training.

    Args:
        step: made in all.
        losses: of every step.
        seconds: spent on steps, over all processes that worked on the run; watches and checkpoints aside.
        timed: number of steps in `seconds`.
        held_out: held-out loss by the step.
        stopped: whether a signal asked to stop.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    timed: int = 0
    held_out: dict[int, float] = field(default_factory=dict)
    stopped: bool = False


def trained(
    run: TrainingRun,
    volumes: Volumes,
    held_out: Volumes,
    folder: Path,
    device: torch.device,
    keep: Callable[[GaussianDiffusion, int], None] | None = None,
) -> tuple[GaussianDiffusion, Reached]:
    """Trains from where the run in `folder`/train stands to its last step.

    `medddpm train` with the same arguments goes on with that run too.

    Args:
        run: the trained one.
        volumes: that it is trained on.
        held_out: that it is watched on.
        folder: the run's; watch.json beside the training has the held-out losses.
        device: that it is trained on.
        keep: gets the averaged model and the step, every `run.snapshots` steps (0: at each watch) and at the end.

    Returns:
        the averaged model, and the state of the training.

    Raises:
        BadInput: a folder of another run, or a loss that is no number.
    """
    # At 64³ handing over a volume takes as long as FAST takes for a step.
    trainer = Trainer(run.config, DeviceCache(volumes, device), device)
    out = folder / "train"
    claim(out, run.config, volumes)
    if checkpoint := newest(out):
        trainer.load(checkpoint[1], checkpoint[0])
    reached = _read(folder / WATCH, trainer.step)
    with SETTINGS[run.setting].on(trainer.unet), deferred_signals() as stopped:
        _loop(run, trainer, reached, held_out, folder, stopped, keep)
    reached.step, reached.losses, reached.stopped = trainer.step, trainer.losses, stopped.is_set()
    return trainer.averaged, reached


def _loop(
    run: TrainingRun,
    trainer: Trainer,
    reached: Reached,
    held_out: Volumes,
    folder: Path,
    stopped: threading.Event,
    keep: Callable[[GaussianDiffusion, int], None] | None,
) -> None:
    read_every = 1 if trainer.device.type == "cpu" else 10  # each reading makes a GPU wait
    saved = began = time.monotonic()
    first = trainer.step
    while trainer.step < run.steps:
        trainer.train_step()
        step = trainer.step
        watch = step % run.watch == 0 or step == run.steps
        if not watch and step % read_every:
            continue
        if not np.isfinite(trainer.read_losses()).all():
            raise BadInput(folder, f"the loss is no longer a number at step {step}", "lower --learning-rate")
        leave = stopped.is_set() or step == run.steps
        save = leave or time.monotonic() - saved > SAVE_SECONDS
        if not (watch or save):
            continue
        reached.seconds += time.monotonic() - began
        reached.timed += step - first
        if watch or leave:
            reached.held_out[step] = float(held_out_losses(run, trainer.averaged, held_out).mean())
            if keep is not None and not stopped.is_set() and (leave or step % (run.snapshots or run.watch) == 0):
                keep(trainer.averaged, step)
        if save:
            run_folder.save(folder / "train", trainer.state(), trainer.config.keep)
            _write(folder / WATCH, reached)
            saved = time.monotonic()
        began, first = time.monotonic(), step
        if leave:
            break


@torch.no_grad()
def held_out_losses(run: TrainingRun, diffusion: GaussianDiffusion, held_out: Volumes) -> Tensor:
    """Computes the losses of the first held-out subjects, (n,) on the CPU, at timesteps and noise that never change.

    A training loss varies from step to step with its random timestep; this one does not, so that runs can be compared,
    also of different seeds.

    Args:
        run: sets the numbers of subjects and timesteps, and the setting.
        diffusion: the model.
        held_out: the subjects.
    """
    device = diffusion.betas.device
    times = ((torch.arange(run.watched[1]) + 0.5) * (diffusion.timesteps / run.watched[1])).long().to(device)
    # At once as many as keep every tensor of the network well below 2³¹ elements, which kernels count to.
    together = max(1, 2**30 // (4 * run.config.model_channels * math.prod(run.size)))
    by_subject = []
    with SETTINGS[run.setting].on(diffusion.denoise_fn):
        for subject in range(min(run.watched[0], len(held_out))):
            image, mask = (tensor.to(device)[None] for tensor in held_out[subject])
            generator = torch.Generator(device).manual_seed(WATCH_SEED + subject)
            losses = []
            for part in times.split(together):
                count = len(part)
                noise = torch.randn(count, *image.shape[1:], generator=generator, device=device)
                images, masks = (tensor.expand(count, -1, -1, -1, -1) for tensor in (image, mask))
                losses.append(diffusion.loss(images, masks, t=part, noise=noise) * count)
            by_subject.append(torch.stack(losses).sum() / len(times))
    return torch.stack(by_subject).cpu()


def draw(
    run: TrainingRun, diffusion: GaussianDiffusion, masks: Tensor, by: SamplerSteps, seed: int = 0
) -> tuple[Tensor, list[float]]:
    """Draws samples for masks, and times each batch.

    The noise of volume i is that of `seed` and i under every setting, drawn on the device.

    Args:
        run: sets the batch and the setting.
        diffusion: the model.
        masks: (N, M, D, W, H) on the host.
        by: sampler and steps.
        seed: of the noise.

    Returns:
        (N, C, D, W, H) on the host, and the seconds of each batch, after a warm-up.
    """
    device = diffusion.betas.device
    batches, spent = [], []
    with SETTINGS[run.setting].on(diffusion.denoise_fn):
        diffusion.sample(masks[: run.batch].to(device), 2, "ddim")  # kernels are loaded and the graph is captured
        for start in range(0, len(masks), run.batch):
            batch = masks[start : start + run.batch].to(device)
            generators = [torch.Generator(device).manual_seed(1000 * (seed + 1) + start + i) for i in range(len(batch))]
            wait(device)
            began = time.perf_counter()
            batches.append(diffusion.sample(batch, by.steps, by.sampler, generator=generators))
            wait(device)
            spent.append(time.perf_counter() - began)
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    return torch.cat(batches).cpu(), spent


def _read(path: Path, step: int) -> Reached:
    """Reads the held-out losses and times up to `step`, from which the training goes on."""
    try:
        if not path.exists():
            return Reached()
        content = read_json(path, "restore it, or choose another folder")
        held_out = {int(at): loss for at, loss in content["held_out"].items() if int(at) <= step}
        return Reached(seconds=content["seconds"], timed=content["timed"], held_out=held_out)
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(path, "it is damaged", "restore it, or choose another folder") from None


def _write(path: Path, reached: Reached) -> None:
    content = {"seconds": reached.seconds, "timed": reached.timed, "held_out": reached.held_out}
    write_json(path, content)
