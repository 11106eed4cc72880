""".mha and .nrrd volumes are those that SimpleITK writes as NIfTI; a false header is refused before voxels are read."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from scipy.spatial.transform import Rotation

from medddpm.data.nifti import is_volume_name, read_image, read_mask, same_grid, split_name, write_mask
from medddpm.errors import BadInput

ENDINGS = [".mha", ".nrrd"]
SHAPE = (6, 5, 4)


def image(kind: type = np.float32) -> sitk.Image:
    """A turned volume of anisotropic voxels."""
    data = np.random.default_rng(0).normal(60, 20, SHAPE[::-1]).astype(kind)
    result = sitk.GetImageFromArray(data)
    result.SetSpacing((1, 2.5, 3.25))
    result.SetOrigin((10, -20, 30))
    result.SetDirection(Rotation.from_euler("xyz", [10, 20, 130], degrees=True).as_matrix().ravel())
    return result


def written(path: Path, packed: bool = False, kind: type = np.float32) -> Path:
    sitk.WriteImage(image(kind), str(path), useCompression=packed)
    return path


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("packed", [False, True], ids=["raw", "packed"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_volume_is_the_one_simpleitk_writes_as_nifti(tmp_path: Path, ending: str, packed: bool, kind: type) -> None:
    expected = read_image(written(tmp_path / "v.nii.gz", kind=kind))
    read = read_image(written(tmp_path / f"v{ending}", packed, kind))
    np.testing.assert_array_equal(np.asarray(read.dataobj), np.asarray(expected.dataobj))
    np.testing.assert_allclose(read.affine, expected.affine, atol=1e-5)
    assert read.get_data_dtype() == np.float32
    for name in ("sform_code", "qform_code"):
        assert read.header[name] == expected.header[name]
    assert read.header.get_xyzt_units()[0] == "mm"
    same_grid("a", read, "b", expected)


@pytest.mark.parametrize(
    ("ending", "old", "new"),
    [
        (".mha", b"BinaryDataByteOrderMSB = False", b"BinaryDataByteOrderMSB = True"),
        (".mha", b"BinaryDataByteOrderMSB = False", b"ElementByteOrderMSB = True"),
        (".nrrd", b"endian: little", b"endian: big"),
    ],
)
def test_either_order_of_bytes(tmp_path: Path, ending: str, old: bytes, new: bytes) -> None:
    path = written(tmp_path / f"v{ending}", kind=np.int16)
    expected = np.asarray(read_image(path).dataobj)
    voxels(expected.astype(">i2").tobytes("F"))(path)
    changed(old, new)(path)
    np.testing.assert_array_equal(np.asarray(read_image(path).dataobj), expected)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(path))).transpose(), expected)


@pytest.mark.parametrize(
    ("space", "flips"),
    [
        ("left-posterior-superior", (1, 1)),
        ("LPS", (1, 1)),
        ("right-anterior-superior", (-1, -1)),
        ("left-anterior-superior", (1, -1)),
        ("RAS", (-1, -1)),
    ],
)
def test_nrrd_names_its_axes(tmp_path: Path, space: str, flips: tuple[int, int]) -> None:
    path = written(tmp_path / "v.nrrd")
    lps = read_image(path).affine
    path.write_bytes(path.read_bytes().replace(b"space: left-posterior-superior", f"space: {space}".encode()))
    np.testing.assert_allclose(read_image(path).affine, np.diag([*flips, 1, 1]) @ lps, atol=1e-6)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_mask_lies_where_its_image_does_and_is_written_back_there(tmp_path: Path, ending: str) -> None:
    labels = np.zeros(SHAPE, np.uint8)
    labels[1:5, 1:4, 1:3] = 1
    labels[2, 2, 1] = 2
    mask = sitk.GetImageFromArray(labels.transpose())
    mask.CopyInformation(image())
    (tmp_path / "mask").mkdir()
    (tmp_path / "image").mkdir()
    sitk.WriteImage(mask, str(tmp_path / "mask" / f"case_1{ending}"), useCompression=True)
    written(tmp_path / "image" / "case_1.nii.gz")
    read = read_mask(tmp_path / "mask" / f"case_1{ending}", (1, 2))
    np.testing.assert_array_equal(np.asarray(read.dataobj), labels)
    beside = read_image(tmp_path / "image" / "case_1.nii.gz")
    same_grid("image", beside, "mask", read)
    write_mask(tmp_path / "out.nii.gz", labels, read)
    np.testing.assert_allclose(nib.load(tmp_path / "out.nii.gz").affine, beside.affine, atol=1e-5)


def changed(*pairs: bytes) -> Callable[[Path], None]:
    """Replaces the first, third … of `pairs` by the one after it."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            assert old in content
            content = content.replace(old, new, 1)
        path.write_bytes(content)

    return change


