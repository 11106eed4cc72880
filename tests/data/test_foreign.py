"""A file that bears a volume's name and is none is called what it is, with the remedy for that."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from medddpm.data.nifti import read_image
from medddpm.errors import BadInput

VOLUME = nib.Nifti1Image(np.arange(120, dtype=np.float32).reshape(4, 5, 6), np.eye(4)).to_bytes()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 29680\n"


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("v.nii", VOLUME)
    return stream.getvalue()


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("v.nii")
        entry.size = len(VOLUME)
        archive.addfile(entry, io.BytesIO(VOLUME))
    return stream.getvalue()


def freesurfer() -> bytes:
    return bytes(nib.MGHImage(np.ones((4, 5, 6), np.float32), np.eye(4)).to_bytes())


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros((4, 5, 6)))
    return stream.getvalue()


def half_a_pair() -> bytes:
    image = nib.Nifti1Pair(np.ones((4, 5, 6), np.float32), np.eye(4))
    return bytes(image.header.binaryblock)


KINDS: dict[str, tuple[bytes, str, str]] = {
    "LFS": (POINTER, "a Git LFS pointer", "git lfs pull"),
    "annex": (b"/annex/objects/MD5E-s29680--0123.nii.gz\n", "a git-annex pointer", "datalad get"),
    "web page": (b"\n <!DOCTYPE html><html><title>Virus scan warning</title>", "a web page", "download it again"),
    "web page, marked": (b"\xef\xbb\xbf<HTML>", "a web page", "download it again"),
    "JSON": (b'{"error": "not found"}', 'a text, not a volume; it begins: {"error"', "download it again"),
    "XML": (b'<?xml version="1.0"?><Error>', "a text, not a volume; it begins: <?xml", "download it again"),
    "umlauts, cut": ("Zugriff verweigert für jedermann: ü".encode()[:-1], "a text", "download it again"),
    "zip": (zipped(), "a zip archive", "unpack it"),
    "bzip2": (bz2.compress(VOLUME), "compressed with bzip2", "unpack it"),
    "xz": (lzma.compress(VOLUME), "compressed with xz", "unpack it"),
    "tar": (tarred(), "a tar archive", "unpack it"),
    "DICOM": (bytes(128) + b"DICM\x02\0\0\0UL\x04\0", "a DICOM file", "dcm2niix"),
    "FreeSurfer": (freesurfer(), "a FreeSurfer volume", "mri_convert"),
    "NumPy": (array(), "a NumPy array", "save it as .nii.gz"),
    "MetaImage": (b"ObjectType = Image\nNDims = 3\n", "a MetaImage file", "rename it to .mha"),
    "NRRD": (b"NRRD0004\ntype: float\n", "an NRRD file", "rename it to .nrrd"),
    "half a pair": (half_a_pair(), "a header alone", "convert the pair"),
}


@pytest.mark.parametrize("name", ["v.nii.gz", "v.nii"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(("content", "problem", "remedy"), KINDS.values(), ids=KINDS)
def test_the_file_is_called_what_it_is(
    tmp_path: Path, content: bytes, problem: str, remedy: str, pack: Callable[[bytes], bytes], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(content))
    with pytest.raises(BadInput) as caught:
        read_image(path)
    assert caught.value.path == str(path)
    assert caught.value.problem.startswith(problem)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("v.nii.gz", VOLUME, "named .gz but not gzip-compressed; compress it, or rename it to .nii"),
        ("v.nii", gzip.compress(VOLUME), "gzip-compressed but not named so; rename it to .nii.gz"),
        ("v.nii.gz", gzip.compress(gzip.compress(VOLUME)), "gzip-compressed twice; unpack it once (gunzip)"),
    ],
)
def test_a_volume_under_the_other_name_is_told_so(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_image(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {line}"


def test_what_is_no_text_is_not_called_one(tmp_path: Path) -> None:
    for content in (bytes(4000), np.random.default_rng(0).bytes(4000), b"ab\x00cd" * 100):
        (tmp_path / "v.nii").write_bytes(content)
        with pytest.raises(BadInput, match=r"not a NIfTI file \(its header is of another format\)"):
            read_image(tmp_path / "v.nii")
