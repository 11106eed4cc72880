"""Axial, coronal and sagittal slices of a volume."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def three_slices(volume: Array, at: Sequence[int] | None = None) -> list[Array]:
    """Axial, coronal and sagittal slices of a volume, rotated for display.

    Args:
        volume: (H, W, D), axes RAS.
        at: the voxel in which they meet; the middle by default.
    """
    h, w, d = at if at is not None else [n // 2 for n in volume.shape]
    return [np.rot90(plane) for plane in (volume[:, :, d], volume[:, w, :], volume[h, :, :])]


def where_most(mask: npt.NDArray[np.bool_]) -> list[int]:
    """The voxel whose three slices show most of `mask` (H, W, D)."""
    axes = range(mask.ndim)
    return [int(mask.sum(axis=tuple(other for other in axes if other != axis)).argmax()) for axis in axes]
