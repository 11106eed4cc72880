"""Reads .mha (MetaImage) and .nrrd volumes that hold their own voxels.

SimpleITK reads them too, but some damaged headers crash its readers, and for some damaged voxels they return
uninitialised memory. The tests compare with it.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import nibabel as nib
import numpy as np
import numpy.typing as npt

from medddpm.data.foreign import foreign
from medddpm.data.limits import AGAIN, LARGEST, TRAILING_BYTES, by, check_affine, check_shape, claimed_bytes
from medddpm.errors import BadInput

ENDINGS = (".mha", ".nrrd")

_HEADER_BYTES = 1 << 20  # more than a segmentation's header, which describes each segment
_PIECE = 1 << 22
_CONVERT = "save it again as .nii.gz"
_ZLIB_OR_GZIP = 47  # zlib's window bits for either

_META_KINDS = {"CHAR": "i1", "UCHAR": "u1", "SHORT": "i2", "USHORT": "u2", "INT": "i4", "UINT": "u4",
               "LONG_LONG": "i8", "ULONG_LONG": "u8", "FLOAT": "f4", "DOUBLE": "f8"}  # fmt: skip
_META_FIXED = {"ObjectType": "Image", "BinaryData": "True", "HeaderSize": "0", "ElementNumberOfChannels": "1",
               "ElementToIntensityFunctionSlope": "1", "ElementToIntensityFunctionOffset": "0",
               "ElementDataFile": "LOCAL"}  # fmt: skip
_NRRD_KINDS = {
    "i1": "signed char, int8, int8_t",
    "u1": "uchar, unsigned char, uint8, uint8_t",
    "i2": "short, short int, signed short, signed short int, int16, int16_t",
    "u2": "ushort, unsigned short, unsigned short int, uint16, uint16_t",
    "i4": "int, signed int, int32, int32_t",
    "u4": "uint, unsigned int, uint32, uint32_t",
    "i8": "longlong, long long, long long int, signed long long, signed long long int, int64, int64_t",
    "u8": "ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t",
    "f4": "float",
    "f8": "double",
}
_LPS, _RAS, _LAS = (-1, -1, 1), (1, 1, 1), (-1, 1, 1)  # the signs that lead to NIfTI's axes
_SPACES = {"left-posterior-superior": _LPS, "lps": _LPS, "right-anterior-superior": _RAS, "ras": _RAS,
           "left-anterior-superior": _LAS, "las": _LAS}  # fmt: skip


@dataclass(frozen=True)
class _Claim:
    """The header's description of the voxels: `start` is their first byte, `length` their bytes in the file.

    `affine` (4, 4) maps their indices to millimetres, x to the right, y to the front, z up.
    """

    shape: tuple[int, ...]
    kind: np.dtype[np.generic]
    packed: bool
    start: int
    length: int
    affine: npt.NDArray[np.float64]


def read(path: Path, size: int) -> nib.Nifti1Image:
    """Reads a .mha or .nrrd that holds its own voxels.

    Args:
        path: the file.
        size: its length in bytes.

    Returns:
        The image, its voxels in memory as float32 (H, W, D); the affine maps voxel indices to millimetres, with NIfTI's
        axes (the files' x and y point the other way).

    Raises:
        BadInput: the header is damaged, claims more than the file holds, or names another file; the voxels are not
            those of one real 3-D volume, or are damaged.
    """
    with open(path, "rb") as stream:
        head = stream.read(_HEADER_BYTES)
        claim = (_meta if path.name.lower().endswith(".mha") else _nrrd)(path, head, size)
        if not 0 <= claim.length <= size - claim.start:
            raise BadInput(path, f"its header claims {claim.length} packed bytes, more than the file holds", AGAIN)
        expected = claimed_bytes(path, 0, claim.shape, claim.kind, claim.length, claim.packed)
        stream.seek(claim.start)
        voxels = _voxels(stream, claim, expected + (0 if claim.packed else TRAILING_BYTES))
    if len(voxels) < expected:
        raise BadInput(path, f"cut short: {len(voxels)} of the {expected} bytes its header claims", AGAIN)
    if len(voxels) > expected and (claim.packed or len(voxels) > expected + TRAILING_BYTES):
        raise BadInput(path, f"goes on after the {expected} bytes of voxels its header claims", AGAIN)
    stored = np.frombuffer(voxels, claim.kind, math.prod(claim.shape)).reshape(claim.shape, order="F")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and refused as that
        image = nib.Nifti1Image(stored.astype(np.float32), claim.affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(claim.affine, code="scanner")
    image.set_qform(claim.affine, code="scanner")
    return image


def _meta(path: Path, head: bytes, size: int) -> _Claim:
    fields: dict[str, str] = {}
    at = 0
    while "ElementDataFile" not in fields:
        end = head.find(b"\n", at)
        key, equals, value = (part.strip() for part in head[at : max(end, at)].decode("latin-1").partition("="))
        if not equals or key in fields:
            raise _not_read(path, head, "MetaImage")
        fields[key] = value
        at = end + 1
    for key, only in _META_FIXED.items():
        value = fields.get(key, "False" if key == "BinaryData" else only)
        if value.lower() != only.lower():
            raise BadInput(path, f"its {key} is {value}, where {only} is read", _CONVERT)
    shape = _shape(path, fields.get("DimSize", ""), fields.get("NDims", ""))
    kind = _META_KINDS.get(fields.get("ElementType", "").removeprefix("MET_"))
    if kind is None:
        raise BadInput(path, f"its ElementType is {fields.get('ElementType')}, which is not read", _CONVERT)
    packed = fields.get("CompressedData", "False").lower() == "true"
    length = _whole(fields["CompressedDataSize"]) if packed and "CompressedDataSize" in fields else size - at
    big = any(fields.get(name, "False").lower() == "true" for name in ("BinaryDataByteOrderMSB", "ElementByteOrderMSB"))
    return _Claim(shape, np.dtype((">" if big else "<") + kind), packed, at, length, _meta_affine(path, fields))


def _meta_affine(path: Path, fields: Mapping[str, str]) -> npt.NDArray[np.float64]:
    def numbers(default: str, *names: str) -> npt.NDArray[np.float64]:
        return _numbers(path, next((fields[name] for name in names if name in fields), default).split())

    axes = numbers("1 0 0 0 1 0 0 0 1", "TransformMatrix", "Rotation", "Orientation")  # a row an axis
    spacing = numbers("1 1 1", "ElementSpacing", "ElementSize")
    rows = list(axes.reshape(3, 3) * spacing.reshape(3, 1)) if (axes.size, spacing.size) == (9, 3) else []
    return _placed(path, [*rows, numbers("0 0 0", "Offset", "Position", "Origin")], _SPACES["lps"])


def _nrrd(path: Path, head: bytes, size: int) -> _Claim:
    end = re.search(rb"\r?\n\r?\n", head)
    if not (head.startswith(b"NRRD000") and end):
        raise _not_read(path, head, "NRRD")
    fields: dict[str, str] = {}
    for line in re.split(r"\r?\n", head[: end.start()].decode("latin-1"))[1:]:
        if line.startswith("#") or re.match(r"[^:]*:=", line):
            continue  # a comment, or a note of the writer's
        key, colon, value = line.partition(":")
        key = key.lower().replace(" ", "")
        if not colon or key in fields:
            raise _not_read(path, head, "NRRD")
        fields[key] = value.strip()
    if "datafile" in fields:
        raise BadInput(path, f"its voxels lie in another file ({fields['datafile']})", _CONVERT)
    kinds = (kind for kind, names in _NRRD_KINDS.items() if fields.get("type", "").lower() in names.split(", "))
    kind = next(kinds, None)
    if kind is None:
        raise BadInput(path, f"its type is {fields.get('type')}, which is not read", _CONVERT)
    for key, default, read in (
        ("encoding", "", ("raw", "gzip", "gz")),
        ("endian", "little" if kind[1] == "1" else "", ("little", "big")),
        ("lineskip", "0", ("0",)),
        ("byteskip", "0", ("0",)),
        ("space", "lps", tuple(_SPACES)),
    ):
        value = fields.get(key, default).lower()
        if value not in read:
            raise BadInput(path, f"its {key} is {value}, where {' or '.join(read)} is read", _CONVERT)
    shape = _shape(path, fields.get("sizes", ""), fields.get("dimension", ""))
    order = ">" if fields.get("endian", "").lower() == "big" else "<"
    packed = fields["encoding"].lower() != "raw"
    return _Claim(shape, np.dtype(order + kind), packed, end.end(), size - end.end(), _nrrd_affine(path, fields))


def _nrrd_affine(path: Path, fields: Mapping[str, str]) -> npt.NDArray[np.float64]:
    def vectors(default: str, name: str) -> list[npt.NDArray[np.float64]]:
        groups = re.findall(r"\(([^()]*)\)", fields.get(name, default))
        return [_numbers(path, vector.split(",")) for vector in groups]

    if "spacedirections" in fields:
        axes = vectors("", "spacedirections")
    elif "axismins" in fields or "axismaxs" in fields:
        raise BadInput(path, "it gives the ends of its axes, not their directions in space", _CONVERT)
    else:
        axes = list(np.diag(_numbers(path, fields.get("spacings", "1 1 1").split())))
    return _placed(path, [*axes, *vectors("(0,0,0)", "spaceorigin")], _SPACES[fields.get("space", "lps").lower()])


def _placed(
    path: Path, columns: Sequence[npt.NDArray[np.float64]], signs: tuple[int, int, int]
) -> npt.NDArray[np.float64]:
    """Returns the affine of three axes and an origin, once x, y and z are multiplied by `signs`."""
    if [len(column) for column in columns] != [3] * 4:
        raise BadInput(path, "its header does not give three axes and an origin in space", AGAIN)
    affine = np.vstack([np.stack(columns, axis=1) * np.reshape(signs, (3, 1)), [0, 0, 0, 1]])
    check_affine(path, affine)
    return affine


def _numbers(path: Path, words: Sequence[str]) -> npt.NDArray[np.float64]:
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        values = np.array([np.nan])
    if not (np.abs(values) <= LARGEST).all():
        raise BadInput(path, f"its header gives a place in space as {' '.join(words)}", AGAIN)
    return values


def _shape(path: Path, sizes: str, dimensions: str) -> tuple[int, ...]:
    shape = tuple(_whole(word) for word in sizes.split())
    if len(shape) != _whole(dimensions) or not 1 <= len(shape) <= 16:
        raise BadInput(path, f"its header claims {dimensions} dimensions of sizes {sizes}", AGAIN)
    check_shape(path, shape)
    if len(shape) > 3:
        raise BadInput(path, f"{len(shape)}-D ({by(shape)})", "save it without the axes of length 1")
    return shape


def _whole(word: str) -> int:
    """Returns a number in plain digits; of anything else -1."""
    return int(word) if re.fullmatch(r"[0-9]{1,15}", word) else -1


def _not_read(path: Path, head: bytes, format: str) -> BadInput:
    known = b"nrrd000" if format == "NRRD" else b"objecttype"
    other = None if head.lower().startswith(known) else foreign(path, head[:600])
    return other or BadInput(path, f"its {format} header is damaged", AGAIN)


def _voxels(stream: IO[bytes], claim: _Claim, most: int) -> bytes:
    """Returns the voxels' bytes, unpacked; where there are more than `most`, some more than that.

    Raises:
        zlib.error: the compressed voxels are damaged.
        EOFError: they end early.
    """
    if not claim.packed:
        return stream.read(min(claim.length, most + 1))
    inflate, pieces, left = zlib.decompressobj(_ZLIB_OR_GZIP), [], claim.length
    while not inflate.eof and most >= 0:
        packed = inflate.unconsumed_tail
        if not packed:
            packed = stream.read(min(_PIECE, left))
            left -= len(packed)
        piece = inflate.decompress(packed, _PIECE)
        if not (packed or piece or inflate.eof):
            raise EOFError("its packed voxels end early")
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)
