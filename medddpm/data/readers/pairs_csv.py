"""A CSV of pairs: for files that lie in no known arrangement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medddpm.data.cases import Case, Contents
from medddpm.data.layouts import PUBLISHED, Layout
from medddpm.data.nifti import is_volume_name, split_name
from medddpm.data.readers.listing import is_file, read_csv
from medddpm.data.readers.words import MASK
from medddpm.errors import BadInput

READER = "CSV of pairs"
COLUMNS = " or ".join(",".join((MASK, *layout.image_folders)) for layout in PUBLISHED)
_REMEDY = f"give it the columns {COLUMNS}"


def read(path: Path) -> Contents:
    """Reads a CSV whose columns are mask,image or mask,t1,t1ce,t2,flair; its paths are relative to its folder.

    Raises:
        BadInput: it is no such table. The fault of a single row becomes one of the problems.
    """
    (_, columns), *rows = read_csv(path, _REMEDY)
    layout = _layout(path, columns)
    result = Contents(path, READER, layout, [])
    if other := [column for column in columns if column not in (MASK, *layout.image_folders)]:
        count = "1 column is" if len(other) == 1 else f"{len(other)} columns are"
        result.notes.append(BadInput(path, f"{count} not read: {', '.join(other[:5])}", _REMEDY))
    lines: dict[Path, int] = {}
    for number, row in rows:
        _add(result, columns, number, row, lines)
    if not result.cases and not result.problems:
        result.problems.append(BadInput(path, "lists no pairs", "add a row for each"))
    return result


def _layout(path: Path, columns: Sequence[str]) -> Layout:
    fitting = [layout for layout in PUBLISHED if {MASK, *layout.image_folders} <= set(columns)]
    if len(fitting) != 1:
        raise BadInput(path, f"its first line is {','.join(columns)}", _REMEDY)
    return fitting[0]


def _add(result: Contents, columns: Sequence[str], number: int, row: Sequence[str], lines: dict[Path, int]) -> None:
    """Adds a row's case, or its first fault."""

    def fault(problem: str, remedy: str) -> None:
        result.problems.append(BadInput(result.root, f"line {number}: {problem}", remedy))

    if len(row) != len(columns):
        return fault(f"{len(row)} cells for {len(columns)} columns", "quote a path that has a comma")
    cells = dict(zip(columns, row, strict=True))
    files = {}
    for role in (MASK, *result.layout.image_folders):
        path = files[role] = result.root.parent / cells[role]
        if not cells[role]:
            return fault(f"no {role}", "fill it in, or remove the line")
        if not is_file(path):
            return fault(f"no such file: {cells[role]}", "correct the path; it is relative to the CSV's folder")
        if not is_volume_name(path):
            return fault(f"not a volume by its name: {cells[role]}", "give .nii or .nii.gz files, or convert them")
    known: dict[Path, str] = {}
    for role, path in files.items():
        if (other := known.setdefault(path, role)) != role:
            return fault(f"its {other} and its {role} are one file: {cells[role]}", "correct one of the two")
    mask = files.pop(MASK)
    if mask in lines:
        return fault(f"its mask stands in line {lines[mask]} too: {cells[MASK]}", "remove one of them")
    lines[mask] = number
    result.cases.append(Case(split_name(mask)[0], tuple(files.values()), mask))
    return None
