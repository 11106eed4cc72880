from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.repository import SHARED

from medddpm.data.checking import check_folder
from medddpm.data.layouts import BRATS, HEAD
from medddpm.data.nifti import read_mask, write_volume
from medddpm.data.volumes import VolumeFolder, condition, scaled, to_mask_grid, write_sample_volumes
from medddpm.errors import BadArgument, BadInput

SIZE = (12, 10, 8)
AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
REAL = SHARED / "data" / "brats2021"


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("the BraTS case is not beside this checkout")
    return REAL


def save(path: Path, data: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, affine), path)
    return path


def head_labels(shape: tuple[int, ...] = SIZE) -> np.ndarray:
    labels = np.zeros(shape, np.uint8)
    labels[2:-2, 2:-2, 2:-2] = 1
    labels[4:6, 4:6, 3:5] = 2
    return labels


def head_image(shape: tuple[int, ...] = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2, 100, shape).astype(np.float32)


def head_folder(root: Path, count: int = 2, shape: tuple[int, ...] = SIZE) -> Path:
    for number in range(1, count + 1):
        save(root / "mask" / f"case_{number:03d}_mask.nii.gz", head_labels(shape))
        save(root / "image" / f"case_{number:03d}.nii.gz", head_image(shape, number))
    return root


def brats_labels() -> np.ndarray:
    """As published: 1 to 3 tumour, 4 the rest of the brain."""
    labels = np.zeros(SIZE, np.uint8)
    labels[2:-2, 2:-2, 2:-2] = 4
    labels[3:7, 3:6, 3:5] = 2
    labels[4:6, 4:6, 3:5] = 3
    labels[4, 4, 3] = 1
    return labels


def brats_folder(root: Path, raw: bool) -> Path:
    """One case, prepared or raw (tumour labels 1, 2, 4 alone; raw intensities on a background of 0), stored LPS."""
    labels = brats_labels()
    stored = np.array([0, 1, 2, 4, 0], np.uint8)[labels] if raw else labels
    save(root / "seg" / "BraTS2021_00001_seg.nii.gz", stored, LPS)
    for seed, folder in enumerate(BRATS.image_folders):
        intensities = np.where(labels > 0, head_image(seed=seed) + 1, 0)
        image = intensities if raw else scaled(intensities)
        save(root / folder / f"BraTS2021_00001_{folder}.nii.gz", image, LPS)
    return root


# Tensors


def test_head_item_is_the_array_with_first_and_last_axis_exchanged(tmp_path: Path) -> None:
    folder = VolumeFolder(head_folder(tmp_path), size=SIZE)
    image, mask = folder[1]
    assert (image.shape, mask.shape) == ((1, 8, 10, 12), (2, 8, 10, 12))
    assert (image.dtype, mask.dtype) == (torch.float32, torch.float32)
    data = head_image(seed=2)
    expected = (data - data.min()) / (data.max() - data.min()) * 2 - 1
    np.testing.assert_allclose(image[0].numpy(), expected.transpose(2, 1, 0), atol=1e-6)
    labels = head_labels().transpose(2, 1, 0)
    np.testing.assert_array_equal(mask[0].numpy(), np.where(labels == 1, 1, -1))
    np.testing.assert_array_equal(mask[1].numpy(), np.where(labels == 2, 1, -1))


def test_slice_scaling_is_each_index_of_the_last_axis_by_itself() -> None:
    data = head_image()
    data[..., 3] = 5
    result = scaled(data, "slice")
    for index in range(data.shape[-1]):
        part = data[..., index]
        span = part.max() - part.min()
        expected = np.full_like(part, -1) if span == 0 else (part - part.min()) / span * 2 - 1
        np.testing.assert_allclose(result[..., index], expected, atol=1e-6)
    assert scaled(data).min() == -1
    assert scaled(data).max() == 1
    assert (scaled(data)[..., 3] > -1).all()


