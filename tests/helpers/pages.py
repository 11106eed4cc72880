"""The examples of README and of the site's pages, for the tests that run them."""

from __future__ import annotations

import re

from helpers.repository import ROOT


def page_blocks(page: str, language: str) -> list[str]:
    """A page's blocks of that language; the page is named from the repository's top."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def page_block(page: str, language: str, holding: str = "") -> str:
    """A page's only block of that language that holds a text; the page is named from the repository's top."""
    (block,) = [text for text in page_blocks(page, language) if holding in text]
    return block


def page_text(page: str) -> str:
    """A page's words, on one line."""
    return " ".join((ROOT / page).read_text().split())
