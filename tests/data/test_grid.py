from __future__ import annotations

import itertools
from collections.abc import Callable

import nibabel as nib
import numpy as np
import pytest
from nibabel.affines import from_matvec, voxel_sizes
from nibabel.orientations import aff2axcodes, apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform
from scipy.spatial.transform import Rotation

from medddpm.data.grid import background, from_grid, grid_affine, to_grid

AXES = ["RAS", "LPS", "ASR", "SPL", "IRP", "PIL"]
RAS_AFFINE = from_matvec(np.diag([1.5, 2.0, 3.0]), [-10, -20, -30])


def turned(image: nib.Nifti1Image, axes: str) -> nib.Nifti1Image:
    """The same image in the same place, its array stored along `axes`."""
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(axes))
    data = apply_orientation(np.asarray(image.dataobj), turn)
    return nib.Nifti1Image(data, image.affine @ inv_ornt_aff(turn, image.shape))


def ramp(shape: tuple[int, ...], affine: np.ndarray) -> nib.Nifti1Image:
    """A volume whose value is a linear function of the place in millimetres."""
    return nib.Nifti1Image((place(shape, affine) @ [0.03, 0.02, -0.01]).astype(np.float32), affine)


def place(shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    index = np.moveaxis(np.indices(shape), 0, -1)
    return index @ affine[:3, :3].T + affine[:3, 3]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("order", ["RAS", "LPS"])
def test_volume_of_the_models_shape_is_only_turned(axes: str, order: str) -> None:
    size = (6, 7, 9)
    data = np.random.default_rng(0).normal(size=size).astype(np.float32)
    upright = nib.Nifti1Image(data, RAS_AFFINE)
    image = turned(upright, axes)
    grid = to_grid(image, size, nearest=False, axes=order)
    np.testing.assert_array_equal(grid, np.asarray(turned(upright, order).dataobj))
    back = from_grid(grid, size, image, axes=order)
    np.testing.assert_array_equal(back, np.asarray(image.dataobj))
    np.testing.assert_allclose(grid_affine(image, size, order), turned(upright, order).affine, atol=1e-9)


@pytest.mark.parametrize("axes", AXES)
def test_stored_orientation_does_not_matter(axes: str) -> None:
    upright = ramp((12, 15, 10), RAS_AFFINE)
    expected = to_grid(upright, (9, 8, 11), nearest=False)
    np.testing.assert_allclose(to_grid(turned(upright, axes), (9, 8, 11), nearest=False), expected, atol=1e-5)


@pytest.mark.parametrize("axes", ["RAS", "LPS"])
def test_axes_only_flip_the_resampled_grid(axes: str) -> None:
    image = ramp((12, 15, 10), RAS_AFFINE)
    grid = nib.Nifti1Image(to_grid(image, (9, 8, 11), nearest=False, axes=axes), grid_affine(image, (9, 8, 11), axes))
    assert "".join(aff2axcodes(grid.affine)) == axes
    expected = to_grid(image, (9, 8, 11), nearest=False)
    np.testing.assert_allclose(np.asarray(nib.as_closest_canonical(grid).dataobj), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(9, 8, 11), (16, 16, 16), (33, 7, 20)])
def test_grid_covers_the_field_of_view_with_cubes_about_its_centre(size: tuple[int, int, int]) -> None:
    image = turned(ramp((12, 15, 10), RAS_AFFINE), "SPL")
    affine = grid_affine(image, size)
    extent = np.array([12, 15, 10]) * [1.5, 2.0, 3.0]
    np.testing.assert_allclose(voxel_sizes(affine), (extent / size).max())
    middle_of_grid = affine[:3] @ [*(np.array(size) - 1) / 2, 1]
    middle_of_image = RAS_AFFINE[:3] @ [*(np.array([12, 15, 10]) - 1) / 2, 1]
    np.testing.assert_allclose(middle_of_grid, middle_of_image)


OBLIQUE = from_matvec(
    Rotation.from_euler("xyz", [12, -20, 30], degrees=True).as_matrix() @ np.diag([1, 1.2, 2.5]), [5, 6, 7]
)
FIELDS = {
    "anisotropic": ((20, 17, 9), np.diag([1.0, 1.1, 3.0, 1.0])),
    "oblique": ((20, 17, 13), OBLIQUE),
    "oblique, stored PIL": ((17, 13, 20), OBLIQUE[:, [1, 2, 0, 3]] @ from_matvec(np.diag([-1, -1, 1]), [16, 12, 0])),
    "odd, mirrored": ((21, 15, 11), np.diag([-1.3, 0.9, -2.1, 1.0])),
}


