"""The three planes in which a volume is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def three_slices(volume: Array, at: Sequence[int] | None = None) -> list[Array]:
    """Axial, coronal and sagittal slices of (H, W, D), axes RAS, turned as they are read.

    Args:
        volume: (H, W, D).
        at: the voxel they meet in; default the middle.
    """
    h, w, d = at if at is not None else [n // 2 for n in volume.shape]
    return [np.rot90(plane) for plane in (volume[:, :, d], volume[:, w, :], volume[h, :, :])]


def where_most(mask: npt.NDArray[np.bool_]) -> list[int]:
    """The voxel whose three planes show most of `mask` (H, W, D)."""
    axes = range(mask.ndim)
    return [int(mask.sum(axis=tuple(other for other in axes if other != axis)).argmax()) for axis in axes]
