"""Readers: how the files of a data folder become cases, one module for each family of arrangements.

A reader is a function from a folder to what it finds there (`medddpm.data.cases.Found`), or None where the folder is of
another kind. `READERS` are tried in order. What follows works on cases alone.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from medddpm.data.cases import Case, Found
from medddpm.data.layouts import Layout
from medddpm.data.nifti import split_name
from medddpm.data.readers import bids, dataset_json, folders, pairs_csv
from medddpm.data.readers.listing import entries, is_file
from medddpm.data.readers.unread import notes_on_unread
from medddpm.errors import BadInput


@dataclass(frozen=True)
class Reader:
    """An arrangement of files.

    Args:
        read: finds the cases of a folder; None where the folder is of another kind.
        around: finds the cases of the folder that a mask lies in, as far as they matter to it; None where the mask lies
            in no such folder.
    """

    read: Callable[[Path], Found | None]
    around: Callable[[Path], Found | None]


READERS = (
    Reader(dataset_json.read, dataset_json.around),
    Reader(folders.channel_folders, folders.channels_around),
    Reader(bids.read, bids.around),
    Reader(folders.case_folders, folders.case_around),
)


def read_folder(root: str | os.PathLike[str]) -> Found:
    """Finds the cases of a data folder, or of a CSV of pairs.

    Raises:
        BadInput: `root` is missing, empty or of no known kind, or what describes its files is damaged.
    """
    root = Path(root)
    if is_file(root) and root.name.lower().endswith(".csv"):
        return _with_names(pairs_csv.read(root))
    if not root.exists():
        raise BadInput(root, "no such folder", "check the name")
    if not root.is_dir():
        raise BadInput(root, "not a folder", "give the folder that holds the data, or a CSV of pairs")
    if not entries(root):
        raise BadInput(root, "an empty folder", f"put volumes into {folders.WANTED}")
    for reader in READERS:
        if (found := reader.read(root)) is not None:
            return _with_notes(_with_names(found))
    remedy = f"lay it out as {folders.WANTED}, or list the pairs in a CSV ({pairs_csv.COLUMNS})"
    raise BadInput(root, "follows no known layout", remedy)


def find_layout(root: str | os.PathLike[str]) -> Layout:
    """Returns what the channels and labels of a data folder mean; raises as `read_folder`."""
    return read_folder(root).layout


def case_of(mask: str | os.PathLike[str], layout: Layout) -> Case | None:
    """The case of a mask that lies in a data folder, maybe with some of its images; None where it lies in none.

    Raises:
        BadInput: the folder is damaged, or its labels are another layout's.
    """
    path = Path(os.path.abspath(mask))
    if not is_file(path):
        return None
    for reader in READERS:
        found = reader.around(path)
        case = next((case for case in (*found.cases, *found.partial) if case.mask == path), None) if found else None
        if found is None or case is None:
            continue
        if found.layout == layout:
            return dataclasses.replace(case, mask=Path(mask))
        if case.labels is not None:
            problem = f"its labels are those of {found.layout.name} data, the model takes {layout.name} data"
            raise BadInput(mask, problem, "give a mask of the model's kind")
    return None


def _with_names(found: Found) -> Found:
    """Names cases whose masks have the same name by their folders too."""
    counts = Counter(case.name for case in found.cases)
    base = found.root if found.root.is_dir() else found.root.parent
    for index, case in enumerate(found.cases):
        if counts[case.name] > 1:
            name = os.path.relpath(case.mask.with_name(split_name(case.mask)[0]), base)
            found.cases[index] = dataclasses.replace(case, name=name)
    return found


def _with_notes(found: Found) -> Found:
    """Notes what was paired by less than the whole names, and what is not read."""
    unsure = [case for case in found.cases if case.by_part]
    if unsure:
        pairs = ", ".join(f"{case.mask.name} with {case.images[0].name}" for case in unsure[:2])
        count = f"{len(unsure)} of {len(found.cases)}"
        problem = f"cases paired by a part of their names alone, or by their folder: {count} ({pairs}"
        remedy = f"look through them with `medddpm check --list {found.root}`, or give the files of a case one name"
        found.notes.append(BadInput(found.root, problem + (", …)" if len(unsure) > 2 else ")"), remedy))
    used = {path for case in (*found.cases, *found.partial) for path in (case.mask, *case.images)}
    used.update(found.loose)
    found.notes.extend(notes_on_unread(found.root, found.places, used, found.place_remedy))
    return found
