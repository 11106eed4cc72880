"""Finds every problem of a data folder before any training starts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import nibabel as nib

from medddpm.data.cases import Case
from medddpm.data.layouts import BRATS, Layout
from medddpm.data.masks import enhancing_label
from medddpm.data.nifti import read_image, same_grid
from medddpm.data.readers import read_folder
from medddpm.errors import BadInput, printable
from medddpm.fast.reports import bars

Read = TypeVar("Read")


@dataclass(frozen=True)
class Report:
    """The result of `check_folder`.

    Args:
        root: the folder, or the CSV.
        layout: its layout; None if it follows none.
        reader: the arrangement of its files.
        cases: the complete cases, sound or not.
        shapes: the number of cases of each shape (H, W, D), where the mask could be read.
        problems: one for each fault: those of cases first, then files without a partner.
        notes: remarks that do not prevent training: volumes that are not read, files paired by a part of their names.
    """

    root: Path
    layout: Layout | None
    reader: str
    cases: list[Case]
    shapes: Counter[tuple[int, ...]]
    problems: list[BadInput]
    notes: list[BadInput]

    def pairs(self) -> list[str]:
        """Returns a line for each case: its name, its mask and its images, relative to the folder."""
        base = self.root if self.root.is_dir() else self.root.parent
        lines = []
        for case in self.cases:
            mask, *images = (os.path.relpath(path, base) for path in (case.mask, *case.files()))
            how = " (by a part of their names, or by their folder)" if case.by_part else ""
            lines.append(printable(f"{case.name}: {mask} with {', '.join(images)}{how}"))
        return lines

    def __str__(self) -> str:
        """Returns one line with the layout, the cases, their shapes, the problems and the notes."""
        problems = _count(len(self.problems), "problem")
        if self.layout is None:
            return f"{self.root}: nothing to check, {problems}"
        shapes = ", ".join("x".join(map(str, shape)) for shape, _ in self.shapes.most_common(3))
        counts = f"{_count(len(self.cases), 'case')}{f' ({shapes})' if shapes else ''}"
        notes = f", {_count(len(self.notes), 'note')}" if self.notes else ""
        return f"{self.root}: {self.layout.name} layout ({self.reader}), {counts}, {problems}{notes}"


def check_folder(root: str | os.PathLike[str], progress: bool = False) -> Report:
    """Reads every volume of a data folder to its end.

    Args:
        root: a data folder, or a CSV of pairs (`medddpm.data.readers`).
        progress: shows a bar on stderr.

    Returns:
        The report; `problems` is empty if a model can be trained on the folder. Faults are reported, not raised.
    """
    from tqdm import tqdm

    root = Path(root)
    try:
        contents = read_folder(root)
    except BadInput as problem:
        return Report(root, None, "", [], Counter(), [problem], [])
    cases, layout = contents.cases, contents.layout
    masks = {case.mask: case for case in contents.partial}
    shapes: Counter[tuple[int, ...]] = Counter()
    enhancing: dict[int, list[Path]] = {}  # raw masks by their label of the enhancing tumour
    problems: list[BadInput] = []
    # gzip releases the interpreter lock; more than four threads would only hold more volumes in memory.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda case: _check_case(case, layout), cases)
        shown = tqdm(results, total=len(cases), desc="checking", unit="case", disable=not progress, **bars())
        for case, (shape, label, faults) in zip(cases, shown, strict=True):
            problems += faults
            if shape:
                shapes[shape] += 1
            if label:
                enhancing.setdefault(label, []).append(case.mask)
        for faults in pool.map(lambda path: _check_loose(path, masks.get(path), layout), contents.loose):
            problems += faults
    problems += _disagreement(enhancing) + contents.problems
    return Report(root, layout, contents.reader, cases, shapes, problems, contents.notes)


def _disagreement(enhancing: dict[int, list[Path]]) -> list[BadInput]:
    """Returns the problem of a folder where some raw masks hold 3 and others 4: not all mean the enhancing tumour."""
    if len(enhancing) < 2:
        return []
    threes, fours = enhancing[3], enhancing[4]
    problem = f"holds 4 and {threes[0].name} holds 3 ({len(fours)} and {len(threes)} raw masks): which is enhancing?"
    remedy = "relabel all alike: 1 necrotic core, 2 oedema, 3 enhancing tumour (4 is a resection cavity since 2024)"
    return [BadInput(fours[0], problem, remedy)]


def _check_case(case: Case, layout: Layout) -> tuple[tuple[int, ...] | None, int | None, list[BadInput]]:
    """Returns a case's shape, the label of its enhancing tumour, and its problems.

    The shape is None if the mask cannot be read. The label is None unless the mask is a raw BraTS one that shows it.
    """
    problems: list[BadInput] = []
    label = None
    mask = _attempt(problems, lambda: case.read_labels(layout))
    images: list[nib.Nifti1Image] = []
    for path in case.files():
        read = _attempt(problems, lambda path=path: case.read_images(path)) or []  # type: ignore[misc]
        if read and mask is not None:
            try:
                same_grid(path, read[0], case.mask, mask)
                images += read
            except BadInput as problem:
                problems.append(problem)
    if mask is not None and len(images) == len(case.images):
        try:
            labels = case.prepared(mask, layout, images)
            label = enhancing_label(mask, labels) if layout == BRATS and case.labels is None else None
        except BadInput as problem:
            problems.append(problem)
    return (mask.shape if mask is not None else None), label, problems


def _check_loose(path: Path, case: Case | None, layout: Layout) -> list[BadInput]:
    """Returns the faults of a file without a partner; `case` is given for a mask."""
    problems: list[BadInput] = []
    _attempt(problems, lambda: read_image(path) if case is None else case.read_labels(layout))
    return problems


def _attempt(problems: list[BadInput], read: Callable[[], Read]) -> Read | None:
    try:
        return read()
    except BadInput as problem:
        problems.append(problem)
        return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
