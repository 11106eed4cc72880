"""The volumes of a data set behind MONAI's caches. A module of its own: MONAI takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from monai.data.dataset import CacheDataset, PersistentDataset
from monai.transforms.transform import Transform
from torch import Tensor

from medddpm.data.volumes import Volumes


class Read(Transform):
    """A MONAI transform that reads a volume by its number; it is not random, so MONAI caches its result."""

    def __init__(self, volumes: Volumes) -> None:
        self.volumes = volumes

    def __call__(self, data: int) -> tuple[Tensor, Tensor]:
        """Returns the volume's image and mask."""
        return self.volumes[data]


class Cached:
    """Volumes behind one of MONAI's caches, filled here; as `medddpm.data.volumes.Volumes`.

    Args:
        volumes: the cached ones.
        kind: out of `study.throughput.sources.CACHES`.
        folder: of the files that `PersistentDataset` writes.
    """

    def __init__(self, volumes: Volumes, kind: str, folder: Path) -> None:
        self.layout, self.size, self.names, self.digests = volumes.layout, volumes.size, volumes.names, volumes.digests
        self.reference = volumes.reference
        numbers, read = range(len(volumes)), Read(volumes)
        self._data = (
            CacheDataset(numbers, read, progress=False, num_workers=1)
            if kind == "CacheDataset"
            else PersistentDataset(numbers, read, cache_dir=folder)
        )
        for index in numbers:
            self._data[index]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self._data[index]
        return image, mask
