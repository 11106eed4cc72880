"""nnU-Net's raw data and the Decathlon's: ``imagesTr/ labelsTr/`` and a dataset.json that names channels and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from medddpm.data.cases import Case, Contents
from medddpm.data.layouts import HEAD, Layout
from medddpm.data.nifti import is_volume_name, split_name
from medddpm.data.readers.listing import is_file, read_text, remembered, volumes
from medddpm.data.readers.words import ASKED, labels_by_name, role
from medddpm.errors import BadInput

FILE, IMAGES, LABELS = "dataset.json", "imagesTr", "labelsTr"
_AGAIN = "write it as nnU-Net or the Decathlon has it"
_MOST_CASES = 100_000

_Entry = tuple[Path, list[Path]]
"""A mask, and its images as dataset.json lists them, or one name from which those of the channels follow."""


def read(root: Path) -> Contents | None:
    """Reads a folder with ``imagesTr/``, ``labelsTr/`` and dataset.json.

    A case's channels are files of their own (``NAME_0000.nii.gz``) or one 4-D file, as the Decathlon has them. Channels
    and labels are known by their names in dataset.json, whatever their order and numbers.

    Raises:
        BadInput: there is no dataset.json, it is damaged, or its channels or labels cannot be understood.
    """
    if not ((root / IMAGES).is_dir() and (root / LABELS).is_dir()):
        return None
    file = root / FILE
    if not file.exists():
        raise BadInput(root, f"lacks {FILE}, which says what channels and labels mean", _AGAIN)
    content = _object(file)
    layout, labels = _labels(file, content)
    channels = _channels(file, content)
    order = _channel_order(file, channels, layout)
    listed = "training" in content or "dataset" in content
    reader = "nnU-Net" if "channel_names" in content else "Decathlon"
    remedy = f"{FILE} does not list them, or no model takes their channel"
    result = Contents(root, reader, layout, [], places=(root / IMAGES, root / LABELS), place_remedy=remedy)
    masks: set[Path] = set()
    for mask, images in _entries(root, file, content) if listed else _beside(root):
        paths, frames = _images(file, images, order, len(channels), listed)
        case = Case(split_name(mask)[0], tuple(paths), mask, tuple(frames), labels)
        if mask in masks:
            result.problems.append(BadInput(file, f"lists {mask.name} twice", "remove one of the entries"))
            continue
        masks.add(mask)
        lacking = [path for path in (mask, *case.files()) if not is_file(path)]
        if not lacking:
            result.cases.append(case)
            continue
        present = [path for path in case.images if path not in lacking]
        result.partial.append(Case(case.name, tuple(present), mask, tuple(frames[: len(present)]), labels))
        result.loose += [path for path in (mask, *case.files()) if path not in lacking]
        advice = f"add it, or remove its case from {FILE if listed else f'{LABELS}/'}"
        result.problems += [BadInput(path, "no such file", advice) for path in lacking]
    if not listed:
        _add_lonely(result, root, masks)
    if not result.cases and not result.problems:
        result.problems.append(BadInput(root, f"holds no volumes in {LABELS}/", "put them there"))
    return result


def around(mask: Path) -> Contents | None:
    """Reads the folder of a mask in ``labelsTr/``; None for any other."""
    return remembered(read, mask.parent.parent) if mask.parent.name == LABELS else None


def _object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file, _AGAIN))
    except BadInput:  # a ValueError too
        raise
    except (ValueError, RecursionError):
        raise BadInput(file, "damaged: not readable as JSON", _AGAIN) from None
    if not isinstance(content, dict):
        raise BadInput(file, "no JSON object", _AGAIN)
    return content


def _labels(file: Path, content: Mapping[str, Any]) -> tuple[Layout, dict[int, int]]:
    """Returns the layout, and its label for each of the masks'. Decathlon's table is by label, nnU-Net's by name."""
    table = content.get("labels")
    if not isinstance(table, dict) or not table:
        raise BadInput(file, 'has no "labels"', f"add them: {ASKED}")
    named: dict[str, set[int]] = {}
    for key, value in table.items():
        if isinstance(value, str):
            name, numbers = value, [int(key) if key.isascii() and key.isdecimal() and len(key) < 4 else key]
        else:
            name, numbers = key, value if isinstance(value, list) else [value]
        if not all(type(number) is int for number in numbers):
            raise BadInput(file, f'its "labels" do not give {name!r} a number', f"correct them: {ASKED}")
        named.setdefault(name, set()).update(numbers)
    try:
        return labels_by_name(named)
    except ValueError as error:
        raise BadInput(file, str(error), ASKED) from None


