"""The README's examples, for the tests that run them."""

from __future__ import annotations

import re

from helpers.repository import ROOT


def readme_block(language: str, holding: str = "") -> str:
    """The README's only block of that language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [text for text in blocks if holding in text]
    return block
