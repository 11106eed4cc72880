"""Words for sentences that are made from records."""

from __future__ import annotations

from collections.abc import Iterable


def listed(words: Iterable[str]) -> str:
    """Joins words as a sentence does: "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def cudnn_release(number: str) -> str:
    """Returns a version of cuDNN as its maker names it: "9.19" for "91900"."""
    return f"{int(number) // 10_000}.{int(number) // 100 % 100}"
