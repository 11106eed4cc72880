"""The two published folder layouts of Med-DDPM data sets (Dorjsembe et al. 2024), and how their files pair up."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from medddpm.data.nifti import is_nifti_name
from medddpm.errors import BadInput


@dataclass(frozen=True)
class Layout:
    """How a data folder is laid out and what its masks mean.

    Args:
        name: for messages.
        image_folders: one folder for each image channel, in channel order.
        mask_folder: the folder of the label masks.
        labels: the mask's labels besides 0, in channel order.
        mask_values: a mask channel's values off and on its label.
        axes: where the array axes point on the model's grid (`medddpm.data.grid`).
    """

    name: str
    image_folders: tuple[str, ...]
    mask_folder: str
    labels: tuple[int, ...]
    mask_values: tuple[float, float]
    axes: str = "RAS"

    @property
    def image_channels(self) -> int:
        """The number of image channels."""
        return len(self.image_folders)

    @property
    def mask_channels(self) -> int:
        """The number of channels of the condition: one for each label."""
        return len(self.labels)

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders of the layout, the mask's first."""
        return (self.mask_folder, *self.image_folders)


HEAD = Layout("whole head", ("image",), "mask", (1, 2), (-1.0, 1.0))
"""Labels: 1 brain, 2 tumour."""

BRATS = Layout("BraTS", ("t1", "t1ce", "t2", "flair"), "seg", (1, 2, 3, 4), (0.0, 1.0), axes="LPS")
"""Labels: 1 to 3 tumour sub-regions, 4 brain. BraTS comes in LPS, and the published model was trained on that."""

LAYOUTS = (HEAD, BRATS)


@dataclass(frozen=True)
class Case:
    """One subject: `name` is the mask file's without its suffix, `images` follow `Layout.image_folders`."""

    name: str
    images: tuple[Path, ...]
    mask: Path


def find_layout(root: str | os.PathLike[str]) -> Layout:
    """The published layout that a data folder follows.

    Raises:
        BadInput: `root` is missing, not a folder, or empty; a folder of the layout is missing; or both layouts fit.
    """
    root = Path(root)
    if not root.exists():
        raise BadInput(root, "no such folder", "check the name")
    if not root.is_dir():
        raise BadInput(root, "not a folder", "give the folder that holds the data folders")
    try:
        entries = [entry for entry in root.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInput(root, f"cannot be read ({error.strerror})", "ask for permission to read it") from None
    if not entries:
        raise BadInput(root, "an empty folder", f"put volumes into {_wanted()}")
    present = {entry.name for entry in entries if entry.is_dir()}
    complete = [layout for layout in LAYOUTS if present.issuperset(layout.folders)]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise BadInput(root, "holds both published layouts", f"keep one of them: {_wanted()}")
    begun = [layout for layout in LAYOUTS if present.intersection(layout.folders)]
    if len(begun) == 1:
        missing = " ".join(f"{name}/" for name in begun[0].folders if name not in present)
        raise BadInput(root, f"lacks {missing} of the {begun[0].name} layout", "add what is missing")
    raise BadInput(root, "follows no published layout", f"lay it out as {_wanted()}")


def find_cases(root: str | os.PathLike[str], layout: Layout) -> list[Case]:
    """The cases of a data folder, sorted by name; the digits in their names pair the files (`pairing_key`).

    Raises:
        BadInput: there are no volumes, a file lacks a partner, or two files of a folder have the same digits.
    """
    cases, problems = pair(root, layout)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        named = ", ".join(os.path.relpath(problem.path, root) for problem in problems[:5])
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        remedy = "add the missing files or remove these; `medddpm check` explains each"
        raise BadInput(root, f"{len(problems)} files cannot be paired: {named}{more}", remedy)
    return cases


def pair(root: str | os.PathLike[str], layout: Layout) -> tuple[list[Case], list[BadInput]]:
    """The complete cases of a data folder, and a problem for each other file."""
    root = Path(root)
    found = {folder: _volumes(root / folder) for folder in layout.folders}
    if not any(found.values()):
        return [], [BadInput(root, "holds no .nii or .nii.gz in " + _listed(layout), "put volumes there")]
    problems = []
    for files in found.values():
        for same in files.values():
            twins = ", ".join(file.name for file in same[1:])
            if twins:
                remedy = "files are paired by the digits in their names: rename or remove one"
                problems.append(BadInput(same[0], f"has the same digits as {twins}", remedy))
    cases = []
    for key in sorted({key for files in found.values() for key in files}):
        absent = [f"{folder}/" for folder in layout.folders if key not in found[folder]]
        matches = {folder: found[folder][key] for folder in layout.folders if key in found[folder]}
        if absent:
            remedy = f"add one with {' '.join(key)} in its name, or remove this file"
            lonely = (file for files in matches.values() for file in files)
            problems += [BadInput(file, f"has no partner in {' '.join(absent)}", remedy) for file in lonely]
        elif all(len(files) == 1 for files in matches.values()):
            mask = matches[layout.mask_folder][0]
            images = tuple(matches[folder][0] for folder in layout.image_folders)
            cases.append(Case(_stem(mask), images, mask))
    return cases, problems


def siblings(mask: str | os.PathLike[str], layout: Layout) -> tuple[Path, ...]:
    """The images found for a mask in its layout's folder, in channel order."""
    mask = Path(mask)
    key = pairing_key(mask)
    root = mask.absolute().parent.parent
    found = (_volumes(root / folder).get(key, []) for folder in layout.image_folders)
    return tuple(files[0] for files in found if len(files) == 1)


_WORDS = re.compile(
    r"(?<![a-z0-9])(t1ce|t1gd|t1c|t1n|t1w|t1|t2w|t2f|t2|flair|seg|segmentation|mask|image|img|label)(?![a-z0-9])"
)


def pairing_key(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The groups of digits in a file's name, except a modality's ("t1"); without any, the rest of the name."""
    rest = _WORDS.sub("", _stem(Path(path)).lower())
    return tuple(re.findall(r"\d+", rest)) or (rest.strip(" _-."),)


def _volumes(folder: Path) -> dict[tuple[str, ...], list[Path]]:
    files: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        # A leading dot marks a half-written file, or macOS's "._" companion of one.
        if is_nifti_name(file) and not file.name.startswith("."):
            files[pairing_key(file)].append(file)
    return dict(files)


def _stem(path: Path) -> str:
    return re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def _listed(layout: Layout) -> str:
    return " ".join(f"{folder}/" for folder in layout.folders)


def _wanted() -> str:
    return ", or ".join(_listed(layout) for layout in LAYOUTS)
