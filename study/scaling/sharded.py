"""Training steps whose weights, gradients and moments are shared out over the processes: PyTorch's FSDP2.

Zhao et al. 2023, PyTorch FSDP, VLDB. Each stage of the network gathers its weights before it computes and lets go of
them afterwards; of the gradients each process receives the sum of its own part alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.training.reports.pace import Stopwatch
from medddpm.training.trainer import Trainer
from medddpm.unet import Stage


class ShardedTrainer(Trainer):
    """Trains as a `Trainer` of all processes does, on the same draws, with a part of the weights on each.

    Its checkpoints are those of `save_parts`. A setting must leave the weights as they are: BASE or OPT1.

    Args:
        config: the run's.
        volumes: the data set.
        device: this process's.
    """

    def __init__(self, config: TrainConfig, volumes: Volumes, device: torch.device) -> None:
        super().__init__(config, volumes, device, graph=False)
        dtype = torch.bfloat16 if config.gradient_dtype == "bf16" else None
        for network in (self.unet, self.ema.denoise_fn):
            shard(network, device, dtype)
        self.optimizer = torch.optim.Adam(self.unet.parameters(), lr=config.learning_rate)
        self._gradients = _Sums(self.unet, device)  # type: ignore[assignment]


def shard(network: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Leaves each process its part of a network's parameters, in place; gradients become sums over all processes.

    Args:
        network: the same on every process; its `Stage`s are gathered one after the other.
        device: this process's.
        dtype: in which gradients are sent; None sends the parameters' own.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for module in [*(part for part in network.modules() if isinstance(part, Stage)), network]:
        sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # Gloo has no sum that also multiplies
        sharded.set_requires_gradient_sync(False)


def save_parts(trainer: Trainer, folder: Path) -> None:
    """Writes a checkpoint to a folder, each process its part (`torch.distributed.checkpoint`); all call this."""
    state_dict_saver.save(_parts(trainer), checkpoint_id=folder)


def load_parts(trainer: Trainer, folder: Path) -> None:
    """Goes on from `save_parts`, on any number of processes, of a `ShardedTrainer` or a `Trainer`; all call this.

    Raises:
        BadInput: there is no such checkpoint, or it is of another network.
    """
    parts = _parts(trainer)
    try:
        state_dict_loader.load(parts, checkpoint_id=folder)
    except (CheckpointException, OSError):
        raise BadInput(folder, "it holds no checkpoint of this network", "give the folder of `save_parts`") from None
    optimizer = {"model_state_dict": parts["unet"], "optim_state_dict": parts["optimizer"]}
    set_state_dict(trainer.unet, trainer.optimizer, **optimizer)  # the average's tensors were written into
    trainer.step, trainer.losses = parts["step"], parts["losses"]
    trainer._pending, trainer._batches = [], None


def _parts(trainer: Trainer) -> dict[str, Any]:
    """Returns a trainer's state by the names of its weights, which are the same on one process and on many."""
    trainer.read_losses()
    unet, optimizer = get_state_dict(trainer.unet, trainer.optimizer)
    average = get_model_state_dict(trainer.ema.denoise_fn)
    return {"unet": unet, "ema": average, "optimizer": optimizer, "step": trainer.step, "losses": trainer.losses}


class _Sums:
    """In place of `medddpm.training.gradients.GradientSum`: lets FSDP2 sum the gradients in a step's last pass.

    Its watch times that pass with its waits for the others' weights, so that no process is found slow.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network: Any = network
        self.stopwatch = Stopwatch(device)

    @contextlib.contextmanager
    def of_pass(self) -> Iterator[None]:
        self.network.set_requires_gradient_sync(True)
        self.stopwatch.begin()
        try:
            yield
            self.stopwatch.end()
        finally:
            self.network.set_requires_gradient_sync(False)

    def close(self) -> None:
        """Does nothing, as it holds no parameters."""
