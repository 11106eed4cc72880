"""Words for sentences that are made from records."""

from __future__ import annotations

from collections.abc import Iterable


def listed(words: Iterable[str]) -> str:
    """Joins words as a sentence does: "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
