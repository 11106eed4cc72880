"""Reads volumes and writes NIfTI ones, a file at a time, with every check on a file (NIfTI: Cox et al. 2004)."""

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

from medddpm.data import mha_nrrd
from medddpm.data.header import FLAG_BYTES, HEADER_BYTES, check_header, claimed_end, cleaned, read_header
from medddpm.data.limits import AGAIN, LARGEST, TRAILING_BYTES, by, check_affine
from medddpm.errors import BadInput
from medddpm.runtime.files import opened, replacing

_GZIP_TRAILER = 8  # the checksum and the length of what is packed (RFC 1952)
_VOLUME, _MASK = "Med-DDPM volume", "Med-DDPM mask"  # what a written file says of itself
_NOTE = ": "  # between that and a note
LONGEST_NOTE = 79 - len(_VOLUME + _NOTE)  # a description has 80 bytes, the last of them 0
EMPTY = "is empty: every voxel is 0"
_WHOLE = 1e-3
"""How far a label may lie from a whole number in any file: those of a mask stored with a scale come back as 0.9999."""
_MOST = 0.05
"""How far it may lie at most where the file's own step is coarse; an interpolated mask has 0.5."""
_APART = 0.1
"""How far apart, in voxels, the corners of an image and its mask may lie: headers round what they hold."""
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
    """Returns whether `path` ends in ``.nii`` or ``.nii.gz``."""
    return os.fspath(path).lower().endswith((".nii", ".nii.gz"))


def is_volume_name(path: str | os.PathLike[str]) -> bool:
    """Returns whether `read_image` reads files of this name: .nii, .nii.gz, .mha and .nrrd."""
    return os.fspath(path).lower().endswith((".nii", ".nii.gz", *mha_nrrd.ENDINGS))


def split_name(path: Path) -> tuple[str, str]:
    """Returns the name before a volume's ending, and the ending as it is written, in capitals or not."""
    endings = (".nii.gz", ".nii", *mha_nrrd.ENDINGS)
    length = next(len(ending) for ending in endings if path.name.lower().endswith(ending))
    return path.name[:-length], path.name[-length:]


def is_written(path: Path) -> bool:
    """Returns whether `write_volume` or `write_mask` wrote the file at `path`."""
    return note_of(path) is not None


def note_of(path: Path) -> str | None:
    """Returns the note in a file of `write_volume`: empty if it has none, None if another program wrote the file.

    Reads only the header; the voxels may be damaged.
    """
    try:
        with opened(path) as file, gzip.open(file) if path.name.lower().endswith(".gz") else file as stream:
            header = read_header(path, stream.read(HEADER_BYTES))
    except (*_DAMAGE, OSError):  # BadInput is a ValueError
        return None
    kind, _, note = bytes(header["descrip"]).rstrip(b"\0").decode("ascii", "replace").partition(_NOTE)
    return note if kind in (_VOLUME, _MASK) else None


def check_name(path: str | os.PathLike[str]) -> None:
    """Raises BadInput unless the name ends in ``.nii`` or ``.nii.gz``."""
    if not is_nifti_name(path):
        raise BadInput(path, "not a NIfTI name", "end it in .nii or .nii.gz")


def read_image(path: str | os.PathLike[str]) -> nib.Nifti1Image:
    """Reads a 3-D scalar volume whole: a NIfTI, .mha or .nrrd.

    Where both form codes of a NIfTI are 0, its header says no more than the voxels' size. The affine is then nibabel's:
    the first axis points to the left, and the volume's middle is the origin.

    Returns:
        The image, its voxels in memory as float32 (H, W, D) with the header's scaling applied; the affine maps voxel
        indices to millimetres. A trailing dimension of length 1 is dropped.

    Raises:
        BadInput: the file is missing, no volume, damaged or cut short; is not 3-D; has complex or colour voxels, NaN or
            infinite ones, or the same value everywhere; has an affine that cannot be inverted; or its header claims
            more than the file can hold (refused before that much memory is allocated).
    """
    image, _ = _read_finite(Path(path))
    data = np.asarray(image.dataobj)
    if data.min() == data.max():
        raise _constant(path, float(data.flat[0]))
    return image


