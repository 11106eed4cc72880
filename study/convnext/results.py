"""Makes the tables of `convnext` from its results, a JSON file for each part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.profile.ncu_csv import launches_in
from medddpm.measure.schemas import Schema
from medddpm.measure.store import Store, Table
from medddpm.measure.tables import table_of
from medddpm.runtime.files import LARGEST_JSON, check_output, opened, read_json
from study.convnext.counted import SUMMED
from study.convnext.counters import COUNTERS, PAGE
from study.convnext.worker import WINDOW
from study.records import schemas_convnext as schemas

PACKAGES = ("numba", "numba-cuda", "llvmlite", "scikit-learn")
TABLES: dict[str, Schema] = {
    "convnext_operators": schemas.OPERATORS,
    "convnext_kernels": schemas.KERNELS,
    "convnext_counters": schemas.COUNTERS,
    "convnext_transfers": schemas.TRANSFERS,
    "convnext_training": schemas.TRAINING,
    "convnext_samples": schemas.SAMPLES,
}
"""The tables of a machine's folder, by name."""


Made = tuple[pd.DataFrame, dict[str, Any]]
Parts = Mapping[str, Mapping[str, Any]]
"""Results by the name of their part."""


def tables(out: Path) -> list[Table]:
    """Returns every table of the parts in a folder."""
    makers: dict[str, Callable[[Parts], Made]] = {
        "convnext_operators": _operators,
        "convnext_kernels": _kernels,
        "convnext_counters": _counters,
        "convnext_transfers": _transfers,
        "convnext_training": _training,
        "convnext_samples": _samples,
    }

    def made(name: str, results: Sequence[Mapping[str, Any]]) -> Made:
        table, known = makers[name]({result["key"]: result for result in results})
        return table if len(table) else table_of([], TABLES[name]), known

    return [Table(out / f"{name}.csv", schema, functools.partial(made, name)) for name, schema in TABLES.items()]


def check(store: Store, parts: Sequence[str]) -> None:
    """Checks, before long work, that the files of parts and every table may be written.

    Raises:
        BadInput: one may not, or another file stands in its place.
    """
    for part in parts:
        check_output(store.path(part), ours=_is_part, force=True)
    if COUNTERS in parts:
        check_output(store.folder / PAGE, ours=_is_page, force=True)
    store.check()


def _rows(parts: Parts, name: str) -> list[Mapping[str, Any]]:
    return list(parts.get(name, {}).get("rows", []))


def _operators(parts: Parts) -> Made:
    rows = [{**row, "seconds": float(f"{row['seconds']:.6g}")} for row in _rows(parts, "operators")]
    return pd.DataFrame(rows), {}


def _kernels(parts: Parts) -> Made:
    rows = [*_rows(parts, "kernels"), *parts.get("operators", {}).get("blocks", [])]
    table = pd.DataFrame([_spread(row) for row in rows], columns=list(schemas.KERNELS.columns))
    return table, {"versions_failed": parts.get("kernels", {}).get("failed", {})}


def _transfers(parts: Parts) -> Made:
    return pd.DataFrame([_spread(row) for row in _rows(parts, "transfers")]), {}


def _training(parts: Parts) -> Made:
    if (part := parts.get("training")) is None:
        return pd.DataFrame(), {}
    rows = [
        (part["data"], 1 + WINDOW * place, len(window), round(sum(window) / len(window), 6))
        for place, window in enumerate(part["losses"])
    ]
    known = {name: round(part[name], 3) for name in ("training_seconds", "sampling_seconds")}
    return pd.DataFrame(rows, columns=list(schemas.TRAINING.columns)), known


def _samples(parts: Parts) -> Made:
    if (part := parts.get("training")) is None:
        return pd.DataFrame(), {}
    values = np.asarray(part["samples"])  # (count, 3, side, side)
    count, _, high, wide = values.shape
    image, row, column = (grid.ravel() for grid in np.meshgrid(*map(np.arange, (count, high, wide)), indexing="ij"))
    colours = {name: values[:, place].ravel() for place, name in enumerate(("red", "green", "blue"))}
    return pd.DataFrame({"data": part["data"], "image": image, "row": row, "column": column, **colours}), {}


def _counters(parts: Parts) -> Made:
    table = pd.DataFrame(_rows(parts, COUNTERS), columns=list(schemas.COUNTERS.columns))
    return table, {"metrics": [metric for metrics in SUMMED.values() for metric in metrics]}


def _is_part(path: Path) -> bool:
    """Returns whether the file is a part's result, stamped or not."""
    try:
        return not {"rows", "losses"}.isdisjoint(read_json(path, ""))
    except BadInput:
        return False


def _is_page(path: Path) -> bool:
    with opened(path) as stream:
        return launches_in(stream.read(LARGEST_JSON).decode(errors="replace")) > 0


def _spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with the percentiles of its samples in place of `us`."""
    low, median, high = (round(float(np.percentile(row["us"], p)), 3) for p in (10, 50, 90))
    others = {name: value for name, value in row.items() if name != "us"}
    if "error" in others:
        others["error"] = float(f"{others['error']:.4g}")
    return {**others, "median_us": median, "p10_us": low, "p90_us": high, "samples": len(row["us"])}
