"""A data set in the memory of the device that trains, so that a step loads nothing."""

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
    """Returns the bytes of a `DeviceCache` of these volumes: images as they are, masks as int8."""
    image, mask = volumes[0]
    return len(volumes) * (image.nbytes + mask.numel())


def room(device: torch.device) -> float:
    """Returns the bytes that volumes may take on the device: half of a GPU's free memory; no limit on the CPU."""
    return SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


class DeviceCache(Dataset[tuple[Tensor, Tensor]]):
    """A data set that returns the items of `volumes`, bit for bit, from the memory of `device`.

    At 64³ a step under FAST takes a few milliseconds, as long as one process takes to hand over a single volume.

    Args:
        volumes: each is read once, here.
        device: holds images as they are and masks as int8.
        workers: processes that read them; 0 reads them in this one.
        progress: shows a bar.

    Raises:
        BadInput: they would take more than half of the device's free memory.
    """

    def __init__(self, volumes: Volumes, device: torch.device, workers: int = 0, progress: bool = False) -> None:
        self.size, self.layout, self._volumes = volumes.size, volumes.layout, volumes
        size = bytes_of(volumes)
        if size > room(device):
            raise BadInput(
                "--device-cache",
                f"{len(volumes)} volumes take {size / 2**30:.1f} GiB, more than half of what the GPU has free",
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
        """Returns images and masks of several items, (N, …), on the device."""
        image = torch.stack([self._images[index] for index in indices])
        return image, torch.stack([self._masks[index] for index in indices]).to(image.dtype)

    def names(self) -> list[str]:
        """Returns the names in the data set."""
        return self._volumes.names()

    def digests(self) -> list[str]:
        """Returns the digests in the data set."""
        return self._volumes.digests()

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """Returns the reference in the data set."""
        return self._volumes.reference(index)
