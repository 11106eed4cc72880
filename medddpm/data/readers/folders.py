"""Med-DDPM's own arrangement, a folder for each channel, and BraTS's, a folder for each case."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

from medddpm.data.cases import Case, Contents
from medddpm.data.layouts import BRATS, HEAD, PUBLISHED, Layout
from medddpm.data.nifti import is_volume_name, split_name
from medddpm.data.readers.listing import DEEPEST, entries, remembered, volumes, walk
from medddpm.data.readers.pairing import Pairs, pair
from medddpm.data.readers.words import MASK, identity, role, tokens
from medddpm.errors import BadInput

WANTED = ", or ".join(" ".join(f"{name}/" for name in layout.folders) for layout in PUBLISHED)
_SINCE_2023 = {"gli", "goat", "men", "met", "ped", "peds", "ssa"}  # the parts of the challenge, as files name them
_MASK_FOLDERS = [layout.mask_folder for layout in PUBLISHED]


def channel_folders(root: Path) -> Contents | None:
    """Reads ``mask/ image/``, or ``seg/ t1/ t1ce/ t2/ flair/``, in capitals or not.

    Raises:
        BadInput: both are there, or one folder twice.
    """
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for entry in entries(root):
        if entry.is_dir():
            named[entry.name.lower()].append(entry)
    begun = [layout for layout in PUBLISHED if set(layout.folders) & set(named)]
    complete = [layout for layout in begun if set(layout.folders) <= set(named)]
    if not begun:
        return None
    if len(complete) == 2:
        raise BadInput(root, "holds both published layouts", f"keep one of them: {WANTED}")
    if not complete and len(begun) == 2:
        return None
    layout = (complete or begun)[0]
    for name in layout.folders:
        if len(named[name]) > 1:
            both = " and ".join(f"{folder.name}/" for folder in named[name])
            raise BadInput(root, f"holds both {both}", "lay their files into one")
    folders = {name: named[name][0] for name in layout.folders if named[name]}
    files = {_role(name, layout): volumes(folder) for name, folder in folders.items()}
    places = {_role(name, layout): f"{name}/" for name in layout.folders}
    pairs = pair(files, layout, places)
    missing = " ".join(f"{name}/" for name in layout.folders if name not in folders)
    if missing:
        pairs.problems = [BadInput(root, f"lacks {missing} of the {layout.name} layout", "add what is missing")]
    elif not any(files.values()):
        listed = " ".join(f"{name}/" for name in layout.folders)
        pairs.problems = [BadInput(root, f"holds no .nii or .nii.gz in {listed}", "put volumes there")]
    remedy = "lay them directly into the folder of their channel"
    return _contents(root, "a folder a channel", layout, pairs, tuple(folders.values()), remedy)


def channels_around(mask: Path) -> Contents | None:
    """Reads the folder of a mask in ``mask/`` or ``seg/``; None for any other."""
    return remembered(channel_folders, mask.parent.parent) if mask.parent.name.lower() in _MASK_FOLDERS else None


def case_around(mask: Path) -> Contents | None:
    """Reads the folder of a case."""
    return remembered(_case_folder, mask.parent, below=False)


def _case_folder(folder: Path) -> Contents | None:
    return case_folders(folder, deepest=0)


def case_folders(root: Path, deepest: int = DEEPEST) -> Contents | None:
    """Reads a folder a case, at any depth, as BraTS comes; a file's name gives its role.

    BraTS has ``_t1 _t1ce _t2 _flair _seg`` up to 2021, until 2019 within ``HGG/`` and ``LGG/``, and from 2023 on
    ``-t1n -t1c -t2w -t2f -seg``.
    """
    folders: list[dict[str, list[Path]]] = []
    for _folder, files in walk(root, deepest):
        named: defaultdict[str, list[Path]] = defaultdict(list)
        for file in filter(is_volume_name, files):
            if meant := role(file.name):
                named[meant].append(file)
        if named:
            folders.append(dict(named))
    present = set().union(*folders)
    images = present - {MASK}
    if MASK not in present or not images:
        return None
    layout = HEAD if images in ({"t1"}, {"image"}) else BRATS
    if layout == HEAD:
        (channel,) = images
        folders = [{"image" if meant == channel else meant: same for meant, same in roles.items()} for roles in folders]
    pairs = Pairs()
    for roles in folders:
        pairs.add(_of_folder(roles, layout))
    return _contents(root, "a folder a case", layout, pairs, (root,), _remedy(layout))


def _of_folder(roles: dict[str, list[Path]], layout: Layout) -> Pairs:
    """Returns the cases of a folder: one case, whatever the names, unless two files have the same role."""
    known = {meant: same for meant, same in roles.items() if meant in (MASK, *layout.image_folders)}
    where = {meant: f"the same folder ({meant})" for meant in (MASK, *layout.image_folders)}
    if any(len(same) > 1 for same in known.values()):
        return pair(known, layout, where)
    return _single({meant: same[0] for meant, same in known.items()}, layout)


def _single(files: dict[str, Path], layout: Layout) -> Pairs:
    """Returns the files of one case, without pairing."""
    lacking = [meant for meant in (MASK, *layout.image_folders) if meant not in files]
    images = tuple(files[channel] for channel in layout.image_folders if channel in files)
    if not files:
        return Pairs()
    mask = files.get(MASK)
    differ = mask is not None and any(_differ(mask, image) for image in images)
    case = [Case(split_name(mask)[0], images, mask, by_part=differ)] if mask else []
    if not lacking:
        return Pairs(case)
    folder = next(iter(files.values())).parent
    remedy = "add the missing files, or remove this folder"
    return Pairs([], case, [BadInput(folder, f"holds no {', no '.join(lacking)}", remedy)], list(files.values()))


def _differ(mask: Path, image: Path) -> bool:
    """Returns whether each name has words that the other lacks, as with two subjects, or in BraTS 2020's case 355."""
    mine, its = set(identity(mask)), set(identity(image))
    return bool(mine - its and its - mine)


def _role(folder: str, layout: Layout) -> str:
    return MASK if folder == layout.mask_folder else folder


def _remedy(layout: Layout) -> str:
    words = "mask and image" if layout == HEAD else "t1, t1ce, t2, flair and seg (or t1n, t1c, t2w, t2f)"
    return f"end their names in {words}, or list the cases in a CSV"


def _since_2023(case: Case) -> Case:
    """Adds the labels' meaning to a case of BraTS 2023 or later, in which 4 is no enhancing tumour."""
    name = tokens(case.mask.name)
    known = name[0] == "brats" and bool(set(name[1:2]) & _SINCE_2023)
    return dataclasses.replace(case, labels={label: label for label in BRATS.labels}) if known else case


def _contents(root: Path, reader: str, layout: Layout, pairs: Pairs, places: tuple[Path, ...], remedy: str) -> Contents:
    if layout == BRATS:
        pairs.cases[:] = map(_since_2023, pairs.cases)
        pairs.partial[:] = map(_since_2023, pairs.partial)
    return Contents(root, reader, layout, pairs.cases, pairs.problems, pairs.partial, pairs.loose, [], places, remedy)
