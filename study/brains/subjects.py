"""Draws the heads that judge: images in one or more contrasts, masks, and the tissues of the anatomy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from medddpm.data.grid import Size
from medddpm.data.heads import Head, head_subject
from medddpm.data.synthetic import LESION
from medddpm.data.tissues import Contrast
from medddpm.data.volumes import scaled, to_tensor
from medddpm.quality.tissues import BACKGROUND, CSF, GREY, OEDEMA, TUMOUR, VENTRICLES, WHITE
from medddpm.runtime.processes import Handed, iterated

TRAINED, HELD_OUT = 0, 1
"""The seeds of heads that generative models are trained on, as in `medddpm train --heads`, and of those whose masks
they are sampled for."""

SEGMENTER, TEST, RANGES = 7001, 7002, 7003
"""The seeds of heads that the segmenter is trained on, of those it is tested on, and of those that make the ranges. No
model is trained or sampled on them."""

MOST_PROCESSES = 16  # that draw at once
_FLUID, _GREY, _DEEP, _WHITE, _OEDEMA = range(5)  # of `Head.shares`


class HeadName(NamedTuple):
    """A head: its seed and number, as `medddpm.data.heads.head_subject` takes them."""

    seed: int
    subject: int


@dataclass(frozen=True)
class Subjects:
    """Heads, or volumes that were sampled for their masks.

    Args:
        images: (N, C, D, W, H) float32 in [-1, 1], each contrast scaled by its extremes, as for training.
        masks: (N, D, W, H) uint8: 0 background, 1 brain, 2 lesion.
        tissues: (N, D, W, H) uint8 of `medddpm.quality.tissues.TISSUES`: those of the anatomy.
        names: of the heads.
        voxel: edge in mm.
    """

    images: Tensor
    masks: Tensor
    tissues: Tensor
    names: tuple[HeadName, ...]
    voxel: float

    def first(self, count: int) -> Subjects:
        """Returns the first `count` of them."""
        return Subjects(
            self.images[:count], self.masks[:count], self.tissues[:count], self.names[:count], self.voxel
        )  # fmt: skip


def subjects(
    count: int, size: Size, contrasts: Sequence[Contrast], seed: int, processes: int | None = None
) -> Subjects:
    """Draws the first `count` heads of a seed; see `of_names`."""
    return of_names([HeadName(seed, index) for index in range(count)], size, contrasts, processes)


def of_names(
    names: Sequence[HeadName], size: Size, contrasts: Sequence[Contrast], processes: int | None = None
) -> Subjects:
    """Draws heads, on all cores.

    Args:
        names: at least one.
        size: (H, W, D).
        contrasts: the channels, in order.
        processes: how many draw at once; by default one a core, up to 16.
    """
    head = head_subject(names[0].subject, size, names[0].seed)  # the other processes inherit the template
    count = min(processes or min(MOST_PROCESSES, len(os.sched_getaffinity(0))), len(names) - 1)
    rest: DataLoader[_Item] = DataLoader(
        Handed(_Heads(names[1:], size, contrasts)), batch_size=None, num_workers=count if count > 1 else 0
    )
    first = _item(head, contrasts)
    images, masks, tissues = wholes = [part.new_empty((len(names), *part.shape)) for part in first]
    for index, item in enumerate(itertools.chain([first], iterated(rest) if len(names) > 1 else ())):
        for whole, part in zip(wholes, item, strict=True):  # a list and its stack would take twice the memory
            whole[index] = part
    return Subjects(images, masks, tissues, tuple(names), float(head.affine[0, 0]))


def tissue_labels(head: Head) -> npt.NDArray[np.uint8]:
    """Returns the tissue that has most of each voxel, (H, W, D) of `TISSUES`.

    Tumour and background are the mask's, so that masks and tissues agree. Hyperintensities are oedema.
    """
    shares = head.shares
    ventricles = np.minimum(head.ventricles, shares[_FLUID])
    mixture = np.stack(
        [shares[_FLUID] - ventricles, ventricles, shares[_GREY] + shares[_DEEP], shares[_WHITE], shares[_OEDEMA]]
    )
    most = np.array([CSF, VENTRICLES, GREY, WHITE, OEDEMA], np.uint8)[mixture.argmax(axis=0)]
    return np.where(head.labels == LESION, TUMOUR, np.where(head.labels > 0, most, BACKGROUND)).astype(np.uint8)


_Item = tuple[Tensor, Tensor, Tensor]  # image, mask, tissues


class _Heads(Dataset[_Item]):
    def __init__(self, names: Sequence[HeadName], size: Size, contrasts: Sequence[Contrast]) -> None:
        self._names, self._size, self._contrasts = names, size, contrasts

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, place: int) -> _Item:
        seed, subject = self._names[place]
        return _item(head_subject(subject, self._size, seed), self._contrasts)


def _item(head: Head, contrasts: Sequence[Contrast]) -> _Item:
    image = to_tensor([scaled(head.images[contrast]) for contrast in contrasts])
    mask, tissues = (
        torch.from_numpy(np.ascontiguousarray(part.transpose(2, 1, 0))) for part in (head.labels, tissue_labels(head))
    )
    return image, mask, tissues
