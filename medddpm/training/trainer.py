"""The training of Med-DDPM's authors (Dorjsembe et al. 2024), a step at a time, with a state that resumes exactly."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from medddpm.checkpoints.files import load_state
from medddpm.checkpoints.weights import FLOATS, are_losses, not_finite
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.fast.graphs import cuda_graphs
from medddpm.runtime.processes import Handed, collated, iterated
from medddpm.runtime.ranks import Ranks
from medddpm.switches import SETTINGS
from medddpm.training.augmentation import deformed, flipped
from medddpm.training.config import TrainConfig
from medddpm.training.device_cache import DeviceCache
from medddpm.training.gradients import GradientSum, gradient_sum
from medddpm.training.graphed_step import GraphedStep, clip, lay_out_alike, summed
from medddpm.training.network import diffusion_of, unet_for
from medddpm.training.rates import (
    average_decay,
    average_start,
    check_rates,
    learning_rate,
    set_learning_rate,
    varies,
)
from medddpm.training.reports.pace import Pace

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
        check_rates(config)
        self.config = config
        self.volumes = volumes
        self.device = device
        self.ranks = ranks or Ranks()
        self.accumulation = config.accumulation
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # for the initial weights
            self.unet = unet_for(config, volumes).to(device)
        self.diffusion = diffusion_of(config, self.unet).to(device)
        self.ema = copy.deepcopy(self.diffusion).requires_grad_(False)
        fast = SETTINGS[config.setting].fast and device.type == "cuda"
        self._may_capture = fast and graph
        self._graphed: GraphedStep | None = None
        self._acceleration: object = None  # the network's, at the last step
        rate: float | Tensor = config.learning_rate
        if varies(config) and self._may_capture:  # a captured step has a number for good, but reads a tensor each time
            rate = torch.tensor(rate, device=device)
        self.optimizer = torch.optim.Adam(
            self.unet.parameters(), lr=rate, fused=fast or None, capturable=self._may_capture
        )
        self.phase: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        self.step = 0
        self.losses: list[float] = []  # one for each step up to the last `read_losses`
        self._pending: list[Tensor] = []  # the later ones, still on the device
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
        if varies(self.config):
            set_learning_rate(self.optimizer, learning_rate(self.config, self.step))
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
                self._loss,
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
        """The number of micro-steps that all processes make in a step."""
        return self.accumulation * self.ranks.world

    def _sum_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.close()
        self._gradients = gradient_sum(list(self.diffusion.parameters()), self.config)

    def _load(self, last: bool) -> tuple[Tensor, Tensor]:
        """Returns the next image and mask: from the device cache, or on the host, in pinned memory for a GPU.

        Args:
            last: whether this is the step's last micro-step; all processes then confirm that they have their volumes.
        """
        problem = None
        try:
            with self.pace.loading():
                batch = self._next()
        except BadInput as error:
            problem = error
        if last or problem:
            self.ranks.agree(problem)
        return batch

    def _next(self) -> tuple[Tensor, Tensor]:
        if self._batches is None:
            if isinstance(self.volumes, DeviceCache):
                self._batches = map(self.volumes.batch, self._order())
            else:
                self._batches = self.batches()
        image, mask = next(self._batches)
        return image, mask

    def batches(self, pinned: bool = True, ahead: int | None = None) -> Iterator[Sequence[Tensor]]:
        """Yields image and mask of each micro-step from this step on, as the loading processes return them.

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
        """Moves the volumes into the device's memory; their order and the random draws do not change.

        Raises:
            BadInput: they would take more than half of what a GPU has free.
        """
        self._batches = None
        self.volumes = DeviceCache(self.volumes, self.device, self.config.workers, progress)

    def close(self) -> None:
        """Ends the loading processes in order; at the interpreter's exit they would be killed.

        Frees the graph, because the end of the process group would wait for it, and removes the parameters' hooks,
        because they and the `GradientSum` refer to each other where Python's collector cannot see it.
        """
        self._batches = self._graphed = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

    def _forward(self, image: Tensor, mask: Tensor, micro: int) -> Tensor:
        return self._loss(image, mask, generator=self._generator.manual_seed(self._seed(micro)))

    def _loss(self, image: Tensor, mask: Tensor, *, generator: torch.Generator) -> Tensor:
        """Returns the loss of a micro-step, all of whose random draws come from `generator`. A graph captures this."""
        if self.config.flips:
            image, mask = flipped(image, mask, self.volumes.layout.left_right, generator)
        if self.config.deform:
            image, mask = deformed(image, mask, self.config.deform, generator)
        return self.diffusion.loss(image, mask, generator=generator)

    def _seed(self, micro: int) -> int:
        """Returns the seed of a micro-step's flips, deformations, timesteps and noise."""
        draw = self._draw(self.step, micro)
        return int(np.random.SeedSequence([self.config.seed, draw]).generate_state(1)[0])

    def _count(self, loss: Tensor) -> None:
        """Ends a step: stores its loss, counts it and updates the average."""
        self._pending.append(loss)
        self.step += 1
        averages, weights = list(self.ema.parameters()), list(self.diffusion.parameters())
        start = average_start(self.config)
        with torch.no_grad():
            if self.step == start:
                for average, parameter in zip(averages, weights, strict=True):
                    average.copy_(parameter)
            elif self.step > start and self.step % self.config.ema_every == 0:
                get_ema_multi_avg_fn(average_decay(self.config, self.step))(averages, weights, self.step)

    def _draw(self, step: int, micro: int) -> int:
        """Returns the number of a micro-step among those of all processes."""
        return (step * self.accumulation + micro) * self.ranks.world + self.ranks.rank

    def _order(self) -> Iterator[list[int]]:
        """Yields the volumes of each micro-step from this step on; each epoch is another permutation."""
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
        """The model to sample from: the average of the weights; up to `average_start`, the weights."""
        return self.ema if self.step >= average_start(self.config) else self.diffusion

    def read_losses(self) -> list[float]:
        """Reads back the losses of the steps since the last call, averaged over all processes, which all call this."""
        if not self._pending:
            return []
        losses = self.ranks.sum_(torch.stack(self._pending))
        self._pending = []
        self.losses += losses.tolist()
        if self._gradients is not None:
            self.pace.sample(self._gradients.stopwatch.ms() * self.accumulation, len(losses))
        return self.losses[-len(losses) :]

    def state(self) -> dict[str, Any]:
        """Returns a checkpoint's content: enough to resume to the last bit, and to sample without the run's folder."""
        return {
            "step": self.step,
            "model": self.diffusion.state_dict(),
            "ema": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": torch.tensor(self.losses),
            "config": self.unet.config,
            "prediction": self.config.prediction,
            "size": list(self.volumes.size),
            "layout": self.volumes.layout.name,
        }

    def start_from(self, state: Mapping[str, Tensor], path: Path) -> None:
        """Takes over weights, before the first step; the average begins with them.

        Raises:
            BadInput: they are another network's.
        """
        for model in (self.diffusion, self.ema):
            load_state(model, state, path)

    def load(self, content: Mapping[str, Any], path: Path) -> None:
        """Loads a checkpoint's state.

        Raises:
            BadInput: it does not fit this run.
        """
        if (trained := content.get("prediction", "noise")) != self.config.prediction:
            problem = f"its network was trained to predict the {trained}, not the {self.config.prediction}"
            raise BadInput(path, problem, "give the checkpoint of this run")
        for name, model in (("model", self.diffusion), ("ema", self.ema)):
            load_state(model, content.get(name), path)
        try:
            step, losses = content["step"], content["losses"]
            moments = content["optimizer"]["state"]
            if not are_losses(losses, step) or len(moments) != (len(list(self.unet.parameters())) if step else 0):
                raise ValueError
            self._load_optimizer(content["optimizer"])
        except (KeyError, ValueError, AttributeError, TypeError, IndexError, RuntimeError):
            raise BadInput(
                path, "it holds no state of a training run", "sample from it, or train in another folder"
            ) from None
        self.step, self.losses = step, losses.tolist()
        self._pending, self._batches = [], None
        self._graphed = self._acceleration = None
        self.optimizer.zero_grad()

    def _load_optimizer(self, saved: Mapping[str, Any]) -> None:
        # Which of Adam's implementations runs depends on this machine, and all else that it is told on the run's
        # configuration: of the checkpoint's groups only the order of the parameters counts.
        groups = self.optimizer.state_dict()["param_groups"]
        if [group["params"] for group in saved["param_groups"]] != [group["params"] for group in groups]:
            raise ValueError
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index, moments in saved["state"].items():
            names = {"exp_avg": parameters[index].shape, "exp_avg_sq": parameters[index].shape, "step": ()}
            if any(moments[name].shape != shape or moments[name].dtype not in FLOATS for name, shape in names.items()):
                raise ValueError(f"the moments of parameter {index}")
            if not_finite(moments) or min(moments["exp_avg_sq"].min(), moments["step"]) < 0:
                raise ValueError(f"the moments of parameter {index}")
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
