"""Checks a checkpoint's archive before PyTorch reads it: nothing torn, nothing inflated, no code.

`torch.save` writes a zip of one pickle, which builds the tensors, and one record a storage. `torch.load` checks neither
the records' checksums, nor that they lie apart, nor that a storage is as long as the pickle says.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from medddpm.checkpoints.claims import Foreign, storages_of
from medddpm.errors import BadInput
from medddpm.runtime.files import check_hollow, opened

BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that such a file begins with, pickled
LARGEST_PICKLE = 2**22  # bytes; that of a U-Net of a thousand tensors with its optimizer has a quarter of a megabyte
LARGEST_DIRECTORY = 2**22  # bytes, of 50 000 records
_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_LOCAL = struct.Struct("<4s22x2H")  # PKWARE's APPNOTE 6.3, 4.3.7: the lengths of the name and of what follows it


def check_archive(path: Path) -> None:
    """Checks that a file is a whole archive of `torch.save`, of tensors alone and no larger in memory than on disk.

    Raises:
        BadInput: it is not; the message says which.
    """
    try:
        with opened(path) as stream:
            check_hollow(path, stream)
            if stream.read(len(BEFORE_1_6)) == BEFORE_1_6:
                raise BadInput(
                    path,
                    "it is in PyTorch's format of before 1.6, which has no checksums",
                    "have its author save it anew: torch.save(torch.load(OLD, weights_only=True), NEW)",
                )
            directory = _directory(stream)
            with zipfile.ZipFile(stream) as archive:
                _check(archive, stream, directory)
    except Foreign as error:
        raise BadInput(
            path,
            f"it carries code beside its tensors ({error}), which loading would run",
            "have its author save tensors only: torch.save({'step': …, 'model': model.state_dict(), 'ema': …})",
        ) from None
    except BadInput:
        raise
    except PermissionError:
        raise BadInput(path, "it may not be read", "ask for permission to read it") from None
    except Exception:  # zipfile and pickletools raise a dozen kinds, by where a broken file stops making sense
        raise damaged(path) from None


def damaged(path: Path) -> BadInput:
    """Returns the error for a file that is not a whole checkpoint."""
    return BadInput(path, "it is damaged, or no PyTorch checkpoint", "fetch it again, or use an earlier one")


def _directory(stream: BinaryIO) -> int:
    """Returns the offset of the archive's directory, which PyTorch writes at the end of the file."""
    end = stream.seek(0, os.SEEK_END) - _END.size
    signature, *_, length, begin, comment = _END.unpack(_at(stream, end, _END.size))
    if signature != b"PK\x05\x06" or comment:
        raise ValueError
    locator, _, place, _ = _LOCATOR.unpack(_at(stream, end - _LOCATOR.size, _LOCATOR.size))
    if locator == b"PK\x06\x07":
        end -= _LOCATOR.size + _END_64.size
        signature, *_, length, begin = _END_64.unpack(_at(stream, end, _END_64.size))
        if signature != b"PK\x06\x06" or place != end:
            raise ValueError
    if begin + length != end or length > LARGEST_DIRECTORY:
        raise ValueError
    return begin


def _at(stream: BinaryIO, place: int, count: int) -> bytes:
    stream.seek(place)
    return stream.read(count)


def _check(archive: zipfile.ZipFile, stream: BinaryIO, directory: int) -> None:
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    records, end = {entry.filename.partition("/")[2]: entry for entry in entries}, 0
    for entry in entries:
        # PyTorch stores. A compressed record could unpack to any size; one inside another would be read twice.
        signature, name, more = _LOCAL.unpack(_at(stream, entry.header_offset, _LOCAL.size))
        stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if signature != b"PK\x03\x04" or not stored or entry.header_offset < end:
            raise ValueError
        end = entry.header_offset + _LOCAL.size + name + more + entry.file_size
    if end > directory or len(records) != len(entries) or records["data.pkl"].file_size > LARGEST_PICKLE:
        raise ValueError
    for storage in storages_of(archive.read(records["data.pkl"])):
        if records[f"data/{storage.key}"].file_size != storage.bytes:
            raise ValueError
    if archive.testzip() is not None:
        raise ValueError
