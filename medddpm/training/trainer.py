"""Training as Med-DDPM's authors train (Dorjsembe et al. 2024), resumed exactly where it was cut."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from medddpm.checkpoints.files import load_state
from medddpm.data.volumes import Volumes, write_sample_volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime import cuda_graphs
from medddpm.runtime.processes import deferred_signals, iterated, joined, pick_device, told_to_stop
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.device_cache import Resident
from medddpm.training.graphed_step import GraphedStep, clip, lay_out_alike
from medddpm.training.progress import Report
from medddpm.training.run_folder import claim, newest, save
from medddpm.unet import UNet3D

PHASES = ("load", "forward", "backward", "update")
"""What a step consists of, by the names a `Trainer` gives its `phase`; in a CUDA graph, the first and last."""


class Trainer:
    """The model, its average and its optimizer, and the one training step of the whole book.

    Every random draw is a function of the seed and of the draw's number alone, so a run may be cut anywhere and two
    processes of one micro-step compute what one process of two does.

    While its network is accelerated (`with FAST.on(trainer.unet)`) on a GPU of this process alone, a step is one CUDA
    graph, the average's update aside, and never waits for the device. It draws what it draws outside a graph.

    Args:
        config: the run's.
        volumes: what it is trained on.
        device: where.
        graph: whether an accelerated step may be one CUDA graph; a profiler sees kernels and phases without.

    Attributes:
        phase: entered around each phase of a step, with its name out of `PHASES`; a profiler's marks go here.
    """

    def __init__(self, config: TrainConfig, volumes: Volumes, device: torch.device, graph: bool = True) -> None:
        self.config = config
        self.volumes = volumes
        self.device = device
        self.rank, self.world = (
            (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # of the initial weights
            self.unet = unet_for(config, volumes).to(device)
        self.diffusion = GaussianDiffusion(self.unet, offset_noise=config.offset_noise).to(device)
        self.ema = copy.deepcopy(self.diffusion).requires_grad_(False)
        fast = SETTINGS[config.switches].fast and device.type == "cuda"
        self._may_capture = fast and graph and self.world == 1
        self._graphed: GraphedStep | None = None
        self._acceleration: object = None  # under which the last step was made
        self.optimizer = torch.optim.Adam(
            self.unet.parameters(), lr=config.learning_rate, fused=fast or None, capturable=self._may_capture
        )
        self.phase: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        self.step = 0
        self.losses: list[float] = []  # of every step up to the last `read_losses`
        self._pending: list[Tensor] = []  # of the steps since, still on the device
        self._average = get_ema_multi_avg_fn(config.ema_decay)
        self._batches: Iterator[Sequence[Tensor]] | None = None
        self._generator = torch.Generator(device)
        self._network: nn.Module = self.diffusion
        if self.world > 1:
            # The processes hold equal weights without its help: the seed made them, or a checkpoint.
            self._network = nn.parallel.DistributedDataParallel(
                self.diffusion, device_ids=[device] if device.type == "cuda" else None, broadcast_buffers=False
            )

    # One step

    def train_step(self) -> None:
        """One optimizer step over `accumulation` micro-steps; `read_losses` tells its loss."""
        graphed = self._may_capture and cuda_graphs.wanted(self.unet)
        acceleration = getattr(self.unet, "acceleration", None)
        if acceleration is not self._acceleration:  # the weights have been laid out anew
            lay_out_alike(list(self.diffusion.parameters()), list(self.ema.parameters()), self.optimizer)
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
        for micro in range(self.config.accumulation):
            with self.phase("load"):
                image, mask = (tensor.to(self.device, non_blocking=True) for tensor in self._load())
            last = micro == self.config.accumulation - 1
            with contextlib.nullcontext() if last or self.world == 1 else self._network.no_sync():  # type: ignore[operator]
                with self.phase("forward"):
                    loss = self._forward(image, mask, micro) / self.config.accumulation
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
            batches = [self._load() for _ in range(self.config.accumulation)]
        if self._graphed is None:
            on_device = [(image.to(self.device), mask.to(self.device)) for image, mask in batches]
            self._graphed = GraphedStep(self.diffusion, self.optimizer, on_device, self.config.clip_norm)
        with self.phase("update"):
            loss = self._graphed(batches, [self._seed(micro) for micro in range(self.config.accumulation)])
            if self.config.read_every_loss:
                loss.item()  # of the whole step: within a graph there is nothing to wait for
            self._count(loss)

    def _load(self) -> tuple[Tensor, Tensor]:
        """The next image and mask: where they are resident, or on the host in memory that a GPU can fetch from."""
        if self._batches is None:
            if isinstance(self.volumes, Resident):
                self._batches = map(self.volumes.batch, self._order())
            else:
                loader: DataLoader[list[Tensor]] = DataLoader(
                    self.volumes,  # type: ignore[arg-type]
                    batch_sampler=self._order(),
                    num_workers=self.config.workers,
                    pin_memory=self.device.type == "cuda",
                )
                self._batches = iterated(loader)
        image, mask = next(self._batches)
        return image, mask

    def close(self) -> None:
        """Ends the processes that load volumes, in order: left to the interpreter's end, they would be killed."""
        self._batches = None

    def _forward(self, image: Tensor, mask: Tensor, micro: int) -> Tensor:
        return self._network(image, mask, generator=self._generator.manual_seed(self._seed(micro)))

    def _seed(self, micro: int) -> int:
        """Of a micro-step's timesteps and noise."""
        draw = self._draw(self.step, micro)
        return int(np.random.SeedSequence([self.config.seed, draw]).generate_state(1)[0])

    def _count(self, loss: Tensor) -> None:
        """Ends a step: its loss, its number, and what it means for the average."""
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
        """The number of a micro-step among all that all processes make."""
        return (step * self.config.accumulation + micro) * self.world + self.rank

    def _order(self) -> Iterator[list[int]]:
        """The volumes of each micro-step from this step on: every epoch is a permutation of its own."""
        count, size = len(self.volumes), self.config.batch_size
        epoch, order = -1, np.empty(0, int)
        for step in range(self.step, 2**62):
            for micro in range(self.config.accumulation):
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
        """What is sampled from: the average of the weights, which up to `ema_start` is the weights."""
        return self.ema if self.step >= self.config.ema_start else self.diffusion

    def read_losses(self) -> list[float]:
        """The losses of the steps since the last call, the mean over all processes, brought to the host."""
        if not self._pending:
            return []
        losses = torch.stack(self._pending)
        self._pending = []
        if self.world > 1:
            distributed.all_reduce(losses)
            losses /= self.world
        self.losses += losses.tolist()
        return self.losses[-len(losses) :]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: enough to go on to the last bit, and to sample without the run's folder."""
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
        """Takes up a checkpoint's state.

        Raises:
            BadInput: where it does not fit this run.
        """
        for name, model in (("model", self.diffusion), ("ema", self.ema)):
            load_state(model, content.get(name, {}), path)
        try:
            self._load_optimizer(content["optimizer"])
            self.step, self.losses = int(content["step"]), content["losses"].tolist()
        except (KeyError, ValueError, AttributeError, TypeError):
            raise BadInput(
                path, "it holds no state of a training", "sample from it, or train in another folder"
            ) from None
        self._pending, self._batches = [], None
        self._graphed = self._acceleration = None
        self.optimizer.zero_grad()

    def _load_optimizer(self, saved: Mapping[str, Any]) -> None:
        # Which of Adam's implementations is this machine's affair, not the checkpoint's.
        ours = {name: self.optimizer.defaults[name] for name in ("fused", "foreach", "capturable")}
        groups = [{**group, **ours} for group in saved["param_groups"]]
        self.optimizer.load_state_dict({**saved, "param_groups": groups})


