"""The cards whose records settle claims (`cards.csv`), and documents on the paper's cards (`sources.csv`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from medddpm.measure.schemas import Column, Schema
from medddpm.measure.tables import read_table

HERE = Path(__file__).parent
CARDS = Schema(
    {
        "gpu": Column("str", "card, those preferred first where a claim speaks of several"),
        "stands_in_for": Column("str", "card of the paper that it is measured in place of", nullable=True),
        "bandwidth_gbps": Column("float64", "of its memory, as its maker states it", "GB/s"),
        "source": Column("str", "who states the bandwidth"),
        "absent": Column("str", "why nothing is measured where its folder is missing", nullable=True),
    }
)
SOURCES = Schema(
    {
        "id": Column("str", "number of the claim"),
        "value": Column("str", "as the document states it"),
        "document": Column("str", "who states it"),
        "place": Column("str", "where in the document"),
        "read_at": Column(
            "str", "the page that was read, or a stored copy of it: the document's own, or one that repeats it"
        ),
        "note": Column("str", "what else it says", nullable=True),
    }
)


@functools.cache
def deciding_cards() -> pd.DataFrame:
    """Reads the cards whose records settle claims (schema `CARDS`), by name."""
    return read_table(HERE / "cards.csv", CARDS).set_index("gpu")


@functools.cache
def sources() -> Mapping[str, Mapping[str, str]]:
    """Reads the documents on claims that no profile can settle (rows of the schema `SOURCES`), by id."""
    rows = read_table(HERE / "sources.csv", SOURCES).fillna("").to_dict("records")
    return {row["id"]: {str(name): str(text) for name, text in row.items()} for row in rows}
