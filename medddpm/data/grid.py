"""Resamples volumes of any shape, voxel size and orientation to the model's grid and back, with nibabel."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import numpy.typing as npt
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform

Size = tuple[int, int, int]
"""(H, W, D), voxels along the array's axes."""


Affine = npt.NDArray[np.float64]
"""(4, 4): voxel indices to millimetres."""


def to_grid(
    img: nib.Nifti1Image, size: Size, nearest: bool, axes: str = "RAS", affine: Affine | None = None
) -> npt.NDArray[np.float32]:
    """Brings a volume onto the model's grid.

    If a volume has the model's shape once its axes are ordered and flipped to `axes`, its voxels stay as they are: the
    published data were prepared to that shape. Any other volume is resampled onto cubic voxels along `axes`, centred on
    the field of view and just large enough to cover it, so anatomy is neither stretched nor cropped.

    Args:
        img: the volume (any shape, orientation and affine).
        size: (H, W, D) of the model.
        nearest: nearest neighbour for labels, else trilinear for intensities.
        axes: where the array axes point, a letter each (R or L, A or P, S or I).
        affine: of a grid to resample onto instead.

    Returns:
        float32 (H, W, D); outside the field of view 0 for labels, the `background` for intensities.
    """
    if affine is None and fits(img, size, axes):
        turn = ornt_transform(io_orientation(img.affine), axcodes2ornt(axes))
        return np.ascontiguousarray(apply_orientation(np.asanyarray(img.dataobj), turn), np.float32)
    data = np.asarray(img.dataobj, np.float32)
    fill = 0.0 if nearest else background(data)
    source = nib.Nifti1Image(data, img.affine)
    return _resample(source, size, grid_affine(img, size, axes) if affine is None else affine, nearest, fill)


def from_grid(
    data: npt.NDArray[np.floating],
    size: Size,
    like: nib.Nifti1Image,
    nearest: bool = False,
    axes: str = "RAS",
    affine: Affine | None = None,
) -> npt.NDArray[np.float32]:
    """Puts an array of the model's grid back on the grid of `like`; undoes `to_grid`.

    Args:
        data: (H, W, D), on the grid that `to_grid` chose for `like`.
        size: (H, W, D).
        like: the volume whose shape, orientation and affine the result gets.
        nearest: nearest neighbour for labels, else trilinear.
        axes, affine: as in `to_grid`.

    Returns:
        float32, in the shape of `like`; 0 outside the model's field of view.
    """
    if affine is None and fits(like, size, axes):
        turn = ornt_transform(axcodes2ornt(axes), io_orientation(like.affine))
        return np.ascontiguousarray(apply_orientation(data, turn), np.float32)
    source = nib.Nifti1Image(np.asarray(data, np.float32), grid_affine(like, size, axes) if affine is None else affine)
    return _resample(source, like.shape, like.affine, nearest, 0.0)


def background(data: npt.NDArray[np.floating]) -> float:
    """Returns the commonest value on the six faces of (H, W, D) intensities, if a tenth of the faces have it.

    Around a skull-stripped brain that is any one value: 0 in raw BraTS, -1 in prepared, above the darkest tissue in a
    z-scored volume. Where noise fills the faces, the background is the volume's minimum.
    """
    faces = np.concatenate([np.take(data, (0, -1), axis).ravel() for axis in range(3)])
    values, counts = np.unique(faces, return_counts=True)
    return float(values[counts.argmax()] if 10 * counts.max() >= faces.size else data.min())


def grid_affine(img: nib.Nifti1Image, size: Size, axes: str = "RAS") -> Affine:
    """The affine (mm) of the model's grid over the field of view of `img`: cubic voxels, axes along `axes`."""
    if fits(img, size, axes):
        turn = ornt_transform(io_orientation(img.affine), axcodes2ornt(axes))
        return np.asarray(img.affine @ nib.orientations.inv_ornt_aff(turn, img.shape), np.float64)
    edges = np.array(np.meshgrid(*[(-0.5, n - 0.5) for n in img.shape], indexing="ij")).reshape(3, -1)
    corners = img.affine[:3, :3] @ edges + img.affine[:3, 3:]
    low, high = corners.min(axis=1), corners.max(axis=1)
    return cubic_affine((low + high) / 2, high - low, size, axes)


def cubic_affine(
    centre: npt.NDArray[np.float64], extent: npt.NDArray[np.float64], size: Size, axes: str = "RAS"
) -> Affine:
    """The affine (mm) of the grid of `size` cubic voxels, as small as covers `extent` about `centre`."""
    world_axes, signs = axcodes2ornt(axes).T
    order = world_axes.astype(int)
    voxel = float(np.max(extent[order] / np.array(size)))
    affine = np.eye(4)
    affine[:3, :3] = 0
    affine[order, range(3)] = signs * voxel
    affine[:3, 3] = centre - affine[:3, :3] @ ((np.array(size) - 1) / 2)
    return affine


def fits(img: nib.Nifti1Image, size: Size, axes: str) -> bool:
    """Returns whether a volume has the model's shape once its axes are ordered and flipped to `axes`."""
    turn = ornt_transform(io_orientation(img.affine), axcodes2ornt(axes))
    shape = np.empty(3, int)
    shape[turn[:, 0].astype(int)] = img.shape
    return tuple(shape) == tuple(size)


def _resample(
    source: nib.Nifti1Image, shape: tuple[int, ...], affine: npt.NDArray[np.float64], nearest: bool, fill: float
) -> npt.NDArray[np.float32]:
    from nibabel.processing import resample_from_to  # imports scipy

    # "grid-constant" keeps the outer half of the border voxels, which "constant" would cut off.
    order = 0 if nearest else 1
    moved = resample_from_to(source, (shape, affine), order=order, mode="grid-constant", cval=fill)
    return np.ascontiguousarray(moved.dataobj, np.float32)
