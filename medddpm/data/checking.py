"""Finds every problem of a data folder before any training starts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib

from medddpm.data.layouts import BRATS, Case, Layout, find_layout, pair
from medddpm.data.masks import enhancing_label, prepared
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
    enhancing: dict[int, list[Path]] = {}  # raw masks by their label of the enhancing tumour
    problems: list[BadInput] = []
    # gzip releases the interpreter lock; more than four threads would only hold more volumes in memory.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda case: _check_case(case, layout), cases)
        shown = tqdm(results, total=len(cases), desc="checking", unit="case", disable=not progress, **bars())
        for case, (shape, label, found) in zip(cases, shown, strict=True):
            problems += found
            if shape:
                shapes[shape] += 1
            if label:
                enhancing.setdefault(label, []).append(case.mask)
        lonely = [Path(problem.path) for problem in unpaired if Path(problem.path).is_file()]
        for found in pool.map(lambda path: _check_lonely(path, layout), lonely):
            problems += found
    return Report(root, layout, cases, shapes, problems + _disagreement(enhancing) + unpaired)


def _disagreement(enhancing: dict[int, list[Path]]) -> list[BadInput]:
    """Returns the problem of a folder where some raw masks hold 3 and others 4: not all mean the enhancing tumour."""
    if len(enhancing) < 2:
        return []
    threes, fours = enhancing[3], enhancing[4]
    problem = f"holds 4 and {threes[0].name} holds 3 ({len(fours)} and {len(threes)} raw masks): which is enhancing?"
    remedy = "relabel all alike: 1 necrotic core, 2 oedema, 3 enhancing tumour (4 is a resection cavity since 2024)"
    return [BadInput(fours[0], problem, remedy)]


def _check_case(case: Case, layout: Layout) -> tuple[tuple[int, ...] | None, int | None, list[BadInput]]:
    """Returns a case's shape and the label of its enhancing tumour, where its mask can be read, and its problems."""
    problems: list[BadInput] = []
    label = None
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
            labels = prepared(case.mask, mask, layout, images)
            label = enhancing_label(mask, labels) if layout == BRATS else None
        except BadInput as problem:
            problems.append(problem)
    return (mask.shape if mask is not None else None), label, problems


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
