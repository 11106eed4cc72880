"""Reads and writes NIfTI volumes one at a time, with every check on a single file (NIfTI: Cox et al. 2004)."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import nibabel as nib
import numpy as np
import numpy.typing as npt
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError, HeaderTypeError
from nibabel.wrapstruct import WrapStructError

from medddpm.errors import BadInput
from medddpm.runtime.files import replacing

MAX_VOXELS = 512**3
"""The largest volume that is read: half a GiB as float32, more than any head scan."""

MAX_BYTES = 4 * MAX_VOXELS
"""The most that its voxels take in the file, unpacked: to unpack twice as much, as float64, takes more than 10 s."""

LARGEST = 1e30
"""The largest intensity: differences and squares of larger ones are not float32 numbers."""

_DEFLATE_RATIO = 1032
"""Deflate cannot expand a byte into more than this many (zlib.net, "Maximum compression factor")."""

_HEADER_BYTES = 540  # NIfTI-2, the longer header
_FLAG_BYTES = 4  # behind it: whether extensions follow
_GZIP_TRAILER = 8  # the checksum and the length of what is packed (RFC 1952)
_TRAILING_BYTES = 1 << 20  # may follow the voxels; a longer stream is not an image
_VOLUME, _MASK = "Med-DDPM volume", "Med-DDPM mask"  # what a written file says of itself
_NOTE = ": "  # between that and a note
LONGEST_NOTE = 79 - len(_VOLUME + _NOTE)  # a description has 80 bytes, the last of them 0
_AGAIN = "copy or download it again"
_DAMAGE = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    HeaderDataError,
    HeaderTypeError,
    ImageFileError,
    WrapStructError,
    ValueError,  # covers UnicodeDecodeError and numpy's complaints
    OverflowError,
    ZeroDivisionError,
)


def is_nifti_name(path: str | os.PathLike[str]) -> bool:
    """Whether `path` ends in ``.nii`` or ``.nii.gz``."""
    return os.fspath(path).lower().endswith((".nii", ".nii.gz"))


def is_volume_name(path: str | os.PathLike[str]) -> bool:
    """Whether a volume can be read from a file of that name."""
    return is_nifti_name(path)


def split_name(path: Path) -> tuple[str, str]:
    """The name before its NIfTI ending, and the ending as it is written, in capitals or not."""
    length = next(len(ending) for ending in (".nii.gz", ".nii") if path.name.lower().endswith(ending))
    return path.name[:-length], path.name[-length:]


def is_written(path: Path) -> bool:
    """Whether `write_volume` or `write_mask` wrote the file at `path`."""
    return note_of(path) is not None


def note_of(path: Path) -> str | None:
    """The note that `write_volume` left in the file at `path`; empty where it left none, None if it did not write it.

    Only the header is read: what follows may be damaged.
    """
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as stream:
            header = _header(path, stream.read(_HEADER_BYTES))
    except (*_DAMAGE, OSError):  # BadInput is a ValueError
        return None
    kind, _, note = bytes(header["descrip"]).rstrip(b"\0").decode("ascii", "replace").partition(_NOTE)
    return note if kind in (_VOLUME, _MASK) else None


def check_name(path: str | os.PathLike[str]) -> None:
    """Raises BadInput unless the name ends in ``.nii`` or ``.nii.gz``."""
    if not is_nifti_name(path):
        raise BadInput(path, "not a NIfTI name", "end it in .nii or .nii.gz")


def read_image(path: str | os.PathLike[str]) -> nib.Nifti1Image:
    """Reads a 3-D scalar volume whole.

    Returns:
        The image, its voxels in memory as float32 (H, W, D) with the header's scaling applied; the affine maps voxel
        indices to millimetres. A trailing dimension of length 1 is dropped.

    Raises:
        BadInput: the file is missing, not a NIfTI, damaged or cut short; is not 3-D; has complex or colour voxels,
            NaN or infinite ones, or the same value everywhere; has an affine that cannot be inverted; or its header
            claims more than the file can hold (refused before that much memory is allocated).
    """
    image = _read_finite(Path(path))
    data = np.asarray(image.dataobj)
    if data.min() == data.max():
        raise _constant(path, float(data.flat[0]))
    return image


def read_frames(path: str | os.PathLike[str], frames: Sequence[int]) -> list[nib.Nifti1Image]:
    """Reads some of the volumes that a 4-D NIfTI holds one after the other; returns each as `read_image` does.

    Raises:
        BadInput: as `read_image`; or the file is not 4-D, or has no volume of that number.
    """
    image = _read_finite(Path(path), dimensions=4)
    data = np.asarray(image.dataobj)
    if max(frames) >= data.shape[3]:
        problem = f"holds {data.shape[3]} volumes, where at least {max(frames) + 1} channels are named"
        raise BadInput(path, problem, "correct the names of the channels, or give the file that has them all")
    found = []
    for frame in frames:
        volume = np.ascontiguousarray(data[..., frame])
        if volume.min() == volume.max():
            raise _constant(path, float(volume.flat[0]))
        found.append(_in_memory(image, volume))
    return found


def _read_finite(path: Path, dimensions: int = 3) -> nib.Nifti1Image:
    try:
        image = _read(path, dimensions)
    except BadInput:  # a ValueError, as many a sign of damage is
        raise
    except _DAMAGE as error:
        raise BadInput(path, f"damaged: {_reason(error)}", _AGAIN) from None
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    data = image.get_fdata(dtype=np.float32)
    low, high = float(data.min()), float(data.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = data.size - int(np.isfinite(data).sum())
        raise BadInput(path, f"{bad} of {data.size} voxels are NaN or infinite", "replace them, e.g. with 0")
    if max(-low, high) > LARGEST:
        raise BadInput(path, f"a voxel of {max(low, high, key=abs):g} is no intensity", "replace it, e.g. with 0")
    return image


def _constant(path: str | os.PathLike[str], value: float) -> BadInput:
    what = f"every voxel is {value:g}" if value else "is empty: every voxel is 0"
    return BadInput(path, what, "replace it with a volume that has content, or leave the case out")


def read_mask(path: str | os.PathLike[str], labels: Collection[int]) -> nib.Nifti1Image:
    """Reads a label volume whole.

    Args:
        path: the file.
        labels: the labels it may hold besides 0, the background.

    Returns:
        The image, its voxels in memory as uint8 (H, W, D).

    Raises:
        BadInput: as `read_image`; or a voxel is not a whole number, or a label is not in `labels`.
    """
    image = read_image(path)
    data = image.get_fdata(dtype=np.float32)
    whole = np.rint(data)
    # Masks stored with a scale factor come back as 0.9999.
    apart = np.abs(np.subtract(data, whole, out=data), out=data)  # in place: a copy less of up to half a GiB
    broken = int((apart > 1e-3).sum())
    if broken:
        raise BadInput(path, f"{broken} of {data.size} voxels are not whole numbers", "give a label mask, not an image")
    allowed = sorted({0, *labels})
    strays = [f"{value:g}" for value in np.unique(whole) if value not in allowed]
    if strays:
        called = "labels" if len(strays) > 1 else "label"
        named = ", ".join(strays[:5]) + (", …" if len(strays) > 5 else "")
        expected = ", ".join(map(str, allowed))
        problem = f"holds {called} {named}, not among {expected}"
        raise BadInput(path, problem, "relabel it, or use the layout it belongs to")
    return _in_memory(image, whole.astype(np.uint8))


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of files, a few characters long; of a gzipped one its own checksum is taken, which costs no reading.

    A file in several blocks, as bgzip writes, has a checksum of the last alone. It is read as a whole.

    Raises:
        BadInput: a file cannot be read.
    """
    found = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as stream:
                if path.name.lower().endswith(".gz") and not _in_blocks(path, stream):
                    stream.seek(-min(_GZIP_TRAILER, path.stat().st_size), os.SEEK_END)
                found.update(path.name.encode("utf-8", "surrogateescape"))
                found.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    return found.hexdigest()[:16]


