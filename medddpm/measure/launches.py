"""Runs the processes of a bench whose rows are files: measures what is missing, keeps it, and names what failed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.former_store import TableStore
from medddpm.measure.machine import machine_meta
from medddpm.measure.tables import found_at
from medddpm.runtime.signals import ended_by_sigterm


@dataclass(frozen=True)
class Row:
    """What a process leaves one file for.

    Args:
        key: the file's name, without .json.
        title: its name in progress lines and messages.
        word: what the process is told of it.
    """

    key: str
    title: str
    word: str


@dataclass(frozen=True)
class Launch:
    """One program that measures rows one after the other.

    Args:
        rows: in its order.
        command: the command line for those of them that are missing; it begins with this Python.
        problem: why the program failed; empty if it did not.
    """

    rows: Sequence[Row]
    command: Callable[[Sequence[Row]], list[str]]
    problem: Callable[[Any], str] = programs.problem


def measure(
    launches: Sequence[Launch],
    results: Callable[[Path, Mapping[str, Any]], TableStore],
    out: Path,
    told: Callable[[dict[str, Any]], str],
    *,
    command: Sequence[str],
    device: str,
    limit: float,
    again: bool,
    dry_run: bool,
) -> int:
    """Measures each missing row, prints a line for it and writes the table after each launch.

    Where a program fails, the first row that it left no file for is the one that failed; the rows behind that are
    measured by another launch.

    Args:
        launches: in their order.
        results: makes what keeps the rows and writes the table, of `out` and what is known of the machine.
        out: the table, NAME.csv; NAME.meta.json and the folder NAME.rows are written beside it.
        told: what a row's line says of its result.
        command: the command line, for the record.
        device: what measures: "auto", "cuda" or "cpu".
        limit: seconds a row after which a launch is ended.
        again: whether existing rows are measured anew.
        dry_run: whether to print the commands, for any Python, and run nothing.

    Returns:
        the number of rows that failed; stderr names each, and the others are measured all the same.

    Raises:
        BadInput: the table cannot be written, another process measures there, or nothing was measured.
    """
    if dry_run:
        for launch in launches:
            print(shlex.join(["python", *launch.command(launch.rows)[1:]]))
        return 0
    store = results(out, machine_meta(command, device))
    store.check()
    titles = [row.title for launch in launches for row in launch.rows]
    labels = {title: f"[{place}/{len(titles)}] {title}" for place, title in enumerate(titles, 1)}
    with store.alone(), ended_by_sigterm():
        for launch in launches:
            missing = []
            for row in launch.rows:
                if store.read(store.row(row.key)) is None or again:
                    missing.append(row)
                else:
                    print(f"{labels[row.title]}: there already", flush=True)
            while missing:
                problem = _launched(launch, missing, store, limit)
                while missing and (found := store.read(store.row(missing[0].key))) is not None:
                    print(f"{labels[missing.pop(0).title]}: {told(found)}", flush=True)
                if missing:
                    failed = missing.pop(0)
                    store.failed[failed.title] = problem or "it left no result"
                    print(f"medddpm: {labels[failed.title]}: {store.failed[failed.title]}", file=sys.stderr, flush=True)
        table = store.collect()
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{found_at(out)}: {len(table)} rows", flush=True)
    return len(store.failed)


def _launched(launch: Launch, rows: Sequence[Row], store: TableStore, limit: float) -> str:
    """Runs the program for `rows`; however it ends, what it left is in the table. Returns why it failed."""
    for row in rows:
        store.row(row.key).unlink(missing_ok=True)
    try:
        return launch.problem(programs.run(launch.command(rows), limit * len(rows)))
    finally:
        for row in rows:
            store.stamp(store.row(row.key))
        store.collect()
