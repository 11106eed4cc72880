"""The volumes to sample: one for each mask of a file, a folder or a CSV."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.data.layouts import BRATS
from medddpm.data.nifti import check_name, is_nifti_name, is_volume_name, split_name
from medddpm.data.readers.listing import entries, read_csv, volumes
from medddpm.data.readers.words import MASK, role
from medddpm.errors import BadInput
from medddpm.fast.reports import report

IMAGES = ("image", *BRATS.image_folders)
"""The columns of a CSV that name a case's images."""
LARGEST_SEED = 2**63 - 1
_MASK_WORD = re.compile(r"(?<=.)[ _.-]+(d?seg|segmentation|mask|labels?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """A mask to sample a volume for.

    Args:
        mask: its file.
        out: the volume's file; several volumes of one mask are numbered.
        images: the case's images, for a raw BraTS mask that does not lie beside them.
        seed: of the first volume's noise.
    """

    mask: Path
    out: Path
    images: tuple[Path, ...]
    seed: int


def find_requests(mask: Path, out: Path, images: Sequence[Path] = (), seed: int = 0) -> list[Request]:
    """Returns a request for each mask.

    A CSV has a column ``mask`` and may have ``image`` (or ``t1`` … ``flair``), ``out`` and ``seed``; an empty cell is
    a missing one. The masks and images it names are relative to its own folder, the outputs to `out`.

    Args:
        mask: a mask's file, a folder of masks, or a CSV.
        out: the volume's file; for a folder or a CSV the folder of the volumes. There a volume has its mask's name,
            without a word for masks at its end: ``case_7_seg.nii.gz`` becomes ``case_7.nii.gz``.
        images: of the case; of a single mask only.
        seed: of every mask's noise.

    Raises:
        BadInput: the names do not fit, or the folder or the CSV names no masks. Whether the masks can be read is left
            to the reader.
    """
    table = mask.suffix.lower() == ".csv" and not mask.is_dir()
    if not table and not mask.is_dir():
        check_name(out)
        return [Request(mask, out, tuple(images), seed)]
    if images:
        raise BadInput("--image", "it would be every mask's", "give a CSV with the columns mask and image instead")
    if is_nifti_name(out) or (out.exists() and not out.is_dir()):
        raise BadInput(out, "several masks' volumes are no single file", "give --out a folder")
    return _of_table(mask, out, seed) if table else _of_folder(mask, out, seed)


def _of_folder(folder: Path, out: Path, seed: int) -> list[Request]:
    if out.exists() and os.path.samefile(folder, out):
        raise BadInput(out, "it is the masks' own folder, where volumes would be taken for masks", "choose another one")
    there = entries(folder)
    read = volumes(folder)
    masks = [entry for entry in read if role(entry.name) in (None, MASK)] or read  # a case's folder has images too
    taken = set(masks)
    others = [entry.name for entry in there if entry not in taken]
    if not masks:
        within = next((name for name in others if name in ("mask", "seg")), None)
        remedy = (
            f"give {folder / within}"
            if within
            else "give the folder that holds the masks themselves, or a CSV that names them"
        )
        raise BadInput(folder, "holds no volumes", remedy)
    if others:
        named = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        report(f"{folder}: masks: {len(masks)}; passed over, as no masks: {len(others)} ({named})")
    return [Request(mask, out / _name(mask), (), seed) for mask in masks]


def _name(mask: Path) -> str:
    """Returns the name of a mask's volume; of a mask that is no NIfTI the volume is a .nii.gz."""
    if not is_volume_name(mask):
        check_name(mask)
    stem, ending = split_name(mask)
    return _MASK_WORD.sub("", stem) + (ending if is_nifti_name(mask) else ".nii.gz")


def _of_table(table: Path, out: Path, seed: int) -> list[Request]:
    remedy = "give a CSV with a column mask; it may have image (or t1 … flair), out and seed"
    (_, head), *rows = read_csv(table, remedy)
    if "mask" not in head:
        raise BadInput(table, f"it has no column mask: its first line is {','.join(head)}", remedy)
    if unread := [name for name in head if name not in ("mask", *IMAGES, "out", "seed")]:
        report(f"{table}: columns that are not read: {', '.join(unread)}")
    requests = []
    for line, cells in rows:
        if len(cells) > len(head):
            raise BadInput(table, f"line {line} has more cells than the first", "quote what has a comma in it")
        requests.append(_of_row(table, line, dict(zip(head, cells, strict=False)), out, seed))
    if not requests:
        raise BadInput(table, "it names no masks", remedy)
    return requests


def _of_row(table: Path, line: int, row: dict[str, str], out: Path, seed: int) -> Request:
    mask, word = row["mask"], row.get("seed") or str(seed)
    if not mask:
        raise BadInput(table, f"line {line} names no mask", "name one, or remove the line")
    if not word.isascii() or not word.isdecimal() or len(word) > 19 or int(word) > LARGEST_SEED:
        raise BadInput(table, f"line {line}: {word!r} is no seed", f"give a whole number from 0 to {LARGEST_SEED}")
    try:
        name = row.get("out") or _name(Path(mask))
        check_name(name)
    except BadInput as error:
        raise BadInput(table, f"line {line}: {error.path}: {error.problem}", error.remedy) from None
    images = tuple(table.parent / row[column] for column in IMAGES if row.get(column))
    return Request(table.parent / mask, out / name, images, int(word))