def _in_blocks(path: Path, packed: IO[bytes]) -> bool:
    """Whether a gzipped volume is in several blocks: the last unpacks to less than all. So is what is no volume.

    The stream of what is packed is left at its beginning.
    """
    try:
        voxels: Any = cast(nib.Nifti1Image, nib.load(path)).dataobj
        size = voxels.offset + math.prod(voxels.shape) * voxels.dtype.itemsize
    except (OSError, EOFError, zlib.error, ImageFileError, HeaderDataError, HeaderTypeError, WrapStructError):
        return True
    packed.seek(-4, os.SEEK_END)
    unpacked = int.from_bytes(packed.read(), "little")
    packed.seek(0)
    return unpacked != size % 2**32


def same_grid(
    image_path: str | os.PathLike[str], image: nib.Nifti1Image, mask_path: str | os.PathLike[str], mask: nib.Nifti1Image
) -> None:
    """Raises BadInput if an image and its mask differ in shape, or in affine by more than 1e-3."""
    remedy = f"resample one onto the grid of the other ({os.fspath(mask_path)})"
    if image.shape != mask.shape:
        raise BadInput(
            image_path, f"its shape {_by(image.shape)} is not its mask's {_by(mask.shape)} ({mask_path})", remedy
        )
    apart = float(np.abs(_affine(image) - _affine(mask)).max())
    if apart > 1e-3:
        shapes = f"both {_by(image.shape)}"
        raise BadInput(image_path, f"its affine differs from its mask's by {apart:.3g} ({mask_path}, {shapes})", remedy)


