"""Lists folders and reads small text files, whatever lies there."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from medddpm.data.nifti import is_volume_name
from medddpm.errors import BadInput

Read = TypeVar("Read")

MOST_BYTES = 16 << 20
"""The longest dataset.json or CSV that is read: a hundred thousand cases of long names fit."""

DEEPEST = 6  # folders below the root: derivatives/NAME/sub-01/ses-01/anat


def is_file(path: Path) -> bool:
    """Whether a regular file is at `path`; False also where the name is none."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # a name too long, a loop of links; a zero byte
        return False


def read_text(path: Path, remedy: str) -> str:
    """Reads a small UTF-8 file.

    Raises:
        BadInput: it is no regular file, cannot be read, is above `MOST_BYTES` or is not UTF-8.
    """
    if not is_file(path):
        raise BadInput(path, "not a file", remedy)
    try:
        with open(path, "rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    except UnicodeDecodeError:
        raise BadInput(path, "not UTF-8 text", remedy) from None
    if len(content) > MOST_BYTES:
        raise BadInput(path, f"longer than {MOST_BYTES >> 20} MiB", remedy)
    return text


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted, without hidden entries: a half-written file, or macOS's companion of one.

    Raises:
        BadInput: the folder cannot be read.
    """
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise BadInput(folder, f"cannot be read ({error.strerror})", "ask for permission to read it") from None


def remembered(read: Callable[[Path], Read], root: Path) -> Read:
    """Returns what `read` makes of a folder, without reading anew while the folder and its entries are as they were.

    Each mask of a folder is sampled from by itself.
    """
    times = tuple(path.stat().st_mtime_ns for path in (root, *entries(root)) if path.exists())
    return _remembered(read, root, times)


@functools.lru_cache(2)
def _remembered(read: Callable[[Path], Read], root: Path, _times: tuple[int, ...]) -> Read:
    return read(root)


def volumes(folder: Path) -> list[Path]:
    """The files of a folder that are volumes by their names, sorted."""
    return [entry for entry in entries(folder) if is_volume_name(entry) and not entry.is_dir()]


def walk(
    root: Path, deepest: int = DEEPEST, skip: Callable[[str], bool] = lambda _name: False
) -> Iterator[tuple[Path, list[Path]]]:
    """Yields each folder from `root` down with its files, sorted; each once, though links lead to it again.

    Args:
        root: where to begin.
        deepest: how many folders below it.
        skip: leaves out folders of these names.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        about = folder.stat()
        if (about.st_dev, about.st_ino) in seen:
            continue
        seen.add((about.st_dev, about.st_ino))
        folders: list[Path] = []
        files: list[Path] = []
        for entry in entries(folder):
            (folders if entry.is_dir() else files).append(entry)
        yield folder, files
        if depth < deepest:
            waiting += [(below, depth + 1) for below in reversed(folders) if not skip(below.name)]