@pytest.mark.parametrize("shape", [(12, 10, 8), (20, 11, 17)])
def test_item_is_on_the_models_grid_whatever_the_files(tmp_path: Path, shape: tuple[int, ...]) -> None:
    image, mask = VolumeFolder(head_folder(tmp_path, 1, shape), size=(16, 12, 8))[0]
    assert (image.shape, mask.shape) == ((1, 8, 12, 16), (2, 8, 12, 16))
    assert (float(image.min()), float(image.max())) == (-1, 1)
    assert set(mask.unique().tolist()) == {-1, 1}
    assert (mask.amax((1, 2, 3)) == 1).all()


@pytest.mark.parametrize("cache_gib", [0.0, 1.0])
def test_items_repeat_and_are_the_callers_own(tmp_path: Path, cache_gib: float) -> None:
    folder = VolumeFolder(head_folder(tmp_path), size=SIZE, cache_gib=cache_gib)
    image, mask = folder[0]
    before = image.clone(), mask.clone()
    image.zero_()
    mask.zero_()
    assert all(map(torch.equal, folder[0], before))
    assert all(map(torch.equal, folder[-2], before))
    with pytest.raises(IndexError):
        folder[2]


@pytest.mark.parametrize(("cache_gib", "reads"), [(0.0, 4), (1.0, 2), (5000 / 2**30, 3)])
def test_cache_holds_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_gib: float, reads: int) -> None:
    folder = VolumeFolder(head_folder(tmp_path), size=SIZE, cache_gib=cache_gib)  # an item is 960 · (4 + 1) bytes
    prepared = []
    prepare = folder._prepare
    monkeypatch.setattr(folder, "_prepare", lambda case: prepared.append(case) or prepare(case))
    for _ in range(2):
        for index in range(2):
            folder[index]
    assert len(prepared) == reads


def test_items_come_through_worker_processes(tmp_path: Path) -> None:
    folder = VolumeFolder(head_folder(tmp_path), size=SIZE)
    batch = next(iter(torch.utils.data.DataLoader(folder, batch_size=2, num_workers=1)))
    assert torch.equal(batch[0][1], folder[1][0])


@pytest.mark.parametrize("size", [(8, 8), (8, 0, 8), (8, 8.5, 8)])
def test_bad_size(tmp_path: Path, size: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="is no volume's size"):
        VolumeFolder(head_folder(tmp_path), size=size)


@pytest.mark.parametrize("shape", [SIZE, (20, 11, 17)])
def test_restored_volume_lies_where_the_image_was(tmp_path: Path, shape: tuple[int, ...]) -> None:
    smooth = np.fromfunction(lambda i, j, k: i + 2 * j - k, shape).astype(np.float32)
    turn = np.array([[0, 0, -2, 30], [1.5, 0, 0, 4], [0, 2.5, 0, -9], [0, 0, 0, 1.0]])
    save(tmp_path / "mask" / "a1.nii.gz", head_labels(shape), turn)
    save(tmp_path / "image" / "a1.nii.gz", smooth, turn)
    size = (40, 40, 40) if shape != SIZE else (8, 12, 10)  # the second: SIZE as RAS orders it
    folder = VolumeFolder(tmp_path, size=size)
    like = read_mask(folder.cases[0].mask, HEAD.labels)
    (restored,) = to_mask_grid(folder[0][0], size, like)
    expected = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    inner = (slice(1, -1),) * 3
    np.testing.assert_allclose(restored[inner], expected[inner], atol=0.05)
    write_volume(tmp_path / "out.nii.gz", restored, like)
    np.testing.assert_allclose(nib.load(tmp_path / "out.nii.gz").affine, turn, atol=1e-6)


def test_the_way_back_clips_and_maps_to_unit_range() -> None:
    sample = torch.tensor([-3.0, -1.0, 0.0, 1.0, 2.0, 0.5, 0.0, 0.0]).reshape(1, 2, 2, 2)
    (restored,) = to_mask_grid(sample, (2, 2, 2), nib.Nifti1Image(np.ones((2, 2, 2), np.uint8), np.eye(4)))
    np.testing.assert_allclose(restored.transpose(2, 1, 0).ravel(), [0, 0, 0.5, 1, 1, 0.75, 0.5, 0.5])


