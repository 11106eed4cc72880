"""Pairs the files of several folders into cases, by their names."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medddpm.data.cases import Case
from medddpm.data.layouts import Layout
from medddpm.data.nifti import split_name
from medddpm.data.readers.words import MASK, identity
from medddpm.errors import BadInput

Files = Mapping[str, Sequence[Path]]
"""For each role, a mask's or a channel's, its files."""

_MOST_ALIKE = 50  # files of a role with the same digits: of more, the digits are a visit's and tell no cases apart

_Key = Callable[[str, Path], Hashable]
_Group = dict[str, list[Path]]


@dataclass
class Pairs:
    """The lists of the same names in `medddpm.data.cases.Contents`."""

    cases: list[Case] = field(default_factory=list)
    partial: list[Case] = field(default_factory=list)
    problems: list[BadInput] = field(default_factory=list)
    loose: list[Path] = field(default_factory=list)

    def add(self, other: Pairs) -> None:
        """Appends the lists of another."""
        self.cases += other.cases
        self.partial += other.partial
        self.problems += other.problems
        self.loose += other.loose


def pair(files: Files, layout: Layout, places: Mapping[str, str]) -> Pairs:
    """Pairs the files of a data set by their names.

    First by the whole name without the words for a role. The remaining files are paired by a part of the name, and
    their case is marked `by_part`: by the words that not all files of the role share, then by the digits in these
    words if no other word contradicts. Leading zeros do not count.

    Args:
        files: by role.
        layout: lists the roles of a complete case.
        places: for messages, where the files of each role lie.
    """
    roles = (MASK, *layout.image_folders)
    left = {role: list(files.get(role, ())) for role in roles}
    keys = (_whole, _varying(left, _words), _varying(left, _digits))
    pairs = Pairs()
    for key in keys:
        for group in _grouped(left, key).values():
            if set(group) == set(roles) and all(len(same) == 1 for same in group.values()):
                one = {role: same[0] for role, same in group.items()}
                if key is keys[2] and any(_apart(one[MASK], path) for path in one.values()):
                    continue
                images = tuple(one[channel] for channel in layout.image_folders)
                pairs.cases.append(Case(split_name(one[MASK])[0], images, one[MASK], by_part=key is not _whole))
                for role, path in one.items():
                    left[role].remove(path)
    pairs.cases.sort(key=lambda case: order(case.mask))
    _explain(left, layout, places, keys, pairs)
    return pairs


def order(path: Path) -> tuple[tuple[str, ...], str]:
    """Sorts files by the digits in their names, then by name."""
    words = identity(path)
    return tuple(re.findall(r"\d+", " ".join(words))) or ("_".join(words),), str(path)


def _explain(left: _Group, layout: Layout, places: Mapping[str, str], keys: Sequence[_Key], pairs: Pairs) -> None:
    """Adds a problem for each remaining file, or for each group of files that cannot be told apart."""
    groups = [_grouped(left, key) for key in keys]
    for role, paths in left.items():
        for path in paths:
            around: _Group = {}
            by_part = False
            for key, grouped in zip(keys, groups, strict=True):
                group = grouped.get(key(role, path), {})
                if len(group) <= len(around):
                    continue
                if key is keys[2]:
                    partners = {
                        other: close
                        for other, same in group.items()
                        if len(same) <= _MOST_ALIKE and (close := [near for near in same if not _apart(path, near)])
                    }
                else:
                    partners = group
                if len(partners) > len(around):
                    around, by_part = partners, key is not _whole
            absent = [places[other] for other in left if other not in around]
            pairs.loose.append(path)
            if role == MASK:
                images = [around[channel] for channel in layout.image_folders if channel in around]
                certain = tuple(same[0] for same in images if len(same) == 1)
                pairs.partial.append(Case(split_name(path)[0], certain, path, by_part=by_part))
            if absent:
                remedy = "add one of the same name, or remove this file"
                pairs.problems.append(BadInput(path, f"has no partner in {' '.join(absent)}", remedy))
            elif len(around[role]) > 1:
                if path == around[role][0]:
                    twins = ", ".join(twin.name for twin in around[role][1:])
                    problem = f"cannot be told from {twins} by its name"
                    pairs.problems.append(BadInput(path, problem, "rename or remove one of them"))
            elif all(len(same) == 1 for same in around.values()):
                problem = "has digits that other names have too, and no partner of its own name"
                pairs.problems.append(BadInput(path, problem, "give the files of a case one name"))


def _whole(_role: str, path: Path) -> Hashable:
    return identity(path)


def _words(path: Path) -> list[str]:
    return [_without_zeros(word) for word in identity(path)]


def _digits(path: Path) -> list[str]:
    return [_without_zeros(digits) for digits in re.findall(r"\d+", " ".join(identity(path)))]


def _varying(files: Mapping[str, Sequence[Path]], parts: Callable[[Path], list[str]]) -> _Key:
    """Returns a key: the parts of a name that not all files of its role share, or None if there are none."""
    shared = {
        role: set.intersection(*(set(parts(path)) for path in paths)) if len(paths) > 1 else set()
        for role, paths in files.items()
    }

    def key(role: str, path: Path) -> Hashable:
        rest = parts(path)
        for part in shared[role]:
            rest.remove(part)  # once: case 2021 of BraTS2021 has it twice
        return tuple(rest) or None

    return key


def _grouped(left: Mapping[str, Sequence[Path]], key: _Key) -> dict[Hashable, _Group]:
    groups: defaultdict[Hashable, _Group] = defaultdict(dict)
    for role, paths in left.items():
        for path in paths:
            if (value := key(role, path)) is not None:
                groups[value].setdefault(role, []).append(path)
    return groups


def _apart(one: Path, other: Path) -> bool:
    """Returns whether two names follow one scheme but differ in letters, as sub-A01 and sub-B01 do."""
    mine, its = _telling(one), _telling(other)
    return bool(mine & its and mine - its and its - mine)


@functools.lru_cache(1 << 14)
def _telling(path: Path) -> set[str]:
    """Returns the words with a letter up to the last word with a digit; later words do not name a subject."""
    words = _words(path)
    last = max((place for place, word in enumerate(words) if re.search(r"\d", word)), default=-1)
    return {word for word in words[: last + 1] if not word.isdecimal()}


def _without_zeros(word: str) -> str:
    return re.sub(r"(?<!\d)0+(?=\d)", "", word)