def read_frames(path: str | os.PathLike[str], frames: Sequence[int]) -> list[nib.Nifti1Image]:
    """Reads some of the volumes that a 4-D NIfTI holds one after the other; returns each as `read_image` does.

    Raises:
        BadInput: as `read_image`; or the file is not 4-D, or has no volume of that number.
    """
    image, _ = _read_finite(Path(path), dimensions=4)
    data = np.asarray(image.dataobj)
    if max(frames) >= data.shape[3]:
        problem = f"holds {data.shape[3]} volumes, where at least {max(frames) + 1} channels are named"
        raise BadInput(path, problem, "correct the names of the channels, or give the file that has them all")
    volumes = []
    for frame in frames:
        volume = np.ascontiguousarray(data[..., frame])
        if volume.min() == volume.max():
            raise _constant(path, float(volume.flat[0]))
        volumes.append(_in_memory(image, volume))
    return volumes


def read_mask(path: str | os.PathLike[str], labels: Collection[int]) -> nib.Nifti1Image:
    """Reads a label volume whole.

    Args:
        path: the file.
        labels: the labels it may hold besides 0, the background.

    Returns:
        The image, its voxels in memory as uint8 (H, W, D); all may be 0.

    Raises:
        BadInput: as `read_image`; or a label is not in `labels`, or further from a whole number than half the step
            between two values that the file stores.
    """
    image, step = _read_finite(Path(path))
    data = image.get_fdata(dtype=np.float32)
    whole = np.rint(data)
    apart = np.abs(np.subtract(data, whole, out=data), out=data)  # in place: a copy less of up to half a GiB
    broken = int((apart > max(_WHOLE, min(1.001 * step / 2, _MOST))).sum())
    if broken:
        raise BadInput(path, f"{broken} of {data.size} voxels are not whole numbers", "give a label mask, not an image")
    if whole.any() and whole.min() == whole.max():
        raise _constant(path, float(whole.flat[0]))
    allowed = sorted({0, *labels})
    strays = [f"{value:g}" for value in np.unique(whole) if value not in allowed]
    if strays:
        called = "labels" if len(strays) > 1 else "label"
        named = ", ".join(strays[:5]) + (", …" if len(strays) > 5 else "")
        expected = ", ".join(map(str, allowed))
        problem = f"holds {called} {named}, not among {expected}"
        raise BadInput(path, problem, "relabel it, or use the layout it belongs to")
    return _in_memory(image, whole.astype(np.uint8))


