"""Tells by its first bytes what a file is that bears a volume's name and is none."""

from __future__ import annotations

import codecs
import os

from medddpm.errors import BadInput

_AGAIN = "download it again: the server sent this in its place"
_UNPACK = "unpack it, and compress the .nii in it with gzip"
_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (  # in small letters
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the volume",
        "fetch the volume: git lfs pull",
    ),
    (b"/annex/objects/", "a git-annex pointer, not the volume", "fetch it: datalad get, or git annex get"),
    (b"<!doctype html", "a web page, not a volume", _AGAIN),
    (b"<html", "a web page, not a volume", _AGAIN),
    (b"objecttype", "a MetaImage file", "rename it to .mha, or convert it to .nii.gz"),
    (b"nrrd000", "an NRRD file", "rename it to .nrrd, or convert it to .nii.gz"),
    (b"\x1f\x8b", "gzip-compressed twice", "unpack it once (gunzip)"),
    (b"pk\x03\x04", "a zip archive", _UNPACK),
    (b"bzh", "compressed with bzip2", _UNPACK),
    (b"\xfd7zxz\0", "compressed with xz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"\x89hdf\r\n", "an HDF5 file (or MINC 2)", "convert the volume in it to .nii.gz"),
    (b"\x93numpy", "a NumPy array, which does not say where it lies", "save it as .nii.gz with the volume's affine"),
    (b"\0\0\0\x01\0\0", "a FreeSurfer volume (.mgh or .mgz)", "convert it: mri_convert IN.mgz OUT.nii.gz"),
)


def foreign(path: str | os.PathLike[str], start: bytes) -> BadInput | None:
    """Returns the error that says what a file is; None where its first few hundred bytes do not tell.

    Args:
        path: the file.
        start: its beginning, unpacked if it is gzip-compressed.
    """
    trimmed = start.removeprefix(codecs.BOM_UTF8).lstrip()
    for beginning, problem, remedy in _BEGINNINGS:
        if trimmed.lower().startswith(beginning):
            return BadInput(path, problem, remedy)
    if start[128:132] == b"DICM":
        return BadInput(path, "a DICOM file", "convert its series to .nii.gz (e.g. with dcm2niix)")
    if start[257:262] == b"ustar":
        return BadInput(path, "a tar archive", _UNPACK)
    if start[:4] in (b"\x5c\x01\0\0", b"\0\0\x01\x5c") and start[344:348] in (b"ni1\0", bytes(4)):  # 348 bytes long
        problem = "a header alone: its voxels lie in another file (Analyze, or a .hdr and .img pair)"
        return BadInput(path, problem, "convert the pair to one .nii.gz")
    if line := _first_line(trimmed):
        return BadInput(path, f"a text, not a volume; it begins: {line[:60]}", _AGAIN)
    return None


def _first_line(start: bytes) -> str:
    """Returns the first line of a text that is cut anywhere; empty where it is none."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return ""
    return text.splitlines()[0] if text and all(c.isprintable() or c.isspace() for c in text) else ""
