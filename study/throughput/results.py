"""What `python -m study throughput` keeps: a file for each lever, and the table of them, with what was expected."""

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
    """Checks that the rows of this run, which a lever alone names, are of this size and base width.

    Raises:
        BadInput: some are of another.
    """
    for there in store.results():
        if (there["side"], there["channels"]) != (side, channels):
            words = f"--size {there['side']} --channels {there['channels']}"
            raise BadInput(store.out, f"its rows are of {words}", "give the same, or another --out")


def rows_of(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table of results (schema `THROUGHPUT`), in the levers' order."""
    by_key = {result["key"]: result for result in results}
    rows = [_row(lever, by_key[key], by_key) for key, lever in BY_KEY.items() if key in by_key]
    return table_of(rows, schemas.THROUGHPUT), {}


def publish(out: Path, folder: Path) -> list[Path]:
    """Takes the table at `out` into a machine's records; rows that were not measured again stay there."""
    return publishing.joined(out, folder, schemas.THROUGHPUT, KEY, ordered)


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by the levers' order."""
    places = {(lever.group, lever.choice): place for place, lever in enumerate(LEVERS)}
    keys = table[["group", "choice"]].itertuples(index=False, name=None)
    return table.loc[pd.Series([places[key] for key in keys], table.index).sort_values().index].reset_index(drop=True)


def reference(lever: Lever) -> Lever:
    """Returns what a lever is compared with."""
    return LEVERS[0] if not lever.brats else next(other for other in LEVERS if other.brats)


def predicted(lever: Lever, kept: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Volumes a second that the reference's row lets one expect of a lever; None where it tells nothing.

    A batch, a graph, an optimizer's kernels and attention change no arithmetic. A backward pass is two forward passes'
    work, so computing a share s of the forward pass again makes a step (3 + s) / 3 as long. A loader is as fast as its
    processes, each in the time in which one has a volume ready; without processes that time adds to the step's.

    Args:
        lever: which.
        kept: its own result.
        found: every result, by key.
    """
    base = reference(lever)
    if base.key not in found or lever.group == "precision" or lever == base:
        return None
    rate = float(found[base.key]["volumes_a_second"])
    if lever.group.startswith("recompute"):
        return rate * 3 / (3 + kept["again"])
    if lever.group == "loading":
        ready = float(kept["prepare_seconds"])
        return min(rate, lever.workers / ready) if lever.workers else 1 / (1 / rate + ready)
    return rate


def _row(lever: Lever, kept: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    expected, measured = predicted(lever, kept, found), float(kept["volumes_a_second"])
    base = found.get(reference(lever).key)
    whole = sum(kept["waits"].values()) or 1.0
    shares = {f"{name}_pct": round(100 * seconds / whole, 2) for name, seconds in kept["waits"].items()}
    memory = {name: kept[f"{name}_bytes"] for name in ("peak", "reserved")}
    return {
        "group": lever.group,
        "choice": lever.choice,
        "size": kept["size"],
        "batch": lever.batch,
        "volumes_a_second": round(measured, 4),
        "of_reference": None if base is None else round(measured / float(base["volumes_a_second"]), 4),
        "predicted": None if expected is None else round(expected, 4),
        "ratio": None if expected is None else round(measured / expected, 4),
        "step_ms": round(kept["step_ms"], 4),
        "steps": kept["steps"],
        **shares,
        "sm_active_pct": kept["sm_active_pct"],
        **{f"{name}_gib": None if taken is None else round(taken / GIB, 4) for name, taken in memory.items()},
        "prepare_ms": round(1e3 * kept["prepare_seconds"], 4),
        "costs": lever.costs or None,
        "date": kept["date"],
        **kept["machine"],
    }
