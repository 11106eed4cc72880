"""Reads the record of the throughput's levers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medddpm.study.records import schemas
from medddpm.study.records.tables import of_any_machine

NAME = "throughput.csv"


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Every machine's record (schema `THROUGHPUT`) in the repository at `root`, by its folder's name; maybe none.

    Raises:
        BadInput: one does not fit its schema.
    """
    return of_any_machine(root, NAME, schemas.THROUGHPUT)


def group(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """A group's rows, by choice, after the reference's.

    Returns:
        index choice; volumes_a_second, of_reference, predicted, ratio, device_pct, sm_active_pct, peak_gib,
        reserved_gib, costs.
    """
    rows = table[table["group"].isin(["reference", name])] if "BraTS" not in name else table[table["group"] == name]
    columns = [
        "volumes_a_second",
        "of_reference",
        "predicted",
        "ratio",
        "device_pct",
        "sm_active_pct",
        "peak_gib",
        "reserved_gib",
        "costs",
    ]
    return rows.set_index("choice")[columns]