def unet_for(config: TrainConfig, volumes: Volumes) -> UNet3D:
    """The network of a run: as many channels in and out as its volumes and masks have.

    Raises:
        BadInput: on a width or a size of volume that no such network takes.
    """
    layout = volumes.layout
    try:
        unet = UNet3D(
            image_size=config.image_size,
            in_channels=layout.image_channels + layout.mask_channels,
            out_channels=layout.image_channels,
            model_channels=config.model_channels,
            num_res_blocks=config.num_res_blocks,
            channel_mult=config.channel_mult,
            norm_groups=config.norm_groups,
        )
    except ValueError as error:
        raise BadInput("--channels", str(error), "choose 32, 64, 96 …, or other --norm-groups") from None
    if any(side % unet.stride for side in volumes.size):
        sides = "×".join(map(str, volumes.size))
        raise BadInput("--size", f"{sides} cannot be halved often enough", f"choose multiples of {unet.stride}")
    return unet


def train(
    config: TrainConfig,
    volumes: Volumes,
    out: str | os.PathLike[str],
    steps: int,
    *,
    device: str = "auto",
    resident: bool = False,
    progress: bool = True,
) -> Tensor:
    """Trains until the run in `out` has made `steps` steps in all, resuming what is there.

    The folder holds ``run.json``, ``checkpoints/``, ``samples/`` and ``tensorboard/``. Interrupting (Ctrl-C, SIGTERM)
    ends after the step in hand and its checkpoint. Under torchrun each process trains on its own volumes.

    Args:
        config: what the run is made of; where it exists already, it must be the same (but for `FREE`).
        volumes: what it is trained on.
        out: the run's folder, made where it is not.
        steps: in all, those made before included.
        device: "auto" (a GPU where there is one), "cpu", "cuda", …
        resident: prepares every volume first and keeps it in the device's memory.
        progress: shows a bar with the loss and the rate.

    Returns:
        (steps,) float32, the loss of every step since the run began.

    Raises:
        BadInput: on a folder of another run, a damaged checkpoint, a full disk, or a loss that is no number.
    """
    out, where = Path(out), pick_device(device)
    with joined(where), deferred_signals() as stopped:
        kept = Resident(volumes, where, config.workers, progress) if resident else volumes
        trainer = Trainer(config, kept, where)
        lead = trainer.rank == 0
        if lead:
            claim(out, config, volumes)
        if found := newest(out):
            trainer.load(found[1], found[0])
        setting = SETTINGS[config.switches]
        if lead and setting.fast and where.type == "cuda" and trainer.world > 1:
            print(f"{setting.name}: several processes train without CUDA graphs", file=sys.stderr)
        with setting.on(trainer.unet), contextlib.closing(trainer):
            _loop(trainer, out, steps, stopped, progress and lead)
        return torch.tensor(trainer.losses)


