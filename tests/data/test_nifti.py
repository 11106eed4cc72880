from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from fuzz.attack import limited

from medddpm.data.nifti import (
    LONGEST_NOTE,
    digest_of,
    is_written,
    note_of,
    read_image,
    read_mask,
    same_grid,
    write_mask,
    write_volume,
)
from medddpm.errors import BadInput

RNG = np.random.default_rng(0)
AFFINE = np.array([[-1.5, 0, 0, 20], [0, 0, 2, -30], [0, 1.25, 0, 5], [0, 0, 0, 1.0]])


def save(path: Path, data: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    nib.save(nib.Nifti1Image(data, affine), path)
    return path


def volume(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape or (6, 7, 8)).astype(np.float32)


def rewritten(path: Path, offset: int, form: str, *values: float) -> Path:
    """`path` with a header field overwritten."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<" + form, content, offset, *values)
    path.write_bytes(gzip.compress(bytes(content)))
    return path


def with_voxel(value: float) -> np.ndarray:
    data = volume()
    data[1, 2, 3] = value
    return data


def truncated(path: Path) -> Path:
    save(path, volume())
    path.write_bytes(path.read_bytes()[:-40])
    return path


def flipped_bit(path: Path) -> Path:
    content = bytearray(save(path, volume()).read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def plain(path: Path, content: bytes) -> Path:
    return written(path.with_name("case.nii"), content)


def uncompressed(path: Path) -> bytes:
    return gzip.decompress(save(path, volume()).read_bytes())


RGB = np.zeros((4, 4, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
DIM, PIXDIM, VOX_OFFSET, SLOPE, SROW = 40, 76, 108, 112, 280  # byte offsets of NIfTI-1 header fields

BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda p: p, "no such file"),
    "folder": (lambda p: p.parent, "not a file"),
    "other name": (lambda p: written(p.with_name("case.png"), b"x"), "not a volume by its name"),
    "empty file": (lambda p: written(p, b""), "an empty file"),
    "not gzip": (lambda p: written(p, uncompressed(p)), "named .gz but not gzip-compressed"),
    "gzip as .nii": (lambda p: plain(p, save(p, volume()).read_bytes()), "gzip-compressed but not named so"),
    "truncated gzip": (truncated, "damaged: Compressed file ended"),
    "truncated plain": (lambda p: plain(p, uncompressed(p)[:-5]), "more than the"),
    "checksum": (flipped_bit, "damaged: "),
    "only gzip": (lambda p: written(p, gzip.compress(b"hello")), "a text, not a volume; it begins: hello"),
    "not a NIfTI": (lambda p: written(p, gzip.compress(bytes(4000))), "not a NIfTI file"),
    "2-D": (lambda p: save(p, volume(8, 8)), "2-D (8x8) where a 3-D volume is wanted"),
    "one slice": (lambda p: save(p, volume(8, 8, 1)), "2-D (8x8) where"),
    "thin": (lambda p: save(p, volume(8, 1, 8)), "a single slice (8x1x8)"),
    "4-D": (lambda p: save(p, volume(4, 4, 4, 2)), "4-D (4x4x4x2) where a 3-D volume is wanted"),
    "complex": (lambda p: save(p, volume().astype(np.complex64)), "complex voxels"),
    "colour": (lambda p: save(p, RGB), "colour voxels"),
    "NaN": (lambda p: save(p, with_voxel(np.nan)), "1 of 336 voxels are NaN or infinite"),
    "infinite": (lambda p: save(p, with_voxel(-np.inf)), "1 of 336 voxels are NaN or infinite"),
    "constant": (lambda p: save(p, np.full((4, 4, 4), 7, np.int16)), "every voxel is 7"),
    "zero": (lambda p: save(p, np.zeros((4, 4, 4), np.int16)), "is empty"),
    "singular": (lambda p: rewritten(save(p, volume()), SROW, "4f", 0, 0, 2, 0), "affine is singular"),
    "NaN affine": (lambda p: rewritten(save(p, volume()), SROW, "f", np.nan), "affine holds NaN"),
    "absurd": (lambda p: rewritten(save(p, volume()), DIM, "4h", 3, 500, 500, 500), "more than the"),
    "above the cap": (lambda p: rewritten(save(p, volume()), DIM, "4h", 3, 30000, 30000, 30000), "above the limit"),
    "negative": (lambda p: rewritten(save(p, volume()), DIM, "4h", 3, 6, -7, 8), "impossible shape 6x-7x8"),
    "nine dimensions": (lambda p: rewritten(save(p, volume()), DIM, "h", 9), "not a NIfTI|impossible shape"),
    "voxels nowhere": (
        lambda p: rewritten(save(p, volume()), VOX_OFFSET, "f", np.nan),
        "places the voxels at byte nan",
    ),
    "shorter than said": (lambda p: rewritten(save(p, volume()), DIM, "4h", 3, 7, 7, 8), "cut short: 1696 of the 1920"),
}


@pytest.mark.parametrize(("make", "problem"), BAD.values(), ids=BAD)
def test_bad_file_gets_one_line_with_path_problem_and_remedy(
    tmp_path: Path, make: Callable[[Path], Path], problem: str
) -> None:
    path = make(tmp_path / "case.nii.gz")
    with pytest.raises(BadInput) as caught:
        read_image(path)
    line = str(caught.value)
    assert any(each in caught.value.problem for each in problem.split("|"))
    assert line.startswith(f"{path}: ")
    assert str(path) not in caught.value.problem, "one error within another"
    assert line.endswith(f"; {caught.value.remedy}")
    assert caught.value.remedy
    assert "\n" not in line


def test_absurd_claim_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    import tracemalloc

    path = rewritten(save(tmp_path / "a.nii.gz", volume()), DIM, "4h", 3, 500, 500, 500)
    tracemalloc.start()
    with pytest.raises(BadInput, match="more than"):
        read_image(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


def test_content_beyond_the_claim_is_not_inflated(tmp_path: Path) -> None:
    path = save(tmp_path / "a.nii.gz", volume())
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(2**23)))
    with pytest.raises(BadInput, match="goes on after"):
        read_image(path)


def test_cut_anywhere_is_bad_input(tmp_path: Path) -> None:
    content = save(tmp_path / "whole.nii.gz", volume(5, 5, 5)).read_bytes()
    path = tmp_path / "cut.nii.gz"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(BadInput):
            read_image(path)


def test_more_bytes_than_are_unpacked_in_time_are_refused_unread(tmp_path: Path) -> None:
    header = nib.Nifti1Header()
    header.set_data_shape((512, 512, 512))
    header.set_data_dtype(np.float64)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    path = tmp_path / "large.nii.gz"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(1 << 20)) + os.urandom(1 << 21))
    with pytest.raises(BadInput, match="store them as float32"):
        read_image(path)


def test_damaged_header_is_bad_input_or_still_an_image(tmp_path: Path) -> None:
    whole = bytearray(gzip.decompress(save(tmp_path / "whole.nii.gz", volume(5, 5, 5)).read_bytes()))
    path = tmp_path / "fuzzed.nii"
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(400):
        content = bytearray(whole)
        for position in rng.integers(0, 352, rng.integers(1, 6)):
            content[position] = rng.integers(256)
        path.write_bytes(content)
        try:
            image = read_image(path)
        except BadInput:
            refused += 1
        else:
            assert np.isfinite(image.get_fdata(dtype=np.float32)).all()
    assert 50 < refused < 400


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("image_type", [nib.Nifti1Image, nib.Nifti2Image])
def test_reads_what_nibabel_wrote(tmp_path: Path, kind: type, ending: str, image_type: type) -> None:
    data = RNG.integers(0, 100, (4, 5, 6)).astype(kind)
    path = tmp_path / f"a{ending}"
    nib.save(image_type(data, AFFINE), path)
    image = read_image(path)
    np.testing.assert_array_equal(image.get_fdata(dtype=np.float32), data)
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    assert image.get_data_dtype() == np.float32


def test_scale_factor_big_endian_and_trailing_dimension_are_read(tmp_path: Path) -> None:
    header = nib.Nifti1Header(endianness=">")
    image = nib.Nifti1Image(volume(4, 5, 6)[..., None], AFFINE, header)
    image.header.set_data_dtype(np.int16)
    nib.save(image, tmp_path / "a.nii.gz")
    expected = nib.load(tmp_path / "a.nii.gz").get_fdata(dtype=np.float32)[..., 0]
    read = read_image(tmp_path / "a.nii.gz")
    assert read.shape == (4, 5, 6)
    np.testing.assert_allclose(read.get_fdata(dtype=np.float32), expected, rtol=1e-6)


def labels() -> np.ndarray:
    data = np.zeros((5, 6, 7), np.uint8)
    data[1:4, 1:4, 1:4] = 1
    data[2, 2, 2] = 2
    return data


def test_mask_is_read_as_whole_numbers(tmp_path: Path) -> None:
    image = read_mask(save(tmp_path / "m.nii.gz", labels().astype(np.float64)), (1, 2))
    assert image.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(image.dataobj), labels())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m * 2, "holds label 4, not among 0, 1, 2"),
        (lambda m: m.astype(np.int16) - 1, "holds label -1, not among"),
        (lambda m: np.where(m == 2, 1.5, m), "1 of 210 voxels are not whole numbers"),
        (lambda m: m * 0 + 1, "every voxel is 1"),
        (lambda m: np.arange(m.size, dtype=np.int16).reshape(m.shape), "holds labels 3, 4, 5, 6, 7, …"),
    ],
    ids=["stray", "negative", "fraction", "constant", "an image"],
)
def test_bad_mask(tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], problem: str) -> None:
    path = save(tmp_path / "m.nii.gz", change(labels()))
    with pytest.raises(BadInput) as caught:
        read_mask(path, (1, 2))
    assert problem in caught.value.problem
    assert caught.value.path == str(path)


def test_same_grid_names_both_files_and_shapes(tmp_path: Path) -> None:
    image = nib.Nifti1Image(volume(4, 5, 6), AFFINE)
    with pytest.raises(BadInput, match=r"image\.nii: its shape 4x5x6 is not its mask's 4x5x7 \(mask\.nii\)"):
        same_grid("image.nii", image, "mask.nii", nib.Nifti1Image(volume(4, 5, 7), AFFINE))
    with pytest.raises(BadInput, match=r"its affine differs .* up to 1\.5 voxels apart \(mask\.nii, both 4x5x6\)"):
        same_grid("image.nii", image, "mask.nii", nib.Nifti1Image(volume(4, 5, 6), AFFINE * [1.5, 1, 1, 1]))


def moved(millimetres: float = 0.0, stretch: float = 1.0) -> np.ndarray:
    affine = np.diag([1.0, 0.5, 4.0, 1.0])
    affine[:3, :3] *= stretch
    affine[1, 3] = millimetres
    return affine


@pytest.mark.parametrize(
    ("affine", "same"),
    [
        (moved(0.002), True),  # rounded origin
        (moved(0.04), True),
        (moved(0.06), False),  # over a tenth of a voxel of 0.5 mm
        (moved(stretch=0.9995), True),  # 0.9375 saved as 0.938
        (moved(stretch=0.999), False),  # little at a voxel, but much over the whole volume
        (np.diag([-1.0, 0.5, 4.0, 1.0]), False),
    ],
    ids=["0.002 mm", "0.04 mm", "0.06 mm", "rounded spacing", "other spacing", "flipped"],
)
def test_grids_are_compared_where_their_corners_land_in_voxels(affine: np.ndarray, same: bool) -> None:
    data = np.zeros((110, 110, 60), np.uint8)
    both = nib.Nifti1Image(data, moved()), nib.Nifti1Image(data, affine)
    for one, other in (both, both[::-1]):
        if same:
            same_grid("image.nii", one, "mask.nii", other)
        else:
            with pytest.raises(BadInput, match="its affine differs"):
                same_grid("image.nii", one, "mask.nii", other)


def test_a_header_without_a_place_is_told_to_copy_one(tmp_path: Path) -> None:
    placed = read_image(save(tmp_path / "image.nii.gz", volume(5, 6, 7)))
    lost = nib.Nifti1Image(labels(), None)
    lost.header.set_zooms((1, 1, 1))
    nib.save(lost, tmp_path / "mask.nii.gz")
    mask = read_mask(tmp_path / "mask.nii.gz", (1, 2))
    np.testing.assert_allclose(mask.affine, nib.load(tmp_path / "mask.nii.gz").affine)
    for first, second in ((("image", placed), ("mask", mask)), (("mask", mask), ("image", placed))):
        with pytest.raises(BadInput, match=r"^mask: .*both form codes are 0\), and image lies elsewhere; .*fslcpgeom"):
            same_grid(*first, *second)
    same_grid("image", mask, "mask", mask)
    coarse = nib.Nifti1Image(labels(), None)
    coarse.header.set_zooms((2, 2, 2))
    nib.save(coarse, tmp_path / "coarse.nii.gz")
    with pytest.raises(BadInput, match="its affine differs"):
        same_grid("image", read_mask(tmp_path / "coarse.nii.gz", (1, 2)), "mask", mask)


@pytest.mark.parametrize("kind", [np.uint8, np.int16])
@pytest.mark.parametrize("top", [2, 4])
def test_mask_saved_again_under_a_whole_number_header_is_taken(tmp_path: Path, kind: type, top: int) -> None:
    data = labels()
    data[data == 2] = top
    first = nib.load(save(tmp_path / "m.nii.gz", data.astype(kind)))
    nib.save(nib.Nifti1Image(first.get_fdata(), first.affine, first.header), tmp_path / "again.nii.gz")
    again = nib.load(tmp_path / "again.nii.gz")
    assert 0 < np.abs(again.get_fdata() - data).max() < again.dataobj.slope
    np.testing.assert_array_equal(np.asarray(read_mask(tmp_path / "again.nii.gz", (1, top)).dataobj), data)


@pytest.mark.parametrize(
    ("step", "values"), [(2 / 255, (0, 1.02)), (0.5, (0.5, 1)), (0.25, (1.25, 2)), (0.08, (0.96, 1.12))]
)
def test_interpolated_mask_stays_refused_whatever_its_step(tmp_path: Path, step: float, values: tuple[float]) -> None:
    stored = np.zeros((5, 6, 7), np.uint8)
    stored[1, 1, 1:3] = np.round(np.array(values) / step)
    image = nib.Nifti1Image(stored, AFFINE)
    image.header.set_slope_inter(step, 0)
    nib.save(image, tmp_path / "m.nii.gz")
    path = rewritten(tmp_path / "m.nii.gz", SLOPE, "2f", step, 0)
    assert np.asarray(nib.load(path).dataobj).max() == pytest.approx(max(values), abs=step / 2)
    with pytest.raises(BadInput, match="not whole numbers"):
        read_mask(path, (1, 2))


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("slope", "intercept", "expected"),
    [(2, NAN, (2, 0)), (2, INFINITE, (2, 0)), (2, 3, (2, 3)), (0, 5, (1, 0)), (NAN, NAN, (1, 0)), (NAN, 5, (1, 0)),
     (INFINITE, 1, (1, 0)), (0, NAN, (1, 0))],
)  # fmt: skip
@pytest.mark.parametrize("order", "<>")
def test_scaling_is_the_standards(
    tmp_path: Path, slope: float, intercept: float, expected: tuple[float, float], order: str
) -> None:
    data = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)
    image = nib.Nifti1Image(data, AFFINE, nib.Nifti1Header(endianness=order))
    image.header.set_data_dtype(np.int16)
    path = tmp_path / "a.nii"
    content = bytearray(image.to_bytes())
    struct.pack_into(order + "2f", content, SLOPE, slope, intercept)
    path.write_bytes(content)
    np.testing.assert_array_equal(np.asarray(read_image(path).dataobj), data * expected[0] + expected[1])


def test_channel_axis_in_front_is_named_and_one_behind_is_dropped(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"4-D \(1x4x5x6\): an axis of one channel lies before .*array\[0\]"):
        read_image(save(tmp_path / "a.nii.gz", volume(1, 4, 5, 6)))
    assert read_image(save(tmp_path / "b.nii.gz", volume(4, 5, 6, 1, 1))).shape == (4, 5, 6)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_written_volume_keeps_the_grid_and_drops_the_rest(tmp_path: Path, ending: str) -> None:
    like = nib.Nifti1Image(labels(), AFFINE)
    like.header.set_xyzt_units("mm", "sec")
    like.header.set_intent("label")
    like.header["descrip"] = b"segmentation by somebody"
    like.set_sform(AFFINE, code=4)
    like.set_qform(AFFINE, code=1)
    nib.save(like, tmp_path / "mask.nii.gz")
    data = volume(5, 6, 7)
    path = tmp_path / f"out{ending}"
    write_volume(path, data, read_mask(tmp_path / "mask.nii.gz", (1, 2)))
    image = nib.load(path)
    np.testing.assert_array_equal(image.get_fdata(dtype=np.float32), data)
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    header = image.header
    assert header.get_data_dtype() == np.float32
    assert header.get_xyzt_units() == ("mm", "sec")
    assert (int(header["sform_code"]), int(header["qform_code"])) == (4, 1)
    np.testing.assert_allclose(header.get_zooms(), nib.affines.voxel_sizes(AFFINE), rtol=1e-6)
    assert header.get_intent()[0] == "none"
    assert b"somebody" not in bytes(header["descrip"])


def test_written_mask_is_read_back(tmp_path: Path) -> None:
    write_mask(tmp_path / "new" / "m.nii.gz", labels(), nib.Nifti1Image(labels(), AFFINE))
    np.testing.assert_array_equal(np.asarray(read_mask(tmp_path / "new" / "m.nii.gz", (1, 2)).dataobj), labels())


def test_only_nifti_names_are_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"end it in \.nii or \.nii\.gz"):
        write_volume(tmp_path / "out.img", volume(5, 6, 7), nib.Nifti1Image(labels(), AFFINE))
    assert not list(tmp_path.iterdir())


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like = nib.Nifti1Image(labels(), AFFINE)
    path = tmp_path / "out.nii.gz"
    write_volume(path, volume(5, 6, 7), like)
    before = path.read_bytes()

    def full(image: nib.Nifti1Image, where: Path) -> None:
        Path(where).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nib, "save", full)
    with pytest.raises(BadInput, match="no room left"):
        write_volume(path, volume(5, 6, 7), like)
    assert [file.name for file in tmp_path.iterdir()] == ["out.nii.gz"]
    assert path.read_bytes() == before


def test_a_volume_keeps_a_note_of_how_it_was_made(tmp_path: Path) -> None:
    like, image = nib.Nifti1Image(labels(), AFFINE), volume(5, 6, 7)
    for path, note in (
        (tmp_path / "a.nii.gz", "seed 5"),
        (tmp_path / "b.nii", "x" * LONGEST_NOTE),
        (tmp_path / "c.nii", ""),
    ):
        write_volume(path, image, like, note)
        assert note_of(path) == note
        assert is_written(path)
    with pytest.raises(ValueError, match="a note of"):
        write_volume(tmp_path / "d.nii", image, like, "x" * (LONGEST_NOTE + 1))
    nib.save(like, tmp_path / "e.nii")
    for name in ("d.nii", "e.nii"):
        assert note_of(tmp_path / name) is None


def test_files_in_blocks_that_end_alike_have_other_digests(tmp_path: Path) -> None:
    """As bgzip writes them: the checksum at the end is that of the last block, here of background."""
    digests = []
    for site, value in (("a", 1.0), ("b", 2.0), ("c", 2.0)):
        (tmp_path / site).mkdir()
        path = tmp_path / site / "t1.nii.gz"
        volume = np.zeros((8, 8, 8), np.float32)
        volume[..., :4] = value
        whole = nib.Nifti1Image(volume, np.eye(4)).to_bytes()
        parts = (whole[:-512], whole[-512:]) if site != "c" else (whole,)
        path.write_bytes(b"".join(gzip.compress(part, mtime=0) for part in parts))
        digests.append(digest_of([path]))
        assert np.asarray(nib.load(path).dataobj).max() == value
    assert len(set(digests)) == 3


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_a_fifo_among_the_volumes_is_named(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with limited():
        with pytest.raises(BadInput, match=f"{name}: not a file"):
            read_image(tmp_path / name)
        with pytest.raises(BadInput, match=f"{name}: a FIFO stands there"):
            digest_of([tmp_path / name])
        assert note_of(tmp_path / name) is None
