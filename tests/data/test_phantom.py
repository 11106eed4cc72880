from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from medddpm.data.checking import check_folder
from medddpm.data.layouts import HEAD
from medddpm.data.nifti import read_image, read_mask
from medddpm.data.phantom import Phantom, Subject, phantom_subject, signal, write_phantom
from medddpm.data.tissues import CSF, DAMAGED, GREY, WHITE, inversion_recovery, nulling_time, spin_echo
from medddpm.data.volumes import VolumeFolder, scaled
from medddpm.errors import BadInput

SIZE = (40, 48, 36)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return phantom_subject(0, (48, 48, 48))


# Signals


def test_spin_echo_by_hand() -> None:
    # White matter, TR = T1 and TE = T2: PD (1 - 1/e) / e.
    assert spin_echo(WHITE, tr=500, te=70) == pytest.approx(0.77 * (1 - 1 / np.e) / np.e)


def test_inversion_recovery_nulls_what_it_should_and_nothing_else() -> None:
    time = nulling_time(CSF, tr=9000)
    assert inversion_recovery(CSF, tr=9000, te=110, ti=time) == pytest.approx(0, abs=1e-12)
    assert all(inversion_recovery(tissue, tr=9000, te=110, ti=time) > 0.1 for tissue in (GREY, WHITE, DAMAGED))
    assert nulling_time(CSF, tr=1e9) == pytest.approx(CSF.t1 * np.log(2))


@pytest.mark.parametrize(
    ("contrast", "brightest_first"),
    [("t1", (WHITE, DAMAGED, GREY, CSF)), ("t2", (CSF, DAMAGED, GREY, WHITE)), ("flair", (DAMAGED, GREY, WHITE, CSF))],
)
def test_pure_tissues_are_ordered_as_radiology_knows_them(contrast: str, brightest_first: tuple) -> None:
    signals = [signal(tissue, contrast) for tissue in brightest_first]
    assert signals == sorted(signals, reverse=True)
    assert len(set(signals)) == 4


# Anatomy


def tissue_means(subject: Subject, contrast: str) -> dict[str, float]:
    """Mean signal of what an atlas, warped along, would call nearly pure tissue; and of the lesion."""
    from medddpm.data.phantom import _anatomy

    anatomy = _anatomy(0, subject.labels.shape, 0)
    image = getattr(subject, contrast)
    pure = dict(zip(("csf", "grey", "white"), anatomy.fractions > 0.85, strict=False))
    means = {name: float(image[where & (subject.labels == 1)].mean()) for name, where in pure.items()}
    return {**means, "lesion": float(image[subject.labels == 2].mean())}


def test_t1_has_white_above_grey_above_fluid_and_a_dark_lesion(subject: Subject) -> None:
    means = tissue_means(subject, "t1")
    assert means["white"] > means["grey"] > means["csf"]
    assert means["lesion"] < means["white"]


def test_t2_has_fluid_above_grey_above_white_and_a_bright_lesion(subject: Subject) -> None:
    means = tissue_means(subject, "t2")
    assert means["csf"] > means["grey"] > means["white"]
    assert means["lesion"] > means["grey"]


def test_flair_has_dark_fluid_and_the_lesion_brightest(subject: Subject) -> None:
    means = tissue_means(subject, "flair")
    assert means["csf"] < min(means["grey"], means["white"])
    assert means["lesion"] > max(means["grey"], means["white"])


@pytest.mark.parametrize("index", range(4))
def test_a_brain_of_a_brains_size_inside_the_field_of_view(index: int) -> None:
    subject = phantom_subject(index, SIZE, seed=1)
    litres = abs(np.linalg.det(subject.affine[:3, :3])) / 1e6
    assert 1.4 < (subject.labels > 0).sum() * litres < 2.5
    assert 0.0005 < (subject.labels == 2).sum() * litres < 0.2
    assert set(np.unique(subject.labels)) == {0, 1, 2}
    faces = [np.take(subject.labels, (0, -1), axis) for axis in range(3)]
    assert sum((face > 0).sum() for face in faces) <= 8
    for image in (subject.t1, subject.t2, subject.flair):
        assert image.dtype == np.float32
        assert image.shape == SIZE
        assert (image[subject.labels == 0] == 0).all()
        assert 0.8 < image.max() < 1.5
        assert image.min() == 0


def test_subjects_differ_and_so_do_seeds(subject: Subject) -> None:
    other, reseeded = phantom_subject(1, (48, 48, 48)), phantom_subject(0, (48, 48, 48), seed=1)
    for different in (other, reseeded):
        apart = (different.labels != subject.labels)[(subject.labels > 0) | (different.labels > 0)].mean()
        assert 0.02 < apart < 0.4  # another head, yet a head


def test_a_subject_is_the_same_one_at_every_size(subject: Subject) -> None:
    fine, coarse = subject.labels > 0, phantom_subject(0, (24, 24, 24)).labels > 0
    halved = fine.reshape(24, 2, 24, 2, 24, 2).mean(axis=(1, 3, 5)) > 0.5
    assert 2 * (halved & coarse).sum() / (halved.sum() + coarse.sum()) > 0.97


def test_grid_is_cubic_ras_and_centred_on_the_brain(subject: Subject) -> None:
    voxel = subject.affine[0, 0]
    assert voxel > 0
    np.testing.assert_array_equal(subject.affine[:3, :3], voxel * np.eye(3))
    middle = np.argwhere(subject.labels > 0).mean(axis=0) @ subject.affine[:3, :3] + subject.affine[:3, 3]
    np.testing.assert_allclose(middle, [0, -16, 6], atol=12)