def _read_finite(path: Path, dimensions: int = 3) -> tuple[nib.Nifti1Image, float]:
    """Returns an image of finite float32 voxels, and the step between two values that its file can hold, or 0."""
    try:
        image, step = _read(path, dimensions)
    except BadInput:  # a ValueError, as many a sign of damage is
        raise
    except _DAMAGE as error:
        raise BadInput(path, f"damaged: {_reason(error)}", AGAIN) from None
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    data = image.get_fdata(dtype=np.float32)
    low, high = float(data.min()), float(data.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = data.size - int(np.isfinite(data).sum())
        raise BadInput(path, f"{bad} of {data.size} voxels are NaN or infinite", "replace them, e.g. with 0")
    if max(-low, high) > LARGEST:
        raise BadInput(path, f"a voxel of {max(low, high, key=abs):g} is no intensity", "replace it, e.g. with 0")
    return image, step


def _constant(path: str | os.PathLike[str], value: float) -> BadInput:
    problem = f"every voxel is {value:g}" if value else EMPTY
    return BadInput(path, problem, "replace it with a volume that has content, or leave the case out")


def digest_of(paths: Iterable[Path]) -> str:
    """Returns a short digest of files. For a gzipped file it takes gzip's checksum, so the file is not read.

    A file of several gzip blocks, as bgzip writes, is read whole: its trailer covers only the last block.

    Raises:
        BadInput: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with opened(path) as stream:
                if path.name.lower().endswith(".gz") and not _in_blocks(path, stream):
                    stream.seek(-min(_GZIP_TRAILER, path.stat().st_size), os.SEEK_END)
                digest.update(path.name.encode("utf-8", "surrogateescape"))
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    return digest.hexdigest()[:16]


def _in_blocks(path: Path, packed: IO[bytes]) -> bool:
    """Returns whether a gzipped volume has several blocks: then the trailer's length is not the volume's.

    Returns True for a file that is no volume. Leaves the stream at its beginning.
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
    """Raises BadInput if an image and its mask differ in shape, or their corners lie over a tenth of a voxel apart."""
    remedy = f"resample one onto the grid of the other ({os.fspath(mask_path)})"
    if image.shape != mask.shape:
        raise BadInput(
            image_path, f"its shape {by(image.shape)} is not its mask's {by(mask.shape)} ({mask_path})", remedy
        )
    corners = np.stack(np.meshgrid(*[(0, n - 1) for n in image.shape], [1], indexing="ij")).reshape(4, -1)
    moved = np.linalg.solve(_affine(image)[:3, :3], (_affine(mask) - _affine(image))[:3] @ corners)
    apart = float(np.linalg.norm(moved, axis=0).max())
    if apart <= _APART:
        return
    if _has_place(image) != _has_place(mask):
        placed, lost = (image_path, mask_path) if _has_place(image) else (mask_path, image_path)
        problem = f"its header does not say where it lies (both form codes are 0), and {placed} lies elsewhere"
        raise BadInput(lost, problem, "if the voxels of the two match, copy the geometry (e.g. fslcpgeom)")
    problem = f"its affine differs from its mask's: the corners lie up to {apart:.3g} voxels apart"
    raise BadInput(image_path, f"{problem} ({mask_path}, both {by(image.shape)})", remedy)


def _has_place(image: nib.Nifti1Image) -> bool:
    return int(image.header["sform_code"]) > 0 or int(image.header["qform_code"]) > 0


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


def _read(path: Path, dimensions: int) -> tuple[nib.Nifti1Image, float]:
    size = _file_size(path)
    if not is_nifti_name(path):
        if dimensions != 3:
            raise BadInput(path, "no NIfTI where several channels are wanted in one file", "convert it to .nii.gz")
        return mha_nrrd.read(path, size), 0.0
    with opened(path) as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if zipped else file
        start = stream.read(HEADER_BYTES + FLAG_BYTES)
        header = read_header(path, start)
        if zipped != path.name.lower().endswith(".gz"):
            raise _misnamed(path, zipped)
        check_header(path, header, dimensions)
        claimed = claimed_end(path, header, size)
        content = cleaned(header, start) + _read_up_to(stream, claimed - len(start))
        if len(content) < claimed:
            problem = f"cut short: {len(content)} of the {claimed} bytes its header claims"
            raise BadInput(path, problem, AGAIN)
        # Only the end of a gzip stream carries its checksum.
        if len(stream.read(TRAILING_BYTES + 1)) > TRAILING_BYTES:
            raise BadInput(path, f"goes on after the {claimed} bytes its header claims", AGAIN)
    image = (nib.Nifti2Image if len(header.binaryblock) == HEADER_BYTES else nib.Nifti1Image).from_bytes(content)
    check_affine(path, _affine(image))
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and refused as that
        data = image.get_fdata(dtype=np.float32, caching="unchanged")
    step = abs(float(cast(Any, image.dataobj).slope)) if header.get_data_dtype().kind in "iu" else 0.0
    return _in_memory(image, data.reshape(data.shape[:dimensions])), step


def _read_up_to(stream: IO[bytes], count: int) -> bytes:
    """Reads at most `count` bytes, in pieces: a single read would allocate all that a false header claims."""
    pieces = []
    while count > 0 and (piece := stream.read(min(count, 1 << 24))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _file_size(path: Path) -> int:
    if not path.exists():
        if path.is_symlink():
            annexed = "/annex/objects/" in (target := os.readlink(path))
            remedy = "fetch it: datalad get, or git annex get" if annexed else "mend the link, or remove it"
            raise BadInput(path, f"a link to what is not there ({target})", remedy)
        raise BadInput(path, "no such file", "check the name and the folder")
    if not path.is_file():
        raise BadInput(path, "not a file", "give one volume's file (e.g. a .nii.gz)")
    if not is_volume_name(path):
        raise BadInput(path, "not a volume by its name", "give a .nii or .nii.gz file, or convert it")
    size = path.stat().st_size
    if size == 0:
        raise BadInput(path, "an empty file", AGAIN)
    return size


def _misnamed(path: Path, zipped: bool) -> BadInput:
    if zipped:
        return BadInput(path, "gzip-compressed but not named so", "rename it to .nii.gz")
    return BadInput(path, "named .gz but not gzip-compressed", "compress it, or rename it to .nii")


def _in_memory(image: nib.Nifti1Image, data: npt.NDArray[np.generic]) -> nib.Nifti1Image:
    """Returns an image of `data` with the affine, form codes and units of `image`, without scaling."""
    header = image.header.copy()
    header.set_data_dtype(data.dtype)
    header.set_slope_inter(1, 0)
    return type(image)(data, _affine(image), header)


def _affine(image: nib.Nifti1Image) -> npt.NDArray[np.float64]:
    return np.asarray(image.affine, np.float64)


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".").splitlines()
    return text[0][:120] if text else type(error).__name__
