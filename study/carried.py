"""What a measuring book carries from one machine to the next: finished results, and the records made of them.

A lent machine is empty at its beginning and lost at its end. `pack` puts what counts into a few tars; `take` puts it
where another machine, with the same commit, looks for it. Weights and checkpoints are too large and stay behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from medddpm.errors import BadInput
from medddpm.runtime.files import opened, replacing
from study.records import packing
from study.records.groups import SUMS, sums

STATE = "runs/book/state.json"
RECORDS = PurePosixPath("figures/records")
_RESULTS = (".json", ".csv", ".gz", ".npz", ".txt")  # by which the measuring commands know what is there
_NOT_READ = "give a tar that `study book --measure --pack` wrote, or a folder of such"


def pack(root: Path, folders: Collection[str], file: Path) -> list[Path]:
    """Packs the book's state, the records that are not the committed ones, and results; returns what was left out.

    Args:
        root: the repository.
        folders: of the results, in runs/.
        file: NAME.tar, which NAME.2.tar to NAME.4.tar follow as far as they are needed.
    """
    return packing.pack(_by_importance(root, folders), root, file)


def take(source: Path, root: Path) -> int:
    """Takes what an earlier call packed, where it is missing; a record also in place of the committed one.

    Args:
        source: a tar of `pack`, or a folder of such.
        root: the repository.

    Returns:
        the number of files that were taken.

    Raises:
        BadInput: a tar cannot be read, or holds nothing of a book.
    """
    committed = _committed(root)
    read = taken = 0
    for name, content in packing.packed(source, _belongs, packing.PART, _NOT_READ):
        read += 1
        path = root / name
        if path.is_file() and (not _is_record(name) or not _as_committed(path, root, committed)):
            continue
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        taken += 1
    if not read:
        raise BadInput(source, "it holds nothing that a book has measured", _NOT_READ)
    return taken


def _by_importance(root: Path, folders: Collection[str]) -> Iterator[Path]:
    committed = _committed(root)
    yield root / STATE
    for path in sorted((root / RECORDS).glob("*/*")):
        if path.is_file() and path.parent.name != "paper" and not _as_committed(path, root, committed):
            yield path
    for folder in folders:
        found = (path for path in sorted((root / "runs" / folder).rglob("*")) if path.suffix in _RESULTS)
        yield from sorted(found, key=lambda path: path.suffix != ".json")  # results before tables and logs


def _belongs(name: str) -> bool:
    """Returns whether a tar's file is one of a book: a record of a card, or in runs/."""
    parts = PurePosixPath(name).parts
    return ".." not in parts and ((parts[:1] == ("runs",) and len(parts) > 2) or _is_record(name))


def _is_record(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parent.parent == RECORDS and ".." not in path.parts


def _committed(root: Path) -> dict[str, str]:
    """Returns the sum of each committed record by its name, as H100/bench.csv."""
    there = (root / RECORDS / SUMS).is_file()
    return {name: line.split()[0] for name, line in sums(root).items()} if there else {}


def _as_committed(path: Path, root: Path, committed: dict[str, str]) -> bool:
    with opened(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return committed.get(path.relative_to(root / RECORDS).as_posix()) == digest


def folders_of(measuring: Sequence[tuple[str, Sequence[str]]], measured: Collection[str]) -> list[str]:
    """Returns the folders in runs/ whose results are still needed.

    Args:
        measuring: the name and the declared inputs of each notebook that measures. It has the folder of its name; those
            that it declares are of another one.
        measured: the names of those that have measured all; with them their folders have served.
    """
    needed, served = [], set()
    for name, inputs in measuring:
        declared = [pattern.split("/")[1] for pattern in inputs if pattern.startswith("runs/")]
        needed += [name, *declared]
        if name in measured:
            served |= {name, *declared}
    return [folder for folder in dict.fromkeys(needed) if folder not in served]
