"""Makes the table of `python -m study throughput` from its results, a file for each lever, with expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.store import Store
from medddpm.measure.tables import table_of
from study.records import publishing, schemas
from study.throughput.levers import BY_KEY, LEVERS, Lever

GIB = 2**30
KEY = ("group", "choice", "size", "batch")  # names a row


def check_place(store: Store, side: int, channels: int) -> None:
    """Checks that the rows of this run are of this size and base width, which their keys leave out.

    Raises:
        BadInput: some are of another size or width.
    """
    for there in store.results():
        if (there["side"], there["channels"]) != (side, channels):
            words = f"--size {there['side']} --channels {there['channels']}"
            raise BadInput(store.out, f"its rows are of {words}", "give the same, or another --out")


def rows_of(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Returns the table of results (schema `THROUGHPUT`), in the levers' order."""
    by_key = {result["key"]: result for result in results}
    rows = [_row(lever, by_key[key], by_key) for key, lever in BY_KEY.items() if key in by_key]
    return table_of(rows, schemas.THROUGHPUT), {}


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the table at `out` into a machine's records; recorded rows that were not measured again stay."""
    return publishing.joined(out, folder, schemas.THROUGHPUT, KEY, ordered)


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by the levers' order."""
    places = {(lever.group, lever.choice): place for place, lever in enumerate(LEVERS)}
    keys = table[["group", "choice"]].itertuples(index=False, name=None)
    return table.loc[pd.Series([places[key] for key in keys], table.index).sort_values().index].reset_index(drop=True)


def reference(lever: Lever) -> Lever:
    """Returns the lever that a lever is compared with."""
    return LEVERS[0] if not lever.brats else next(candidate for candidate in LEVERS if candidate.brats)


def predicted(lever: Lever, result: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Predicts a lever's volumes a second from the reference's row; None if that does not allow it.

    A batch, a graph, an optimizer's kernels and attention change no arithmetic, and augmentation hardly any. A backward
    pass is two forward passes' work, so computing a share s of the forward pass again makes a step (3 + s) / 3 as long.
    A loader's rate is its number of processes divided by the time to prepare a volume; without processes that time adds
    to the step's.

    Args:
        lever: the predicted one.
        result: the lever's own.
        results: every result, by key.
    """
    base = reference(lever)
    if base.key not in results or lever.group == "precision" or lever == base:
        return None
    rate = float(results[base.key]["volumes_a_second"])
    if lever.group.startswith("recompute"):
        return rate * 3 / (3 + result["again"])
    if lever.group == "loading" or lever.augments == "loader":
        ready = float(result["prepare_seconds"])
        return min(rate, lever.workers / ready) if lever.workers else 1 / (1 / rate + ready)
    return rate


def _row(lever: Lever, result: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    expected, measured = predicted(lever, result, results), float(result["volumes_a_second"])
    base = results.get(reference(lever).key)
    whole = sum(result["waits"].values()) or 1.0
    shares = {f"{name}_pct": round(100 * seconds / whole, 2) for name, seconds in result["waits"].items()}
    memory = {name: result[f"{name}_bytes"] for name in ("peak", "reserved")}
    return {
        "group": lever.group,
        "choice": lever.choice,
        "size": result["size"],
        "batch": lever.batch,
        "volumes_a_second": round(measured, 4),
        "of_reference": None if base is None else round(measured / float(base["volumes_a_second"]), 4),
        "predicted": None if expected is None else round(expected, 4),
        "ratio": None if expected is None else round(measured / expected, 4),
        "step_ms": round(result["step_ms"], 4),
        "steps": result["steps"],
        **shares,
        "sm_active_pct": result["sm_active_pct"],
        **{f"{name}_gib": None if taken is None else round(taken / GIB, 4) for name, taken in memory.items()},
        "prepare_ms": round(1e3 * result["prepare_seconds"], 4),
        "costs": lever.costs or None,
        "date": result["date"],
        **result["machine"],
    }
