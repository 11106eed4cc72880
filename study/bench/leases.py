"""The leases of a bench's record: which card of which host measured a row, and the row that each of them repeats.

A table of many networks takes several leases of a card. Each lease times a training step of Med-DDPM too, the anchor:
how far its times lie apart says how far those of two leases can be compared.
"""

from __future__ import annotations

import itertools
import string
from pathlib import Path

import pandas as pd

from medddpm.measure.schemas import Schema
from medddpm.measure.tables import of_any_machine, read_meta, read_table, write_table
from study.bench.networks import NETWORKS
from study.records import publishing, schemas

ANCHORS = "bench_anchors.csv"
ANCHOR = "med-ddpm"
NAMED_BY = ["host", "card"]
KEY = ("network", "setting", "measure", "sampler", "steps", "batch", "size", *NAMED_BY)  # columns that name a row


def named(record: pd.DataFrame) -> pd.Series[str]:
    """Returns the letter of each lease by host and card, in the order of its first row: A, B, …

    Args:
        record: schema `BENCH`; rows without a host, older than these columns, are of no known lease.
    """
    known = record.dropna(subset=["host"]).fillna({"card": ""})
    first = known.groupby(NAMED_BY)["date"].min().sort_values(kind="stable")
    letters = itertools.chain.from_iterable(
        itertools.product(string.ascii_uppercase, repeat=length) for length in (1, 2)
    )
    return pd.Series(["".join(letter) for letter, _ in zip(letters, first, strict=False)], index=first.index, dtype=str)


def of(rows: pd.DataFrame, letters: pd.Series[str]) -> str:
    """Returns the leases that measured some rows: "A", "A and B"; "–" if a row names none."""
    if rows.empty or rows["host"].isna().any():
        return "–"
    known = rows.fillna({"card": ""})
    return " and ".join(sorted({letters[host, card] for host, card in zip(known["host"], known["card"], strict=True)}))


def publish(out: Path, folder: Path, schema: Schema = schemas.BENCH) -> list[Path]:
    """Takes the anchor's rows of the table at `out` into the anchors of a machine's records; returns their paths.

    The record itself has each row once; the anchors have those of every lease. A table without the anchor, or whose
    rows name no host, leaves them as they are.
    """
    table = read_table(out, schema)
    rows = table[(table["network"] == ANCHOR) & table["host"].notna()]
    if rows.empty:
        return []
    written = write_table(rows, out.with_name(ANCHORS), schema, read_meta(out))
    return publishing.joined(written, folder, schema, KEY, _by_date)


def anchors(root: Path, card: str, setting: str = "accelerate") -> pd.DataFrame:
    """Returns the anchor's training steps under a setting, a row for each lease; none if no lease is recorded.

    Returns:
        schema `BENCH`, by date.
    """
    table = of_any_machine(root, ANCHORS, schemas.BENCH).get(card)
    if table is None:
        return pd.DataFrame(columns=list(schemas.BENCH.columns))
    entry = NETWORKS[ANCHOR]
    published = (table["batch"] == entry.batch) & (table["size"] == entry.size(entry.side))
    return table[published & (table["measure"] == "step") & (table["setting"] == setting)]


def _by_date(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("date", kind="stable").reset_index(drop=True)
