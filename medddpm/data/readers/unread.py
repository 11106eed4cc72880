"""Names the volumes of a data folder that no reader reads, and says what to do about them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from medddpm.data.nifti import is_volume_name
from medddpm.data.readers.listing import walk
from medddpm.errors import BadInput

_OTHER = (".hdr", ".img", ".mhd", ".nhdr", ".mgz", ".mgh", ".mnc", ".dcm")
_PACKED = (".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz")
_NAMED = 4  # of each kind


def notes_on_unread(root: Path, places: Iterable[Path], used: Iterable[Path], remedy: str) -> list[BadInput]:
    """Returns a note for each kind of volume that lies in `places` and is not in `used`.

    Args:
        root: the data folder; names are relative to it.
        places: the folders to search, with all below them.
        used: the files that are read, or that already have a problem.
        remedy: what to do about a volume that could be read.
    """
    paths = set(used)
    kinds: dict[str, list[str]] = {}
    for place in places:
        for _folder, files in walk(place):
            for file in files:
                if file not in paths and (advice := _remedy(file, remedy)):
                    kinds.setdefault(advice, []).append(os.path.relpath(file, root))
    return [_note(root, names, advice) for advice, names in kinds.items()]


def _remedy(file: Path, remedy: str) -> str | None:
    name = file.name.lower()
    if is_volume_name(file):
        return remedy
    if name.endswith(_OTHER):
        return "convert them to .nii.gz"
    if name.endswith(_PACKED):
        return "unpack them; of packed files only .nii.gz is read"
    return None


def _note(root: Path, names: list[str], remedy: str) -> BadInput:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    count = "1 file is" if len(names) == 1 else f"{len(names)} files are"
    return BadInput(root, f"{count} not read: {', '.join(names[:_NAMED])}{more}", remedy)