def write_volume(
    path: str | os.PathLike[str], data: npt.NDArray[np.floating], like: nib.Nifti1Image, note: str = ""
) -> None:
    """Writes `data` (H, W, D) as float32 on the grid of `like`: its affine, voxel sizes, units and form codes.

    Drops what the header of `like` says about its own voxels (intent, display range, description, extensions). Leaves
    `note`, ASCII of at most `LONGEST_NOTE` characters, in the description.

    Raises:
        BadInput: `path` does not end in .nii or .nii.gz, or cannot be written.
        ValueError: the shapes of `data` and `like` differ, or the note is too long.
    """
    if len(note) > LONGEST_NOTE:
        raise ValueError(f"a note of {len(note)} characters: {note}")
    _write(path, np.asarray(data, np.float32), like, _VOLUME + (_NOTE + note if note else ""))


def write_mask(path: str | os.PathLike[str], labels: npt.NDArray[np.integer], like: nib.Nifti1Image) -> None:
    """Writes `labels` (H, W, D) as uint8 on the grid of `like`; otherwise as `write_volume`."""
    _write(path, np.asarray(labels, np.uint8), like, _MASK)


def _write(
    path: str | os.PathLike[str], data: npt.NDArray[np.generic], like: nib.Nifti1Image, description: str
) -> None:
    check_name(path)
    if data.shape != like.shape:
        raise ValueError(f"data of shape {data.shape} on a grid of shape {like.shape}")
    image = _in_memory(like, data)
    header = image.header
    header.extensions.clear()
    header.set_intent("none")
    header["cal_min"] = header["cal_max"] = 0
    header["aux_file"] = b""
    if "db_name" in header.keys():  # of NIfTI-1; a patient's name may stand there  # noqa: SIM118
        header["db_name"] = b""
    header["descrip"] = description.encode()
    with replacing(path) as temporary:
        nib.save(image, temporary)


def _read(path: Path, dimensions: int) -> nib.Nifti1Image:
    size = _file_size(path)
    opened = _open(path)
    with opened as stream:
        start = stream.read(_HEADER_BYTES + _FLAG_BYTES)
        header = _header(path, start)
        _check_header(path, header, dimensions)
        claimed = _claimed_bytes(path, header, size)
        content = _without_extensions(header, start) + _read_up_to(stream, claimed - len(start))
        if len(content) < claimed:
            problem = f"cut short: {len(content)} of the {claimed} bytes its header claims"
            raise BadInput(path, problem, _AGAIN)
        # Only the end of a gzip stream carries its checksum.
        if len(stream.read(_TRAILING_BYTES + 1)) > _TRAILING_BYTES:
            raise BadInput(path, f"goes on after the {claimed} bytes its header claims", _AGAIN)
    image = (nib.Nifti2Image if len(header.binaryblock) == _HEADER_BYTES else nib.Nifti1Image).from_bytes(content)
    _check_affine(path, image)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and refused as that
        data = image.get_fdata(dtype=np.float32, caching="unchanged")
    return _in_memory(image, data.reshape(data.shape[:dimensions]))


def _without_extensions(header: nib.Nifti1Header, start: bytes) -> bytes:
    """The file's start with a header that announces no extensions: they are dropped, so a damaged one does no harm."""
    flag = len(header.binaryblock)
    return start[:flag] + bytes(len(start[flag : flag + _FLAG_BYTES])) + start[flag + _FLAG_BYTES :]


