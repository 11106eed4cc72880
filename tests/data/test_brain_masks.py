"""Masks of other voxel sizes and of BraTS for a model of synthetic heads."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from medddpm.data.brain_masks import BrainMask, read_brain_mask, subjects_of
from medddpm.data.heads import Heads
from medddpm.data.layouts import BRATS
from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput

SIDE = 32
HEADS = Heads(1, (SIDE,) * 3)
REAL = Path(__file__).parents[2].parent / "shared" / "data" / "brats2021"


@pytest.fixture(scope="module")
def head() -> nib.Nifti1Image:
    """The mask of a head with a lesion, on the model's grid."""
    mask = HEADS.reference(0)
    assert set(np.unique(mask.dataobj)) == {0, 1, 2}
    return mask


def saved(path: Path, labels: np.ndarray, affine: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(labels.astype(np.uint8), affine), path)
    return path


def fine(head: nib.Nifti1Image) -> tuple[np.ndarray, np.ndarray]:
    """A head's labels at a quarter of its voxel's side, in LPS, with a wide margin at one end."""
    labels = np.asarray(head.dataobj).repeat(4, 0).repeat(4, 1).repeat(4, 2)
    labels = np.pad(labels, ((0, 60), (0, 40), (0, 0)))
    quarter = float(head.affine[0, 0]) / 4
    affine = np.diag([-quarter, -quarter, quarter, 1.0])
    affine[:3, 3] = 40, -7, 12
    return labels[::-1, ::-1], affine


def alike(read: BrainMask, head: nib.Nifti1Image) -> float:
    """The share of voxels with equal labels, both brains moved into a corner."""
    first, second = (
        labels[tuple(slice(edge.min(), edge.min() + 26) for edge in np.nonzero(labels))]
        for labels in (read.labels, np.asarray(head.dataobj))
    )
    return float((first == second).mean())


def test_a_mask_on_the_models_grid_stays_as_it_is(tmp_path: Path, head: nib.Nifti1Image) -> None:
    read = read_brain_mask(saved(tmp_path / "m.nii.gz", np.asarray(head.dataobj), head.affine), HEADS)
    assert np.array_equal(read.labels, np.asarray(head.dataobj))
    assert read.affine is None


def test_a_brain_keeps_its_size_in_any_field_of_view(tmp_path: Path, head: nib.Nifti1Image) -> None:
    read = read_brain_mask(saved(tmp_path / "m.nii.gz", *fine(head)), HEADS)
    assert read.affine is not None
    assert np.allclose(np.diag(read.affine)[:3], head.affine[0, 0])
    assert alike(read, head) > 0.99
    middle = [(edge.min() + edge.max()) / 2 for edge in np.nonzero(read.labels)]
    assert np.allclose(middle, (SIDE - 1) / 2, atol=1)


def test_a_brats_mask_is_read_as_brain_and_tumour_without_oedema(tmp_path: Path, head: nib.Nifti1Image) -> None:
    labels, affine = fine(head)
    prepared = np.where(labels == 2, 3, np.where(labels == 1, 4, 0))
    brain = np.argwhere(labels == 1)
    prepared[tuple(brain[:500].T)] = 2  # oedema
    prepared[tuple(np.argwhere(labels == 2)[:30].T)] = 1
    read = read_brain_mask(saved(tmp_path / "case_seg.nii.gz", prepared, affine), HEADS)
    assert np.array_equal(read.labels, read_brain_mask(saved(tmp_path / "m.nii.gz", labels, affine), HEADS).labels)


def test_a_raw_brats_mask_needs_its_images(tmp_path: Path, head: nib.Nifti1Image) -> None:
    labels, affine = fine(head)
    raw = saved(tmp_path / "alone" / "case_seg.nii.gz", np.where(labels == 2, 4, 0), affine)
    with pytest.raises(BadInput, match="looks like a raw BraTS mask: it does not label the brain"):
        read_brain_mask(raw, HEADS)
    image = np.where(labels > 0, 50 + np.arange(labels.size).reshape(labels.shape) % 7, 0).astype(np.float32)
    folder = tmp_path / "case"
    for channel in BRATS.image_folders:
        (folder / channel).mkdir(parents=True)
        nib.save(nib.Nifti1Image(image, affine), folder / channel / "case.nii.gz")
    beside = saved(folder / "seg" / "case.nii.gz", np.where(labels == 2, 4, 0), affine)
    expected = read_brain_mask(saved(tmp_path / "m.nii.gz", labels, affine), HEADS).labels
    assert np.array_equal(read_brain_mask(beside, HEADS).labels, expected)
    assert np.array_equal(read_brain_mask(raw, HEADS, [folder / "t1" / "case.nii.gz"]).labels, expected)


def test_a_large_head_is_not_cropped(tmp_path: Path, head: nib.Nifti1Image) -> None:
    labels = np.zeros((64, 80, 64), np.uint8)
    labels[20:44, 2:78, 20:44] = 1  # 228 mm of the 208 that the grid covers
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    read = read_brain_mask(saved(tmp_path / "m.nii.gz", labels, affine), HEADS)
    assert read.affine is not None
    assert np.isclose(read.affine[0, 0], 228 / SIDE)
    assert read.labels.any((0, 2)).all()


def test_a_voxel_size_that_no_brain_has_is_not_trusted(tmp_path: Path, head: nib.Nifti1Image, caplog) -> None:
    read = read_brain_mask(saved(tmp_path / "m.nii.gz", np.asarray(head.dataobj), np.eye(4)), HEADS)
    assert np.array_equal(read.labels, np.asarray(head.dataobj))
    assert "m.nii.gz: 5.79 ml" in caplog.text
    assert " are labelled, by its voxel size, and a brain has about 1300; the mask is taken to fill" in caplog.text


def test_a_tumour_alone_is_refused(tmp_path: Path, head: nib.Nifti1Image) -> None:
    path = saved(tmp_path / "m.nii.gz", 2 * (np.asarray(head.dataobj) == 2), head.affine)
    with pytest.raises(BadInput, match=r"labels no brain: .*; label the brain 1 and the tumour 2"):
        read_brain_mask(path, HEADS)


@pytest.mark.parametrize(
    ("training", "kind"), [({"heads": {"contrast": "all"}}, Heads), ({"phantom": {"contrast": "t1"}}, Phantom)]
)
def test_a_released_model_names_its_subjects(training: dict[str, object], kind: type) -> None:
    subjects = subjects_of(training, (8, 8, 8))
    assert isinstance(subjects, kind)
    assert subjects.size == (8, 8, 8)
    assert subjects_of({"volumes": 3}, (8, 8, 8)) is None


def test_a_real_case_fills_the_grid_as_heads_do() -> None:
    if not REAL.is_dir():
        pytest.skip("needs the BraTS case")
    read = read_brain_mask(REAL / "seg" / "BraTS2021_01306_seg.nii.gz", HEADS)
    voxel = float(HEADS.affine()[0, 0])
    assert 900 < (read.labels > 0).sum() * voxel**3 / 1000 < 1900
    assert 6 < (read.labels == 2).sum() * voxel**3 / 1000 < 10  # 8.1 in the file