def _loop(trainer: Trainer, out: Path, steps: int, stopped: threading.Event, progress: bool) -> None:
    config, lead = trainer.config, trainer.rank == 0
    read_every = 1 if trainer.device.type == "cpu" else 10  # each reading makes a GPU wait
    with Report(out, config.switches, trainer.step, steps, shown=progress, logged=lead) as report:
        while trainer.step < steps:
            trainer.train_step()
            step = trainer.step
            due = step == steps or bool(config.save_every and step % config.save_every == 0)
            if step % read_every == 0 or due:
                stop = told_to_stop(stopped, trainer.device)
                report.losses(trainer.read_losses(), step)
                if lead and (due or stop):
                    save(out, trainer.state(), config.keep)
                if lead and config.sample_every and step % config.sample_every == 0 and not stop:
                    write_sample(trainer, out / "samples" / f"step-{step:07d}.nii.gz")
                if stop:
                    break


def write_sample(trainer: Trainer, path: Path) -> None:
    """Draws a volume for the first mask, all timesteps, from the average; one file an image channel.

    It is drawn under the run's setting, whether or not that is on already.
    """
    _, mask = trainer.volumes[0]
    generator = torch.Generator().manual_seed(trainer.config.seed)
    diffusion = trainer.averaged
    with SETTINGS[trainer.config.switches].on(diffusion.denoise_fn):
        sample = diffusion.sample(mask[None].to(trainer.device), generator=generator)[0].cpu()
        cuda_graphs.forget(diffusion.denoise_fn)  # training needs its memory
    write_sample_volumes(sample, path, trainer.volumes.reference(0), trainer.volumes.layout, trainer.volumes.size)
