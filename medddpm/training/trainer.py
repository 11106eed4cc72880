"""Trains as Med-DDPM's authors do (Dorjsembe et al. 2024), and resumes a run exactly where it stopped."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from medddpm.checkpoints.files import load_state, read_checkpoint
from medddpm.data.disk_cache import DiskCache
from medddpm.data.volumes import Volumes, write_sample_volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime import cuda_graphs
from medddpm.runtime.processes import Handed, collated, deferred_signals, iterated, pick_device
from medddpm.runtime.ranks import Ranks, joined
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.device_cache import DeviceCache, bytes_of, room
from medddpm.training.gradients import GradientSum
from medddpm.training.graphed_step import GraphedStep, clip, lay_out_alike, summed
from medddpm.training.pace import Pace
from medddpm.training.progress import Report
from medddpm.training.run_folder import claim, locked, newest, save
from medddpm.training.waits import Waits
from medddpm.unet import UNet3D

MOST_OF_MEMORY = 0.9  # of the machine's that a training may claim
PHASES = ("load", "forward", "backward", "update")
"""The phases of a step, as a `Trainer` names them; a step in a CUDA graph has only the first and the last."""


class Trainer:
    """The model, the average of its weights and its optimizer, with the one training step of the whole book.

    Every random draw depends only on the seed and the draw's number, so a run may stop anywhere, and two processes with
    one micro-step each compute what one process with two does.

    On a GPU, with an accelerated network (`with FAST.on(trainer.unet)`), a step is one CUDA graph, which sums
    the gradients over processes, plus the update of the average; the host never waits for the device. The random draws
    are the same.

    Args:
        config: the run's.
        volumes: the data set.
        device: the model's.
        graph: lets an accelerated step be one CUDA graph; a profiler sees kernels and phases only without it.
        ranks: the processes that train together; by default those of the process group.

    Attributes:
        accumulation: micro-steps of this process in a step.
        phase: entered with a name from `PHASES` around each phase of a step; a profiler's marks go here.
    """

    def __init__(
        self,
        config: TrainConfig,
        volumes: Volumes,
        device: torch.device,
        graph: bool = True,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.volumes = volumes
        self.device = device
        self.ranks = ranks or Ranks()
        self.accumulation = config.accumulation
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # for the initial weights
            self.unet = unet_for(config, volumes).to(device)
        self.diffusion = GaussianDiffusion(self.unet, offset_noise=config.offset_noise).to(device)
        self.ema = copy.deepcopy(self.diffusion).requires_grad_(False)
        fast = SETTINGS[config.setting].fast and device.type == "cuda"
        self._may_capture = fast and graph
        self._graphed: GraphedStep | None = None
        self._acceleration: object = None  # the network's, at the last step
        self.optimizer = torch.optim.Adam(
            self.unet.parameters(), lr=config.learning_rate, fused=fast or None, capturable=self._may_capture
        )
        self.phase: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        self.step = 0
        self.losses: list[float] = []  # one for each step up to the last `read_losses`
        self._pending: list[Tensor] = []  # the later ones, still on the device
        self._average = get_ema_multi_avg_fn(config.ema_decay)
        self._batches: Iterator[Sequence[Tensor]] | None = None
        self._generator = torch.Generator(device)
        # The processes hold equal weights already: from the seed, or from a checkpoint.
        self._gradients: GradientSum | None = None  # in the weights' strides, which the setting decides
        self.pace = Pace(self.ranks, aside=device.type == "cuda")

    # One step

    def train_step(self) -> None:
        """Makes one optimizer step over `accumulation` micro-steps; `read_losses` returns its loss.

        Raises:
            BadInput: a volume is bad, here or on another process.
        """
        graphed = self._may_capture and cuda_graphs.wanted(self.unet)
        acceleration = getattr(self.unet, "acceleration", None)
        if acceleration is not self._acceleration:  # the weights have new strides
            lay_out_alike(list(self.diffusion.parameters()), list(self.ema.parameters()), self.optimizer)
        if self.ranks.world > 1 and (self._gradients is None or acceleration is not self._acceleration):
            self._sum_gradients()
        if self._graphed is not None and not (graphed and acceleration is self._acceleration):
            self._graphed = None
            self.optimizer.zero_grad()  # they were the graph's
        self._acceleration = acceleration
        if graphed:
            self._graphed_step()
        else:
            self._eager_step()

    def _eager_step(self) -> None:
        losses = []
        for micro in range(self.accumulation):
            last = micro == self.accumulation - 1
            with self.phase("load"):
                image, mask = (tensor.to(self.device, non_blocking=True) for tensor in self._load(last))
            with summed(self._gradients, last):
                with self.phase("forward"):
                    loss = self._forward(image, mask, micro) / self._micro_steps
                with self.phase("backward"):
                    loss.backward()
                    losses.append(loss.detach())
                    if self.config.read_every_loss:
                        loss.item()
        with self.phase("update"):
            clip(self.optimizer, self.config.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._count(torch.stack(losses).sum())

    def _graphed_step(self) -> None:
        with self.phase("load"):
            batches = [self._load(micro == self.accumulation - 1) for micro in range(self.accumulation)]
        if self._graphed is None:
            on_device = [(image.to(self.device), mask.to(self.device)) for image, mask in batches]
            self._graphed = GraphedStep(
                self.diffusion,
                self.optimizer,
                on_device,
                self.config.clip_norm,
                self._micro_steps,
                self._gradients,
            )
        with self.phase("update"):
            loss = self._graphed(batches, [self._seed(micro) for micro in range(self.accumulation)])
            if self.config.read_every_loss:
                loss.item()  # the whole step's: a graph cannot be read within
            self._count(loss)

    @property
    def _micro_steps(self) -> int:
        """How many micro-steps all processes make in a step."""
        return self.accumulation * self.ranks.world

    def _sum_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.close()
        dtype = torch.bfloat16 if self.config.gradient_dtype == "bf16" else None
        self._gradients = GradientSum(list(self.diffusion.parameters()), dtype)

    def _load(self, last: bool) -> tuple[Tensor, Tensor]:
        """The next image and mask: from the device cache, or on the host, in pinned memory for a GPU.

        Args:
            last: of the step, behind which all processes agree that each has its volumes.
        """
        problem = None
        try:
            with self.pace.loading():
                found = self._next()
        except BadInput as error:
            problem = error
        if last or problem:
            self.ranks.agree(problem)
        return found

    def _next(self) -> tuple[Tensor, Tensor]:
        if self._batches is None:
            if isinstance(self.volumes, DeviceCache):
                self._batches = map(self.volumes.batch, self._order())
            else:
                self._batches = self.batches()
        image, mask = next(self._batches)
        return image, mask

    def batches(self, pinned: bool = True, ahead: int | None = None) -> Iterator[Sequence[Tensor]]:
        """Image and mask of each micro-step from this step on, as the loading processes hand them over.

        Args:
            pinned: whether they come in page-locked memory, for a GPU.
            ahead: batches that each loading process prepares ahead; None is PyTorch's number.
        """
        loader: DataLoader[Any] = DataLoader(
            Handed(self.volumes),
            batch_sampler=self._order(),
            num_workers=self.config.workers,
            pin_memory=pinned and self.device.type == "cuda",
            prefetch_factor=ahead,
            collate_fn=collated,
        )
        return iterated(loader)

    def keep_on_device(self, progress: bool = False) -> None:
        """From now on takes the volumes from the device's memory; the order and the draws are the same.

        Raises:
            BadInput: they would take more than half of what a GPU has free.
        """
        self._batches = None
        self.volumes = DeviceCache(self.volumes, self.device, self.config.workers, progress)

    def close(self) -> None:
        """Ends the loading processes in order; at the interpreter's exit they would be killed.

        Frees the graph, for which the end of the process group would wait, and lets go of the parameters: their hooks
        and what sums their gradients hold each other, beyond the reach of Python's collector.
        """
        self._batches = self._graphed = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

    def _forward(self, image: Tensor, mask: Tensor, micro: int) -> Tensor:
        return self.diffusion.loss(image, mask, generator=self._generator.manual_seed(self._seed(micro)))

    def _seed(self, micro: int) -> int:
        """The seed of a micro-step's timesteps and noise."""
        draw = self._draw(self.step, micro)
        return int(np.random.SeedSequence([self.config.seed, draw]).generate_state(1)[0])

    def _count(self, loss: Tensor) -> None:
        """Ends a step: keeps its loss, counts it and updates the average."""
        self._pending.append(loss)
        self.step += 1
        ours, theirs = list(self.ema.parameters()), list(self.diffusion.parameters())
        with torch.no_grad():
            if self.step == self.config.ema_start:
                for average, parameter in zip(ours, theirs, strict=True):
                    average.copy_(parameter)
            elif self.step > self.config.ema_start and self.step % self.config.ema_every == 0:
                self._average(ours, theirs, self.step)

    def _draw(self, step: int, micro: int) -> int:
        """The number of a micro-step among those of all processes."""
        return (step * self.accumulation + micro) * self.ranks.world + self.ranks.rank

    def _order(self) -> Iterator[list[int]]:
        """The volumes of each micro-step from this step on: each epoch is another permutation."""
        count, size = len(self.volumes), self.config.batch_size
        epoch, order = -1, np.empty(0, int)
        for step in range(self.step, 2**62):
            for micro in range(self.accumulation):
                first = self._draw(step, micro) * size
                indices = []
                for position in range(first, first + size):
                    if position // count != epoch:
                        epoch = position // count
                        order = np.random.default_rng([self.config.seed, epoch]).permutation(count)
                    indices.append(int(order[position % count]))
                yield indices

    # State

    @property
    def averaged(self) -> GaussianDiffusion:
        """The model to sample from: the average of the weights; up to `ema_start`, the weights."""
        return self.ema if self.step >= self.config.ema_start else self.diffusion

    def read_losses(self) -> list[float]:
        """Reads back the losses of the steps since the last call, averaged over all processes, which all call this."""
        if not self._pending:
            return []
        losses = self.ranks.sum_(torch.stack(self._pending))
        self._pending = []
        self.losses += losses.tolist()
        if self._gradients is not None:
            self.pace.sample(self._gradients.watch.ms() * self.accumulation, len(losses))
        return self.losses[-len(losses) :]

    def state(self) -> dict[str, Any]:
        """A checkpoint's content: enough to resume to the last bit, and to sample without the run's folder."""
        return {
            "step": self.step,
            "model": self.diffusion.state_dict(),
            "ema": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": torch.tensor(self.losses),
            "config": self.unet.config,
            "size": list(self.volumes.size),
            "layout": self.volumes.layout.name,
        }

    def load(self, content: Mapping[str, Any], path: Path) -> None:
        """Loads a checkpoint's state.

        Raises:
            BadInput: it does not fit this run.
        """
        for name, model in (("model", self.diffusion), ("ema", self.ema)):
            load_state(model, content.get(name), path)
        try:
            step, losses = content["step"], content["losses"].tolist()
            if type(step) is not int or len(losses) != step:
                raise ValueError
            self._load_optimizer(content["optimizer"])
        except (KeyError, ValueError, AttributeError, TypeError, IndexError, RuntimeError):
            raise BadInput(
                path, "it holds no state of a training run", "sample from it, or train in another folder"
            ) from None
        self.step, self.losses = step, losses
        self._pending, self._batches = [], None
        self._graphed = self._acceleration = None
        self.optimizer.zero_grad()

    def _load_optimizer(self, saved: Mapping[str, Any]) -> None:
        # Which of Adam's implementations runs depends on this machine, not on the checkpoint's.
        ours = {name: self.optimizer.defaults[name] for name in ("fused", "foreach", "capturable")}
        groups = [{**group, **ours} for group in saved["param_groups"]]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index, moments in saved["state"].items():
            for name in ("exp_avg", "exp_avg_sq"):
                if moments[name].shape != parameters[index].shape or not moments[name].isfinite().all():
                    raise ValueError(f"{name} of parameter {index}")
        self.optimizer.load_state_dict({**saved, "param_groups": groups})


