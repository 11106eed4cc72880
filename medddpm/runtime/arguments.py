"""Types of command-line arguments; a wrong value ends the command with a line that says what is valid."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence


def whole(least: int) -> Callable[[str], int]:
    """An argument type: a whole number, `least` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    return parse


def positive(text: str) -> float:
    """An argument type: a number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    """An argument type: a number, 0 or more."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def several(names: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument type: some of `names`, separated by commas."""

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
