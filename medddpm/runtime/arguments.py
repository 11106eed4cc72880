"""Types of command-line arguments; a wrong one ends the command with a line that says what was wanted."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence


def whole(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} up")
        return value

    return parse


def positive(text: str) -> float:
    """An argument's type: a number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def not_negative(text: str) -> float:
    """An argument's type: 0, or a number above."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return value


def several(names: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument's type: some of `names`, divided by commas."""

    def parse(text: str) -> list[str]:
        chosen = [word.strip().lower() for word in text.split(",")]
        if unknown := [word for word in chosen if word not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return list(dict.fromkeys(chosen))

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
