"""Builds the published training for `medddpm profile`: the one file of this folder that knows the network."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.switches import SETTINGS, Switches
from medddpm.training.config import TrainConfig
from medddpm.training.network import check_cube
from medddpm.training.trainer import Trainer

__all__ = ["SETTINGS", "Prepared", "build", "check_cube", "lay_out_on_host", "subject"]


def subject(size: int) -> Phantom:
    """Makes the only subject, of `size` voxels a side, in memory."""
    volumes = Phantom(1, (size, size, size))
    volumes[0]  # now in the data set's memory
    return volumes


class Prepared(Phantom):
    """`subject` as another Python wrote it.

    Args:
        size: voxels a side.
        path: the file: image and mask, as an item of a data set.

    Raises:
        BadInput: it cannot be read, or holds another size.
    """

    def __init__(self, size: int, path: Path) -> None:
        super().__init__(1, (size, size, size))
        try:
            self._image, self._mask = torch.load(path, weights_only=True)
            if self._image.shape[1:] != self.size:
                raise ValueError
        except (OSError, RuntimeError, ValueError, TypeError, AttributeError, pickle.UnpicklingError):
            remedy = f"write it in the package's own environment: --prepare {path.name} --size {size}"
            raise BadInput(path, f"it holds no subject of size {size}", remedy) from None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._image.clone(), self._mask.clone()


def build(setting: Switches, volumes: Phantom, channels: int, accumulation: int, device: torch.device) -> Trainer:
    """Builds a trainer of the published network on one subject, without a kernel launched.

    No setting makes a CUDA graph here: the profiler must see every launch, and the phase it belongs to.
    """
    config = TrainConfig(
        setting=setting.name,
        image_size=volumes.size[0],
        model_channels=channels,
        accumulation=accumulation,
        read_every_loss=True,
    )
    return Trainer(config, volumes, device, graph=False)


def lay_out_on_host(network: nn.Module, setting: Switches) -> None:
    """Puts 5-D weights into the setting's layout on the CPU, so that only copies, which are no launches, are needed."""
    for parameter in network.parameters():
        if parameter.dim() == 5:
            parameter.data = setting.laid_out(parameter.data.cpu()).to(parameter.device)