# The condition for sampling


def test_condition_is_the_data_sets_mask(tmp_path: Path) -> None:
    folder = VolumeFolder(head_folder(tmp_path, 1, (20, 11, 17)), size=SIZE)
    assert torch.equal(condition(folder.cases[0].mask, HEAD, SIZE), folder[0][1])


@pytest.mark.parametrize("raw", [False, True], ids=["prepared", "raw"])
def test_brats_masks_come_out_as_published(tmp_path: Path, raw: bool) -> None:
    folder = VolumeFolder(brats_folder(tmp_path, raw), size=SIZE)
    image, mask = folder[0]
    # BraTS is stored LPS and the published model reads it so: nothing is flipped.
    expected = np.stack([brats_labels() == label for label in (1, 2, 3, 4)]).transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(mask.numpy(), expected.astype(np.float32))
    assert torch.equal(condition(folder.cases[0].mask, BRATS, SIZE), mask)
    stored = [nib.load(path).get_fdata() for path in folder.cases[0].images]
    np.testing.assert_allclose(image.numpy(), np.stack([scaled(s).transpose(2, 1, 0) for s in stored]), atol=1e-6)
    assert (image[:, ~expected.any(axis=0)] == -1).all()


def test_raw_mask_finds_the_brain_in_a_named_image_or_says_what_it_lacks(tmp_path: Path) -> None:
    root = brats_folder(tmp_path / "data", raw=True)
    expected = VolumeFolder(root, size=SIZE)[0][1]
    alone = tmp_path / "seg.nii.gz"
    (root / "seg" / "BraTS2021_00001_seg.nii.gz").rename(alone)
    with pytest.raises(BadInput, match=r"looks like a raw BraTS mask.*put the images of its case beside it"):
        condition(alone, BRATS, SIZE)
    flair = root / "flair" / "BraTS2021_00001_flair.nii.gz"
    assert torch.equal(condition(alone, BRATS, SIZE, image=flair), expected)
    assert torch.equal(condition(alone, BRATS, SIZE, image=[flair, str(flair)]), expected)


def test_prepared_mask_needs_no_image(tmp_path: Path) -> None:
    root = brats_folder(tmp_path / "data", raw=False)
    expected = VolumeFolder(root, size=SIZE)[0][1]
    alone = tmp_path / "seg.nii.gz"
    (root / "seg" / "BraTS2021_00001_seg.nii.gz").rename(alone)
    assert torch.equal(condition(alone, BRATS, SIZE), expected)


def test_raw_mask_with_skull_in_the_images_is_refused(tmp_path: Path) -> None:
    root = brats_folder(tmp_path, raw=True)
    save(root / "t1" / "BraTS2021_00001_t1.nii.gz", head_image() + 1, LPS)
    with pytest.raises(BadInput, match="not skull-stripped"):
        VolumeFolder(root, size=SIZE)[0]
    assert [problem.problem for problem in check_folder(root).problems if "skull" in problem.problem]


def test_image_on_another_grid_than_the_mask_is_refused(tmp_path: Path) -> None:
    root = brats_folder(tmp_path, raw=True)
    mask = root / "seg" / "BraTS2021_00001_seg.nii.gz"
    other = save(tmp_path / "other.nii.gz", head_image((4, 4, 4)))
    with pytest.raises(BadInput, match=r"other\.nii\.gz: its shape 4x4x4 is not its mask's 12x10x8"):
        condition(mask, BRATS, SIZE, image=other)


# The check of a whole folder


def test_sound_folder_has_no_problems(tmp_path: Path) -> None:
    report = check_folder(head_folder(tmp_path, 3), progress=True)
    assert report.problems == []
    assert report.layout is HEAD
    assert len(report.cases) == 3
    assert report.shapes == {SIZE: 3}
    assert str(report) == f"{tmp_path}: whole head layout (a folder a channel), 3 cases (12x10x8), 0 problems"


def spoil_nan(root: Path) -> None:
    data = head_image()
    data[0, 0, 0] = np.nan
    save(root / "image" / "case_002.nii.gz", data)


