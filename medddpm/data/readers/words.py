"""The words with which data sets name modalities, masks and labels, and their meaning for the models."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path

from medddpm.data.layouts import BRATS, HEAD, Layout
from medddpm.data.nifti import split_name

MASK = "mask"
"""The role of a label mask; an image's role is a channel of a layout (`Layout.image_folders`)."""

_WORDS = {
    MASK: {"mask", "seg", "segm", "segmentation", "label", "labels", "dseg", "roi"},
    "flair": {"flair", "t2f"},
    "t1ce": {"t1ce", "t1c", "t1gd"},
    "t2": {"t2", "t2w"},
    "t1": {"t1", "t1w", "t1n"},
    "image": {"image", "img"},
}
_CONTRAST, _NO_CONTRAST = {"ce", "gd", "gadolinium", "contrast"}, {"pre", "no", "non", "without", "precontrast"}
_ANY = set().union(*_WORDS.values(), _CONTRAST)
_GLUED = re.compile(r"(?:image|img|mask|seg|label)(\d+)")  # image12, of Med-DDPM's own data


def tokens(text: str) -> tuple[str, ...]:
    """Returns the words and numbers of a name, in small letters."""
    return tuple(match[1] if (match := _GLUED.fullmatch(word)) else word for word in _split(text))


def _split(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).casefold())


def identity(path: Path) -> tuple[str, ...]:
    """Returns the words of a volume's name without those for its role."""
    return tuple(word for word in tokens(split_name(path)[0]) if word not in _ANY)


def role(name: str) -> str | None:
    """Returns the role in the name of a file, folder or channel: `MASK`, a modality, "image", or None."""
    words = set(_split(name))
    words |= {word.rstrip("0123456789") for word in words if _GLUED.fullmatch(word)}
    for meant in (MASK, "flair", "t1ce"):
        if words & _WORDS[meant]:
            return meant
    if words & _WORDS["t1"] and words & _CONTRAST and not words & _NO_CONTRAST:
        return "t1ce"
    return next((meant for meant in ("t2", "t1", "image") if words & _WORDS[meant]), None)


_BRATS = {"necrosis": 1, "oedema": 2, "enhancing": 3, "brain": 4}
_HEAD = {"brain": 1, "tumour": 2}
_TUMOUR = {"tumor", "tumour", "tumors", "tumours", "lesion", "lesions", "glioma", "metastasis", "metastases"}
_BRAIN_ALONE = {
    *("brain", "the", "of", "whole", "entire", "all", "other", "rest", "remaining", "healthy", "normal", "mask"),
    *("tissue", "parenchyma"),
}
ASKED = "name them background, brain and tumor, or background, necrosis, edema and enhancing tumor"


def labels_by_name(named: Mapping[str, Collection[int]]) -> tuple[Layout, dict[int, int]]:
    """Returns the meaning of a data set's labels by their names, whatever their numbers.

    nnU-Net's and the Decathlon's numbering of BraTS has 1 oedema and 2 necrosis; BraTS itself has them the other way
    round. Overlapping regions (whole tumour, tumour core, enhancing tumour) are separated: the oedema is the whole
    tumour without the core, the necrosis the core without the enhancing tumour.

    Args:
        named: for each name, the labels that it covers.

    Returns:
        the layout, and the layout's label for each of the data set's labels besides 0.

    Raises:
        ValueError: a name is not understood, or the names do not make up a layout; the message is the problem.
    """
    meant: dict[str, set[int]] = {}
    for name, values in named.items():
        tissue = _meaning(name)
        if tissue is None:
            raise ValueError(f"no model knows its label {name!r}")
        if tissue == "background":
            if set(values) != {0}:
                raise ValueError("its background is not label 0")
        else:
            meant.setdefault(tissue, set()).update(values)
    if "whole" in meant and {"core", "enhancing"} <= set(meant):
        whole, core = meant.pop("whole"), meant.pop("core")
        meant["oedema"] = meant.get("oedema", set()) | whole - core
        meant["necrosis"] = meant.get("necrosis", set()) | core - meant["enhancing"]
    elif "whole" in meant and "tumour" not in meant:
        meant["tumour"] = meant.pop("whole")
    if "brain" in meant:
        meant["brain"] -= set().union(*(values for tissue, values in meant.items() if tissue != "brain"))
    brats = bool({"necrosis", "oedema", "enhancing"} & set(meant))
    numbers = _BRATS if brats else _HEAD
    if foreign := sorted(set(meant) - set(numbers)):
        raise ValueError(f"its labels name the {foreign[0]} beside {', '.join(sorted(set(meant) - set(foreign)))}")
    if not brats and "brain" not in meant:
        raise ValueError("its labels name no brain" if meant else "it names no labels")
    labels: dict[int, int] = {}
    for tissue, values in meant.items():
        for value in values:
            if labels.setdefault(value, numbers[tissue]) != numbers[tissue] or not 0 < value < 256:
                raise ValueError(f"its label {value} has two names or is none from 1 to 255")
    return (BRATS if brats else HEAD), dict(sorted(labels.items()))


def _meaning(name: str) -> str | None:
    words = set(tokens(name))
    if words & {"background", "bg"}:
        return "background"
    if words & {"edema", "oedema", "ed", "snfh", "hyperintensity"}:
        return "oedema"
    enhancing = bool(words & {"enhancing", "et", "enhancement"})
    if words & {"necrosis", "necrotic", "ncr", "net", "netc", "nonenhancing"} or (enhancing and "non" in words):
        return "necrosis"
    if enhancing:
        return "enhancing"
    tumour = bool(words & _TUMOUR)
    for region, short in (("whole", "wt"), ("core", "tc")):
        if short in words or (tumour and region in words):
            return region
    outside = words & {"without", "rest", "healthy", "normal"}
    if "brain" in words and (outside if tumour else words <= _BRAIN_ALONE):  # no brain stem, no brain metastasis
        return "brain"
    return "tumour" if tumour else None
