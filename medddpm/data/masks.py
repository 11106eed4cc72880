"""Turns label masks into the model's condition, and raw BraTS masks into the published, prepared form."""

from __future__ import annotations

import os
from collections.abc import Sequence

import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.data.grid import background
from medddpm.data.layouts import BRATS, Layout
from medddpm.data.nifti import EMPTY
from medddpm.errors import BadInput

Labels = npt.NDArray[np.uint8]

_BRAIN = 4


def one_hot(labels: Labels, layout: Layout) -> Tensor:
    """Converts (H, W, D) uint8 labels to the condition (M, D, W, H) float32 with `Layout.mask_values`, off and on."""
    off, on = layout.mask_values
    tensor = torch.from_numpy(np.ascontiguousarray(labels.transpose(2, 1, 0)))
    return torch.stack([torch.where(tensor == label, on, off) for label in layout.labels]).float()


def prepared(
    path: str | os.PathLike[str], mask: nib.Nifti1Image, layout: Layout, images: Sequence[nib.Nifti1Image]
) -> Labels:
    """Returns the labels (H, W, D) of a mask in the published preparation, on the mask's grid.

    Published BraTS masks label the tumour's sub-regions 1, 2, 3 and the rest of the brain 4. Raw ones label only the
    tumour: 1, 2, 4 (1, 2, 3 since 2023). A prepared mask labels nearly all of the images' foreground, a raw one little
    of it, and of a case without tumour none. In a raw mask, 4 becomes 3, and every foreground voxel of any modality
    that has no label becomes 4.

    Without images, a mask counts as prepared if label 4 is more than half of the labelled voxels, and these are at
    least a twentieth of the field of view.

    Args:
        path: the mask's file, for messages.
        mask: as returned by `medddpm.data.nifti.read_mask`.
        layout: its layout; a whole-head mask is returned as it is.
        images: the modalities available, on the mask's grid; one is enough to find the brain.

    Raises:
        BadInput: the mask is raw and there are no images, or they are not skull-stripped; it is raw and holds 3 and 4;
            or a whole-head mask is empty.
    """
    labels: Labels = np.asarray(mask.dataobj, np.uint8)
    if layout != BRATS:
        if not labels.any():
            raise BadInput(path, EMPTY, "replace it with a mask that has labels, or leave the case out")
        return labels
    labelled = labels > 0
    if not images:
        brain = labels == _BRAIN
        if 2 * brain.sum() > labelled.sum() and labelled.mean() >= 0.05:
            return labels
        remedy = "put the images of its case beside it (../t1 …), or name one of them (--image)"
        raise BadInput(path, "looks like a raw BraTS mask: it does not label the brain", remedy)
    arrays = [np.asarray(image.dataobj) for image in images]
    foreground = np.logical_or.reduce([array != background(array) for array in arrays])
    if 2 * (foreground & labelled).sum() >= foreground.sum():
        return labels
    if foreground.mean() > 0.9:
        problem = "a raw BraTS mask whose images are not skull-stripped: their foreground fills the field of view"
        raise BadInput(path, problem, "strip the skull, so that the background has one value")
    if (labels == 3).any() and (labels == 4).any():
        problem = "holds 3 and 4: label 4 is not the enhancing tumour here (since BraTS 2024 it is a resection cavity)"
        raise BadInput(path, problem, "relabel it, e.g. to 0, which makes it brain")
    labels = np.where(labels == 4, np.uint8(3), labels)
    labels[foreground & ~labelled] = _BRAIN
    return labels


def enhancing_label(mask: nib.Nifti1Image, labels: Labels) -> int | None:
    """Returns the label, 3 or 4, of the enhancing tumour in a raw BraTS mask whose preparation gave `labels`.

    None where the mask was prepared already, or has no enhancing tumour.
    """
    stored = np.asarray(mask.dataobj)
    values = np.unique(stored[labels == 3])
    return int(values[0]) if len(values) and not np.array_equal(stored, labels) else None