def unet_for(config: TrainConfig, volumes: Volumes) -> UNet3D:
    """Builds the network of a run, with the channels of its volumes and masks.

    Raises:
        BadInput: no such network has this width or takes volumes of this size.
    """
    layout = volumes.layout
    built = functools.partial(
        UNet3D,
        image_size=config.image_size,
        in_channels=layout.image_channels + layout.mask_channels,
        out_channels=layout.image_channels,
        model_channels=config.model_channels,
        num_res_blocks=config.num_res_blocks,
        channel_mult=config.channel_mult,
        norm_groups=config.norm_groups,
    )
    try:
        with torch.device("meta"):  # what it would take, before it takes it
            weights = sum(parameter.numel() for parameter in built().parameters())
        voxels = 0 if torch.cuda.is_available() else math.prod(volumes.size) * config.batch_size
        need_memory(weights, voxels * config.model_channels)
        unet = built()
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput("--channels", str(error), "choose 32, 64, 96 …, or other --norm-groups") from None
    if any(side % unet.stride for side in volumes.size):
        sides = "×".join(map(str, volumes.size))
        raise BadInput("--size", f"{sides} cannot be halved often enough", f"choose multiples of {unet.stride}")
    unet.recompute(config.recompute)
    return unet


def need_memory(weights: int, activations: int) -> None:
    """Checks that the host has what a training takes at the very least.

    Args:
        weights: float32 numbers: kept with their gradient, their average and Adam's two moments.
        activations: float32 numbers in a tensor of the first level, of which a step holds two at once.

    Raises:
        BadInput: it has not.
    """
    wanted, free = 4 * (5 * weights + 2 * activations), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > MOST_OF_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise BadInput(
            "--size",
            f"training takes at least {wanted / 2**30:.1f} GiB; {free / 2**30:.1f} are free here",
            "choose a smaller --size, --channels or --batch-size",
        )


