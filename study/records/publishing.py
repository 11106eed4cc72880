"""Takes a measured table into a machine's records, alone or together with the rows that are there already."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.machine import MACHINE
from medddpm.measure.schemas import Schema
from medddpm.measure.store import CALLS
from medddpm.measure.tables import both_paths, meta_path, read_meta, read_table, table_file, write_table
from medddpm.runtime.files import opened, replacing


def copied(tables: Sequence[Path], folder: Path) -> list[Path]:
    """Copies tables, plain or compressed as they are, and their descriptions into `folder`; returns the copies."""
    copies = []
    for table in map(table_file, tables):
        for path in (table, meta_path(table)):
            copies.append(folder / path.name)
            with opened(path) as source, replacing(copies[-1]) as temporary, open(temporary, "wb") as copy:
                shutil.copyfileobj(source, copy)
        for former in {*both_paths(folder / table.name)} - {folder / table.name}:
            former.unlink(missing_ok=True)  # a table must not be there twice
    return copies


def joined(
    out: Path, folder: Path, schema: Schema, key: Sequence[str], order: Callable[[pd.DataFrame], pd.DataFrame]
) -> list[Path]:
    """Takes the table at `out` and its description into `folder`; returns their paths there.

    Rows of the record that were not measured again stay, with their dates, versions and commits.

    Args:
        out: a table whose rows have the date and the machine of their measurement.
        folder: a machine's records.
        schema: the table's.
        key: the columns that name a row.
        order: sorts the rows of both.

    Raises:
        BadInput: a table does not fit the schema.
    """
    record = table_file(folder / out.name)
    if not record.is_file():
        return copied([out], folder)
    new, old = (read_table(path, schema) for path in (out, record))
    meta, before = read_meta(out), read_meta(record)
    unchanged = old[~pd.MultiIndex.from_frame(old[list(key)]).isin(pd.MultiIndex.from_frame(new[list(key)]))].copy()
    if unchanged.empty:
        return copied([out], folder)
    for name in ("date", *MACHINE):
        # An older table has these in its description instead of columns. Where some rows have a value, a row without
        # one is of another run than the description, and stays as it is.
        if name in schema.columns and old[name].isna().all():
            unchanged[name] = str(before[name]) if before.get(name) else None
    commands = dict.fromkeys([*before["command"].split("; "), *meta["command"].split("; ")])
    together: dict[str, Any] = {"command": "; ".join(commands)}
    for name in ("accelerated", "failed", CALLS):
        if name in meta:
            together[name] = before.get(name, {}) | meta[name]
    # Named as a bench does: network, setting and measure; until 2026 without the last.
    measured = {" ".join(map(str, row)) for count in (2, 3) for row in new[list(key)[:count]].itertuples(index=False)}
    if "failed" in together:
        together["failed"] = {name: why for name, why in together["failed"].items() if name not in measured}
    written = write_table(order(pd.concat([unchanged, new], ignore_index=True)), record, schema, {**meta, **together})
    return [written, meta_path(written)]
