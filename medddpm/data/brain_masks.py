"""Brings a mask of any voxel size, also a BraTS one, to a model of synthetic subjects as its own masks were.

Such a model has seen brains in millimetres, at one voxel size, so a brain that fills more or less of the grid than its
size would is none that it knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
import numpy.typing as npt
from nibabel.affines import apply_affine, voxel_sizes

from medddpm.data.cases import Case
from medddpm.data.grid import Affine, Size, cubic_affine, fits, to_grid
from medddpm.data.heads import Heads
from medddpm.data.layouts import BRATS, HEAD
from medddpm.data.nifti import read_mask
from medddpm.data.phantom import Phantom
from medddpm.data.readers import cases_of
from medddpm.data.synthetic import BRAIN, LESION, Synthetic
from medddpm.data.volumes import prepared_labels
from medddpm.errors import BadInput
from medddpm.fast.reports import log

SYNTHETIC: Mapping[str, type[Synthetic]] = {"phantom": Phantom, "heads": Heads}
"""The synthetic data sets, by their entry in a training's record."""

OF_BRATS = np.array([0, LESION, BRAIN, LESION, BRAIN], np.uint8)
"""The label of a synthetic subject for each of a prepared BraTS mask: there a lesion is tumour without oedema."""

CREDIBLE_ML = (300.0, 3000.0)
"""Volumes of a human brain, newborns' and all, with a margin: a choice. Beyond them a file's voxel size is not to be
trusted, or what is labelled is no whole brain."""


class BrainMask(NamedTuple):
    """A mask on the model's grid.

    Args:
        labels: (H, W, D) uint8 on the model's grid.
        like: the mask as its file has it, on whose grid samples are written.
        affine: of the model's grid, mm; None where `medddpm.data.grid.to_grid` chooses it.
    """

    labels: npt.NDArray[np.uint8]
    like: nib.Nifti1Image
    affine: Affine | None


def subjects_of(training: Mapping[str, Any], size: Size) -> Synthetic | None:
    """Returns the synthetic data set that a released model's record of its training names, or None."""
    for key, kind in SYNTHETIC.items():
        if key in training:
            return kind(1, size, training[key]["contrast"])
    return None


def read_brain_mask(
    path: str | os.PathLike[str], subjects: Synthetic, images: Sequence[str | os.PathLike[str]] | None = None
) -> BrainMask:
    """Reads a mask for a model of `subjects`.

    The brain's middle comes to the grid's, at the model's voxel size, or at the smallest larger one with which all
    that is labelled lies on the grid. A mask on the grid of `subjects` stays as it is.

    Args:
        path: labels 1 brain and 2 tumour, or those of a BraTS mask, prepared or raw.
        subjects: the data set that the model was trained on.
        images: of the case, for a raw BraTS mask that does not lie beside them.

    Raises:
        BadInput: the mask or an image is not as it should be, a raw BraTS mask has no image, or no brain is labelled.
    """
    like, labels = _read(Path(path), images)
    if not (labels == BRAIN).any():
        problem = "labels no brain: a tumour's mask alone does not say where the brain is"
        raise BadInput(path, problem, "label the brain 1 and the tumour 2")
    image = nib.Nifti1Image(labels, like.affine)
    affine = _affine(path, image, subjects)
    on_grid = to_grid(image, subjects.size, nearest=True, axes=HEAD.axes, affine=affine)
    return BrainMask(on_grid.astype(np.uint8), like, affine)


def _read(path: Path, images: Sequence[str | os.PathLike[str]] | None) -> tuple[nib.Nifti1Image, npt.NDArray[np.uint8]]:
    """Returns a mask as its file has it, and its labels, 1 brain and 2 tumour, (H, W, D)."""
    case, layout = next(cases_of(path), (Case(path.name, (), path), BRATS if images else None))
    if layout is not None:
        like, labels = prepared_labels(case, layout, images)
    else:  # a mask by itself is told by its labels: whole heads' are the first two of BraTS's
        like = read_mask(path, BRATS.labels)
        layout = BRATS if int(np.asarray(like.dataobj).max()) > max(HEAD.labels) else HEAD
        labels = case.prepared(like, layout, [])
    return like, OF_BRATS[labels] if layout == BRATS else labels


def _affine(path: str | os.PathLike[str], image: nib.Nifti1Image, subjects: Synthetic) -> Affine | None:
    """Returns the affine of the model's grid about the brain in a mask; None for the mask's own field of view."""
    theirs = subjects.affine()
    if fits(image, subjects.size, HEAD.axes) and np.allclose(voxel_sizes(image.affine), voxel_sizes(theirs), rtol=0.01):
        return None
    labels = np.asarray(image.dataobj)
    ml = float(np.count_nonzero(labels) * np.prod(voxel_sizes(image.affine)) / 1000)
    if not CREDIBLE_ML[0] <= ml <= CREDIBLE_ML[1]:
        what = f"{path}: {ml:.3g} ml are labelled, by its voxel size, and a brain has about 1300"
        log.warning(f"{what}; the mask is taken to fill the model's field of view as it fills its own")
        return None
    points = apply_affine(image.affine, np.argwhere(labels))
    half = np.abs(image.affine[:3, :3]).sum(1) / 2
    low, high = points.min(0) - half, points.max(0) + half
    return cubic_affine((low + high) / 2, np.maximum(high - low, voxel_sizes(theirs) * subjects.size), subjects.size)
