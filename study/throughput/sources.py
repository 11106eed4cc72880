"""The data sets of the throughput's levers: where a volume comes from, step by step."""

from __future__ import annotations

from pathlib import Path

import torch

from medddpm.data.disk_cache import DiskCache, default_folder
from medddpm.data.layouts import BRATS
from medddpm.data.nifti import read_image, write_volume
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder, Volumes
from study.throughput.levers import Lever

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
    if lever.source not in CACHES:
        return volumes
    from study.throughput.monai_caches import Cached

    return Cached(volumes, lever.source, folder / "cache")