def _channels(file: Path, content: Mapping[str, Any]) -> list[str]:
    """Returns the names of the channels, in order."""
    table = content.get("channel_names", content.get("modality"))
    if isinstance(table, dict) and 0 < len(table) < 1000:
        names = [table.get(str(index)) for index in range(len(table))]
        if all(isinstance(name, str) for name in names):
            return [str(name) for name in names]
    raise BadInput(file, 'has no "channel_names" (or "modality") from "0" on', _AGAIN)


def _channel_order(file: Path, channels: Sequence[str], layout: Layout) -> list[int]:
    """Returns the index among `channels` of each of the layout's images."""
    if layout == HEAD and len(channels) == 1:
        return [0]
    roles = [role(name) for name in channels]
    indices = []
    for channel in ("t1",) if layout == HEAD else layout.image_folders:
        if roles.count(channel) != 1:
            many = "several channels" if channel in roles else "no channel"
            problem = f"has {many} for {channel} among {', '.join(channels)}"
            remedy = "name them T1, T1CE, T2 and FLAIR" if layout != HEAD else "name one of them T1"
            raise BadInput(file, problem, remedy)
        indices.append(roles.index(channel))
    return indices


def _beside(root: Path) -> Iterator[_Entry]:
    for mask in volumes(root / LABELS):
        yield mask, [root / IMAGES / mask.name]


def _entries(root: Path, file: Path, content: Mapping[str, Any]) -> Iterator[_Entry]:
    """Yields the cases of "training" (the Decathlon, nnU-Net 1) or of "dataset" (nnU-Net 2)."""
    table = content.get("dataset", content.get("training"))
    entries = list(table.values()) if isinstance(table, dict) else table
    if not isinstance(entries, list) or len(entries) > _MOST_CASES:
        raise BadInput(file, 'its "training" or "dataset" is no list of cases', _AGAIN)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise BadInput(file, f"its case {number} is no object with an image and a label", _AGAIN)
        images = entry.get("images", entry.get("image"))
        listed = images if isinstance(images, list) else [images]
        mask = _inside(root, file, number, entry.get("label"))
        yield mask, [_inside(root, file, number, image) for image in listed]


def _inside(root: Path, file: Path, number: int, text: object) -> Path:
    if not isinstance(text, str) or "\0" in text or not is_volume_name(text):
        raise BadInput(file, f"its case {number} names {text!r}, which is no volume", _AGAIN)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise BadInput(file, f"its case {number} lies outside of this folder ({text})", "name files below it")
    return root / path


def _images(
    file: Path, images: Sequence[Path], order: Sequence[int], channels: int, listed: bool
) -> tuple[list[Path], list[int]]:
    """Returns a case's files, one for each channel in `order`, and the indices of their volumes in a 4-D file."""
    if len(images) == channels > 1:
        return [images[index] for index in order], []
    if len(images) != 1:
        raise BadInput(file, f"lists {len(images)} images of a case for {channels} channels", "list one for each")
    (whole,) = images
    stem, ending = split_name(whole)
    numbered = [whole.with_name(f"{stem}_{index:04d}{ending}") for index in order]
    if any(map(is_file, numbered)) or not (listed or is_file(whole)):
        return numbered, []
    return [whole] * len(order), list(order) if channels > 1 else []


def _add_lonely(result: Contents, root: Path, masks: set[Path]) -> None:
    """Adds a problem for each image that belongs to no mask."""
    names = {split_name(mask)[0] for mask in masks}
    for path in volumes(root / IMAGES):
        stem = split_name(path)[0]
        if stem not in names and stem.rpartition("_")[0] not in names:
            result.loose.append(path)
            remedy = "add its mask, or remove this file"
            result.problems.append(BadInput(path, f"has no partner in {LABELS}/", remedy))
