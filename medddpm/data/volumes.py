"""Folder data sets, and volumes on their way to the model and back, prepared as for Med-DDPM (Dorjsembe et al. 2024).

Files and arrays are (H, W, D). The model's tensors are (C, D, W, H): the first and last spatial axes change places
going in and change back coming out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from medddpm.data.checking import Report, check_folder
from medddpm.data.grid import Size, from_grid, to_grid
from medddpm.data.layouts import BRATS, HEAD, LAYOUTS, Case, Layout, find_cases, find_layout
from medddpm.data.masks import one_hot, prepared, read_beside
from medddpm.data.nifti import read_image, read_mask, same_grid, write_volume
from medddpm.errors import BadInput


class Volumes(Protocol):
    """What training needs of a data set: `VolumeFolder` and `Phantom` are such."""

    size: Size
    layout: Layout

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...

    def names(self) -> list[str]:
        """A name for each item, the same in every run over the same data."""
        ...

    def reference(self, index: int) -> nib.Nifti1Image:
        """The mask of an item as a NIfTI image: the grid that its sample is written on."""
        ...


__all__ = [
    "BRATS",
    "HEAD",
    "Case",
    "Layout",
    "Report",
    "Scaling",
    "Size",
    "VolumeFolder",
    "check_folder",
    "checked_size",
    "condition",
    "find_cases",
    "find_layout",
    "from_grid",
    "restore",
    "scaled",
    "to_grid",
    "to_tensor",
    "write_sample_volumes",
]

Scaling = Literal["volume", "slice"]
Prepared = tuple[Tensor, npt.NDArray[np.uint8]]
"""What a data set keeps of a case: image (C, D, W, H) float32, labels (H, W, D)."""


class ItemCache:
    """Prepared cases in memory, up to a bound; what does not fit is prepared anew each time.

    The first to come stay: an epoch visits every case once, and evicting the oldest would then never score a hit.
    Each worker process of a data loader has its own.

    Args:
        gib: the bound, in GiB.
    """

    def __init__(self, gib: float) -> None:
        self._free = int(gib * 2**30)
        self._items: dict[int, Prepared] = {}

    def get(self, index: int) -> Prepared | None:
        """The kept case, if it is."""
        return self._items.get(index)

    def put(self, index: int, item: Prepared) -> None:
        """Keeps a case if there is room."""
        size = item[0].nbytes + item[1].nbytes
        if index not in self._items and size <= self._free:
            self._free -= size
            self._items[index] = item


class VolumeFolder(Dataset[tuple[Tensor, Tensor]]):
    """The cases of a folder on the model's grid: item i is (image, mask).

    image: (C, D, W, H) float32 in [-1, 1]; mask: (M, D, W, H) float32, `Layout.mask_values` off and on a label.

    Args:
        root: a folder in a published layout (`medddpm.data.layouts`).
        size: (H, W, D) of the model.
        scaling: "volume" scales the intensities of a volume as a whole, "slice" each index of its last axis by itself,
            as the published whole-head code does.
        layout: the folder's; found when left out.
        cache_gib: memory for prepared cases, in GiB; 0 keeps none.

    Raises:
        BadInput: the folder is not as it should be; on access, where a file is not (`check_folder` tells beforehand).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        size: Size = (128, 128, 128),
        scaling: Scaling = "volume",
        layout: Layout | None = None,
        cache_gib: float = 4.0,
    ) -> None:
        self.size = checked_size(size)
        self.scaling = scaling
        self.layout = layout or find_layout(root)
        self.cases = find_cases(root, self.layout)
        self._cache = ItemCache(cache_gib)

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        case = self.cases[index]
        index %= len(self.cases)
        item = self._cache.get(index)
        if item is None:
            item = self._prepare(case)
            self._cache.put(index, item)
        image, labels = item
        return image.clone(), one_hot(labels, self.layout)

    def names(self) -> list[str]:
        """The cases' names."""
        return [case.name for case in self.cases]

    def reference(self, index: int) -> nib.Nifti1Image:
        """The mask of a case, as its file has it."""
        return read_mask(self.cases[index].mask, self.layout.labels)

    def _prepare(self, case: Case) -> Prepared:
        mask = read_mask(case.mask, self.layout.labels)
        images = [read_image(path) for path in case.images]
        for path, image in zip(case.images, images, strict=True):
            same_grid(path, image, case.mask, mask)
        labels = _labels_on_grid(prepared(case.mask, mask, self.layout, images), mask, self.size, self.layout)
        channels = [to_grid(image, self.size, nearest=False, axes=self.layout.axes) for image in images]
        return to_tensor([scaled(channel, self.scaling) for channel in channels]), labels


