"""Types of command-line arguments; a wrong value ends the command with a line that says what is valid."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

LARGEST = 1e6  # of a rate, a deviation or a norm: far above any that trains


def whole(least: int, most: int = 2**31 - 1, also: str = "") -> Callable[[str], int]:
    """Returns an argument type: a whole number from `least` to `most`.

    Args:
        least, most: its bounds.
        also: a further requirement, which depends on other options and is checked later.
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            expected = f"a whole number from {least} to {most}{also and f', {also}'}"
            raise argparse.ArgumentTypeError(f"{_short(text)} is not {expected}")
        return value

    return parse


def positive(text: str) -> float:
    """Reads an argument: a number above 0, up to `LARGEST`."""
    value = _number(text)
    if not 0 < value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a number above 0, up to {LARGEST:g}")
    return value


def up_to(most: float) -> Callable[[str], float]:
    """Returns an argument type: a number from 0 to `most`."""

    def parse(text: str) -> float:
        value = _number(text)
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{_short(text)} is not a number from 0 to {most:g}")
        return value

    return parse


not_negative = up_to(LARGEST)
"""Reads an argument: a number from 0 to `LARGEST`."""


def a_path(text: str) -> Path:
    """Reads an argument: a path. An empty one, from an unset shell variable, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError(f"{_short(text)} is no path")
    return Path(text)


def several(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns an argument type: some of `names`, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [word.strip().lower() for word in text.split(",")]
        if unknown := [word for word in chosen if word not in names]:
            raise argparse.ArgumentTypeError(f"{_short(unknown[0])} is none of {', '.join(names)}")
        return list(dict.fromkeys(chosen))

    return parse


def _short(text: str) -> str:
    """Quotes the first characters of an argument, with control characters escaped."""
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
