"""BIDS: a folder a subject, names of entities (``sub-01_ses-1_space-MNI_T1w``), masks among the derivatives.

The few entities that tell which mask belongs to which image are read here. pybids would index the whole data set and
all its metadata, through a database, for the same pairs.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.data.cases import Case, Contents
from medddpm.data.layouts import BRATS, HEAD, Layout
from medddpm.data.nifti import is_volume_name, split_name
from medddpm.data.readers.listing import is_file, read_text, split, walk
from medddpm.data.readers.words import ASKED, MASK, labels_by_name, role
from medddpm.errors import BadInput

READER = "BIDS"
_ADVICE = "list the pairs in a CSV"
_MOST_LABELS = 1000  # rows of a table that are read
_SCANS = {"t1w", "t2w", "flair", "t1", "t2", "t1c", "t1ce", "t1gd"}
_MASKS = {"mask", "dseg", "seg", "roi"}
_OF_A_SCAN = ("ses", "acq", "rec", "run", "space", "res")
"""Entities that may tell one scan of a subject from another; the rest describe a contrast, a mask or a step."""


@dataclass(frozen=True)
class _File:
    path: Path
    role: str
    entities: dict[str, str]

    def scan(self) -> dict[str, str]:
        """Returns the entities that tell scans apart."""
        return {key: value for key, value in self.entities.items() if key in _OF_A_SCAN}

    def fits(self, other: _File) -> bool:
        """Returns whether both files may belong to one scan: no entity that both have differs."""
        mine, its = self.scan(), other.scan()
        return all(mine[key] == its[key] for key in mine.keys() & its.keys())

    def distance(self, other: _File) -> int:
        """Returns the number of scan entities that only one of the two files has."""
        return len(self.scan().keys() ^ other.scan().keys())


def read(root: Path, subject: str = "") -> Contents | None:
    """Reads ``sub-01/anat/sub-01_T1w.nii.gz`` and the masks (``_mask``, ``_dseg``) there or below ``derivatives/``.

    A mask's image is that of the same subject whose session, run, acquisition and space agree, where both names have
    them. All four contrasts (T1w, T1w with ``ce-``, T2w, FLAIR) make BraTS; with fewer the T1w is a whole head.

    Args:
        root: the data set's folder.
        subject: reads this subject's folders alone ("sub-01").

    Raises:
        BadInput: a table of labels is damaged.
    """
    if not any(folder.name.startswith("sub-") for folder in split(root)[0]):
        return None
    subjects: defaultdict[str, list[_File]] = defaultdict(list)
    for _folder, paths in walk(root, skip=lambda name: bool(subject) and name.startswith("sub-") and name != subject):
        for path in filter(is_volume_name, paths):
            if (file := _parsed(path)) is not None:
                subjects[file.entities["sub"]].append(file)
    everything = [file for files in subjects.values() for file in files]
    if not everything:
        return None
    layout = BRATS if {file.role for file in everything} >= set(BRATS.image_folders) else HEAD
    channels = ("t1",) if layout == HEAD else BRATS.image_folders
    result = Contents(root, READER, layout, [], places=(root,), place_remedy=f"no mask goes with them; {_ADVICE}")
    if all(file.role != MASK for file in everything):
        problem = "holds no mask: no file of a subject ends in _mask or _dseg"
        result.problems.append(BadInput(root, problem, f"add masks below derivatives/, or {_ADVICE}"))
    for files in subjects.values():
        masks = [file for file in files if file.role == MASK]
        images = [file for file in files if file.role in channels]
        for mask in masks:
            rivals = [other.path.name for other in masks if other is not mask and other.scan() == mask.scan()]
            _add(result, mask, rivals, images, channels)
    return result


def around(mask: Path) -> Contents | None:
    """Reads the subject of a mask that lies in a subject's folder; None for any other mask."""
    parts = mask.parts
    subject = next((place for place, part in enumerate(parts[:-1]) if part.startswith("sub-")), None)
    if subject is None:
        return None
    end = parts.index("derivatives") if "derivatives" in parts[:subject] else subject
    return read(Path(*parts[:end]), parts[subject])


