"""Makes the data sets of the throughput's levers."""

from __future__ import annotations

from pathlib import Path

import torch

from medddpm.data.disk_cache import DiskCache, default_folder
from medddpm.data.layouts import BRATS
from medddpm.data.nifti import read_image, write_volume
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder, Volumes
from medddpm.training.augmentation import deformed, flipped
from study.throughput.levers import Lever

DEFORM = 0.03
"""The deformation of levers that augment, of the side: a choice, as is that they deform at all."""
CACHES = ("CacheDataset", "PersistentDataset")
"""MONAI's: in this process's memory, which loading processes inherit; and on disk, a file a volume."""


class Synthetic(Phantom):
    """Noise in the shape of the BraTS layout, as a step's time does not depend on its input."""

    def __init__(self, count: int, size: tuple[int, int, int]) -> None:
        super().__init__(count, size, cache_gib=0)
        self.layout = BRATS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        space = self.size[::-1]
        image = torch.rand(self.layout.image_channels, *space, generator=generator) * 2 - 1
        return image, (torch.rand(self.layout.mask_channels, *space, generator=generator) > 0.5).float()


class Augmented:
    """Volumes that are flipped and deformed anew each time, where they are loaded; as `medddpm.data.volumes.Volumes`.

    Args:
        volumes: as they are.
        deform: see `medddpm.training.augmentation.deformed`.
    """

    def __init__(self, volumes: Volumes, deform: float) -> None:
        self.layout, self.size, self.names, self.digests = volumes.layout, volumes.size, volumes.names, volumes.digests
        self.reference = volumes.reference
        self._volumes, self._deform = volumes, deform

    def __len__(self) -> int:
        return len(self._volumes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = (part[None] for part in self._volumes[index])
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # each process's own are seeded
        image, mask = flipped(image, mask, self.layout.left_right, generator)
        image, mask = deformed(image, mask, self._deform, generator)
        return image[0], mask[0]


def source(lever: Lever, size: tuple[int, int, int], count: int, folder: Path) -> Volumes:
    """Makes the data set of a lever; its files go to `folder`, which lies on a RAM disk if the lever asks for one."""
    if lever.brats:
        return Synthetic(count, size)
    phantom = Phantom(count, size, cache_gib=0)
    if lever.source == "phantom":
        return phantom
    if lever.source in ("disk", "device", "RAM disk"):
        cache = DiskCache(phantom, folder if lever.source == "RAM disk" else default_folder())
        cache.prepare()
        return Augmented(cache, DEFORM) if lever.augments == "loader" else cache
    write_phantom(folder, 2, size)  # two subjects, each under many names: reading one takes no less time
    for kind in ("image", "mask"):
        for index in range(2):
            written = folder / kind / f"phantom_{index:04d}.nii.gz"
            ending = ".nii" if lever.source == "nii" and kind == "image" else ".nii.gz"
            if ending == ".nii":
                image = read_image(written)
                written.unlink()
                written = written.with_name(f"phantom_{index:04d}.nii")
                write_volume(written, image.get_fdata(dtype="float32"), image)
            for copy in range(index + 2, count, 2):
                written.with_name(f"phantom_{copy:04d}{ending}").hardlink_to(written)
    volumes = VolumeFolder(folder, size, cache_gib=0)
    if lever.source not in CACHES:
        return volumes
    from study.throughput.monai_caches import Cached

    return Cached(volumes, lever.source, folder / "cache")
