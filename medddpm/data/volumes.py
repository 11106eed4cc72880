"""Data sets in folders; volumes to the model and samples back, prepared as Med-DDPM does (Dorjsembe et al. 2024).

Files and arrays are (H, W, D). The model's tensors are (C, D, W, H): the first and last spatial axes are swapped on the
way in and swapped back on the way out.
"""

from __future__ import annotations

import copy
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

from medddpm.data.cases import Case
from medddpm.data.grid import Size, from_grid, to_grid
from medddpm.data.layouts import BRATS, LAYOUTS, Layout
from medddpm.data.masks import one_hot
from medddpm.data.nifti import check_name, read_image, same_grid, split_name, write_volume
from medddpm.data.readers import case_of, read_folder
from medddpm.errors import BadArgument, BadInput
from medddpm.fast.reports import log


class Volumes(Protocol):
    """The data set that training needs, such as `VolumeFolder`, `Heads` and `Phantom`."""

    size: Size
    layout: Layout

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...

    def names(self) -> list[str]:
        """Returns a name for each item, equal in every run on the same data."""
        ...

    def digests(self) -> list[str]:
        """Returns a digest for each item, which changes with its content and preparation."""
        ...

    def reference(self, index: int) -> nib.Nifti1Image:
        """Returns an item's mask as a NIfTI image; its sample is written on that grid."""
        ...


Scaling = Literal["volume", "slice"]
Prepared = tuple[Tensor, npt.NDArray[np.uint8]]
"""A case in memory: image (C, D, W, H) float32, labels (H, W, D)."""


class ItemCache:
    """A cache of prepared cases in memory, up to a limit; further cases are prepared anew each time.

    The first cases stay: an epoch visits every case once, so evicting the oldest would never score a hit. Each worker
    process of a data loader has its own cache.

    Args:
        gib: the limit, in GiB.
    """

    def __init__(self, gib: float) -> None:
        self._free = int(gib * 2**30)
        self._items: dict[int, Prepared] = {}

    def get(self, index: int) -> Prepared | None:
        """Returns the case, or None if the cache lacks it."""
        return self._items.get(index)

    def put(self, index: int, item: Prepared) -> None:
        """Adds a case if there is room."""
        size = item[0].nbytes + item[1].nbytes
        if index not in self._items and size <= self._free:
            self._free -= size
            self._items[index] = item


class VolumeFolder(Dataset[tuple[Tensor, Tensor]]):
    """The cases of a folder on the model's grid: item i is (image, mask).

    image: (C, D, W, H) float32 in [-1, 1]; mask: (M, D, W, H) float32, `Layout.mask_values` off and on a label.

    Args:
        root: a data folder, or a CSV of pairs (`medddpm.data.readers`).
        size: (H, W, D) of the model.
        scaling: "volume" scales the intensities of a volume as a whole, "slice" each index of its last axis by itself,
            as the published whole-head code does.
        cache_gib: memory for prepared cases, in GiB; 0 keeps none.

    Attributes:
        layout: the meaning of its channels and labels.
        cases: in order.
        notes: remarks on the folder, in a line (`medddpm.data.cases.Contents.summary`).

    Raises:
        BadInput: the folder, or on access a file, is not as it should be (`check_folder` finds this beforehand).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        size: Size = (128, 128, 128),
        scaling: Scaling = "volume",
        cache_gib: float = 4.0,
    ) -> None:
        self.size = checked_size(size)
        self.scaling = scaling
        contents = read_folder(root)
        self.layout, self.cases, self.notes = contents.layout, contents.complete(), contents.summary()
        self._gib = cache_gib
        self._cache = ItemCache(cache_gib)

    def part(self, indices: Sequence[int]) -> VolumeFolder:
        """Returns a data set of those of its cases."""
        part = copy.copy(self)
        part.cases, part._cache = [self.cases[index] for index in indices], ItemCache(self._gib)
        return part

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
        """Returns the cases' names."""
        return [case.name for case in self.cases]

    def digests(self) -> list[str]:
        """Returns the scaling and a digest of each case's files."""
        return [f"{self.scaling} {case.digest()}" for case in self.cases]

    def reference(self, index: int) -> nib.Nifti1Image:
        """Returns the mask of a case, on the grid of its file."""
        return self.cases[index].read_labels(self.layout)

    def _prepare(self, case: Case) -> Prepared:
        mask = case.read_labels(self.layout)
        images = [image for path in case.files() for image in _on_grid_of(case, mask, path)]
        labels = labels_on_grid(case.prepared(mask, self.layout, images), mask, self.size, self.layout)
        channels = [to_grid(image, self.size, nearest=False, axes=self.layout.axes) for image in images]
        return to_tensor([scaled(channel, self.scaling) for channel in channels]), labels


