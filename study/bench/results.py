"""What `python -m study bench` keeps: a file for each row and measure, stamped with its run, and the table of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import package_version
from medddpm.measure.store import TableStore
from medddpm.measure.tables import write_table
from medddpm.runtime.files import opened
from study.bench import ceilings
from study.bench.networks import NETWORKS, flops
from study.bench.settings import BENCH_SETTINGS, BenchSetting
from study.bench.worker import Case
from study.records import publishing, schemas

CEILINGS_TABLE = "ceilings.csv"
FAILURE = "failure"  # in a file's name, in the place of a measure
PACKAGES = ("monai", "dynamic_network_architectures")  # whose networks are measured
KEY = ("network", "setting", "measure", "sampler", "steps", "batch", "size")  # columns that name a row
GIB = 2**30


class Results(TableStore):
    """The results beside a table."""

    schema = schemas.BENCH

    def check_width(self, widths: set[int]) -> None:
        """Checks that the rows of this run, which the table cannot tell apart by their base width, have one of these.

        Raises:
            BadInput: some have another.
        """
        found = [kept for path in self.folder.glob("*.json") if (kept := self.read(path)) and "case" in kept]
        if others := {Case(**kept["case"]).channels for kept in found} - widths:
            words = " and ".join(f"--channels {width}" for width in sorted(others))
            raise BadInput(self.out, f"its rows are of {words}", "give the same, or another --out")

    def stamp_row(self, case: Case, setting: BenchSetting, measure: str) -> None:
        """Stamps one measure of a row, on the machine that measured it."""
        self.stamp(
            case.result(self.folder, setting, measure),
            case=asdict(case),
            setting=setting.name,
            packages={name: package_version(name) for name in PACKAGES},
        )

    def stamp_failure(self, case: Case, setting: BenchSetting, problem: str) -> None:
        """Keeps why a row could not be measured, for as long as it is not; no problem forgets it."""
        path = case.result(self.folder, setting, FAILURE)
        if problem:
            self.write(path, {"title": f"{case.network} {setting.name}", "problem": problem})
        else:
            path.unlink(missing_ok=True)

    def has_reference(self, case: Case) -> bool:
        """Returns whether this run has BASE's output and gradient, whole; removes what is damaged or another run's."""
        path = case.reference(self.folder)
        if path.is_file() and (self.read(path.with_suffix(".json")) or {}).get("sha256") != _digest(path):
            path.unlink()
        return path.is_file()

    def stamp_reference(self, case: Case) -> None:
        """Stamps BASE's output and gradient."""
        path = case.reference(self.folder)
        if path.is_file():
            self.write(path.with_suffix(".json"), {"sha256": _digest(path)})

    def collect(self) -> pd.DataFrame:
        """Writes the table of this run's results (schema `BENCH`) and that of its ceilings; returns the first."""
        rows, reports, failed = [], {}, {}
        packages: dict[str, str | None] = {}
        commands: dict[str, None] = {}  # a set in the order of the files
        for path in sorted(self.folder.glob("*.json")):
            kept = self.read(path)
            if kept is not None and "problem" in kept:
                failed[kept["title"]] = kept["problem"]
            if kept is None or "setting" not in kept or "rows" not in kept:
                continue
            origin = {"date": kept["date"], **kept["machine"]}
            packages |= kept["packages"]
            commands[kept["command"]] = None
            case, setting = Case(**kept["case"]), BENCH_SETTINGS[kept["setting"]]
            rows += [_row(case, setting, measured, origin) for measured in kept["rows"]]
            if report := kept.get("acceleration"):
                reports[report_key(case.network, setting.name)] = report
        table = _sorted(pd.DataFrame(rows, columns=list(schemas.BENCH.columns)))
        if rows:
            meta = {
                **self.meta,
                "command": "; ".join(commands),
                "packages": packages,
                "ceilings": self._collect_ceilings(),
                "accelerated": reports,
                "failed": failed | self.failed,
            }
            self.put(table, schemas.BENCH, meta)
        return table

    def _collect_ceilings(self) -> dict[str, float]:
        """Writes the ceilings' table; returns `{ceiling: value}`."""
        kept = self.read(self.folder / ceilings.NAME)
        if kept is None:
            return {}
        rows = [{**row, "value": round(row["value"], 3), **spread(row.pop("ms"))} for row in kept["rows"]]
        table = pd.DataFrame(rows)[list(schemas.CEILINGS.columns)]
        write_table(table, self.out.with_name(CEILINGS_TABLE), schemas.CEILINGS, self.meta)
        return dict(zip(table["ceiling"], table["value"], strict=True))


def publish(out: Path, folder: Path) -> list[Path]:
    """Takes the table at `out`, its ceilings and their descriptions into a machine's records; returns their paths.

    Rows that stand there and were not measured again stay, each with the date, versions and commit that it has.
    """
    copies = publishing.copied([out.with_name(CEILINGS_TABLE)], folder)
    return [*publishing.joined(out, folder, schemas.BENCH, KEY, _sorted), *copies]


def report_key(network: str, setting: str) -> str:
    """The key of a network's acceleration report in the description of the table."""
    return f"{network}, {setting}"


def _row(
    case: Case,
    setting: BenchSetting,
    measured: Mapping[str, Any],
    origin: Mapping[str, str | None],
) -> dict[str, Any]:
    """A row of schema `BENCH`; `origin` has its columns date and `machine.MACHINE`."""
    network, measure, peak = NETWORKS[case.network], measured["measure"], measured["peak_bytes"]
    times = spread(measured["ms"])
    median = times["median_ms"]
    counted = flops(network, case.side, case.batch, case.channels)
    work = counted["step" if measure == "step" else "forward"] * measured["steps"]
    return {
        "network": case.network,
        "setting": setting.name,
        "measure": measure,
        "sampler": measured["sampler"],
        "steps": measured["steps"],
        "batch": case.batch,
        "size": network.size(case.side),
        **times,
        "host_ms": None if measured.get("host_ms") is None else round(measured["host_ms"], 5),
        "peak_gib": None if peak is None else round(peak / GIB, 4),
        "tflops": round(work / median / 1e9, 5),
        "rel_error_output": _digits(measured.get("rel_error_output")),
        "rel_error_grad": _digits(measured.get("rel_error_grad")),
        "sm_mhz": measured.get("sm_mhz"),
        "watts": None if measured.get("watts") is None else round(measured["watts"], 1),
        **origin,
    }


def spread(samples: list[float]) -> dict[str, Any]:
    """Returns what a row says of its samples' times."""
    p10, median, p90 = (round(float(np.percentile(samples, p)), 5) for p in (10, 50, 90))
    return {"median_ms": median, "p10_ms": p10, "p90_ms": p90, "samples": len(samples)}


def _digest(path: Path) -> str:
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by network, setting and measure in their order, then by every other key; missing numbers are NaN."""
    orders = {"network": list(NETWORKS), "setting": list(BENCH_SETTINGS), "measure": ["step", "forward", "sample"]}
    places = table[[*orders, "size", "batch", "sampler", "steps"]].copy()
    for column, names in orders.items():
        places[column] = table[column].map({name: place for place, name in enumerate(names)})
    ordered = table.loc[places.sort_values(list(places.columns), kind="stable").index].reset_index(drop=True)
    numbers = ["host_ms", "peak_gib", "tflops", "rel_error_output", "rel_error_grad", "sm_mhz", "watts"]
    return ordered.astype(dict.fromkeys(numbers, "float64"))
