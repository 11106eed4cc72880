"""What `medddpm bench --throughput` keeps: a file for each lever, and the table of them, with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.runtime.files import replacing
from medddpm.study.records import schemas
from medddpm.study.records.store import Store, rows_folder
from medddpm.study.records.tables import meta_path, write_table
from medddpm.study.throughput.levers import BY_KEY, LEVERS, Lever

GIB = 2**30


class Results(Store):
    """The results beside a table.

    Args:
        out: the table, NAME.csv; the results lie in NAME.rows.
        meta: `machine_meta` of this call.
    """

    def __init__(self, out: Path, meta: Mapping[str, Any]) -> None:
        super().__init__(rows_folder(out), meta)
        self.out = out

    def collect(self) -> pd.DataFrame:
        """Writes the table of this run's results (schema `THROUGHPUT`), in the levers' order; returns it."""
        found = {key: kept for key in BY_KEY if (kept := self.read(self.folder / f"{key}.json")) is not None}
        rows = [_row(BY_KEY[key], kept, found) for key, kept in found.items()]
        table = pd.DataFrame(rows, columns=list(schemas.THROUGHPUT.columns))
        numbers = [name for name, column in schemas.THROUGHPUT.columns.items() if column.dtype == "float64"]
        table = table.astype(dict.fromkeys(numbers, "float64"))
        if rows:
            write_table(table, self.out, schemas.THROUGHPUT, {**self.meta, "failed": self.failed})
        return table


def publish(out: Path, folder: Path) -> None:
    """Copies the table at `out` and its description into a machine's records."""
    for path in (out, meta_path(out)):
        with replacing(folder / path.name) as temporary:
            temporary.write_bytes(path.read_bytes())


def predicted(lever: Lever, kept: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Volumes a second that the reference's row lets one expect of a lever; None where it tells nothing.

    A batch, a graph and attention change no arithmetic. A backward pass is two forward passes' work, so computing a
    share s of the forward pass again makes a step (3 + s) / 3 as long. A loader is as fast as its processes, each in
    the time in which one has a volume ready; without processes that time adds to the step's.

    Args:
        lever: which.
        kept: its own result.
        found: every result, by key.
    """
    base = LEVERS[0] if not lever.brats else next(other for other in LEVERS if other.brats)
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
    whole = sum(kept["waits"].values()) or 1.0
    shares = {f"{name}_pct": round(100 * seconds / whole, 2) for name, seconds in kept["waits"].items()}
    memory = {name: kept[f"{name}_bytes"] for name in ("peak", "reserved")}
    return {
        "group": lever.group,
        "choice": lever.choice,
        "size": kept["size"],
        "batch": lever.batch,
        "volumes_a_second": round(measured, 4),
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
    }
