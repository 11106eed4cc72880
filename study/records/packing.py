"""Packs files into a few tars, as a machine from which few files come back needs them, and reads such tars."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import opened, replacing

PART = 15 * 2**20  # bytes of a tar at most; a lent machine sends back files of 16 MiB
PARTS = 4  # tars at most
BLOCK = tarfile.BLOCKSIZE
END = 2 * BLOCK + tarfile.RECORDSIZE  # bytes behind the files of a tar at most


def check_name(file: Path) -> None:
    """Checks that a tar's name ends in .tar.

    Raises:
        BadInput: it does not.
    """
    if file.suffix != ".tar":
        raise BadInput(file, "its name does not end in .tar", "name it so")


def pack(paths: Iterable[Path], folder: Path, file: Path) -> list[Path]:
    """Packs files: NAME.tar, and NAME.2.tar to NAME.4.tar as far as they are needed.

    What has no room is left out, and stderr says so.

    Args:
        paths: in their order of importance; those that do not exist are passed over.
        folder: holds them; their names in the tar are relative to it.
        file: NAME.tar.

    Returns:
        the files that were left out.
    """
    parts: list[list[Path]] = [[]]
    sizes = [END]
    left_out = []
    for path in (path for path in paths if path.is_file()):
        size = BLOCK + -(-path.stat().st_size // BLOCK) * BLOCK
        place = next((k for k, taken in enumerate(sizes) if taken + size <= PART), len(parts))
        if place == PARTS or size + END > PART:
            left_out.append(path)
            continue
        if place == len(parts):
            parts.append([])
            sizes.append(END)
        parts[place].append(path)
        sizes[place] += size
    for number, of_part in enumerate(parts, 1):
        _write(of_part, folder, file if number == 1 else file.with_suffix(f".{number}.tar"))
    if left_out:
        print(f"{file}: no room for {len(left_out)} of the files in {folder}", file=sys.stderr, flush=True)
    return left_out


def packed(source: Path, wanted: Callable[[str], bool], largest: int, remedy: str) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of the files in a tar, or in each tar of a folder.

    Args:
        source: the tar, or the folder.
        wanted: whether a file of this name is read.
        largest: bytes of a file that is read.
        remedy: what to give in place of a source that is no tar.

    Raises:
        BadInput: a tar cannot be read.
    """
    for path in sorted(source.glob("*.tar")) if source.is_dir() else [source]:
        try:
            with opened(path) as stream, tarfile.open(fileobj=stream) as archive:
                for entry in archive:
                    if entry.isfile() and wanted(entry.name) and entry.size <= largest:
                        content = archive.extractfile(entry)
                        if content is not None:
                            yield entry.name, content.read()
        except (OSError, tarfile.TarError, EOFError):
            raise BadInput(path, "it cannot be read as a tar of results", remedy) from None


def _write(paths: Iterable[Path], folder: Path, file: Path) -> None:
    with replacing(file) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in paths:
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())  # without an owner's name
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(content))
