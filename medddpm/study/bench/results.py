"""What `medddpm bench` keeps: a file for each row and measure, stamped with its run, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.runtime.files import replacing
from medddpm.study.bench import ceilings
from medddpm.study.bench.networks import NETWORKS, flops
from medddpm.study.bench.settings import BENCH_SETTINGS, BenchSetting
from medddpm.study.bench.worker import Case
from medddpm.study.records import schemas
from medddpm.study.records.machine import package_version
from medddpm.study.records.store import Store, rows_folder
from medddpm.study.records.tables import meta_path, read_meta, read_table, write_table

CEILINGS_TABLE = "ceilings.csv"
BANDWIDTH, FAILURE = "bandwidth", "failure"  # in a file's name, in the place of a measure
PACKAGES = ("monai", "dynamic_network_architectures")  # whose networks are measured
MACHINE = ("gpu", "driver", "cuda", "cudnn", "torch", "triton", "commit")  # columns of a row, of `machine_meta`
KEY = ("network", "setting", "measure", "sampler", "steps", "batch", "size")  # columns that name a row
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

    def stamp_row(self, case: Case, setting: BenchSetting, measure: str) -> None:
        """Stamps one measure of a row, on the machine that measured it."""
        self.stamp(
            case.result(self.folder, setting, measure),
            case=asdict(case),
            setting=setting.name,
            machine={name: None if self.meta[name] is None else str(self.meta[name]) for name in MACHINE},
            packages={name: package_version(name) for name in PACKAGES},
            command=self.meta["command"],
        )

    def stamp_failure(self, case: Case, setting: BenchSetting, problem: str) -> None:
        """Keeps why a row could not be measured, for as long as it is not; no problem forgets it."""
        path = case.result(self.folder, setting, FAILURE)
        if problem:
            self.write(path, {"title": f"{case.network} {setting.name}", "problem": problem})
        else:
            path.unlink(missing_ok=True)

    def has_reference(self, case: Case) -> bool:
        """Whether this run has BASE's output and gradient; removes those of another run."""
        path = case.reference(self.folder)
        if path.is_file() and self.read(path.with_suffix(".json")) is None:
            path.unlink()
        return path.is_file()

    def stamp_reference(self, case: Case) -> None:
        """Stamps BASE's output and gradient."""
        path = case.reference(self.folder)
        if path.is_file():
            self.write(path.with_suffix(".json"), {})

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
            moved = (self.read(case.result(self.folder, setting, BANDWIDTH)) or {}).get("bytes", {})
            rows += [_row(case, setting, measured, moved, origin) for measured in kept["rows"]]
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
            write_table(table, self.out, schemas.BENCH, meta)
        return table

    def _collect_ceilings(self) -> dict[str, float]:
        """Writes the ceilings' table; returns `{ceiling: value}`."""
        kept = self.read(self.folder / ceilings.NAME)
        if kept is None:
            return {}
        rows = [{**row, "value": round(row["value"], 3), **_spread(row.pop("ms"))} for row in kept["rows"]]
        table = pd.DataFrame(rows)[list(schemas.CEILINGS.columns)]
        write_table(table, self.out.with_name(CEILINGS_TABLE), schemas.CEILINGS, self.meta)
        return dict(zip(table["ceiling"], table["value"], strict=True))


def publish(out: Path, folder: Path) -> list[Path]:
    """Takes the table at `out`, its ceilings and their descriptions into a machine's records; returns their paths.

    Rows that stand there and were not measured again stay, each with the date, versions and commit that it has.
    """
    tables = [out, out.with_name(CEILINGS_TABLE)]
    files = [file for table in tables for file in (table, meta_path(table))]
    for path in files[2:] if _joined(out, folder / out.name) else files:
        with replacing(folder / path.name) as temporary:
            temporary.write_bytes(path.read_bytes())
    return [folder / path.name for path in files]


def _joined(out: Path, record: Path) -> bool:
    """Whether `record` had rows that the table at `out` lacks: it then has the rows of both."""
    if not record.exists():
        return False
    new, old = (read_table(path, schemas.BENCH) for path in (out, record))
    meta, before = read_meta(out), read_meta(record)
    kept = old[~pd.MultiIndex.from_frame(old[list(KEY)]).isin(pd.MultiIndex.from_frame(new[list(KEY)]))].copy()
    if kept.empty:
        return False
    for name in ("date", *MACHINE):  # a table of before these were columns has them in its description
        kept[name] = kept[name].astype(object).fillna(str(before[name]) if before.get(name) else None)
    together = {
        "command": "; ".join(dict.fromkeys([*before["command"].split("; "), *meta["command"].split("; ")])),
        "accelerated": before["accelerated"] | meta["accelerated"],
        "failed": before["failed"] | meta["failed"],
    }
    write_table(_sorted(pd.concat([kept, new], ignore_index=True)), record, schemas.BENCH, {**meta, **together})
    return True


def report_key(network: str, setting: str) -> str:
    """The key of a network's acceleration report in the description of the table."""
    return f"{network}, {setting}"


def _row(
    case: Case,
    setting: BenchSetting,
    measured: Mapping[str, Any],
    moved: Mapping[str, float],
    origin: Mapping[str, str | None],
) -> dict[str, Any]:
    """A row of schema `BENCH`; `origin` has its columns date and `MACHINE`."""
    network, measure, peak = NETWORKS[case.network], measured["measure"], measured["peak_bytes"]
    spread = _spread(measured["ms"])
    median = spread["median_ms"]
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
        **spread,
        "peak_gib": None if peak is None else round(peak / GIB, 4),
        "tflops": round(work / median / 1e9, 5),
        "gbps": round(moved[measure] / median / 1e6, 2) if measure in moved else None,
        "rel_error_output": _digits(measured.get("rel_error_output")),
        "rel_error_grad": _digits(measured.get("rel_error_grad")),
        **origin,
    }


def _spread(times: list[float]) -> dict[str, Any]:
    p10, median, p90 = (round(float(np.percentile(times, p)), 5) for p in (10, 50, 90))
    return {"median_ms": median, "p10_ms": p10, "p90_ms": p90, "samples": len(times)}


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by network, setting and measure in their order, then by every other key; missing numbers are NaN."""
    orders = {"network": list(NETWORKS), "setting": list(BENCH_SETTINGS), "measure": ["step", "forward", "sample"]}
    places = table[[*orders, "size", "batch", "sampler", "steps"]].copy()
    for column, names in orders.items():
        places[column] = table[column].map({name: place for place, name in enumerate(names)})
    ordered = table.loc[places.sort_values(list(places.columns), kind="stable").index].reset_index(drop=True)
    numbers = ["peak_gib", "tflops", "gbps", "rel_error_output", "rel_error_grad"]
    return ordered.astype(dict.fromkeys(numbers, "float64"))