def train(
    config: TrainConfig,
    volumes: Volumes,
    out: str | os.PathLike[str],
    steps: int,
    *,
    device: str = "auto",
    device_cache: bool | None = None,
    progress: bool = True,
    profile: bool = False,
) -> Tensor:
    """Trains until the run in `out` has made `steps` steps in all, resuming it if it exists.

    The folder holds ``run.json``, ``checkpoints/``, ``samples/`` and ``tensorboard/``. An interrupt (Ctrl-C, SIGTERM)
    ends the run after the current step and its checkpoint. Under torchrun each process trains on its own volumes.

    Args:
        config: the run's; to resume a run it must be the same, except for `FREE`.
        volumes: the data set.
        out: the run's folder, made if missing.
        steps: in all, including those made before.
        device: "auto" (a GPU where there is one), "cpu", "cuda", …
        device_cache: keeps the volumes in the device's memory from the second step on; None does so on a GPU with those
            of a `DiskCache`, where they take no more than half of what the first step leaves free.
        progress: shows a bar with the rate, the time left and the loss; without a terminal, a line a minute.
        profile: prints where a step waits (`medddpm.training.waits`), once for the run.

    Returns:
        (steps,) float32, the loss of every step since the run began.

    Raises:
        BadInput: the folder is another run's, a checkpoint is damaged, the disk is full, or a loss is not finite.
    """
    out, where = Path(out), pick_device(device)
    with joined(where), deferred_signals() as stopped, contextlib.ExitStack() as held:
        ranks = Ranks(stopped)
        with ranks.together():
            trainer = held.enter_context(contextlib.closing(Trainer(config, volumes, where, ranks=ranks)))
        with ranks.together():
            if ranks.lead:
                held.enter_context(locked(out))
                trainer.accumulation = claim(out, config, volumes, ranks.world)
        trainer.accumulation = ranks.told(trainer.accumulation)
        _resume(trainer, out)
        with ranks.together():
            if isinstance(volumes, DiskCache):
                volumes.prepare(progress, stopped=stopped.is_set)
        with SETTINGS[config.setting].on(trainer.unet):
            _loop(trainer, out, steps, progress and ranks.lead, device_cache, Waits(trainer) if profile else None)
        return torch.tensor(trainer.losses)


