"""Turns Nsight Compute's CSV into the table `KERNELS`: a row for each launch (window) or distinct launch (step).

Equations 1 and 2 are the paper's (ICPE '26, arXiv:2606.19365, Section 4.1).
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medddpm.errors import BadInput
from medddpm.measure.profile.counters import INSTRUCTIONS, METRICS
from medddpm.measure.profile.families import OTHER, families_of
from medddpm.measure.profile.instructions import CLASSES, class_column, class_counts
from medddpm.measure.profile.kernel_names import dimensions, same_name
from medddpm.measure.profile.ncu_csv import EXPORT, Page, numbers, open_page, unit_factor
from medddpm.measure.profile.step_weights import SCALED, weighed
from medddpm.measure.schemas import KERNELS
from medddpm.measure.tables import meta_path, read_meta

OTHER_ALLOWED = 0.03  # of a step's time in kernels of no family
LARGEST_ESTIMATE = 10_000  # percent, either way: estimates of ncu's rules are at times a little outside 0 to 100
_OTHER_UNITS = {"warp": ("warp", "warp/cycle", "inst", "cycle", ""), "inst": ("inst", "")}  # by release


@dataclass(frozen=True)
class Parsed:
    """A parsed profile.

    Args:
        table: schema `KERNELS`.
        matched: the share of the trace's time that has counters; None without a trace.
        other: the share of the table's time in kernels of no family.
        notes: sentences for a reader of the table.
        trace: name of the trace that gave the counts and scaled the counters; None without a trace.
    """

    table: pd.DataFrame
    matched: float | None
    other: float
    notes: list[str] = field(default_factory=list)
    trace: str | None = None

    def __str__(self) -> str:
        """Counts launches and families, and gives the share of the time that they explain, in one line."""
        rows, launches, families = len(self.table), int(self.table["count"].sum()), self.table["family"].nunique()
        counted = f"{rows} launches" if launches == rows else f"{rows} distinct of {launches} launches"
        known = "" if self.matched is None else f"; {self.matched:.1%} of the time has counters"
        return f"{counted} in {families} families{known}; {self.other:.1%} of the time is in no family"


def origin(parsed: Parsed, raw: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the meta of the table: the description of `raw`, if it has one, with shares and notes of the parsing."""
    measured = read_meta(raw) if meta_path(raw).is_file() else {}
    quality = {"matched": parsed.matched, "other": parsed.other, "notes": parsed.notes}
    scaled = {"scaled_by": {"trace": parsed.trace, "how": SCALED}} if parsed.trace else {}
    return {**measured, "parsed_from": Path(raw).name, **quality, **scaled}


