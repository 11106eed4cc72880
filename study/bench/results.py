"""Makes the tables of `python -m study bench` from its results, a file for each row, measure and round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.store import Store, Table
from medddpm.measure.timing import columns, spread
from medddpm.measure.tools import Tool
from study.bench import leases
from study.bench.networks import NETWORKS, flops
from study.bench.settings import BENCH_SETTINGS
from study.bench.worker import Case
from study.records import publishing, schemas

CEILINGS_TABLE = "ceilings.csv"
KEY = ("network", "setting", "measure", "sampler", "steps", "batch", "size")  # columns that name a row


def tables(out: Path) -> list[Table]:
    """Returns the table at `out` (schema `BENCH`) and that of the ceilings beside it."""
    limits = Table(out.with_name(CEILINGS_TABLE), schemas.CEILINGS, _ceilings, beside=True)
    return [Table(out, schemas.BENCH, rows_of), limits]


def check_width(store: Store, widths: set[int]) -> None:
    """Checks that the rows of this run have one of these base widths, which the table has no column for.

    Raises:
        BadInput: some have another base width.
    """
    there = {Case(**result["case"]).channels for result in store.results() if "case" in result}
    if others := there - widths:
        words = " and ".join(f"--channels {width}" for width in sorted(others))
        raise BadInput(store.out, f"its rows are of {words}", "give the same, or another --out")


def rows_of(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Makes the table of results (schema `BENCH`), each row with the samples of all rounds, and its description."""
    rounds: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if "rows" in result:
            rounds.setdefault(result["key"], []).append(result)
    rows, reports, packages = [], {}, dict[str, Any]()
    for results_of_row in rounds.values():
        last = results_of_row[-1]
        case, setting = Case(**last["case"]), BENCH_SETTINGS[last["setting"]]
        for its_rounds in zip(*(result["rows"] for result in results_of_row), strict=True):
            together = its_rounds[-1] | {"ms": [time for measured in its_rounds for time in measured["ms"]]}
            rows.append(_row(case, setting, together, {"date": last["date"], **last["machine"]}))
        packages |= last["packages"]
        if report := last.get("acceleration"):
            reports[report_key(case.network, setting.name)] = report
    limits = {row["ceiling"]: round(row["value"], 3) for row in _limits(results)}
    table = _sorted(pd.DataFrame(rows, columns=list(schemas.BENCH.columns)))
    return table, {"packages": packages, "ceilings": limits, "accelerated": reports}


def _ceilings(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    rows = [{**row, "value": round(row["value"], 3), **spread(row["ms"])} for row in _limits(results)]
    return pd.DataFrame(rows, columns=list(schemas.CEILINGS.columns)), {}


def _limits(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return next((result["ceilings"] for result in results if "ceilings" in result), [])


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the table at `out`, its ceilings and their descriptions into a machine's records; returns their paths.

    Recorded rows that were not measured again stay, with their date, versions and commit; the anchor's rows of other
    leases stay too (`study.bench.leases`).
    """
    copies = publishing.copied([out.with_name(CEILINGS_TABLE)], folder)
    return [*publishing.joined(out, folder, schemas.BENCH, KEY, _sorted), *leases.publish(out, folder), *copies]


def report_key(network: str, setting: str) -> str:
    """Returns the key of a network's acceleration report in the description of the table."""
    return f"{network}, {setting}"


def _row(
    case: Case,
    setting: Tool,
    measured: Mapping[str, Any],
    origin: Mapping[str, str | None],
) -> dict[str, Any]:
    """Returns a row of schema `BENCH`; `origin` has its columns date and `machine.MACHINE`."""
    network, measure = NETWORKS[case.network], measured["measure"]
    times = columns(measured)
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
        "tflops": round(work / times["median_ms"] / 1e9, 5),
        **origin,
    }


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by network, setting and measure in their order, then by every other key; missing numbers are NaN."""
    orders = {"network": list(NETWORKS), "setting": list(BENCH_SETTINGS), "measure": ["step", "forward", "sample"]}
    places = table[[*orders, "size", "batch", "sampler", "steps"]].copy()
    for column, names in orders.items():
        places[column] = table[column].map({name: place for place, name in enumerate(names)})
    ordered = table.loc[places.sort_values(list(places.columns), kind="stable").index].reset_index(drop=True)
    numbers = ["host_ms", "peak_gib", "tflops", "rel_error_output", "rel_error_grad", "sm_mhz", "watts"]
    return ordered.astype(dict.fromkeys(numbers, "float64"))