@pytest.mark.parametrize(("shape", "affine"), FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("size", [(24, 25, 27), (16, 40, 32)])
def test_intensities_keep_their_place_there_and_back(
    shape: tuple[int, int, int], affine: np.ndarray, size: tuple[int, int, int]
) -> None:
    image = ramp(shape, affine)
    grid = to_grid(image, size, nearest=False)
    where = place(size, grid_affine(image, size)) @ np.linalg.inv(affine[:3, :3]).T
    index = where - np.linalg.inv(affine[:3, :3]) @ affine[:3, 3]
    inside = ((index >= 0) & (index <= np.array(shape) - 1)).all(axis=-1)
    assert inside.mean() > 0.02
    expected = place(size, grid_affine(image, size)) @ [0.03, 0.02, -0.01]
    np.testing.assert_allclose(grid[inside], expected[inside], atol=1e-4)
    back = from_grid(grid, size, image)
    inner = (slice(3, -3),) * 3
    np.testing.assert_allclose(back[inner], np.asarray(image.dataobj)[inner], atol=1e-4)


@pytest.mark.parametrize(("shape", "affine"), FIELDS.values(), ids=FIELDS)
def test_labels_stay_labels_and_overlap_after_the_round_trip(shape: tuple[int, int, int], affine: np.ndarray) -> None:
    labels = np.zeros(shape, np.uint8)
    labels[3:-3, 3:-3, 2:-2] = 1
    labels[6:12, 5:10, 4:8] = 4
    image = nib.Nifti1Image(labels, affine)
    size = (48, 48, 48)
    grid = to_grid(image, size, nearest=True)
    assert set(np.unique(grid)) == {0, 1, 4}
    back = from_grid(grid, size, image, nearest=True)
    for label in (1, 4):
        both = ((back == label) & (labels == label)).sum()
        assert 2 * both / ((back == label).sum() + (labels == label).sum()) > 0.9


def test_outside_the_field_of_view_is_background() -> None:
    image = nib.Nifti1Image(np.full((4, 8, 8), 5, np.float32), np.eye(4))
    image.dataobj[0, 0, 0] = -1
    np.testing.assert_array_equal(to_grid(image, (8, 8, 8), nearest=False)[0], 5)
    np.testing.assert_array_equal(to_grid(image, (8, 8, 8), nearest=True)[-1], 0)


@pytest.mark.parametrize(
    ("faces", "expected"),
    [
        (lambda rng, shape: np.zeros(shape), 0),  # z-scored: the darkest tissue is below the background
        (lambda rng, shape: np.where(rng.random(shape) < 0.7, 0.25, 3), 0.25),  # the brain reaches some faces
        (lambda rng, shape: rng.gamma(2, 10, shape), -9),  # noise: the volume's minimum
        (lambda rng, shape: rng.integers(0, 60, shape), -9),
    ],
    ids=["z-scored", "cropped", "noise", "whole numbers"],
)
def test_background_is_the_commonest_value_of_the_faces(faces: Callable[..., np.ndarray], expected: float) -> None:
    rng = np.random.default_rng(0)
    data = faces(rng, (12, 13, 14)).astype(np.float32)
    data[2:-2, 2:-2, 2:-2] = rng.normal(1, 2, (8, 9, 10))
    data[6, 6, 6] = -9
    assert background(data) == expected
    affine = np.diag([1.0, 1.0, 3.0, 1.0])  # longer along z: on a cube of voxels there is room beside it
    grid = to_grid(nib.Nifti1Image(data, affine), (16, 16, 16), nearest=False)
    np.testing.assert_array_equal(grid[[0, -1]], expected)


def test_border_voxels_keep_their_whole_width() -> None:
    labels = np.ones((5, 5, 5), np.uint8)
    image = nib.Nifti1Image(labels, np.eye(4))
    np.testing.assert_array_equal(to_grid(image, (20, 20, 20), nearest=True), 1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_shape_fits_whatever_the_storage_order(order: tuple[int, int, int]) -> None:
    upright = ramp((6, 7, 9), np.eye(4))
    affine = np.eye(4)[:, [*order, 3]]
    image = nib.Nifti1Image(np.asarray(upright.dataobj).transpose(order), affine)
    np.testing.assert_array_equal(to_grid(image, (6, 7, 9), nearest=False), np.asarray(upright.dataobj))