def _add(
    result: Contents, mask: _File, rivals: Sequence[str], images: Sequence[_File], channels: Sequence[str]
) -> None:
    """Adds the case of a mask, or the problem that prevents it."""
    chosen, problem = [], None
    for channel in channels:
        fitting = [image for image in images if image.role == channel and image.fits(mask)]
        least = min((image.distance(mask) for image in fitting), default=0)
        near = [image.path for image in fitting if image.distance(mask) == least]
        if len(near) == 1:
            chosen += near
        elif near:
            problem = BadInput(mask.path, f"fits {near[0].name} and {near[1].name} alike", _ADVICE)
        else:
            absent = "no T1w" if result.layout == HEAD else f"no {channel}"
            problem = BadInput(mask.path, f"{absent} of its subject, session, run and space", f"add it, or {_ADVICE}")
    if rivals:
        several = f"is one of several masks of a scan: also {rivals[0]}"
        problem = BadInput(mask.path, several, f"remove one, or {_ADVICE}")
    labels = None
    try:
        labels = _labels(result.root, mask, result.layout)
    except BadInput as error:
        problem = error
    case = Case(split_name(mask.path)[0], tuple(chosen), mask.path, labels=labels)
    if problem is None:
        result.cases.append(case)
    else:
        result.partial.append(case)
        result.loose.append(mask.path)
        result.problems.append(problem)


def _labels(root: Path, mask: _File, layout: Layout) -> dict[int, int] | None:
    """Returns the meaning of a mask's labels if its name or a table beside it gives one.

    Raises:
        BadInput: the table is damaged or contradicts the layout; or the mask marks a lesion alone.
    """
    stem = split_name(mask.path)[0]
    tables = [mask.path.with_name(f"{stem}.tsv")]
    if stem.endswith("_dseg"):
        within = [folder for folder in mask.path.parents if folder == root or root in folder.parents]
        tables += [folder / "dseg.tsv" for folder in within]
    table = next((path for path in tables if is_file(path)), None)
    if table is not None:
        return _of_table(table, layout)
    part = mask.entities.get("label") or mask.entities.get("desc")
    if stem.endswith("_mask") and part and layout == HEAD and part.lower() != "brain":
        problem = (
            f"marks one structure by its name ({part}), where a label 1 for the brain and 2 for a tumour are wanted"
        )
        raise BadInput(mask.path, problem, f"join it with the brain's in one _dseg, or {_ADVICE}")
    return None


def _of_table(table: Path, layout: Layout) -> dict[int, int]:
    remedy = f"give it the columns index and name; {ASKED}"
    try:
        rows = csv.DictReader(io.StringIO(read_text(table, remedy), newline=""), delimiter="\t")
        named: defaultdict[str, set[int]] = defaultdict(set)
        for row in itertools.islice(rows, _MOST_LABELS):
            named[str(row["name"])].add(int(str(row["index"])))
        meant, labels = labels_by_name(named)
    except (KeyError, csv.Error):
        raise BadInput(table, "no table of labels", remedy) from None
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(table, str(error), remedy) from None
    if meant != layout:
        raise BadInput(table, f"names the labels of {meant.name} data, the images are {layout.name} data", remedy)
    return labels


def _parsed(path: Path) -> _File | None:
    """Parses a file's name; None if it names no subject, or is neither a scan nor a mask."""
    *parts, suffix = split_name(path)[0].split("_")
    entities = {}
    for part in parts:
        key, dash, value = part.partition("-")
        if dash:
            entities[key.lower()] = re.sub(r"(?<!\d)0+(?=\d)", "", value)
    suffix = suffix.lower()
    if "sub" not in entities or suffix not in _SCANS | _MASKS:
        return None
    if suffix in _MASKS:
        return _File(path, MASK, entities)
    meant = role(f"{suffix} {'ce' if 'ce' in entities else ''}")
    return _File(path, meant, entities) if meant else None
