"""Numbers as sentences have them: in words up to twelve, from the least to the most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pandas as pd

from medddpm.errors import BadInput

Chosen = TypeVar("Chosen")

_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def in_words(number: float) -> str:
    """Returns a count as prose has it: "ten", but "40"."""
    count = round(number)
    return _WORDS[count] if 0 <= count < len(_WORDS) else str(count)


def span(numbers: pd.Series[float], places: int = 2) -> str:
    """Returns the least and the most of some numbers: "0.98 to 11.37"."""
    return f"{numbers.min():.{places}f} to {numbers.max():.{places}f}"


def chosen(name: str, numbers: Mapping[str, Chosen]) -> Chosen:
    """Returns what has that name, as one of several numbers.

    Raises:
        BadInput: there is none.
    """
    if name not in numbers:
        raise BadInput(name, "no such number", f"name one of {', '.join(numbers)}")
    return numbers[name]
