"""Reads and checks the header of a NIfTI file (Cox et al. 2004) before its voxels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError

from medddpm.data.foreign import foreign
from medddpm.data.limits import AGAIN, check_kind, check_shape, claimed_bytes
from medddpm.errors import BadInput

HEADER_BYTES = 540  # NIfTI-2, the longer header
FLAG_BYTES = 4  # behind it: whether extensions follow


def read_header(path: Path, start: bytes) -> nib.Nifti1Header:
    """Returns the header that the bytes of `start` hold.

    Raises:
        BadInput: they hold none; the error says what the file is, if its beginning tells.
    """
    kind: Any
    for kind, length, magic in ((nib.Nifti1Header, 348, b"n+1"), (nib.Nifti2Header, HEADER_BYTES, b"n+2")):
        if len(start) < length:
            continue
        header = kind(start[:length], check=False)
        if int(header["sizeof_hdr"]) == length and bytes(header["magic"]).startswith(magic):
            return header
    if other := foreign(path, start):
        raise other
    if len(start) < 348:
        raise BadInput(path, f"cut short: {len(start)} bytes are no NIfTI header", AGAIN)
    raise BadInput(
        path, "not a NIfTI file (its header is of another format)", "convert it to a single-file NIfTI (.nii.gz)"
    )


def check_header(path: Path, header: nib.Nifti1Header, dimensions: int = 3) -> None:
    """Raises BadInput unless the header describes one volume of real numbers, or several if `dimensions` is 4."""
    count = int(header["dim"][0])
    shape = tuple(int(n) for n in header["dim"][1 : 1 + max(count, 0)])
    check_shape(path, shape if count <= 7 else (), dimensions)
    try:
        kind = header.get_data_dtype()
    except (HeaderDataError, KeyError):
        raise BadInput(path, f"its header names no known voxel type ({int(header['datatype'])})", AGAIN) from None
    check_kind(path, kind)


def claimed_end(path: Path, header: nib.Nifti1Header, size: int) -> int:
    """Returns the bytes to the end of the voxels, unpacked; raises BadInput if a file of `size` bytes has fewer."""
    offset = float(header["vox_offset"])
    if not 0 <= offset < 2**40:
        raise BadInput(path, f"its header places the voxels at byte {offset:g}", AGAIN)
    start = max(int(offset), len(header.binaryblock) + FLAG_BYTES)
    zipped = path.name.lower().endswith(".gz")
    return claimed_bytes(path, start, header.get_data_shape(), header.get_data_dtype(), size, zipped)


def cleaned(header: nib.Nifti1Header, start: bytes) -> bytes:
    """Returns the file's start with a header that announces no extensions, and an intercept of 0 where it has none.

    Extensions are dropped, so a damaged one does no harm. A slope counts without an intercept (nifti1.h).
    """
    header = header.copy()
    if not np.isfinite(header["scl_inter"]):
        header["scl_inter"] = 0
    flag = len(header.binaryblock)
    return header.binaryblock + bytes(len(start[flag : flag + FLAG_BYTES])) + start[flag + FLAG_BYTES :]