def condition(
    mask_path: str | os.PathLike[str],
    layout: Layout,
    size: Size,
    image: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> Tensor:
    """The condition for sampling, (M, D, W, H) float32, from a mask file.

    A raw BraTS mask labels the tumour alone; the brain is then read off its case's images: `image` (one or more files),
    or else those beside the mask in the published layout (``seg/x_seg.nii.gz``, ``t1/x_t1.nii.gz`` …).

    Raises:
        BadInput: the mask or an image is not as it should be, or the mask is raw and no image is there.
    """
    mask = read_mask(mask_path, layout.labels)
    images = read_beside(mask_path, mask, layout, image) if layout == BRATS else []
    labels = prepared(mask_path, mask, layout, images)
    return one_hot(_labels_on_grid(labels, mask, checked_size(size), layout), layout)


def restore(
    sample: Tensor, size: Size, like: nib.Nifti1Image, layout: Layout | None = None
) -> list[npt.NDArray[np.float32]]:
    """A sample on the grid of the mask it was drawn for.

    Args:
        sample: (C, D, W, H) in [-1, 1], on the model's grid.
        size: (H, W, D) of the model.
        like: the mask, as read.
        layout: the mask's; left out, the published one with C image channels.

    Returns:
        A float32 array a channel, of the mask's shape and orientation, in [0, 1]; 0 outside the model's field of view.
    """
    if layout is None:
        layout = {known.image_channels: known for known in LAYOUTS}[len(sample)]
    arrays = sample.detach().float().cpu().clamp(-1, 1).add(1).div(2).numpy().transpose(0, 3, 2, 1)
    return [np.clip(from_grid(array, size, like, axes=layout.axes), 0, 1) for array in arrays]


def write_sample_volumes(sample: Tensor, path: Path, like: nib.Nifti1Image, layout: Layout, size: Size) -> list[Path]:
    """Writes a sample on the grid of the mask it was drawn for; more than one channel as ``NAME_t1.nii.gz`` and so on.

    Args:
        sample: (C, D, W, H) in [-1, 1].
        path: of the file, or of what the files' names begin with.
        like: the mask's image.
        layout: names the channels.
        size: (H, W, D) of the model.
    """
    ending = ".nii" if path.name.endswith(".nii") else ".nii.gz"
    stem = path.name.removesuffix(ending)
    names = [""] if len(sample) == 1 else [f"_{name}" for name in layout.image_folders]
    paths = [path.with_name(f"{stem}{name}{ending}") for name in names]
    for channel, file in zip(restore(sample, size, like, layout), paths, strict=True):
        write_volume(file, channel, like)
    return paths


def scaled(data: npt.NDArray[np.float32], scaling: Scaling = "volume") -> npt.NDArray[np.float32]:
    """Intensities (H, W, D) brought to [-1, 1] by their extremes, of the volume or of each index of the last axis.

    What is constant becomes -1, the background.
    """
    axes = None if scaling == "volume" else (0, 1)
    low = data.min(axis=axes, keepdims=True)
    span = data.max(axis=axes, keepdims=True) - low
    return np.asarray((data - low) / np.where(span > 0, span, 1) * 2 - 1, np.float32)


def to_tensor(channels: Sequence[npt.NDArray[np.float32]]) -> Tensor:
    """Arrays (H, W, D), one a channel, as a float32 tensor (C, D, W, H)."""
    return torch.from_numpy(np.stack([channel.transpose(2, 1, 0) for channel in channels])).float()


def checked_size(size: Sequence[int]) -> Size:
    """`size` as (H, W, D).

    Raises:
        BadInput: it is not three positive whole numbers.
    """
    if len(size) != 3 or any(int(n) != n or n < 2 for n in size):
        raise BadInput("size", f"{tuple(size)} is no volume's size", "give H, W and D, e.g. 128 128 128")
    height, width, depth = (int(n) for n in size)
    return height, width, depth


def _labels_on_grid(
    labels: npt.NDArray[np.uint8], mask: nib.Nifti1Image, size: Size, layout: Layout
) -> npt.NDArray[np.uint8]:
    image = nib.Nifti1Image(labels, mask.affine)
    return to_grid(image, size, nearest=True, axes=layout.axes).astype(np.uint8)