# The data set


def test_items_depend_on_seed_and_index_alone() -> None:
    forwards, backwards = Phantom(3, SIZE, seed=5), Phantom(3, SIZE, seed=5, cache_gib=0)
    expected = [forwards[index] for index in range(3)]
    for index in reversed(range(3)):
        assert all(map(torch.equal, backwards[index], expected[index]))
        assert all(map(torch.equal, forwards[index - 3], expected[index]))
    assert not torch.equal(Phantom(3, SIZE, seed=6)[0][0], expected[0][0])


def test_global_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    first = Phantom(1, SIZE)[0][0]
    after = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    assert (torch.rand(1), np.random.rand()) == after
    assert torch.equal(Phantom(1, SIZE)[0][0], first)


@pytest.mark.parametrize("contrast", ["t1", "t2", "flair"])
def test_item_is_the_subject_as_a_whole_head_case(contrast: str) -> None:
    phantom = Phantom(2, SIZE, contrast, seed=3)
    image, mask = phantom[1]
    subject = phantom_subject(1, SIZE, seed=3)
    assert phantom.layout is HEAD
    assert (image.shape, mask.shape) == ((1, 36, 48, 40), (2, 36, 48, 40))
    assert (image.dtype, mask.dtype) == (torch.float32, torch.float32)
    np.testing.assert_allclose(image[0].numpy().transpose(2, 1, 0), scaled(getattr(subject, contrast)), atol=1e-6)
    for channel, label in zip(mask.numpy(), (1, 2), strict=True):
        np.testing.assert_array_equal(channel.transpose(2, 1, 0), np.where(subject.labels == label, 1, -1))


def test_length_bounds_and_contrast() -> None:
    phantom = Phantom(2, (16, 16, 16))
    assert len(phantom) == 2
    with pytest.raises(IndexError):
        phantom[2]
    with pytest.raises(ValueError, match="none of t1, t2, flair"):
        Phantom(contrast="pd")
    for wrong in ({"count": 0}, {"seed": -1}):
        with pytest.raises(BadInput, match="give a count from 1 and a seed from 0"):
            Phantom(**wrong)


def test_reference_is_the_items_mask_in_space() -> None:
    phantom = Phantom(2, SIZE, seed=3)
    subject = phantom_subject(1, SIZE, seed=3)
    reference = phantom.reference(1)
    np.testing.assert_array_equal(np.asarray(reference.dataobj), subject.labels)
    np.testing.assert_allclose(reference.affine, subject.affine)
    assert len(set(phantom.names())) == 2


def test_written_phantom_is_a_sound_data_folder_with_the_same_items(tmp_path: Path) -> None:
    write_phantom(tmp_path, 2, SIZE, "flair", seed=4)
    report = check_folder(tmp_path)
    assert report.problems == []
    assert (report.layout, len(report.cases), report.shapes) == (HEAD, 2, {SIZE: 2})
    folder, phantom = VolumeFolder(tmp_path, SIZE), Phantom(2, SIZE, "flair", seed=4)
    for index in range(2):
        for read, expected in zip(folder[index], phantom[index], strict=True):
            torch.testing.assert_close(read, expected)
    image, mask = (tmp_path / folder / "phantom_0001.nii.gz" for folder in ("image", "mask"))
    subject = phantom_subject(1, SIZE, seed=4)
    np.testing.assert_allclose(read_image(image).affine, subject.affine)
    np.testing.assert_array_equal(np.asarray(read_mask(mask, (1, 2)).dataobj), subject.labels)
    assert read_image(image).header.get_xyzt_units()[0] == "mm"


# The subjects that models and records are named after: of seed 1, by size and index. Labels are pinned to the last bit;
# the images' last bits are the processor's, so of T1, T2 and FLAIR the sum, the first moment and the middle voxel are.
PINNED = {
    ((24, 24, 24), 0): (
        "c63f3b3ff253f166",
        [(2096.241, 1062.952, 0.7983947), (1198.921, 608.0281, 0.5450726), (1044.724, 530.66, 0.3866162)],
    ),
    ((24, 24, 24), 3): (
        "3762f01e953bf260",
        [(2068.143, 1038.695, 0.8497084), (1147.523, 571.171, 0.4871891), (1026.042, 508.4815, 0.4284331)],
    ),
    ((20, 28, 16), 0): (
        "584cfdc99b9c414c",
        [(942.4857, 478.7131, 0.7095295), (536.8249, 272.8467, 0.6030198), (469.279, 238.8754, 0.3255552)],
    ),
    ((20, 28, 16), 3): (
        "a2a62e12c998a685",
        [(930.1041, 468.7608, 0.8479258), (514.4211, 257.0853, 0.4660476), (464.0803, 230.8305, 0.3990601)],
    ),
}


@pytest.mark.parametrize(("size", "index"), PINNED)
def test_the_phantom_stays_what_models_were_trained_on(size: tuple[int, int, int], index: int) -> None:
    subject = phantom_subject(index, size, seed=1)
    labels, moments = PINNED[size, index]
    assert hashlib.sha256(subject.labels.tobytes()).hexdigest()[:16] == labels
    for image, expected in zip((subject.t1, subject.t2, subject.flair), moments, strict=True):
        exact = image.astype(float)
        first = (exact.ravel() * np.arange(exact.size)).sum() / exact.size
        middle = exact[tuple(side // 2 for side in size)]
        assert (exact.sum(), first, middle) == pytest.approx(expected, rel=2e-6)