def spoil_truncate(root: Path) -> None:
    path = root / "mask" / "case_002_mask.nii.gz"
    path.write_bytes(path.read_bytes()[:-20])


SPOILS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "NaN": (spoil_nan, ["image/case_002.nii.gz: 1 of 960 voxels are NaN"]),
    "truncated": (spoil_truncate, ["mask/case_002_mask.nii.gz: damaged"]),
    "label": (
        lambda root: save(root / "mask" / "case_001_mask.nii.gz", head_labels() * 3),
        ["mask/case_001_mask.nii.gz: holds labels 3, 6, not among 0, 1, 2"],
    ),
    "shape": (
        lambda root: save(root / "image" / "case_002.nii.gz", head_image((12, 10, 9))),
        ["image/case_002.nii.gz: its shape 12x10x9 is not its mask's 12x10x8"],
    ),
    "affine": (
        lambda root: save(root / "image" / "case_002.nii.gz", head_image(), 2 * AFFINE),
        ["image/case_002.nii.gz: its affine differs"],
    ),
    "unpaired": (
        lambda root: save(root / "image" / "case_009.nii.gz", head_image()),
        ["image/case_009.nii.gz: has no partner in mask/"],
    ),
    "unpaired and constant": (
        lambda root: save(root / "image" / "case_009.nii.gz", np.ones(SIZE, np.float32)),
        ["image/case_009.nii.gz: every voxel is 1", "image/case_009.nii.gz: has no partner in mask/"],
    ),
    "two at once": (
        lambda root: (spoil_nan(root), spoil_truncate(root)),
        ["mask/case_002_mask.nii.gz: damaged", "image/case_002.nii.gz: 1 of 960 voxels are NaN"],
    ),
}


@pytest.mark.parametrize(("spoil", "lines"), SPOILS.values(), ids=SPOILS)
def test_every_problem_is_a_line(tmp_path: Path, spoil: Callable[[Path], object], lines: list[str]) -> None:
    spoil(head_folder(tmp_path, 3))
    report = check_folder(tmp_path)
    problems = [str(problem) for problem in report.problems]
    assert len(problems) == len(lines)
    for line, expected in zip(problems, lines, strict=True):
        assert line.startswith(f"{tmp_path}/{expected}")


def test_check_of_no_data_set_reports_instead_of_raising(tmp_path: Path) -> None:
    report = check_folder(tmp_path)
    assert report.layout is None
    assert [problem.problem for problem in report.problems] == ["an empty folder"]
    assert str(report) == f"{tmp_path}: nothing to check, 1 problem"


# The real case


def test_real_case_reaches_the_model_as_it_is_published(real: Path) -> None:
    assert check_folder(real).problems == []
    size = (192, 192, 144)
    folder = VolumeFolder(real, size=size)
    image, mask = folder[0]
    case = folder.cases[0]
    stored = np.stack([nib.load(path).get_fdata(dtype=np.float32) for path in case.images])
    np.testing.assert_allclose(image.numpy(), stored.transpose(0, 3, 2, 1), atol=1e-6)
    labels = np.asarray(nib.load(case.mask).dataobj)
    np.testing.assert_array_equal(mask.sum((1, 2, 3)).numpy(), [(labels == n).sum() for n in (1, 2, 3, 4)])
    assert (mask.sum(0) <= 1).all()


def test_real_case_survives_a_small_grid_and_the_way_back(real: Path, tmp_path: Path) -> None:
    size = (48, 48, 48)
    folder = VolumeFolder(real, size=size)
    image, mask = folder[0]
    assert torch.equal(condition(folder.cases[0].mask, BRATS, size), mask)
    like = read_mask(folder.cases[0].mask, BRATS.labels)
    (restored,) = to_mask_grid(image[:1], size, like, BRATS)
    original = nib.load(folder.cases[0].images[0]).get_fdata(dtype=np.float32)
    assert restored.shape == original.shape
    assert np.corrcoef(restored[::3, ::3, ::3].ravel(), original[::3, ::3, ::3].ravel())[0, 1] > 0.9
    write_volume(tmp_path / "sample.nii.gz", restored, like)
    np.testing.assert_array_equal(nib.load(tmp_path / "sample.nii.gz").affine, nib.load(folder.cases[0].mask).affine)


