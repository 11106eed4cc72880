"""A run: trains in a folder, with checkpoints, samples and a report, and resumes exactly where it stopped."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch
from torch import Tensor

from medddpm.checkpoints.files import read_checkpoint
from medddpm.data.disk_cache import DiskCache
from medddpm.data.volumes import Volumes, write_sample_volumes
from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.reports import report
from medddpm.runtime.files import in_units
from medddpm.runtime.processes import pick_device
from medddpm.runtime.ranks import Ranks, joined
from medddpm.runtime.signals import deferred_signals
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.device_cache import bytes_of, room
from medddpm.training.network import checkpoint_bytes
from medddpm.training.progress import Report
from medddpm.training.rates import check_rates
from medddpm.training.run_folder import check_room_for, claim, locked, newest, save
from medddpm.training.trainer import Trainer
from medddpm.training.waits import Waits, waits_of
from medddpm.training.watch import Watch, loss_of_nothing


def train(
    config: TrainConfig,
    volumes: Volumes,
    out: str | os.PathLike[str],
    steps: int,
    *,
    device: str = "auto",
    device_cache: bool | None = None,
    progress: bool = True,
    bars: bool = True,
    profile: bool = False,
) -> Tensor:
    """Trains until the run in `out` has made `steps` steps in all, resuming it if it exists.

    The folder holds ``run.json``, ``checkpoints/``, ``samples/`` and ``tensorboard/``. An interrupt (Ctrl-C, SIGTERM)
    ends the run after the current step and its checkpoint. Under torchrun each process trains on its own volumes.

    Args:
        config: the run's; to resume a run it must be the same, except for `FREE`.
        volumes: the data set.
        out: the run's folder, made if missing.
        steps: in all, including those made before; at most `config.length` if the learning rate ends there.
        device: "auto" (a GPU where there is one), "cpu", "cuda", …
        device_cache: holds the volumes in the device's memory from the second step on. None does so on a GPU for a
            `DiskCache` that takes no more than half of the memory that the first step leaves free.
        progress: shows the rate, the time left and the loss.
        bars: describes the network, then shows a bar on a terminal; otherwise progress is a line a minute.
        profile: prints once where a step waits (`medddpm.training.waits`), or why it cannot.

    Returns:
        (steps,) float32, the loss of every step since the run began.

    Raises:
        BadInput: the folder is another run's, a checkpoint is damaged, the disk is full, or a loss is not finite.
        BadArgument: as `medddpm.training.rates.check_rates`.
    """
    check_rates(config, steps)
    out, where = Path(out), pick_device(device)
    with joined(where), deferred_signals() as stopped, contextlib.ExitStack() as resources:
        ranks = Ranks(stopped)
        with ranks.together():
            trainer = resources.enter_context(contextlib.closing(Trainer(config, volumes, where, ranks=ranks)))
        with ranks.together():
            if ranks.lead:
                resources.enter_context(locked(out))
                trainer.accumulation = claim(out, config, volumes, ranks.world)
        trainer.accumulation = ranks.told(trainer.accumulation)
        _resume(trainer, out)
        with ranks.together():
            if ranks.lead:
                check_room_for(out, checkpoint_bytes(trainer.unet), config, trainer.step, steps)
                if progress and bars:
                    report(f"{out}: {_of(trainer)}")
            if isinstance(volumes, DiskCache):
                volumes.prepare(progress and bars, stopped=stopped.is_set)
        with ranks.together():
            watch = _watch_of(trainer) if ranks.lead else None
        waits = waits_of(trainer, steps) if profile else None
        with SETTINGS[config.setting].on(trainer.unet):
            _loop(trainer, out, steps, progress and ranks.lead, bars, device_cache, waits, watch)
        return torch.tensor(trainer.losses)


def _of(trainer: Trainer) -> str:
    """Returns a description of the network and the size of its checkpoints."""
    config, weights = trainer.config, sum(weight.numel() for weight in trainer.unet.parameters())
    return (
        f"a network of {config.model_channels} channels, its norms of {config.norm_groups} groups, "
        f"{weights / 1e6:.1f} million weights; a checkpoint takes up to {in_units(checkpoint_bytes(trainer.unet))}"
    )


def _resume(trainer: Trainer, out: Path) -> None:
    """Loads the newest readable checkpoint, which the first process chooses for all."""
    ranks, checkpoint = trainer.ranks, None
    with ranks.together():
        if ranks.lead:
            checkpoint = newest(out)
    path = ranks.told(checkpoint and checkpoint[0])
    with ranks.together():
        if path is not None:
            trainer.load(checkpoint[1] if checkpoint else read_checkpoint(path), path)


def _watch_of(trainer: Trainer) -> Watch:
    """Returns a watch over the losses that has read those of the steps before."""
    watch = Watch(loss_of_nothing(trainer.config, trainer.volumes))
    watch.read(trainer.losses)
    return watch


def _loop(
    trainer: Trainer,
    out: Path,
    steps: int,
    progress: bool,
    bars: bool,
    device_cache: bool | None,
    waits: Waits | None,
    watch: Watch | None,
) -> None:
    config, ranks, first = trainer.config, trainer.ranks, trainer.step
    read_every = 1 if trainer.device.type == "cpu" else 10  # each reading makes a GPU wait
    volumes_a_step = config.batch_size * trainer.accumulation * ranks.world
    with Report(
        out, config.setting, first, steps, volumes_a_step, shown=progress, bar=bars, logged=ranks.lead, watch=watch
    ) as shown:
        while trainer.step < steps:
            trainer.train_step()
            if trainer.step == first + 1:
                with ranks.together():
                    if device_cache or (device_cache is None and _fits(trainer)):
                        trainer.keep_on_device(progress and bars)
            if waits:
                waits.after_step()
            step, stop = trainer.step, ranks.stopping
            due = step == steps or bool(config.save_every and step % config.save_every == 0)
            if not (step % read_every == 0 or due or stop):
                continue
            with ranks.together():
                shown.losses(trainer.read_losses(), step)
                if ranks.lead and (due or stop):
                    lost = watch and watch.lost
                    save(out, trainer.state(), config.keep, lost.before if lost else None)
                if ranks.lead and config.sample_every and step % config.sample_every == 0 and not stop:
                    write_sample(trainer, out / "samples" / f"step-{step:07d}.nii.gz")
            if stop:
                break


def _fits(trainer: Trainer) -> bool:
    """Returns whether a GPU has room for all prepared volumes, once the first step has taken its memory."""
    prepared = trainer.device.type == "cuda" and isinstance(trainer.volumes, DiskCache)
    return prepared and bytes_of(trainer.volumes) <= room(trainer.device)


def write_sample(trainer: Trainer, path: Path) -> None:
    """Samples a volume for the first mask from the averaged weights over all timesteps, and writes it.

    It computes under the run's setting, whether or not that is on already. Each channel has a file.
    """
    _, mask = trainer.volumes[0]
    generator = torch.Generator().manual_seed(trainer.config.seed)
    diffusion = trainer.averaged
    with SETTINGS[trainer.config.setting].on(diffusion.denoise_fn):
        sample = diffusion.sample(mask[None].to(trainer.device), generator=generator)[0].cpu()
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    write_sample_volumes(sample, path, trainer.volumes.reference(0), trainer.volumes.layout, trainer.volumes.size)
