"""Synthetic subjects as a data set: what `Phantom` and `Heads` have in common.

Both are made of the MNI152 template (Fonov et al. 2011): nilearn's ICBM152 2009 at 1 mm.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import nibabel as nib
import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from medddpm.data.grid import Size
from medddpm.data.layouts import HEAD, JOINT, Layout
from medddpm.data.masks import one_hot
from medddpm.data.tissues import CONTRASTS, Contrast
from medddpm.data.volumes import ItemCache, Prepared, checked_size, scaled, to_tensor
from medddpm.errors import BadInput

BACKGROUND, BRAIN, LESION = 0, 1, 2
CENTRE = np.array([0.0, -16.0, 6.0])  # the brain's, in MNI space, mm

ContrastOrAll = Contrast | Literal["all"]
"""A contrast, or "all" for T1, T2 and FLAIR of one subject as the channels of one image."""

_NAME = re.compile(r"(phantom(?! all)|head) (t1|t2|flair|all), seed (\d{1,18}), subject \d+")  # of `Synthetic.names`


class Synthetic(Dataset[tuple[Tensor, Tensor]], ABC):
    """Synthetic subjects, each of which depends only on the seed and its index.

    Args:
        count: the number of subjects.
        size: (H, W, D).
        contrast: one of `choices`.
        seed: each seed gives other subjects.
        cache_gib: memory for finished subjects, in GiB.
    """

    kind: ClassVar[str]
    """The first word of a subject's name."""
    choices: ClassVar[tuple[str, ...]] = CONTRASTS
    """The contrasts that subjects may have."""

    def __init__(
        self,
        count: int = 64,
        size: Size = (128, 128, 128),
        contrast: ContrastOrAll = "t1",
        seed: int = 0,
        cache_gib: float = 4.0,
    ) -> None:
        if count < 1 or seed < 0:
            raise BadInput(self.kind, f"{count} subjects of seed {seed}", "give a count from 1 and a seed from 0")
        self.size = checked_size(size)
        self.contrast, self.contrasts = contrast, contrasts_of(contrast, self.choices)
        self.layout = layout_of(contrast)
        self.seed = seed
        self.count = count
        self._cache = ItemCache(cache_gib)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = self._item(index)
        return image.clone(), one_hot(labels, self.layout)

    def _item(self, index: int) -> Prepared:
        index = range(self.count)[index]
        item = self._cache.get(index)
        if item is None:
            images, labels = self._subject(index)
            item = to_tensor([scaled(image) for image in images]), labels
            self._cache.put(index, item)
        return item

    @abstractmethod
    def _subject(self, index: int) -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.uint8]]:
        """Returns a subject's image under each of `contrasts`, and its labels, all (H, W, D)."""

    @abstractmethod
    def affine(self) -> npt.NDArray[np.float64]:
        """Returns voxel indices to millimetres."""

    def names(self) -> list[str]:
        """Returns the contrast, seed and index of each subject, which determine it."""
        return [f"{self.kind} {self.contrast}, seed {self.seed}, subject {index}" for index in range(self.count)]

    def digests(self) -> list[str]:
        """Returns the names, since they determine the subjects."""
        return self.names()

    def reference(self, index: int) -> nib.Nifti1Image:
        """Returns the mask of a subject, in MNI space."""
        return nib.Nifti1Image(self._item(index)[1], self.affine())


def mni152_maps() -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.float64]]:
    """Returns grey matter, white matter and the brain mask, each (197, 233, 189) in [0, 1], and their affine."""
    from nilearn import datasets

    loaders = (datasets.load_mni152_gm_template, datasets.load_mni152_wm_template, datasets.load_mni152_brain_mask)
    images = [load(resolution=1) for load in loaders]
    return [image.get_fdata(dtype=np.float32).clip(0, 1) for image in images], np.asarray(images[0].affine, np.float64)


class Origin(NamedTuple):
    """The synthetic data set that subjects come from; `kind` is "phantom" or "head"."""

    kind: str
    contrast: ContrastOrAll
    seed: int

    @property
    def key(self) -> str:
        """The option of `medddpm train` and the entry of a training's record that hold it."""
        return {"phantom": "phantom", "head": "heads"}[self.kind]


def origin_of(names: Sequence[str]) -> Origin | None:
    """Returns the data set in `Synthetic.names`, or None if the names are not of one synthetic data set."""
    matches = [_NAME.fullmatch(name) for name in names]
    origins = {match and Origin(match[1], match[2], int(match[3])) for match in matches}  # type: ignore[arg-type]
    return origins.pop() if len(origins) == 1 else None


def layout_of(contrast: ContrastOrAll) -> Layout:
    """Returns the layout of synthetic subjects under a contrast."""
    return JOINT if contrast == "all" else HEAD


def contrasts_of(contrast: ContrastOrAll, choices: Sequence[str] = CONTRASTS) -> tuple[Contrast, ...]:
    """Returns the contrast of each channel of an image.

    Raises:
        ValueError: it is none of `choices`.
    """
    if contrast not in choices:
        raise ValueError(f"contrast {contrast!r} is none of {', '.join(choices)}")
    return CONTRASTS if contrast == "all" else (contrast,)
