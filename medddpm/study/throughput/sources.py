"""The data sets of the throughput's levers: where a volume comes from, step by step."""

from __future__ import annotations

from pathlib import Path

import torch
from monai.data.dataset import CacheDataset, PersistentDataset
from monai.transforms.transform import Transform
from torch import Tensor

from medddpm.data.disk_cache import DiskCache, default_folder
from medddpm.data.layouts import BRATS
from medddpm.data.nifti import read_image, write_volume
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder, Volumes
from medddpm.study.throughput.levers import Lever

CACHES = ("CacheDataset", "PersistentDataset")
"""MONAI's: in this process's memory, which loading processes inherit; and on disk, a file a volume."""


class Synthetic(Phantom):
    """Noise in the shape of the BraTS layout: what a step costs does not depend on what it sees."""

    def __init__(self, count: int, size: tuple[int, int, int]) -> None:
        super().__init__(count, size, cache_gib=0)
        self.layout = BRATS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        space = self.size[::-1]
        image = torch.rand(self.layout.image_channels, *space, generator=generator) * 2 - 1
        return image, (torch.rand(self.layout.mask_channels, *space, generator=generator) > 0.5).float()


class Read(Transform):
    """MONAI's kind of step that reads a volume by its number: nothing in it is random, so that its result is kept."""

    def __init__(self, volumes: Volumes) -> None:
        self.volumes = volumes

    def __call__(self, data: int) -> tuple[Tensor, Tensor]:
        """The volume's image and mask."""
        return self.volumes[data]


class Cached:
    """Volumes behind one of MONAI's caches, filled here; as `medddpm.data.volumes.Volumes`.

    Args:
        volumes: what is kept.
        kind: out of `CACHES`.
        folder: of the files that `PersistentDataset` writes.
    """

    def __init__(self, volumes: Volumes, kind: str, folder: Path) -> None:
        self.layout, self.size, self.names, self.digests = volumes.layout, volumes.size, volumes.names, volumes.digests
        self.reference = volumes.reference
        numbers, read = range(len(volumes)), Read(volumes)
        self._kept = (
            CacheDataset(numbers, read, progress=False, num_workers=1)
            if kind == "CacheDataset"
            else PersistentDataset(numbers, read, cache_dir=folder)
        )
        for index in numbers:
            self._kept[index]

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self._kept[index]
        return image, mask


def source(lever: Lever, size: tuple[int, int, int], count: int, folder: Path) -> Volumes:
    """The data set of a lever; `folder` takes files that it needs, on a RAM disk where the lever says so."""
    if lever.brats:
        return Synthetic(count, size)
    phantom = Phantom(count, size, cache_gib=0)
    if lever.source == "phantom":
        return phantom
    if lever.source in ("disk", "device", "RAM disk"):
        kept = DiskCache(phantom, folder if lever.source == "RAM disk" else default_folder())
        kept.prepare()
        return kept
    write_phantom(folder, 2, size)  # two subjects, each under many names: what reading one costs is the same
    for kind in ("image", "mask"):
        for index in range(2):
            written = folder / kind / f"phantom_{index:04d}.nii.gz"
            ending = ".nii" if lever.source == "nii" and kind == "image" else ".nii.gz"
            if ending == ".nii":
                image = read_image(written)
                written.unlink()
                written = written.with_name(f"phantom_{index:04d}.nii")
                write_volume(written, image.get_fdata(dtype="float32"), image)
            for other in range(index + 2, count, 2):
                written.with_name(f"phantom_{other:04d}{ending}").hardlink_to(written)
    volumes = VolumeFolder(folder, size, cache_gib=0)
    return Cached(volumes, lever.source, folder / "cache") if lever.source in CACHES else volumes
