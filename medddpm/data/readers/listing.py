"""Lists folders and reads small text files; whatever lies there, an error is one line."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from medddpm.data.nifti import is_volume_name
from medddpm.errors import BadInput
from medddpm.runtime.files import read_whole

Read = TypeVar("Read")

MOST_BYTES = 16 << 20
"""The longest dataset.json or CSV that is read: a hundred thousand cases of long names fit."""

MOST_ROWS = 100_000  # of a CSV

_RECENT = 2 * 10**9  # nanoseconds

DEEPEST = 6  # folders below the root: derivatives/NAME/sub-01/ses-01/anat


def is_file(path: Path) -> bool:
    """Returns whether a regular file is at `path`; False also where the name is none."""
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
        raise BadInput(path, *(("not a file", remedy) if path.exists() else ("no such file", "check the name")))
    try:
        return read_whole(path, MOST_BYTES, remedy).decode("utf-8-sig")
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror or error})", "check the file and the disk") from None
    except UnicodeDecodeError:
        raise BadInput(path, "not UTF-8 text", "save it as UTF-8 (in Excel: CSV UTF-8)") from None


def read_csv(path: Path, remedy: str) -> list[tuple[int, list[str]]]:
    """Reads a small CSV; returns the number of each line that is not empty, and its cells without spaces around them.

    The first row holds the columns' names, in small letters. Where the first line has no
    comma, semicolons or tabs part the cells, as spreadsheets write them in many languages.

    Raises:
        BadInput: as `read_text`; or it is no CSV, is empty, has a column twice, or has more than `MOST_ROWS` rows.
    """
    text = read_text(path, remedy)
    try:
        if "\0" in text:
            raise csv.Error("it holds a zero byte")
        first = text.partition("\n")[0]
        mark = "," if "," in first else next((mark for mark in ";\t" if mark in first), ",")
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
        rows = [(lines.line_num, [cell.strip() for cell in row]) for row in itertools.islice(lines, MOST_ROWS + 1)]
    except csv.Error as error:
        raise BadInput(path, f"not a CSV ({error})", remedy) from None
    if len(rows) > MOST_ROWS:
        raise BadInput(path, f"has more than {MOST_ROWS} lines", "split it")
    rows = [(line, cells) for line, cells in rows if any(cells)]
    columns = _without_empty_end([name.lower() for name in rows[0][1]]) if rows else []
    if not columns or len(named := list(filter(None, columns))) > len(set(named)):
        raise BadInput(path, f"its first line is {','.join(columns) or 'nothing'}", remedy)
    return [(rows[0][0], columns), *((line, _without_empty_end(cells, len(columns))) for line, cells in rows[1:])]


def _without_empty_end(cells: list[str], least: int = 0) -> list[str]:
    """Removes the empty cells at the end of a row, which spreadsheets add, but none of the first `least` cells."""
    return cells[: next((place for place in range(len(cells), least, -1) if cells[place - 1]), least)]


def entries(folder: Path) -> list[Path]:
    """Returns the entries of a folder, sorted, without hidden ones, such as half-written files and macOS's companions.

    Raises:
        BadInput: the folder cannot be read.
    """
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise BadInput(folder, f"cannot be read ({error.strerror})", "ask for permission to read it") from None


def remembered(read: Callable[[Path], Read], root: Path, below: bool = True) -> Read:
    """Returns `read(root)`, from a cache while the folder and its entries do not change.

    `medddpm sample` asks for the folder of each mask again.

    Args:
        read: reads the folder.
        root: the folder.
        below: whether `read` looks into the folder's entries; if not, the names alone matter.
    """
    times = tuple(path.stat().st_mtime_ns for path in (root, *(entries(root) if below else ())) if path.exists())
    return _remembered(read, root, times)


@functools.lru_cache(2)
def _remembered(read: Callable[[Path], Read], root: Path, _times: tuple[int, ...]) -> Read:
    return read(root)


def split(folder: Path) -> tuple[Sequence[Path], Sequence[Path]]:
    """Returns the folders and the files of a folder, from a cache while no entry comes or goes.

    Raises:
        BadInput: as `entries`.
    """
    changed = folder.stat().st_mtime_ns
    if time.time_ns() - changed < _RECENT:  # what comes within the same tick of the clock does not show
        return _split(folder)
    return _split_unchanged(folder, changed)


def _split(folder: Path) -> tuple[Sequence[Path], Sequence[Path]]:
    folders: list[Path] = []
    files: list[Path] = []
    for entry in entries(folder):
        (folders if entry.is_dir() else files).append(entry)
    return folders, files


@functools.lru_cache(16)
def _split_unchanged(folder: Path, _changed: int) -> tuple[Sequence[Path], Sequence[Path]]:
    return _split(folder)


def volumes(folder: Path) -> list[Path]:
    """Returns the files of a folder that are volumes by their names, sorted."""
    return [entry for entry in entries(folder) if is_volume_name(entry) and not entry.is_dir()]


def walk(
    root: Path, deepest: int = DEEPEST, skip: Callable[[str], bool] = lambda _name: False
) -> Iterator[tuple[Path, list[Path]]]:
    """Yields each folder from `root` down with its files, sorted; once each, even if links lead to it again.

    Args:
        root: where to begin.
        deepest: the number of levels below it.
        skip: leaves out folders of these names.
    """
    visited: set[tuple[int, int]] = set()
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        folders, files = split(folder)
        yield folder, list(files)
        if depth < deepest:
            waiting += [(below, depth + 1) for below in reversed(folders) if not skip(below.name)]