def voxels(packed: bytes | None = None, keep: int | None = None, more: bytes = b"") -> Callable[[Path], None]:
    """Replaces what follows the header."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        end = re.search(rb"LOCAL\n|\n\n", content).end()
        path.write_bytes(content[:end] + (content[end:][:keep] if packed is None else packed) + more)

    return change


META: dict[str, tuple[Callable[[Path], None], str]] = {
    "detached": (changed(b"= LOCAL", b"= other.raw"), "its ElementDataFile is other.raw, where LOCAL is read; save"),
    "list": (changed(b"= LOCAL", b"= LIST"), "its ElementDataFile is LIST"),
    "text": (changed(b"BinaryData = True", b"BinaryData = False"), "its BinaryData is False"),
    "channels": (changed(b"DimSize", b"ElementNumberOfChannels = 3\nDimSize"), "its ElementNumberOfChannels is 3"),
    "scaled": (changed(b"DimSize", b"ElementToIntensityFunctionSlope = 2\nDimSize"), "its ElementToIntensity"),
    "too large": (changed(b"= 6 5 4", b"= 6000 5000 4000"), "above the limit"),
    "larger": (changed(b"= 6 5 4", b"= 600 500 400"), "its header claims 480000000 bytes, more than the 480"),
    "overflow": (changed(b"= 6 5 4", b"= 99999999999999999999 5 4"), "impossible shape"),
    "negative": (changed(b"= 6 5 4", b"= -6 5 4"), "impossible shape"),
    "4-D": (changed(b"NDims = 3", b"NDims = 4"), "its header claims 4 dimensions of sizes 6 5 4"),
    "another type": (changed(b"MET_FLOAT", b"MET_DOUBLE"), "its header claims 960 bytes, more than the 480"),
    "no type": (changed(b"MET_FLOAT", b"MET_OTHER"), "its ElementType is MET_OTHER"),
    "two volumes": (changed(b"NDims = 3", b"NDims = 4", b"= 6 5 4", b"= 6 5 2 2"), "4-D (6x5x2x2) where a 3-D"),
    "channel first": (
        changed(b"NDims = 3", b"NDims = 4", b"= 6 5 4", b"= 1 6 5 4"),
        "an axis of one channel lies before",
    ),
    "a slice": (changed(b"= 6 5 4", b"= 30 4 1"), "2-D (30x4)"),
    "twice": (changed(b"DimSize", b"DimSize = 1 1 1\nDimSize"), "its MetaImage header is damaged"),
    "no spacing": (changed(b"= 1 2.5 3.25", b"= 0 2.5 3.25"), "its affine is singular"),
    "no place": (changed(b"Offset = 10 -20 30", b"Offset = 10 20"), "does not give three axes and an origin"),
    "cut short": (voxels(keep=479), "more than the 479"),
    "goes on": (voxels(more=bytes(2**21)), "goes on after the 480 bytes"),
    "a page": (lambda path: path.write_bytes(b"<!DOCTYPE html><html>"), "a web page, not a volume"),
    "empty": (lambda path: path.write_bytes(b""), "an empty file"),
    "a line": (lambda path: path.write_bytes(b"ObjectType = Image\n"), "its MetaImage header is damaged"),
}
NRRD: dict[str, tuple[Callable[[Path], None], str]] = {
    "detached": (changed(b"kinds:", b"data file: other.raw\nkinds:"), "its voxels lie in another file (other.raw)"),
    "detached, in a word": (changed(b"kinds:", b"datafile: LIST\nkinds:"), "its voxels lie in another file (LIST)"),
    "text": (changed(b"encoding: raw", b"encoding: ascii"), "its encoding is ascii, where raw or gzip or gz is read"),
    "skips": (changed(b"kinds:", b"byte skip: -1\nkinds:"), "its byteskip is -1"),
    "elsewhere": (changed(b"left-posterior-superior", b"scanner-xyz"), "its space is scanner-xyz"),
    "too large": (changed(b"sizes: 6 5 4", b"sizes: 6000 5000 4000"), "above the limit"),
    "larger": (changed(b"sizes: 6 5 4", b"sizes: 600 500 400"), "more than the 480"),
    "4-D": (changed(b"dimension: 3", b"dimension: 4"), "4 dimensions of sizes 6 5 4"),
    "another type": (changed(b"type: float", b"type: double"), "its header claims 960 bytes, more than the 480"),
    "no type": (changed(b"type: float", b"type: block"), "its type is block"),
    "no byte order": (changed(b"endian: little\n", b""), "its endian is ,"),
    "two volumes": (changed(b"dimension: 3", b"dimension: 4", b"sizes: 6 5 4", b"sizes: 2 6 5 2"), "4-D (2x6x5x2)"),
    "twice": (changed(b"kinds:", b"sizes: 1 1 1\nkinds:"), "its NRRD header is damaged"),
    "no place": (changed(b"(10,-20,30)", b"(10,20)"), "does not give three axes and an origin"),
    "ends of axes": (
        lambda path: path.write_bytes(
            re.sub(rb"space[^\n]*\n", b"", path.read_bytes()).replace(b"kinds:", b"axis mins: 0 0 0\nkinds:")
        ),
        "the ends of its axes",
    ),
    "cut short": (voxels(keep=479), "more than the 479"),
    "goes on": (voxels(more=bytes(2**21)), "goes on after the 480 bytes"),
    "LFS": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer"),
    "MetaImage": (lambda path: path.write_bytes(b"ObjectType = Image\nNDims = 3\n"), "a MetaImage file"),
}


BAD = {f".mha {name}": (".mha", *case) for name, case in META.items()}
BAD |= {f".nrrd {name}": (".nrrd", *case) for name, case in NRRD.items()}


@pytest.mark.parametrize(("ending", "spoil", "problem"), BAD.values(), ids=BAD)
def test_bad_file_is_refused_in_one_line(
    tmp_path: Path, ending: str, spoil: Callable[[Path], None], problem: str
) -> None:
    path = written(tmp_path / f"v{ending}")
    spoil(path)
    with pytest.raises(BadInput) as caught:
        read_image(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert problem in line
    assert "\n" not in line


@pytest.mark.parametrize(("ending", "pack"), [(".mha", zlib.compress), (".nrrd", gzip.compress)])
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda packed: packed[:-12], "damaged: its packed voxels end early|more than the file"),
        (lambda packed: packed[:20] + b"\xff\xff" + packed[22:], "damaged"),
        (lambda packed: packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:], "damaged"),
    ],
    ids=["cut", "middle", "end"],
)
def test_damaged_packed_voxels(tmp_path: Path, ending: str, pack: Callable, spoil: Callable, problem: str) -> None:
    path = written(tmp_path / f"v{ending}", packed=True)
    voxels(spoil(pack(bytes(range(240)) * 2)))(path)
    path.write_bytes(re.sub(rb"CompressedDataSize = \d+\n", b"", path.read_bytes()))
    with pytest.raises(BadInput) as caught:
        read_image(path)
    assert any(each in caught.value.problem for each in problem.split("|"))


@pytest.mark.parametrize(("ending", "pack"), [(".mha", zlib.compress), (".nrrd", gzip.compress)])
@pytest.mark.parametrize(("count", "problem"), [(479, "cut short: 479 of the 480"), (2**23, "goes on after the 480")])
def test_packed_voxels_are_counted(tmp_path: Path, ending: str, pack: Callable, count: int, problem: str) -> None:
    path = written(tmp_path / f"v{ending}", packed=True)
    voxels(pack(bytes(count)))(path)
    path.write_bytes(re.sub(rb"CompressedDataSize = \d+\n", b"", path.read_bytes()))
    with pytest.raises(BadInput, match=problem):
        read_image(path)


def test_packed_size_may_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "v.mha", packed=True)
    expected = np.asarray(read_image(path).dataobj)
    path.write_bytes(re.sub(rb"CompressedDataSize = \d+\n", b"", path.read_bytes()))
    np.testing.assert_array_equal(np.asarray(read_image(path).dataobj), expected)


def test_packed_size_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "v.mha", packed=True)
    path.write_bytes(re.sub(rb"(CompressedDataSize = )\d+", rb"\g<1>999999999999", path.read_bytes()))
    with pytest.raises(BadInput, match="claims 999999999999 packed bytes"):
        read_image(path)


def test_names() -> None:
    assert [split_name(Path(name)) for name in ("a.b.mha", "A.NRRD", "x.nii.GZ")] == [
        ("a.b", ".mha"), ("A", ".NRRD"), ("x", ".nii.GZ")
    ]  # fmt: skip
    assert not is_volume_name("a.mhd")
    assert is_volume_name("A.MHA")
