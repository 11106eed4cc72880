"""What `medddpm bench` keeps: a file a row and measure, each with the run it belongs to, and the table of them."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.atomic import replacing
from medddpm.study import bench_ceilings, records
from medddpm.study.bench_networks import NETWORKS, flops
from medddpm.study.bench_row import Case
from medddpm.study.bench_rungs import RUNGS, Rung

CEILINGS_TABLE = "ceilings.csv"
BANDWIDTH = "bandwidth"  # stands where a measure does in the name of a file
ONE_RUN = ("gpu", "driver", "cudnn", "torch", "commit")
"""What must be equal for rows to stand in one table."""
PACKAGES = ("monai", "dynamic_network_architectures", "triton")
GIB = 2**30


@dataclass
class Store:
    """The results beside a table, of which only those of one run count.

    Args:
        out: the table, NAME.csv; the results lie in NAME.rows.
        meta: `records.machine_meta` of this call.
        failed: what could not be measured in this call, and why.
    """

    out: Path
    meta: Mapping[str, Any]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Of the results."""
        return rows_folder(self.out)

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """Card and versions: what its results have in common."""
        return {name: self.meta[name] for name in ONE_RUN}

    def read(self, path: Path) -> dict[str, Any] | None:
        """A result of this run; nothing where there is none, or only another run's."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("run") == self.run else None

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Keeps a result as one of this run."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({**content, "run": self.run}) + "\n", encoding="utf-8")

    def stamp(self, path: Path, **known: object) -> None:
        """Says of a result that a process left, if it did, that it is one of this run, and whose."""
        if path.is_file():
            self.write(path, json.loads(path.read_text(encoding="utf-8")) | known)

    def stamp_row(self, case: Case, rung: Rung, measure: str) -> None:
        """`stamp` of a row's measure."""
        self.stamp(case.result(self.folder, rung, measure), case=asdict(case), setting=rung.name)

    def has_reference(self, case: Case) -> bool:
        """Whether BASE's output and gradient lie there, of this run; those of another are removed."""
        path = case.reference(self.folder)
        if path.is_file() and self.read(path.with_suffix(".json")) is None:
            path.unlink()
        return path.is_file()

    def stamp_reference(self, case: Case) -> None:
        """`stamp` of BASE's output and gradient."""
        path = case.reference(self.folder)
        if path.is_file():
            self.write(path.with_suffix(".json"), {})

    def collect(self) -> pd.DataFrame:
        """Writes the table of all results of this run (schema `BENCH`), and that of the ceilings; returns the first."""
        rows, reports = [], {}
        for path in sorted(self.folder.glob("*.json")):
            kept = self.read(path)
            if kept is None or "setting" not in kept or "rows" not in kept:
                continue
            case, rung = Case(**kept["case"]), RUNGS[kept["setting"]]
            moved = (self.read(case.result(self.folder, rung, BANDWIDTH)) or {}).get("bytes", {})
            rows += [_row(case, rung, measured, moved) for measured in kept["rows"]]
            if report := kept.get("acceleration"):
                reports[f"{case.network}, {rung.name}"] = report
        table = _sorted(pd.DataFrame(rows, columns=list(records.BENCH.columns)))
        if rows:
            meta = {
                **self.meta,
                "packages": {name: _version(name) for name in PACKAGES},
                "ceilings": self._collect_ceilings(),
                "accelerated": reports,
                "failed": self.failed,
            }
            records.write(table, self.out, records.BENCH, meta)
        return table

    def _collect_ceilings(self) -> dict[str, float]:
        """Writes their table; returns `{ceiling: value}`."""
        kept = self.read(self.folder / bench_ceilings.NAME)
        if kept is None:
            return {}
        rows = [{**row, "value": round(row["value"], 3), **_spread(row.pop("ms"))} for row in kept["rows"]]
        table = pd.DataFrame(rows)[list(records.CEILINGS.columns)]
        records.write(table, self.out.with_name(CEILINGS_TABLE), records.CEILINGS, self.meta)
        return dict(zip(table["ceiling"], table["value"], strict=True))


def rows_folder(out: Path) -> Path:
    """Where the rows of the table at `out` lie, each by itself: beside it, NAME.rows."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.rows")


def _row(case: Case, rung: Rung, measured: Mapping[str, Any], moved: Mapping[str, float]) -> dict[str, Any]:
    """A row of schema `BENCH`."""
    network, measure, peak = NETWORKS[case.network], measured["measure"], measured["peak_bytes"]
    spread = _spread(measured["ms"])
    median = spread["median_ms"]
    counted = flops(network, case.side, case.batch, case.channels)
    work = counted["step" if measure == "step" else "forward"] * measured["steps"]
    return {
        "network": case.network,
        "setting": rung.name,
        "measure": measure,
        "sampler": measured["sampler"],
        "steps": measured["steps"],
        "batch": case.batch,
        "size": network.size(case.side),
        **spread,
        "peak_gib": None if peak is None else round(peak / GIB, 4),
        "tflops": round(work / median / 1e9, 5),
        "gbps": round(moved[measure] / median / 1e6, 2) if measure in moved else None,
        "rel_error_output": _digits(measured.get("rel_error_output")),
        "rel_error_grad": _digits(measured.get("rel_error_grad")),
    }


def _spread(times: list[float]) -> dict[str, Any]:
    p10, median, p90 = (round(float(np.percentile(times, p)), 5) for p in (10, 50, 90))
    return {"median_ms": median, "p10_ms": p10, "p90_ms": p90, "samples": len(times)}


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """By network, setting and measure in their order, then by what else tells rows apart; missing numbers are NaN."""
    orders = {"network": list(NETWORKS), "setting": list(RUNGS), "measure": ["step", "forward", "sample"]}
    places = table[[*orders, "size", "batch", "sampler", "steps"]].copy()
    for column, names in orders.items():
        places[column] = table[column].map({name: place for place, name in enumerate(names)})
    ordered = table.loc[places.sort_values(list(places.columns), kind="stable").index].reset_index(drop=True)
    numbers = ["peak_gib", "tflops", "gbps", "rel_error_output", "rel_error_grad"]
    return ordered.astype(dict.fromkeys(numbers, "float64"))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
