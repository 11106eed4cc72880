"""Checks what a volume's header claims, whatever its format, before the voxels are read."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medddpm.errors import BadInput

MAX_VOXELS = 512**3
"""The largest volume that is read: half a GiB as float32, more than any head scan."""

MAX_BYTES = 4 * MAX_VOXELS
"""The most that its voxels take in the file, unpacked: to unpack twice as much, as float64, takes more than 10 s."""

LARGEST = 1e30
"""The largest intensity: differences and squares of larger ones are not float32 numbers."""

TRAILING_BYTES = 1 << 20  # may follow the voxels; a longer stream is not an image
AGAIN = "copy or download it again"

_VALID = "copy a valid one from the volume that it was made of"
_DEFLATE_RATIO = 1032
"""Deflate cannot expand a byte into more than this many (zlib.net, "Maximum compression factor")."""


def check_shape(path: Path, shape: tuple[int, ...], dimensions: int = 3) -> None:
    """Raises BadInput unless `shape`, without trailing ones, has `dimensions` axes (3 or 4) and is not too large."""
    if not shape or min(shape) < 1:
        raise BadInput(path, f"its header claims the impossible shape {by(shape)}", AGAIN)
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) == 4 and shape[0] == 1 and dimensions == 3:
        problem = f"4-D ({by(shape)}): an axis of one channel lies before those of space"
        raise BadInput(path, problem, "save it without that axis (array[0]), with the affine of the original volume")
    if len(shape) != dimensions:
        problem = f"{len(shape)}-D ({by(shape)}) where a {dimensions}-D volume is wanted"
        raise BadInput(path, problem, "give one volume a file" if dimensions == 3 else "give all channels in one file")
    if min(shape[:3]) == 1:
        raise BadInput(path, f"a single slice ({by(shape)}) where a 3-D volume is wanted", "stack its slices")
    if math.prod(shape) > MAX_VOXELS:
        problem = f"its header claims {by(shape)} voxels, above the limit of {MAX_VOXELS}"
        raise BadInput(path, problem, "crop or resample it if it truly is that large")


def check_kind(path: Path, kind: np.dtype[np.generic]) -> None:
    """Raises BadInput unless voxels of `kind` are real numbers."""
    if kind.kind not in "iuf":
        sort = "complex" if kind.kind == "c" else "colour"
        raise BadInput(path, f"{sort} voxels ({kind})", "store one real number a voxel (e.g. the magnitude)")


def claimed_bytes(
    path: Path, offset: int, shape: tuple[int, ...], kind: np.dtype[np.generic], size: int, packed: bool
) -> int:
    """Returns the bytes, unpacked, from the file's beginning to the end of its voxels.

    Args:
        path: the file, for messages.
        offset: the bytes before the voxels.
        shape, kind: the voxels'.
        size: the file's, in bytes, as far as it may hold what is claimed.
        packed: by deflate.

    Raises:
        BadInput: `size` bytes cannot hold them, or they are above `MAX_BYTES`.
    """
    voxels = math.prod(shape) * kind.itemsize
    if voxels > MAX_BYTES:
        problem = f"its header claims {voxels} bytes of voxels ({kind}), above {MAX_BYTES}"
        raise BadInput(path, problem, "store them as float32")
    claimed = offset + voxels
    if claimed > size * (_DEFLATE_RATIO if packed else 1):
        problem = f"its header claims {claimed} bytes, more than the {size} of this file can hold"
        raise BadInput(path, problem, AGAIN)
    return claimed


def check_affine(path: Path, affine: npt.NDArray[np.float64]) -> None:
    """Raises BadInput unless the axes of `affine` (4, 4) span space."""
    if not np.isfinite(affine).all() or np.abs(affine).max() > LARGEST:
        raise BadInput(path, "its affine holds NaN, infinite or absurd numbers", _VALID)
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if lengths.min() <= 0 or abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-6:
        raise BadInput(path, "its affine is singular: its axes do not span space", _VALID)


def by(shape: Collection[int]) -> str:
    """Returns a shape as it is printed: ``240x240x155``."""
    return "x".join(map(str, shape)) or "()"
