"""Follows the losses of a run, to notice when its network predicts nothing or its loss jumps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from medddpm.data.volumes import Volumes
from medddpm.training.config import TrainConfig
from medddpm.training.network import diffusion_of

# Choices, all of them: a trained network's loss is a tenth of nothing's and less, and hops by a factor of two or three.
WINDOW = 100  # steps whose median counts; timesteps are drawn at random, so single losses differ by a factor of ten
EVERY = 10  # steps between two looks at the median
SHARE = 0.8  # of the loss of predicting nothing, from which on a network predicts nothing
PATIENCE = 1000  # steps after which a network has learned something, at the published learning rate too
JUMP = 10  # times the lowest median
VOLUMES, ROWS, VOXELS = 8, 2048, 8  # that `loss_of_nothing` reads, its random timesteps, and the side of its cubes


class Change(NamedTuple):
    """A training that is lost from a step on, or that has recovered.

    Args:
        step: at which the losses showed that.
        median: of the last `WINDOW` losses.
        problem: what was lost; empty when the training has recovered.
        before: the last step whose losses were surely good; 0 if none were.
    """

    step: int
    median: float
    problem: str
    before: int


class Watch:
    """Notices when a network predicts nothing, or when its loss jumps `JUMP`-fold; each event once.

    It goes by the median of the last `WINDOW` losses. An event ends when the median is below half of the level that
    began it.

    Args:
        nothing: the loss of a network that predicts nothing (`loss_of_nothing`).

    Attributes:
        lost: the event that goes on, or None.
    """

    def __init__(self, nothing: float) -> None:
        self.lost: Change | None = None
        self._nothing, self._step = nothing, 0
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._lowest, self._ends = math.inf, 0.0

    def read(self, losses: Iterable[float]) -> list[Change]:
        """Takes the losses of the next steps; returns what they changed."""
        changes = []
        for loss in losses:
            self._step += 1
            self._window.append(loss)
            if self._step % EVERY == 0 and len(self._window) == WINDOW:
                changes += self._look(statistics.median_low(self._window))
        return changes

    def needed(self, checkpoints: Sequence[int]) -> set[int]:
        """Returns the checkpoints that a lost training would be started anew from; they stay until others take over.

        A training that is lost needs the last one from before. Until then a loss would show up to `WINDOW` steps late:
        the last one that is so old is surely good, and the first younger one is the next that will be.

        Args:
            checkpoints: their steps, in order.
        """
        if not self.lost and not self._has_learned:
            return set()
        sure = self.lost.before if self.lost else self._step - WINDOW
        younger = [] if self.lost else [step for step in checkpoints if step > sure]
        return {*[step for step in checkpoints if step <= sure][-1:], *younger[:1]}

    @property
    def _has_learned(self) -> bool:
        return self._lowest < SHARE * self._nothing

    def _look(self, median: float) -> list[Change]:
        if self.lost:
            if median >= self._ends:
                return []
            self.lost = None
            return [Change(self._step, median, "", self._step)]
        level, lowest, had_learned = SHARE * self._nothing, self._lowest, self._has_learned
        self._lowest = min(median, lowest)
        about = self._step - WINDOW // 2  # the median passes a level when half of its losses have
        if median > level and (lowest < level / 2 or self._step >= PATIENCE):
            since = f" since about step {about}" if had_learned else ""
            problem = f"its network predicts nothing: the loss stands at {median:.3f}{since}"
            problem += f", and predicting nothing gives {self._nothing:.3f}"
        elif median > (level := JUMP * lowest):
            problem = f"its loss jumped: it stands at {median:.3g} since about step {about}, and was at {lowest:.3g}"
        else:
            return []
        self._ends = level / 2
        self.lost = Change(self._step, median, problem, self._step - WINDOW if had_learned else 0)
        return [self.lost]


def loss_of_nothing(config: TrainConfig, volumes: Volumes) -> float:
    """Returns the loss of a network that knows the volumes' mean intensity and nothing else.

    It is measured on random voxels at random timesteps, with the run's prediction, loss and weighting. Where the noise
    is predicted the volumes do not matter, and with the published loss it is E|ε| = √(2/π) = 0.798.

    Raises:
        BadInput: a volume is bad.
    """
    channels, generator = volumes.layout.image_channels, torch.Generator().manual_seed(0)
    diffusion = diffusion_of(config, _Nothing(channels))
    voxels = torch.zeros(channels, 1)
    if config.prediction != "noise":
        places = range(0, len(volumes), -(-len(volumes) // VOLUMES))
        voxels = torch.cat([volumes[place][0].cpu().float().flatten(1) for place in places], dim=1)
    # The best that a network can do without looking is to predict the target of the mean; what is left is the rest's.
    voxels = voxels - voxels.mean(dim=1, keepdim=True)
    shape = (ROWS, VOXELS, VOXELS, VOXELS)
    image = voxels[:, torch.randint(voxels.shape[1], shape, generator=generator)].movedim(0, 1)
    return diffusion.loss(image, torch.zeros(ROWS, 1, *shape[1:]), generator=generator).item()


class _Nothing(nn.Module):
    """A network whose output is zero."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(x[:, : self.out_channels])
