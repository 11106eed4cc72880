"""BibTeX of the book and of what it reproduces, from CITATION.cff."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

KINDS = {"software": "software", "conference-paper": "inproceedings", "article": "article"}


def entries(root: Path) -> list[tuple[str, str]]:
    """A title and a BibTeX entry for the book and for each of its references."""
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    found = [("This book", _entry(cited))]
    return found + [(reference["notes"].rstrip("."), _entry(reference)) for reference in cited["references"]]


def _entry(work: dict[str, Any]) -> str:
    people = [_name(person) for person in work["authors"]]
    pages = f"{work['start']}--{work['end']}" if "start" in work else None
    fields = {
        "title": f"{{{work['title']}}}",
        "author": " and ".join(people),
        "booktitle": work.get("collection-title"),
        "journal": work.get("journal"),
        "volume": work.get("volume"),
        "number": work.get("issue"),
        "pages": pages,
        "publisher": (work.get("publisher") or {}).get("name"),
        "year": work.get("year"),
        "version": work.get("version"),
        "doi": work.get("doi"),
    }
    last = re.sub(r"\W", "", people[0].partition(",")[0].lower()) if "," in people[0] else "medddpm"
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{KINDS[work['type']]}{{{last}{work.get('year', '')},", *lines, "}"])


def _name(person: dict[str, str]) -> str:
    if "name" in person:
        return f"{{{person['name']}}}"
    return f"{person['family-names']}, {person['given-names']}"
