"""Raw BraTS masks: those whose labels contradict the published numbering, and those of cases without tumour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from medddpm.cli.main import main
from medddpm.data.checking import check_folder
from medddpm.data.layouts import BRATS, HEAD
from medddpm.data.volumes import VolumeFolder, condition
from medddpm.errors import BadInput

SIZE = (12, 14, 10)
AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])
BRAIN = np.zeros(SIZE, bool)
BRAIN[2:10, 2:12, 2:8] = True


def save(path: Path, data: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, AFFINE), path)
    return path


def case(root: Path, number: int, labels: Sequence[int], outside: float = 0, low: float = 1) -> Path:
    """One raw case: a voxel of the mask for each of `labels`, and four images of the brain on one value outside."""
    mask = np.zeros(SIZE, np.uint8)
    mask[5, 5, 3 : 3 + len(labels)] = labels
    for seed, folder in enumerate(BRATS.image_folders):
        image = np.where(BRAIN, np.random.default_rng(seed).random(SIZE) + low, outside).astype(np.float32)
        save(root / folder / f"BraTS2021_{number:05d}_{folder}.nii.gz", image)
    return save(root / "seg" / f"BraTS2021_{number:05d}_seg.nii.gz", mask)


def test_a_raw_mask_with_3_and_4_is_refused_by_check_training_and_sampling(tmp_path: Path) -> None:
    mask = case(tmp_path, 1, (1, 2, 3, 4))
    line = f"{mask}: holds 3 and 4: label 4 is not the enhancing tumour here"
    (problem,) = check_folder(tmp_path).problems
    assert str(problem).startswith(line)
    assert "relabel it" in problem.remedy
    for read in (lambda: VolumeFolder(tmp_path, SIZE)[0], lambda: condition(mask, BRATS, SIZE)):
        with pytest.raises(BadInput) as caught:
            read()
        assert str(caught.value).startswith(line)


@pytest.mark.parametrize(("labels", "expected"), [((1, 2, 4), 3), ((1, 2, 3), 3), ((4,), 3), ((1, 2), None)])
def test_a_raw_mask_with_either_is_taken(tmp_path: Path, labels: tuple[int, ...], expected: int | None) -> None:
    mask = case(tmp_path, 1, labels)
    assert check_folder(tmp_path).problems == []
    channels = condition(mask, BRATS, SIZE)
    assert [int(channel.sum()) for channel in channels] == [
        int(1 in labels), int(2 in labels), int(expected == 3), BRAIN.sum() - len(labels)
    ]  # fmt: skip


def test_raw_masks_of_one_folder_that_disagree_are_a_problem(tmp_path: Path) -> None:
    case(tmp_path, 1, (1, 2, 3))
    fours = [case(tmp_path, number, (1, 2, 4)) for number in (2, 3)]
    case(tmp_path, 4, (1,))
    (problem,) = check_folder(tmp_path).problems
    assert problem.path == str(fours[0])
    assert problem.problem == "holds 4 and BraTS2021_00001_seg.nii.gz holds 3 (2 and 1 raw masks): which is enhancing?"
    assert problem.remedy.startswith("relabel all alike: 1 necrotic core, 2 oedema, 3 enhancing tumour")


def test_a_prepared_mask_beside_raw_ones_does_not_disagree(tmp_path: Path) -> None:
    case(tmp_path, 1, (1, 2, 4))
    prepared = np.where(BRAIN, 4, 0).astype(np.uint8)
    prepared[5, 5, 3:6] = 1, 2, 3
    case(tmp_path, 2, ())
    save(tmp_path / "seg" / "BraTS2021_00002_seg.nii.gz", prepared)
    assert check_folder(tmp_path).problems == []


@pytest.mark.parametrize(("outside", "low"), [(0, 1), (0, -0.5), (-1, -0.9)], ids=["raw", "z-scored", "scaled"])
def test_a_case_without_tumour_is_brain_alone(tmp_path: Path, outside: float, low: float) -> None:
    mask = case(tmp_path, 1, (), outside, low)
    assert check_folder(tmp_path).problems == []
    channels = condition(mask, BRATS, SIZE)
    assert [int(channel.sum()) for channel in channels] == [0, 0, 0, BRAIN.sum()]
    assert torch.equal(VolumeFolder(tmp_path, SIZE)[0][1], channels)


def test_an_empty_mask_without_images_or_of_a_head_is_refused(tmp_path: Path) -> None:
    empty = save(tmp_path / "alone" / "m1.nii.gz", np.zeros(SIZE, np.uint8))
    with pytest.raises(BadInput, match=r"does not label the brain; put the images of its case beside it"):
        condition(empty, BRATS, SIZE)
    with pytest.raises(BadInput, match=r"is empty: every voxel is 0; replace it with a mask"):
        condition(empty, HEAD, SIZE)
    save(tmp_path / "head" / "mask" / "m1.nii.gz", np.zeros(SIZE, np.uint8))
    save(tmp_path / "head" / "image" / "i1.nii.gz", np.random.default_rng(0).random(SIZE))
    (problem,) = check_folder(tmp_path / "head").problems
    assert problem.problem == "is empty: every voxel is 0"


def test_check_exits_with_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case(tmp_path, 1, (3, 4))
    assert main(["check", str(tmp_path), "-q"]) == 1
    assert "holds 3 and 4" in "".join(capsys.readouterr())


def test_z_scored_volume_in_a_box_has_one_background(tmp_path: Path) -> None:
    case(tmp_path, 1, (1, 2), outside=0, low=-0.5)
    image, mask = VolumeFolder(tmp_path, (24, 24, 24))[0]
    outside = image[:, mask.sum(0) == 0]
    for channel in image:
        assert channel[0, 0, 0] == channel[12, 1, 12], "beside the field of view, and within it beside the brain"
    assert -1 < outside[0].median() < 1