def _resume(trainer: Trainer, out: Path) -> None:
    """Loads the newest readable checkpoint, the same on every process: the first one chooses it."""
    ranks, found = trainer.ranks, None
    with ranks.together():
        if ranks.lead:
            found = newest(out)
    path = ranks.told(found and found[0])
    with ranks.together():
        if path is not None:
            trainer.load(found[1] if found else read_checkpoint(path), path)


def _loop(
    trainer: Trainer, out: Path, steps: int, progress: bool, device_cache: bool | None, waits: Waits | None
) -> None:
    config, ranks, first = trainer.config, trainer.ranks, trainer.step
    read_every = 1 if trainer.device.type == "cpu" else 10  # each reading makes a GPU wait
    volumes_a_step = config.batch_size * trainer.accumulation * ranks.world
    with Report(out, config.setting, first, steps, volumes_a_step, shown=progress, logged=ranks.lead) as report:
        while trainer.step < steps:
            trainer.train_step()
            if trainer.step == first + 1:
                with ranks.together():
                    if device_cache or (device_cache is None and _fits(trainer)):
                        trainer.keep_on_device(progress)
            if waits:
                waits.after_step()
            step, stop = trainer.step, ranks.stopping
            due = step == steps or bool(config.save_every and step % config.save_every == 0)
            if not (step % read_every == 0 or due or stop):
                continue
            with ranks.together():
                report.losses(trainer.read_losses(), step)
                if ranks.lead and (due or stop):
                    save(out, trainer.state(), config.keep)
                if ranks.lead and config.sample_every and step % config.sample_every == 0 and not stop:
                    write_sample(trainer, out / "samples" / f"step-{step:07d}.nii.gz")
            if stop:
                break


def _fits(trainer: Trainer) -> bool:
    """Whether a GPU has room for all prepared volumes, now that it has made a step and holds what that takes."""
    prepared = trainer.device.type == "cuda" and isinstance(trainer.volumes, DiskCache)
    return prepared and bytes_of(trainer.volumes) <= room(trainer.device)


def write_sample(trainer: Trainer, path: Path) -> None:
    """Draws a volume for the first mask from the average, over all timesteps, and writes a file for each channel.

    It computes under the run's setting, whether or not that is on already.
    """
    _, mask = trainer.volumes[0]
    generator = torch.Generator().manual_seed(trainer.config.seed)
    diffusion = trainer.averaged
    with SETTINGS[trainer.config.setting].on(diffusion.denoise_fn):
        sample = diffusion.sample(mask[None].to(trainer.device), generator=generator)[0].cpu()
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    write_sample_volumes(sample, path, trainer.volumes.reference(0), trainer.volumes.layout, trainer.volumes.size)
