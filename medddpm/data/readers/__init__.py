"""Readers: how the files of a data folder become cases, one module for each family of arrangements.

A reader is a function from a folder to its `medddpm.data.cases.Contents`, or None if the folder is of another kind.
`READERS` are tried in order. Everything after a reader works on cases alone.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from medddpm.data.cases import Case, Contents
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
        read: reads a folder; None if the folder is of another kind.
        around: reads the folder that a mask lies in, as far as the mask's case needs; None if it is of another kind.
    """

    read: Callable[[Path], Contents | None]
    around: Callable[[Path], Contents | None]


READERS = (
    Reader(dataset_json.read, dataset_json.around),
    Reader(folders.channel_folders, folders.channels_around),
    Reader(bids.read, bids.around),
    Reader(folders.case_folders, folders.case_around),
)


def read_folder(root: str | os.PathLike[str]) -> Contents:
    """Reads a data folder, or a CSV of pairs.

    Raises:
        BadInput: `root` is missing, empty or of no known kind, or its table of files is damaged.
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
        if (contents := reader.read(root)) is not None:
            return _with_notes(_with_names(contents))
    remedy = f"lay it out as {folders.WANTED}, or list the pairs in a CSV ({pairs_csv.COLUMNS})"
    raise BadInput(root, "follows no known layout", remedy)


def find_layout(root: str | os.PathLike[str]) -> Layout:
    """Returns the layout of a data folder; raises as `read_folder`."""
    return read_folder(root).layout


def case_of(mask: str | os.PathLike[str], layout: Layout) -> Case | None:
    """Returns the case of a mask in a data folder, perhaps without some images; None if it lies in no data folder.

    Raises:
        BadInput: the folder is damaged, or its labels are those of another kind of mask.
    """
    for case, of in cases_of(mask):
        if of.labels == layout.labels:  # a joint model takes the masks of whole heads
            return case
        if case.labels is not None:
            problem = f"its labels are those of {of.name} data, the model takes {layout.name} data"
            raise BadInput(mask, problem, "give a mask of the model's kind")
    return None


def cases_of(mask: str | os.PathLike[str]) -> Iterator[tuple[Case, Layout]]:
    """Yields the cases of a mask in the data folders that it may lie in, perhaps without some images.

    Raises:
        BadInput: a folder is damaged.
    """
    path = Path(os.path.abspath(mask))
    if not is_file(path):
        return
    for reader in READERS:
        contents = reader.around(path)
        if contents is None:
            continue
        case = next((case for case in (*contents.cases, *contents.partial) if case.mask == path), None)
        if case is not None:
            yield dataclasses.replace(case, mask=Path(mask)), contents.layout


def _with_names(contents: Contents) -> Contents:
    """Adds the folder to the names of cases whose masks have equal names."""
    counts = Counter(case.name for case in contents.cases)
    base = contents.root if contents.root.is_dir() else contents.root.parent
    for index, case in enumerate(contents.cases):
        if counts[case.name] > 1:
            name = os.path.relpath(case.mask.with_name(split_name(case.mask)[0]), base)
            contents.cases[index] = dataclasses.replace(case, name=name)
    return contents


def _with_notes(contents: Contents) -> Contents:
    """Adds notes on cases that were paired by a part of their names, and on volumes that are not read."""
    unsure = [case for case in contents.cases if case.by_part]
    if unsure:
        pairs = ", ".join(f"{case.mask.name} with {case.images[0].name}" for case in unsure[:2])
        count = f"{len(unsure)} of {len(contents.cases)}"
        problem = f"cases paired by a part of their names alone, or by their folder: {count} ({pairs}"
        remedy = f"look through them with `medddpm check --list {contents.root}`, or give the files of a case one name"
        contents.notes.append(BadInput(contents.root, problem + (", …)" if len(unsure) > 2 else ")"), remedy))
    used = {path for case in (*contents.cases, *contents.partial) for path in (case.mask, *case.images)}
    used.update(contents.loose)
    contents.notes.extend(notes_on_unread(contents.root, contents.places, used, contents.place_remedy))
    return contents
