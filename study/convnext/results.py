"""Keeps what `convnext` measures: a JSON file for each part, stamped with its run, and the tables made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.former_store import Store
from medddpm.measure.machine import package_version
from medddpm.measure.ncu_csv import launches_in
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import check_table, write_table
from medddpm.runtime.files import LARGEST_JSON, check_output, opened, read_json
from study.convnext.counted import SUMMED, counted
from study.convnext.versions import Case
from study.convnext.worker import WINDOW
from study.records import schemas_convnext as schemas

PACKAGES = ("numba", "numba-cuda", "llvmlite", "scikit-learn")
COUNTERS, PAGE = "counters", "counters_raw.csv"
TABLES: dict[str, Schema] = {
    "convnext_operators": schemas.OPERATORS,
    "convnext_kernels": schemas.KERNELS,
    "convnext_counters": schemas.COUNTERS,
    "convnext_transfers": schemas.TRANSFERS,
    "convnext_training": schemas.TRAINING,
    "convnext_samples": schemas.SAMPLES,
}
"""The tables of a machine's folder, by name."""


class Results(Store):
    """The parts in a folder of this run.

    Args:
        folder: of the parts and the tables.
        meta: `machine_meta` of this call.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        super().__init__(folder, {**meta, "packages": {name: package_version(name) for name in PACKAGES}})

    def part(self, name: str) -> Path:
        """The file of a part."""
        return self.folder / f"{name}.json"

    def check(self, parts: Sequence[str]) -> None:
        """Checks, before long work, that the files of parts and every table may be written.

        Raises:
            BadInput: they may not, or something else stands in their place.
        """
        for part in parts:
            check_output(self.part(part), ours=_is_part, force=True)
        if COUNTERS in parts:
            check_output(self.folder / PAGE, ours=_is_page, force=True)
        for name in TABLES:
            check_table(self.folder / f"{name}.csv")

    def collect(self) -> list[Path]:
        """Writes every table whose part is there; returns their paths."""
        makers: dict[str, Callable[[], tuple[pd.DataFrame, dict[str, Any]] | None]] = {
            "convnext_operators": self._operators,
            "convnext_kernels": self._kernels,
            "convnext_counters": self._counters,
            "convnext_transfers": self._transfers,
            "convnext_training": self._training,
            "convnext_samples": self._samples,
        }
        written = []
        for name, make in makers.items():
            if (made := make()) is not None:
                table, known = made
                path = self.folder / f"{name}.csv"
                written.append(write_table(table, path, TABLES[name], {**self.meta, **known, "failed": self.failed}))
        return written

    def _operators(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept = self.read(self.part("operators"))
        if kept is None:
            return None
        table = pd.DataFrame(kept["rows"])
        return table.assign(seconds=[float(f"{value:.6g}") for value in table["seconds"]]), {}

    def _kernels(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept, beside = self.read(self.part("kernels")), self.read(self.part("operators"))
        rows = [*(kept or {}).get("rows", []), *(beside or {}).get("blocks", [])]
        if not rows:
            return None
        table = pd.DataFrame([_spread(row) for row in rows])[list(schemas.KERNELS.columns)]
        return table, {"versions_failed": (kept or {}).get("failed", {})}

    def _transfers(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept = self.read(self.part("transfers"))
        return None if kept is None else (pd.DataFrame([_spread(row) for row in kept["rows"]]), {})

    def _training(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept = self.read(self.part("training"))
        if kept is None:
            return None
        rows = [
            (kept["data"], 1 + WINDOW * place, len(window), round(sum(window) / len(window), 6))
            for place, window in enumerate(kept["losses"])
        ]
        known = {name: round(kept[name], 3) for name in ("training_seconds", "sampling_seconds")}
        return pd.DataFrame(rows, columns=list(schemas.TRAINING.columns)), known

    def _samples(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept = self.read(self.part("training"))
        if kept is None:
            return None
        values = np.asarray(kept["samples"])  # (count, 3, side, side)
        count, _, high, wide = values.shape
        image, row, column = (grid.ravel() for grid in np.meshgrid(*map(np.arange, (count, high, wide)), indexing="ij"))
        colours = {name: values[:, place].ravel() for place, name in enumerate(("red", "green", "blue"))}
        return pd.DataFrame({"data": kept["data"], "image": image, "row": row, "column": column, **colours}), {}

    def _counters(self) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        kept = self.read(self.part(COUNTERS))
        if kept is None:
            return None
        table = pd.DataFrame(kept["rows"], columns=list(schemas.COUNTERS.columns))
        return table, {"metrics": [metric for metrics in SUMMED.values() for metric in metrics]}

    def keep_counters(self, page: Path, order: Sequence[tuple[Case, str]]) -> None:
        """Keeps what ncu counted, from its raw page, for the versions in the order they ran."""
        rows = [
            {"operator": case.operator, "batch": case.batch, "size": case.size, "stride": case.stride,
             "version": version, **counts}
            for (case, version), counts in zip(order, counted(page, len(order)), strict=True)
        ]  # fmt: skip
        self.part(COUNTERS).write_text(json.dumps({"rows": rows}) + "\n", encoding="utf-8")
        self.stamp(self.part(COUNTERS))


def _is_part(path: Path) -> bool:
    """Returns whether a part was left there, by a process that ended well or before it was stamped."""
    try:
        return not {"rows", "losses"}.isdisjoint(read_json(path, ""))
    except BadInput:
        return False


def _is_page(path: Path) -> bool:
    with opened(path) as stream:
        return launches_in(stream.read(LARGEST_JSON).decode(errors="replace")) > 0


def _spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the percentiles of its samples in place of `us`."""
    low, median, high = (round(float(np.percentile(row["us"], p)), 3) for p in (10, 50, 90))
    rest = {name: value for name, value in row.items() if name != "us"}
    if "error" in rest:
        rest["error"] = float(f"{rest['error']:.4g}")
    return {**rest, "median_us": median, "p10_us": low, "p90_us": high, "samples": len(row["us"])}
