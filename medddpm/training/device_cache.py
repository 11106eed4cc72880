"""A data set kept in the memory of the device that trains, so that a step loads nothing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import nibabel
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.fast.reports import bars
from medddpm.runtime.processes import Handed, iterated

SHARE = 0.5  # of the device's free memory, at most


def bytes_of(volumes: Volumes) -> int:
    """Returns what a `DeviceCache` of these volumes takes: images as they are, masks as int8."""
    image, mask = volumes[0]
    return len(volumes) * (image.nbytes + mask.numel())


def room(device: torch.device) -> float:
    """Bytes that volumes may take on the device: half of what a GPU has free; on the CPU as many as they are."""
    return SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


class DeviceCache(Dataset[tuple[Tensor, Tensor]]):
    """The items of `volumes`, bit for bit, on `device`.

    At 64³ a step under FAST takes a few milliseconds, as long as one process takes to hand over a single volume.

    Args:
        volumes: read here, each once.
        device: where they are kept: images as they are, masks as int8.
        workers: processes that read them; 0 reads them in this one.
        progress: shows a bar.

    Raises:
        BadInput: they would take more than half of the device's free memory.
    """

    def __init__(self, volumes: Volumes, device: torch.device, workers: int = 0, progress: bool = False) -> None:
        self.size, self.layout, self._volumes = volumes.size, volumes.layout, volumes
        wanted = bytes_of(volumes)
        if wanted > room(device):
            raise BadInput(
                "--device-cache",
                f"{len(volumes)} volumes take {wanted / 2**30:.1f} GiB, more than half of what the GPU has free",
                "leave it out: they are then read from the disk cache",
            )
        image, mask = volumes[0]
        self._images = torch.empty((len(volumes), *image.shape), dtype=image.dtype, device=device)
        self._masks = torch.empty((len(volumes), *mask.shape), dtype=torch.int8, device=device)
        loader: DataLoader[Any] = DataLoader(Handed(volumes), batch_size=None, num_workers=workers)
        bar = functools.partial(tqdm, desc="to the device", unit="volume", disable=not progress, leave=False, **bars())
        for index, (image, mask) in enumerate(bar(iterated(loader), total=len(volumes))):
            self._images[index], self._masks[index] = image, mask

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index], self._masks[index].to(self._images.dtype)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images and masks of several items, (N, …), on the device."""
        image = torch.stack([self._images[index] for index in indices])
        return image, torch.stack([self._masks[index] for index in indices]).to(image.dtype)

    def names(self) -> list[str]:
        """As in the data set."""
        return self._volumes.names()

    def digests(self) -> list[str]:
        """As in the data set."""
        return self._volumes.digests()

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """As in the data set."""
        return self._volumes.reference(index)
