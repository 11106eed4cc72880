"""A run: trains in a folder, with checkpoints, samples and a report, and resumes exactly where it stopped."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
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
from medddpm.training.holdout import check_holdout, held_out_loss
from medddpm.training.initial import Initial, check_initial
from medddpm.training.network import checkpoint_bytes
from medddpm.training.rates import check_rates
from medddpm.training.reports.progress import Report
from medddpm.training.reports.waits import Waits, waits_of
from medddpm.training.reports.watch import Watch, loss_of_nothing
from medddpm.training.run_folder import check_room_for, claim, locked, newest, save
from medddpm.training.trainer import Trainer


def train(
    config: TrainConfig,
    volumes: Volumes,
    out: str | os.PathLike[str],
    steps: int,
    *,
    held_out: Volumes | None = None,
    initial: Initial | None = None,
    device: str = "auto",
    device_cache: bool | None = None,
    progress: bool = True,
    bars: bool = True,
    profile: bool = False,
) -> Tensor:
    """Trains until the run in `out` has made `steps` steps in all, resuming it if it exists.

    The folder holds ``run.json``, ``losses.csv``, ``checkpoints/``, ``samples/`` and ``tensorboard/``. An interrupt
    (Ctrl-C, SIGTERM) ends the run after the current step and its checkpoint. Under torchrun each process trains on its
    own volumes.

    Args:
        config: the run's; to resume a run it must be the same, except for `FREE`.
        volumes: the data set.
        out: the run's folder, made if missing.
        steps: in all, including those made before; at most `config.length` if the learning rate ends there.
        held_out: `config.holdout` other volumes. Every `config.sample_every` steps their loss is computed from the
            averaged weights, and the sample is drawn for the first of them; without any, for the first volume.
        initial: the weights that a new run starts from, where `config.init` names them.
        device: "auto" (a GPU where there is one), "cpu", "cuda", …
        device_cache: holds the volumes in the device's memory from the second step on. None does so on a GPU for a
            `DiskCache` that takes no more than half of the memory that the first step leaves free.
        progress: shows the rate, the time left and the loss.
        bars: describes the network, then shows a bar on a terminal; otherwise progress is a line a minute.
        profile: prints once where a step waits (`medddpm.training.reports.waits`), or why it cannot.

    Returns:
        (steps,) float32, the loss of every step since the run began.

    Raises:
        BadInput: the folder is another run's, a checkpoint is damaged, the disk is full, a loss is not finite, or as
            `check_initial`.
        BadArgument: as `medddpm.training.rates.check_rates` or `medddpm.training.holdout.check_holdout`.
    """
    check_rates(config, steps)
    check_holdout(config, held_out)
    out, where = Path(out), pick_device(device)
    with joined(where), deferred_signals() as stopped, contextlib.ExitStack() as resources:
        ranks = Ranks(stopped)
        with ranks.together():
            trainer = resources.enter_context(contextlib.closing(Trainer(config, volumes, where, ranks=ranks)))
        with ranks.together():
            if ranks.lead:
                resources.enter_context(locked(out))
                trainer.accumulation = claim(out, config, volumes, ranks.world, held_out.names() if held_out else ())
        trainer.accumulation = ranks.told(trainer.accumulation)
        _resume(trainer, out, initial)
        with ranks.together():
            if ranks.lead:
                check_room_for(out, checkpoint_bytes(trainer.unet), config, trainer.step, steps)
                if progress and bars:
                    report(f"{out}: {_of(trainer)}")
            for part in (volumes, held_out):
                if isinstance(part, DiskCache):
                    part.prepare(progress and bars, stopped=stopped.is_set)
        with ranks.together():
            watch = _watch_of(trainer) if ranks.lead else None
        waits = waits_of(trainer, steps) if profile else None
        shown = Report(
            out,
            config.setting,
            trainer.step,
            steps,
            config.batch_size * trainer.accumulation * ranks.world,
            shown=progress and ranks.lead,
            bar=bars,
            logged=ranks.lead,
            watch=watch,
        )
        with shown, SETTINGS[config.setting].on(trainer.unet):
            cached = functools.partial(_cache, trainer, device_cache, progress and ranks.lead and bars)
            _loop(trainer, held_out, out, steps, shown, cached, waits)
        return torch.tensor(trainer.losses)


def _of(trainer: Trainer) -> str:
    """Returns a description of the network and the size of its checkpoints."""
    config, weights = trainer.config, sum(weight.numel() for weight in trainer.unet.parameters())
    return (
        f"a network of {config.model_channels} channels, its norms of {config.norm_groups} groups, "
        f"{weights / 1e6:.1f} million weights; a checkpoint takes up to {in_units(checkpoint_bytes(trainer.unet))}"
    )


def _resume(trainer: Trainer, out: Path, initial: Initial | None) -> None:
    """Loads the newest readable checkpoint, which the first process chooses for all; without one, initial weights."""
    ranks, checkpoint = trainer.ranks, None
    with ranks.together():
        if ranks.lead:
            checkpoint = newest(out)
    path = ranks.told(checkpoint and checkpoint[0])
    with ranks.together():
        check_initial(trainer.config, initial, begun=path is not None)
        if path is None and initial:
            trainer.start_from(initial.state, initial.path)
        if path is not None:
            trainer.load(checkpoint[1] if checkpoint else read_checkpoint(path), path)


def _watch_of(trainer: Trainer) -> Watch:
    """Returns a watch over the losses that has read those of the steps before."""
    watch = Watch(loss_of_nothing(trainer.config, trainer.volumes))
    watch.read(trainer.losses)
    return watch


def _loop(
    trainer: Trainer,
    held_out: Volumes | None,
    out: Path,
    steps: int,
    shown: Report,
    cached: Callable[[], None],
    waits: Waits | None,
) -> None:
    """Trains up to step `steps`, or until a signal; `cached` is called after the first step."""
    config, ranks, first = trainer.config, trainer.ranks, trainer.step
    read_every = 1 if trainer.device.type == "cpu" else 10  # each reading makes a GPU wait
    while trainer.step < steps:
        trainer.train_step()
        if trainer.step == first + 1:
            with ranks.together():
                cached()
        if waits:
            waits.after_step()
        step, stop = trainer.step, ranks.stopping
        due = step == steps or bool(config.save_every and step % config.save_every == 0)
        if not (step % read_every == 0 or due or stop):
            continue
        sampled = bool(config.sample_every and step % config.sample_every == 0 and not stop)
        with ranks.together():
            shown.losses(trainer.read_losses(), step)
            if ranks.lead and (due or sampled):  # before the checkpoint: a run resumed from it has all rows up to it
                loss = held_out_loss(trainer, held_out) if held_out and sampled else None
                shown.interim(trainer.losses, step, loss)
            if ranks.lead and (due or stop):
                save(out, trainer.state(), config.keep, shown.needed)
            if ranks.lead and sampled:
                path = out / "samples" / f"step-{step:07d}.nii.gz"
                shown.sample(write_sample(trainer, path, held_out), step)
        if stop:
            break


def _cache(trainer: Trainer, wanted: bool | None, progress: bool) -> None:
    """Moves the volumes to the device if that is wanted, or where nothing is said if they fit."""
    if wanted or (wanted is None and _fits(trainer)):
        trainer.keep_on_device(progress)


def _fits(trainer: Trainer) -> bool:
    """Returns whether a GPU has room for all prepared volumes, once the first step has taken its memory."""
    prepared = trainer.device.type == "cuda" and isinstance(trainer.volumes, DiskCache)
    return prepared and bytes_of(trainer.volumes) <= room(trainer.device)


def write_sample(trainer: Trainer, path: Path, held_out: Volumes | None = None) -> Tensor:
    """Samples a volume from the averaged weights over all timesteps, and writes it; each channel has a file.

    It computes under the run's setting, whether or not that is on already.

    Args:
        trainer: the run's.
        path: the file.
        held_out: the mask is that of the first one, otherwise of the first one trained on.

    Returns:
        the sample, (C, D, W, H) in [-1, 1].
    """
    volumes = held_out or trainer.volumes
    _, mask = volumes[0]
    generator = torch.Generator().manual_seed(trainer.config.seed)
    diffusion = trainer.averaged
    with SETTINGS[trainer.config.setting].on(diffusion.denoise_fn):
        sample = diffusion.sample(mask[None].to(trainer.device), generator=generator)[0].cpu()
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    write_sample_volumes(sample, path, volumes.reference(0), volumes.layout, volumes.size)
    return sample