def test_real_case_made_raw_again_is_prepared_as_it_was(real: Path, tmp_path: Path) -> None:
    case = VolumeFolder(real, size=(8, 8, 8)).cases[0]
    window = (slice(None, None, 3),) * 3  # every third voxel, to be quick
    affine = nib.load(case.mask).affine @ np.diag([3, 3, 3, 1])
    labels = np.asarray(nib.load(case.mask).dataobj)[window].astype(np.uint8)
    raw = np.array([0, 1, 2, 4, 0], np.uint8)[labels]
    save(tmp_path / "seg" / case.mask.name, raw, affine)
    for path in case.images:
        data = (np.asarray(nib.load(path).dataobj)[window] + 1) * 700
        save(tmp_path / path.parent.name / path.name, data.astype(np.float32), affine)
    expected = np.stack([labels == label for label in (1, 2, 3, 4)]).transpose(0, 3, 2, 1).astype(np.float32)
    folder = VolumeFolder(tmp_path, size=(64, 64, 48))
    np.testing.assert_array_equal(folder[0][1].numpy(), expected)
    assert torch.equal(condition(folder.cases[0].mask, BRATS, (64, 64, 48)), folder[0][1])


@pytest.mark.parametrize(
    ("shape", "size", "layout", "message"),
    [
        ((1, 4, 5, 6), (4, 5, 6), HEAD, r"it is \(1, 4, 5, 6\); give a single volume of shape \(channels, 6, 5, 4\)"),
        ((1, 4, 5, 6), (8, 8, 8), HEAD, r"it is \(1, 4, 5, 6\); give a single volume of shape \(channels, 8, 8, 8\)"),
        ((1, 1, 4, 5, 6), (6, 5, 4), HEAD, r"it is \(1, 1, 4, 5, 6\); give a single volume"),
        ((4, 4, 5, 6), (6, 5, 4), HEAD, r"it is \(4, 4, 5, 6\), and the whole head layout has 1 image channels"),
        ((1, 4, 5, 6), (6, 5, 4), BRATS, r"it is \(1, 4, 5, 6\), and the BraTS layout has 4 image channels"),
    ],
    ids=["axes", "size", "batch", "too many", "too few"],
)
def test_a_sample_on_another_grid_is_not_written(tmp_path: Path, shape, size, layout, message: str) -> None:
    like = nib.Nifti1Image(np.ones((6, 5, 4), np.uint8), np.eye(4))
    with pytest.raises(BadArgument, match=f"^sample: {message}"):
        write_sample_volumes(torch.zeros(shape), tmp_path / "v.nii.gz", like, layout, size)
    assert list(tmp_path.iterdir()) == []


def test_a_sample_of_no_layout_needs_one() -> None:
    like = nib.Nifti1Image(np.ones((6, 5, 4), np.uint8), np.eye(4))
    with pytest.raises(BadArgument, match=r"^sample: no layout has 2 image channels; give the layout it belongs to"):
        to_mask_grid(torch.zeros(2, 4, 5, 6), (6, 5, 4), like)


def test_a_name_may_be_a_string(tmp_path: Path) -> None:
    like = nib.Nifti1Image(np.ones((6, 5, 4), np.uint8), np.eye(4))
    sample = torch.linspace(-1, 1, 4 * 120).reshape(4, 4, 5, 6)
    files = write_sample_volumes(sample, str(tmp_path / "v.nii.gz"), like, BRATS, (6, 5, 4))
    assert files == [tmp_path / f"v_{name}.nii.gz" for name in ("t1", "t1ce", "t2", "flair")]
    with pytest.raises(BadInput, match=r"v\.png: not a NIfTI name"):
        write_sample_volumes(sample, str(tmp_path / "v.png"), like, BRATS, (6, 5, 4))
