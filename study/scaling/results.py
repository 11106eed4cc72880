"""Makes the table of `python -m study scaling` from its results, a file for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.harness import GIB
from medddpm.measure.tables import table_of
from medddpm.measure.timing import spread
from medddpm.switches import SETTINGS
from study.records import publishing, schemas
from study.scaling.cases import DTYPES, MEASURES, NETWORKS, Case

KEY = (
    "network", "size", "channels", "setting", "weights", "gpus", "measure", "micro_steps", "gradient_dtype",
    "bucket_mib",
)  # fmt: skip
"""The columns that name a row."""
MIB = 2**20


def rows_of(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Returns the table of results (schema `SCALING`)."""
    return ordered(table_of([_row(result) for result in results], schemas.SCALING)), {}


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the table at `out` into a machine's records; recorded rows that were not measured again stay."""
    return publishing.joined(out, folder, schemas.SCALING, KEY, ordered)


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by network, setting and measure in their order, then by every other key."""
    orders = {
        "network": NETWORKS, "setting": tuple(SETTINGS), "measure": MEASURES, "gradient_dtype": DTYPES,
    }  # fmt: skip
    places = table[list(KEY)].copy()
    for column, names in orders.items():
        places[column] = table[column].map({name: place for place, name in enumerate(names)})
    by = [
        "network", "size", "channels", "setting", "weights", "measure", "gradient_dtype", "bucket_mib", "micro_steps",
        "gpus",
    ]  # fmt: skip
    return table.loc[places.sort_values(by, kind="stable", na_position="first").index].reset_index(drop=True)


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of schema `SCALING`."""
    case, alone, sent, peak = (
        Case(**result["case"]),
        result.get("alone_ms"),
        result.get("sent_bytes"),
        result["peak_bytes"],
    )
    return {
        "network": case.network,
        "size": case.size,
        "channels": case.channels,
        "setting": case.setting,
        "weights": case.weights,
        "gpus": case.gpus,
        "measure": case.measure,
        "micro_steps": case.micro_steps,
        "gradient_dtype": case.gradient_dtype,
        "bucket_mib": case.bucket_mib,
        **spread(result["ms"]),
        "alone_ms": None if alone is None else round(alone, 5),
        "sent_mib": None if sent is None else round(sent / MIB, 3),
        "peak_gib": None if peak is None else round(peak / GIB, 4),
        "date": result["date"],
        **result["machine"],
    }