def condition(
    mask_path: str | os.PathLike[str],
    layout: Layout,
    size: Size,
    image: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> Tensor:
    """Returns the condition for sampling, (M, D, W, H) float32, from a mask file.

    A raw BraTS mask labels only the tumour; the brain then comes from its case's images: `image` (one or more files),
    or those of the data folder that the mask lies in.

    Raises:
        BadInput: the mask or an image is not as it should be, or the mask is raw and has no image.
    """
    case = mask_case(mask_path, layout)
    mask, labels = prepared_labels(case, layout, image)
    return one_hot(labels_on_grid(labels, mask, checked_size(size), layout), layout)


def prepared_labels(
    case: Case, layout: Layout, image: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
) -> tuple[nib.Nifti1Image, npt.NDArray[np.uint8]]:
    """Returns a case's mask as its file has it, and its labels (H, W, D) in the published preparation.

    Args:
        case: as `mask_case` returns it.
        layout: its layout.
        image: as for `condition`.

    Raises:
        BadInput: as `condition`.
    """
    mask = case.read_labels(layout)
    images: list[nib.Nifti1Image] = []
    if layout == BRATS and image is None:
        if case.by_part and case.images:
            paired = ", ".join(path.name for path in case.files())
            how = f"by a part of their names, or by their folder ({paired})"
            log.warning(f"{case.mask}: its images are paired {how}; --image names others")
        images = [one for path in case.files() for one in _on_grid_of(case, mask, path)]
    elif layout == BRATS and image is not None:
        named = [image] if isinstance(image, (str, os.PathLike)) else image
        images = [_same_grid(Path(path), read_image(path), case.mask, mask) for path in named]
    return mask, case.prepared(mask, layout, images)


def mask_case(mask: str | os.PathLike[str], layout: Layout) -> Case:
    """Returns the case of a mask from the data folder that it lies in; a mask by itself is a case without images.

    Raises:
        BadInput: as `medddpm.data.readers.case_of`.
    """
    return case_of(mask, layout) or Case(Path(mask).name, (), Path(mask))


def _on_grid_of(case: Case, mask: nib.Nifti1Image, path: Path) -> list[nib.Nifti1Image]:
    """Reads the images of one of a case's files and checks that they lie on its mask's grid."""
    return [_same_grid(path, image, case.mask, mask) for image in case.read_images(path)]


def _same_grid(path: Path, image: nib.Nifti1Image, mask_path: Path, mask: nib.Nifti1Image) -> nib.Nifti1Image:
    same_grid(path, image, mask_path, mask)
    return image


def to_mask_grid(
    sample: Tensor,
    size: Size,
    like: nib.Nifti1Image,
    layout: Layout | None = None,
    affine: npt.NDArray[np.float64] | None = None,
) -> list[npt.NDArray[np.float32]]:
    """Resamples a sample to the grid of the mask it was drawn for.

    Args:
        sample: (C, D, W, H) in [-1, 1], on the model's grid.
        size: (H, W, D) of the model.
        like: the mask, as read.
        layout: the mask's; by default the one with C image channels.
        affine: of the model's grid; by default as `medddpm.data.grid.to_grid` chose it for the mask.

    Returns:
        For each channel a float32 array in the mask's shape and orientation, in [0, 1]; 0 outside the model's field of
        view.

    Raises:
        BadArgument: the sample is not on the grid of `size`, or there is no layout and none has that many channels.
    """
    if sample.shape[1:] != tuple(reversed(size)):
        spatial = ", ".join(map(str, reversed(size)))
        remedy = f"give a single volume of shape (channels, {spatial}), or the size (H, W, D) that it was made for"
        raise BadArgument("sample", f"it is {tuple(sample.shape)}", remedy)
    if layout is None:
        fits = [known for known in LAYOUTS if known.image_channels == len(sample)]
        if not fits:
            raise BadArgument("sample", f"no layout has {len(sample)} image channels", "give the layout it belongs to")
        layout = fits[0]
    arrays = sample.detach().float().cpu().clamp(-1, 1).add(1).div(2).numpy().transpose(0, 3, 2, 1)
    return [np.clip(from_grid(array, size, like, axes=layout.axes, affine=affine), 0, 1) for array in arrays]


def write_sample_volumes(
    sample: Tensor,
    path: str | os.PathLike[str],
    like: nib.Nifti1Image,
    layout: Layout,
    size: Size,
    note: str = "",
    affine: npt.NDArray[np.float64] | None = None,
) -> list[Path]:
    """Writes a sample on the grid of the mask it was drawn for; several channels as ``NAME_t1.nii.gz`` and so on.

    Args:
        sample: (C, D, W, H) in [-1, 1].
        path: the file, .nii or .nii.gz; several channels insert their names into it.
        like: the mask's image, as `VolumeFolder.reference` or `medddpm.data.nifti.read_mask` returns it.
        layout: names the channels.
        size: (H, W, D) of the model.
        note: is left in each file, as by `write_volume`.
        affine: as for `to_mask_grid`.

    Returns:
        the files.

    Raises:
        BadInput: the name is none of NIfTI, the file cannot be written, or the sample is not finite.
        BadArgument: the sample has other channels than the layout, or is not on the grid of `size`.
    """
    path = Path(path)
    check_name(path)
    paths = channel_files(path, layout)
    if len(sample) != len(paths):
        problem = f"it is {tuple(sample.shape)}, and the {layout.name} layout has {len(paths)} image channels"
        raise BadArgument("sample", problem, "give (channels, D, W, H), one volume at a time, or another layout")
    if not sample.isfinite().all():
        raise BadInput(path, "not written: the sample is not finite", "use a checkpoint from before training diverged")
    for channel, file in zip(to_mask_grid(sample, size, like, layout, affine), paths, strict=True):
        write_volume(file, channel, like, note)
    return paths


def channel_files(path: Path, layout: Layout) -> list[Path]:
    """Returns the files of a sample: `path`, or ``NAME_t1.nii.gz`` and so on if the layout has several channels."""
    if layout.image_channels == 1:
        return [path]
    stem, ending = split_name(path)
    return [path.with_name(f"{stem}_{name}{ending}") for name in layout.image_folders]


def scaled(data: npt.NDArray[np.float32], scaling: Scaling = "volume") -> npt.NDArray[np.float32]:
    """Scales intensities (H, W, D) to [-1, 1] by the extremes of the volume, or of each index of the last axis.

    Constant ones become -1, the background.
    """
    axes = None if scaling == "volume" else (0, 1)
    low = data.min(axis=axes, keepdims=True)
    span = data.max(axis=axes, keepdims=True) - low
    return np.asarray((data - low) / np.where(span > 0, span, 1) * 2 - 1, np.float32)


def to_tensor(channels: Sequence[npt.NDArray[np.float32]]) -> Tensor:
    """Stacks one array (H, W, D) a channel into a float32 tensor (C, D, W, H)."""
    return torch.from_numpy(np.stack([channel.transpose(2, 1, 0) for channel in channels])).float()


def checked_size(size: Sequence[int]) -> Size:
    """Returns `size` as (H, W, D).

    Raises:
        BadInput: it is not three whole numbers of at least 2.
    """
    try:
        height, width, depth = map(int, size)
        fits = min(height, width, depth) >= 2 and (height, width, depth) == tuple(size)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise BadInput("size", f"{size!r} is no volume's size", "give H, W and D, e.g. 128 128 128")
    return height, width, depth


def labels_on_grid(
    labels: npt.NDArray[np.uint8], mask: nib.Nifti1Image, size: Size, layout: Layout
) -> npt.NDArray[np.uint8]:
    """Brings a mask's labels (H, W, D) onto the model's grid."""
    image = nib.Nifti1Image(labels, mask.affine)
    return to_grid(image, size, nearest=True, axes=layout.axes).astype(np.uint8)
