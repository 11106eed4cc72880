"""Finds every problem of a data folder before any training starts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib

from medddpm.data.layouts import Case, Layout, find_layout, pair
from medddpm.data.masks import prepared
from medddpm.data.nifti import read_image, read_mask, same_grid
from medddpm.errors import BadInput
from medddpm.runtime.reports import bars


@dataclass(frozen=True)
class Report:
    """What `check_folder` found.

    Args:
        root: the folder.
        layout: its layout; None if it follows none.
        cases: the complete cases, sound or not.
        shapes: the number of cases of each shape (H, W, D), where the mask could be read.
        problems: one for each fault: those of cases first, then files without a partner.
    """

    root: Path
    layout: Layout | None
    cases: list[Case]
    shapes: Counter[tuple[int, ...]]
    problems: list[BadInput]

    def __str__(self) -> str:
        """One line: layout, cases, shapes, problems."""
        problems = _count(len(self.problems), "problem")
        if self.layout is None:
            return f"{self.root}: nothing to check, {problems}"
        shapes = ", ".join("x".join(map(str, shape)) for shape, _ in self.shapes.most_common(3))
        counts = f"{_count(len(self.cases), 'case')}{f' ({shapes})' if shapes else ''}"
        return f"{self.root}: {self.layout.name} layout, {counts}, {problems}"


def check_folder(root: str | os.PathLike[str], progress: bool = False) -> Report:
    """Reads every volume of a data folder to its end.

    Args:
        root: a folder in a published layout.
        progress: shows a bar on stderr.

    Returns:
        The report; `problems` is empty if a model can be trained on the folder. The folder's faults raise nothing.
    """
    from tqdm import tqdm

    root = Path(root)
    try:
        layout = find_layout(root)
    except BadInput as problem:
        return Report(root, None, [], Counter(), [problem])
    cases, unpaired = pair(root, layout)
    shapes: Counter[tuple[int, ...]] = Counter()
    problems: list[BadInput] = []
    # gzip releases the interpreter lock; more than four threads would only hold more volumes in memory.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda case: _check_case(case, layout), cases)
        shown = tqdm(results, total=len(cases), desc="checking", unit="case", disable=not progress, **bars())
        for shape, found in shown:
            problems += found
            if shape:
                shapes[shape] += 1
        lonely = [Path(problem.path) for problem in unpaired if Path(problem.path).is_file()]
        for found in pool.map(lambda path: _check_lonely(path, layout), lonely):
            problems += found
    return Report(root, layout, cases, shapes, problems + unpaired)


def _check_case(case: Case, layout: Layout) -> tuple[tuple[int, ...] | None, list[BadInput]]:
    problems: list[BadInput] = []
    mask = _attempt(problems, lambda: read_mask(case.mask, layout.labels))
    images = []
    for path in case.images:
        image = _attempt(problems, lambda path=path: read_image(path))  # type: ignore[misc]
        if image is not None and mask is not None:
            try:
                same_grid(path, image, case.mask, mask)
                images.append(image)
            except BadInput as problem:
                problems.append(problem)
    if mask is not None and len(images) == len(case.images):
        try:
            prepared(case.mask, mask, layout, images)
        except BadInput as problem:
            problems.append(problem)
    return (mask.shape if mask is not None else None), problems


def _check_lonely(path: Path, layout: Layout) -> list[BadInput]:
    problems: list[BadInput] = []
    mask = path.parent.name == layout.mask_folder
    _attempt(problems, lambda: read_mask(path, layout.labels) if mask else read_image(path))
    return problems


def _attempt(problems: list[BadInput], read: Callable[[], nib.Nifti1Image]) -> nib.Nifti1Image | None:
    try:
        return read()
    except BadInput as problem:
        problems.append(problem)
        return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