def parse(
    raw: str | os.PathLike[str],
    setting: str,
    view: str,
    details: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Parsed:
    """Returns the table of one setting and view.

    Args:
        raw: ncu's raw page as CSV, of the metrics `medddpm.measure.profile.counters.PARSED`.
        setting: as BASE.
        view: "window" (a row for each launch of `raw`) or "step" (for each distinct kernel, grid and block).
        details: ncu's details page of the same launches; brings the estimated speedup and with it the priority.
        trace: table `TRACE` of the same step; with view "step" only. It brings counts and undisturbed durations, and
            counters are scaled by them, as `medddpm.measure.profile.step_weights` says.

    Raises:
        BadInput: a file cannot be read, lacks a metric, or does not belong to the others; names the file and the fault.
    """
    raw = Path(raw)
    if trace is not None and view != "step":
        raise BadInput(
            trace, "a trace weighs the launches of a step, not of a window", "leave it out: --view step has it"
        )
    with _without_collector():
        table, notes = read_launches(raw)
    table["est_speedup_pct"] = np.nan if details is None else _speedups(Path(details), raw, table)
    table["count"] = 1
    matched = None
    if trace is not None:
        table, matched = weighed(table, raw, Path(trace), notes)
    table["config"], table["view"] = setting, view
    table["family"] = families_of(table["kernel"])
    table["priority"] = (table["count"] * table["duration_ns"] * table["est_speedup_pct"] / 100).round(3)
    time = (table["count"] * table["duration_ns"]).groupby(table["family"]).sum()
    other = float(time.get(OTHER, 0.0) / max(time.sum(), 1e-300))
    if other > OTHER_ALLOWED:
        unsorted = table[table["family"] == OTHER].assign(time=lambda t: t["count"] * t["duration_ns"])
        longest = unsorted.groupby("kernel")["time"].sum().idxmax()
        notes.append(f"{other:.1%} of the time is in kernels of no family, most of it in {str(longest)[:120]}")
    name = None if trace is None else Path(trace).name
    return Parsed(table[list(KERNELS.columns)], matched, other, notes, name)


def read_launches(raw: Path) -> tuple[pd.DataFrame, list[str]]:
    """Returns the launches of ncu's raw page in order, and notes on what they lack.

    Returns:
        columns launch_index (ncu's ID), kernel, grid, block, those of `METRICS`, ipc and those of `CLASSES`, in the
        units of `KERNELS`; values that ncu could not measure are NaN.
    """
    page = open_page(raw, "raw")
    chosen = {column: _metric_name(page, column) for column in METRICS}
    instances = _instance_columns(page)
    shape = ["Grid Size", "Block Size"]
    if missing := [name for name in shape if name not in page.header]:
        raise BadInput(raw, f"lacks the column {missing[0]}", "export the report with an ncu of 2022 or later")
    texts = ["ID", "Kernel Name", *shape]
    measured = [name for name in chosen.values() if name]
    factors = {column: _factor(page, column, name) for column, name in chosen.items() if name}
    strings: dict[str, list[str]] = {name: [] for name in texts}
    parts: dict[str, list[NDArray[np.float64]]] = {column: [] for column in (*factors, *CLASSES)}
    counts = _ClassCounts(page, instances)
    known: dict[str, str] = {}  # the few names and shapes are kept once, not once a row
    for rows in page.batches([*texts, *measured, *instances]):
        cells = list(zip(*rows, strict=True))
        for name, texts_of in zip(texts, cells, strict=False):
            strings[name] += [known.setdefault(c, c) for c in texts_of]
        for (column, factor), texts_of in zip(factors.items(), cells[len(texts) :], strict=False):
            values = numbers(texts_of, chosen[column] or "", raw)
            parts[column].append(_within(values * factor, column, chosen[column] or "", raw))
        for column, values in counts(cells[len(texts) + len(measured) :]).items():
            parts[column].append(_within(values, column, instances[0], raw))
    shapes = {s: dimensions(s) for name in shape for s in set(strings[name])}
    table = pd.DataFrame(
        {
            "launch_index": _identities(strings["ID"], raw),
            "kernel": pd.Series(strings["Kernel Name"], dtype=object),
            "grid": pd.Series([shapes[s] for s in strings["Grid Size"]], dtype=object),
            "block": pd.Series([shapes[s] for s in strings["Block Size"]], dtype=object),
            **{column: np.concatenate(arrays) for column, arrays in parts.items()},
        }
    )
    return _completed(table, chosen, counts.unknown, raw)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pauses the garbage collector: it would take a third of the time to find that rows of text make no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _completed(
    table: pd.DataFrame, chosen: dict[str, str | None], unknown: dict[str, float], raw: Path
) -> tuple[pd.DataFrame, list[str]]:
    """Adds the columns that follow from others; refuses a table without values that everything is computed from."""
    notes = []
    for column in ("duration_ns", "cycles_active", "instructions"):
        if not (measured := table[column] >= 0).all():
            problem = f"{chosen[column]} was not measured (n/a) in {(~measured).sum()} of {len(table)} launches"
            raise BadInput(raw, problem, "profile again without another profiler running beside ncu")
    if (table["duration_ns"] == 0).any():
        raise BadInput(raw, f"{chosen['duration_ns']} is 0 in a launch, and every launch takes time", "profile again")
    if (table["kernel"] == "").any():
        raise BadInput(raw, "a launch has no kernel name", EXPORT.format(page="raw"))
    if holes := int(table[list(CLASSES)].isna().all(axis="columns").sum()):
        notes.append(f"{raw.name} has no instruction classes of {holes} of {len(table)} launches: left empty")
    if absent := [column for column, name in chosen.items() if name is None]:
        notes.append(f"{raw.name} has no {', '.join(absent)}: left empty")
        table[absent] = np.nan
    if unknown:
        total = max(float(table["instructions"].sum()), 1.0)
        named = ", ".join(f"{name} ({100 * unknown[name] / total:.2g}% of all)" for name in sorted(unknown))
        notes.append(f"{raw.name} has unknown instructions, counted as miscellaneous: {named}")
    with np.errstate(divide="ignore", invalid="ignore"):
        ipc = (table["instructions"] / table["cycles_active"]).where(table["cycles_active"] > 0).round(6)
    table["ipc"] = _within(ipc.to_numpy(), "ipc", "instructions by active cycles", raw)
    return table, notes


def _within(values: NDArray[np.float64], column: str, name: str, path: Path) -> NDArray[np.float64]:
    """Returns `values` if all of them are missing or lie in the range that the schema `KERNELS` gives the column."""
    least, most = KERNELS.columns[column].within
    if (odd := values[(values < least) | (values > most)]).size:
        problem = f"{name} is {odd[0]:g} in a launch, where {KERNELS.columns[column].requirement} is wanted"
        raise BadInput(path, problem, EXPORT.format(page="raw"))
    return values


def _metric_name(page: Page, column: str) -> str | None:
    """Returns ncu's name for the column in this page; None for an optional metric that the page lacks."""
    metric = METRICS[column]
    if present := [name for name in metric.names if name in page.header]:
        return present[0]
    if metric.optional:
        return None
    raise BadInput(page.path, f"lacks the metric {metric.names[0]}", f"profile again with --metrics {metric.names[0]}")


def _factor(page: Page, column: str, name: str) -> float:
    target = METRICS[column].unit
    for unit in _OTHER_UNITS.get(target, (target,)):
        factor = unit_factor(page.units[name], unit)
        if factor is not None:
            return factor
    problem = f"{name} is in {page.units[name]!r}, which cannot be turned into {target}"
    raise BadInput(page.path, problem, "export it anew with --print-units base")


def _instance_columns(page: Page) -> list[str]:
    """Returns the columns that hold the instruction classes: one column of instances, or a column for each class."""
    for metric in INSTRUCTIONS:
        if metric in page.header:
            return [metric]
        if apart := [name for name in page.header if name.startswith(metric)]:
            return apart
    raise BadInput(
        page.path,
        f"lacks the metric {INSTRUCTIONS[0]}",
        f"profile again with --metrics {INSTRUCTIONS[0]} (before ncu 2025.2: {INSTRUCTIONS[1]}) "
        "and export with --print-metric-instances details",
    )


class _ClassCounts:
    """Counts instructions by class from the cells that hold them, and sums up the classes that it does not know."""

    def __init__(self, page: Page, columns: Sequence[str]) -> None:
        self.page = page
        self.columns = columns
        self.unknown: dict[str, float] = {}

    def __call__(self, cells: Sequence[Sequence[str]]) -> dict[str, NDArray[np.float64]]:
        return self._together(cells[0]) if self.columns[0] in INSTRUCTIONS else self._apart(cells)

    def _together(self, cells: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        sums = []
        for cell in cells:
            counts = class_counts(cell, self.unknown)
            if counts is None:
                total = numbers([cell], self.columns[0], self.page.path)[0]
                if total > 0:
                    raise BadInput(
                        self.page.path,
                        f"{self.columns[0]} comes without its classes",
                        "export with ncu --import REPORT --page raw --csv --print-metric-instances details",
                    )
                counts = [total] * len(CLASSES)  # none executed, or not measured
            sums.append(counts)
        return dict(zip(CLASSES, np.array(sums, dtype=np.float64).T, strict=True))

    def _apart(self, cells: Sequence[Sequence[str]]) -> dict[str, NDArray[np.float64]]:
        sums = {column: np.zeros(len(cells[0])) for column in CLASSES}
        for name, column_cells in zip(self.columns, cells, strict=True):
            metric = next(m for m in INSTRUCTIONS if name.startswith(m))
            label = name.removeprefix(metric).strip(" .:_-()[]")
            counts = np.nan_to_num(numbers(column_cells, name, self.page.path))
            if (column := class_column(label)) is None:
                self.unknown[label] = self.unknown.get(label, 0.0) + float(counts.sum())
            sums[column or "inst_misc"] += counts
        return sums


def _identities(texts: Sequence[str], path: Path) -> NDArray[np.int64]:
    identities = numbers(texts, "ID", path)
    if not (identities == np.floor(np.abs(identities))).all() or identities.max() > 2**53:  # NaN is not equal
        raise BadInput(path, "a launch has no whole number for its ID", "export the report anew; do not edit the CSV")
    if len(np.unique(identities)) < len(identities):
        raise BadInput(path, "holds two launches of one ID", "give each report by itself")
    return identities.astype(np.int64)


def _speedups(details: Path, raw: Path, table: pd.DataFrame) -> NDArray[np.float64]:
    """Evaluates Equation 2 by ncu's rules, percent of a launch's time, in the order of `table`.

    Among the rules that fired for a launch, the largest *global* estimate counts, since only a global one is about the
    whole launch; without any, the largest *local* one, which is about one unit and therefore an upper bound. If no rule
    fired, no headroom was found: 0. Values are clamped to 0 to 100, as in the paper.
    """
    page = open_page(details, "details")
    columns = ["ID", "Kernel Name", "Estimated Speedup Type", "Estimated Speedup"]
    if missing := [name for name in columns if name not in page.header]:
        raise BadInput(details, f"lacks the column {missing[0]}", "profile with --set full, export with a newer ncu")
    names: dict[str, str] = {}
    best: dict[str, dict[str, float]] = {}
    for rows in page.batches(columns):
        names.update((row[0], row[1]) for row in rows)
        rules = [row for row in rows if row[3].strip()]
        values = numbers([row[3].strip().removesuffix("%") for row in rules] or ["0"], columns[3], details, "details")
        if (np.abs(values) > LARGEST_ESTIMATE).any():
            problem = f"{columns[3]} is {values[np.nanargmax(np.abs(values))]:g}%: no part of a launch's time"
            raise BadInput(details, problem, EXPORT.format(page="details"))
        for (launch, _, kind, _), value in zip(rules, values[: len(rules)], strict=True):
            kinds = best.setdefault(launch, {})
            kinds[kind.strip().lower()] = max(kinds.get(kind.strip().lower(), 0.0), float(np.nan_to_num(value)))
    identities = _identities(list(names), details).tolist()
    _same_launches(dict(zip(identities, names.values(), strict=True)), table, details, raw)
    by_id = {int(launch.replace(",", "")): kinds for launch, kinds in best.items()}
    estimates = [by_id.get(launch, {}) for launch in table["launch_index"]]
    return np.clip([kinds.get("global", kinds.get("local", 0.0)) for kinds in estimates], 0.0, 100.0)


def _same_launches(names: dict[int, str], table: pd.DataFrame, details: Path, raw: Path) -> None:
    kernels = dict(zip(table["launch_index"].tolist(), table["kernel"], strict=True))
    remedy = "give the raw and the details page of one report"
    if kernels.keys() != names.keys():
        odd = min(kernels.keys() ^ names.keys())
        where, lacks = (details, raw) if odd in names else (raw, details)
        problem = f"is of another report than {raw.name}: launch {odd} is in {where.name} but not in {lacks.name}"
        raise BadInput(details, problem, remedy)
    for launch, kernel in kernels.items():
        if same_name(kernel) != same_name(names[launch]):
            raise BadInput(details, f"is of another report than {raw.name}: launch {launch} is another kernel", remedy)