def _read_up_to(stream: IO[bytes], count: int) -> bytes:
    """Reads at most `count` bytes, in pieces: a single read would allocate all that a false header claims."""
    pieces = []
    while count > 0 and (piece := stream.read(min(count, 1 << 24))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _file_size(path: Path) -> int:
    if not path.exists():
        raise BadInput(path, "no such file", "check the name and the folder")
    if not path.is_file():
        raise BadInput(path, "not a file", "give one NIfTI file (.nii or .nii.gz)")
    if not is_nifti_name(path):
        raise BadInput(path, "not a NIfTI by its name", "give a .nii or .nii.gz file, or convert it")
    size = path.stat().st_size
    if size == 0:
        raise BadInput(path, "an empty file", _AGAIN)
    return size


def _open(path: Path) -> IO[bytes]:
    with open(path, "rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    named = path.name.lower().endswith(".gz")
    if named and not zipped:
        raise BadInput(path, "named .gz but not gzip-compressed", "compress it, or rename it if it is a plain .nii")
    if zipped and not named:
        raise BadInput(path, "gzip-compressed but not named so", "rename it to .nii.gz")
    return cast(IO[bytes], gzip.open(path)) if zipped else open(path, "rb")


def _header(path: Path, start: bytes) -> nib.Nifti1Header:
    kind: Any
    for kind, length, magic in ((nib.Nifti1Header, 348, b"n+1"), (nib.Nifti2Header, _HEADER_BYTES, b"n+2")):
        if len(start) < length:
            continue
        header = kind(start[:length], check=False)
        if int(header["sizeof_hdr"]) == length and bytes(header["magic"]).startswith(magic):
            return header
    if len(start) < 348:
        raise BadInput(path, f"cut short: {len(start)} bytes are no NIfTI header", _AGAIN)
    raise BadInput(
        path, "not a NIfTI file (its header is of another format)", "convert it to a single-file NIfTI (.nii.gz)"
    )


def _check_header(path: Path, header: nib.Nifti1Header, wanted: int) -> None:
    dimensions = int(header["dim"][0])
    shape = tuple(int(n) for n in header["dim"][1 : 1 + max(dimensions, 0)])
    if not 1 <= dimensions <= 7 or min(shape) < 1:
        raise BadInput(path, f"its header claims the impossible shape {_by(shape)}", _AGAIN)
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != wanted:
        problem = f"{len(shape)}-D ({_by(shape)}) where a {wanted}-D volume is wanted"
        raise BadInput(path, problem, "give one volume a file" if wanted == 3 else "give all channels in one file")
    if min(shape[:3]) == 1:
        raise BadInput(path, f"a single slice ({_by(shape)}) where a 3-D volume is wanted", "stack its slices")
    if math.prod(shape) > MAX_VOXELS:
        problem = f"its header claims {_by(shape)} voxels, above the limit of {MAX_VOXELS}"
        raise BadInput(path, problem, "crop or resample it if it truly is that large")
    try:
        kind = header.get_data_dtype()
    except (HeaderDataError, KeyError):
        raise BadInput(path, f"its header names no known voxel type ({int(header['datatype'])})", _AGAIN) from None
    if kind.kind not in "iuf":
        what = "complex" if kind.kind == "c" else "colour"
        raise BadInput(path, f"{what} voxels ({kind})", "store one real number a voxel (e.g. the magnitude)")


def _claimed_bytes(path: Path, header: nib.Nifti1Header, size: int) -> int:
    offset = float(header["vox_offset"])
    if not 0 <= offset < 2**40:
        raise BadInput(path, f"its header places the voxels at byte {offset:g}", _AGAIN)
    voxels = math.prod(header.get_data_shape()) * header.get_data_dtype().itemsize
    if voxels > MAX_BYTES:
        problem = f"its header claims {voxels} bytes of voxels ({header.get_data_dtype()}), above {MAX_BYTES}"
        raise BadInput(path, problem, "store them as float32")
    claimed = max(int(offset), len(header.binaryblock) + 4) + int(voxels)
    zipped = path.name.lower().endswith(".gz")
    if claimed > size * (_DEFLATE_RATIO if zipped else 1):
        problem = f"its header claims {claimed} bytes, more than the {size} of this file can hold"
        raise BadInput(path, problem, _AGAIN)
    return claimed


def _check_affine(path: Path, image: nib.Nifti1Image) -> None:
    affine = _affine(image)
    if not np.isfinite(affine).all() or np.abs(affine).max() > LARGEST:
        raise BadInput(path, "its affine holds NaN, infinite or absurd numbers", "set its sform to a valid one")
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if lengths.min() <= 0 or abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-6:
        raise BadInput(path, "its affine is singular: its axes do not span space", "set its sform to a valid one")


def _in_memory(image: nib.Nifti1Image, data: npt.NDArray[np.generic]) -> nib.Nifti1Image:
    """An image of `data` with the affine and header of `image`: its form codes and units, no scaling."""
    header = image.header.copy()
    header.set_data_dtype(data.dtype)
    header.set_slope_inter(1, 0)
    return type(image)(data, _affine(image), header)


def _affine(image: nib.Nifti1Image) -> npt.NDArray[np.float64]:
    return np.asarray(image.affine, np.float64)


def _by(shape: Collection[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".").splitlines()
    return text[0][:120] if text else type(error).__name__
