"""Training steps whose weights, gradients and moments are shared out over the processes: PyTorch's FSDP2.

Zhao et al. 2023, PyTorch FSDP, VLDB. Each stage of the network gathers its weights before it computes and lets go of
them afterwards; of the gradients each process receives the sum of its own part alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from medddpm.data.volumes import Volumes
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer
from medddpm.unet import Stage


class ShardedTrainer(Trainer):
    """Trains as a `Trainer` of all processes does, on the same draws, with a part of the weights on each.

    It knows no checkpoints. A setting must leave the weights as they are: BASE or OPT1.

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
        self._gradients = _Sums(self.unet)  # type: ignore[assignment]


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


class _Sums:
    """In place of `medddpm.training.gradients.GradientSum`: lets FSDP2 sum the gradients in a step's last pass."""

    def __init__(self, network: nn.Module) -> None:
        self.network: Any = network

    @contextlib.contextmanager
    def of_pass(self) -> Iterator[None]:
        self.network.set_requires_gradient_sync(True)
        try:
            yield
        finally:
            self.network.set_requires_gradient_sync(False)

    def close(self) -> None:
        """Nothing holds the parameters."""
