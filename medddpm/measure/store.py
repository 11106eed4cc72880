"""Keeps the results of measuring programs, a JSON file each, and writes the tables of one run's results."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import now, of_machine
from medddpm.measure.ready import round_path
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import check_table, meta_path, read_meta, table_file, write_table
from medddpm.runtime.files import check_writable, opened, read_json, write_json
from medddpm.runtime.locks import locked
from medddpm.runtime.signals import unbroken

ONE_RUN = ("gpu", "driver", "cudnn", "torch", "commit")
"""The fields of a machine that results must have in common to stand in one table."""
CALLS = "calls"
"""In a table's description: the seconds that each call took which measured a row of it, by when the call began."""


@dataclass(frozen=True)
class Table:
    """A table of results.

    Args:
        out: NAME.csv; NAME.meta.json is written beside it.
        schema: of the table.
        rows: makes the table from the results of one run, and further fields of its description, which has the
            machine, the commands and the failures. Without a row no table is written.
        beside: whether it only accompanies another table: if that has no rows, nothing was measured.
    """

    out: Path
    schema: Schema
    rows: Callable[[Sequence[Mapping[str, Any]]], tuple[pd.DataFrame, Mapping[str, Any]]]
    beside: bool = False


@dataclass
class Store:
    """Reads and stamps the results of one run, and writes their tables.

    Args:
        folder: holds the results, KEY.json, of a second round KEY.2.json.
        meta: `machine_meta` of this call.
        tables: of the results; the first is the one that a user names.
        write: writes tables in another way than each by itself, in place of `tables`.
        failed: the reasons of this call's failures by the results' titles.
    """

    folder: Path
    meta: Mapping[str, Any]
    tables: Sequence[Table] = ()
    write: Callable[[Store], object] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    _locked: bool = False
    _measured: bool = False

    @property
    def out(self) -> Path:
        """The path that a user gives as --out: the first table, or the folder if the tables lie in it too."""
        out = self.tables[0].out if self.tables else self.folder
        return self.folder if out.parent == self.folder else out

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, no other command measures here, which would spoil the times of both.

        Raises:
            BadInput: on entering, if another one does, whose process it names; or the folder cannot be written to.
        """
        if self._locked:
            yield
            return
        with locked(self.folder, self.out, "measuring", "wait for it, or choose another --out"):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """The card, versions and commit that the results of a run have in common."""
        return {name: self.meta[name] for name in ONE_RUN}

    @functools.cached_property
    def _clock(self) -> tuple[str, float]:
        """When this call began: the date, and by the clock that measures it, s."""
        return now(), time.monotonic()

    def path(self, key: str, number: int = 1) -> Path:
        """Returns the file of a result, in a round."""
        return round_path(self.folder / f"{key}.json", number)

    def log(self, key: str) -> IO[bytes]:
        """Opens the file of a queued program's output, log.txt beside its result, at its end."""
        path = self.path(key).with_name("log.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab+")

    def read(self, key: str, number: int = 1) -> dict[str, Any] | None:
        """Reads a result of this run; None if there is none, or only another run's."""
        return self._read(self.path(key, number))

    def lacks(self, key: str, number: int = 1) -> bool:
        """Returns whether a result is still to be measured, as is a partial one, though it has rows."""
        result = self.read(key, number)
        return result is None or bool(result.get("partial"))

    def remove(self, key: str, number: int = 1) -> None:
        """Removes a result that is to be measured anew."""
        self.path(key, number).unlink(missing_ok=True)

    def remove_beyond(self, key: str, number: int) -> None:
        """Removes a result's rounds behind `number`."""
        for path in self.folder.glob(f"{key}.[0-9]*.json"):
            if int(path.stem.rpartition(".")[2]) > number:
                path.unlink()

    def stamp(self, key: str, number: int = 1, title: str = "") -> bool:
        """Marks a result as one of this run, with command and machine; returns whether there is such a result.

        A damaged one, of a program that ended while writing, does not count.
        """
        path = self.path(key, number)
        try:
            result = read_json(path, "")
        except BadInput:
            return False
        known = {"key": key, "title": title, "command": self.meta.get("command"), "machine": of_machine(self.meta)}
        write_json(path, {**result, **known, "run": self.run})
        self._measured = True
        return True

    def results(self) -> list[dict[str, Any]]:
        """Reads every result of this run, in the order of the files' names."""
        return [result for path in sorted(self.folder.rglob("*.json")) if (result := self._read(path)) is not None]

    def check(self) -> None:
        """Makes the folder of the results, and checks, before long work, that they and the tables can be written.

        Raises:
            BadInput: one cannot, or a table would replace one that this package did not write or that has other
                columns: each command has a table of its own.
        """
        _ = self._clock
        for table in self.tables:
            check_table(table.out)
        for table in self.tables:
            if (former := table_file(table.out)).is_file():
                there = read_meta(former).get("columns", {})
                if any(name not in there for name, column in table.schema.columns.items() if not column.later):
                    raise BadInput(table.out, "it is the table of another measurement", "give --out another name")
        check_writable(self.path("row"))

    def collect(self) -> list[pd.DataFrame]:
        """Writes the tables of this run's results, to the end if a signal comes; returns those that have rows."""
        with unbroken():
            if self.write is not None:
                self.write(self)
            results, written = self.results() if self.tables else [], []
            for table in self.tables:
                rows, known = table.rows(results)
                if len(rows):
                    self._put(table, rows, {**self._description(table, results), **known})
                    written.append(rows)
            return written

    def tell(self) -> None:
        """Prints how many rows the tables have.

        Raises:
            BadInput: nothing was measured.
        """
        results = self.results()
        counts = {table.out: len(table.rows(results)[0]) for table in self.tables if not table.beside}
        if counts and not any(counts.values()):
            raise BadInput(self.out, "nothing was measured", "read the lines above")
        for out, count in counts.items():
            if count:
                print(f"{table_file(out)}: {count} {'row' if count == 1 else 'rows'}", flush=True)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            result = read_json(path, "")
        except BadInput:
            return None
        return result if result.get("run") == self.run else None

    def _description(self, table: Table, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the description of a table: the machine, commands, the seconds of each call, and the failures."""
        commands = dict.fromkeys(str(result.get("command")) for result in results)
        measured = {result.get("title") for result in results}
        former = self._former(table.out)
        before = former if self._is_this_run(former) else {}
        failed = {title: why for title, why in before.get("failed", {}).items() if title not in measured}
        calls = dict(before.get(CALLS, {}))
        if self._measured:
            date, began = self._clock
            calls[date] = round(time.monotonic() - began, 1)
        return {**self.meta, "command": "; ".join(commands), CALLS: calls, "failed": failed | self.failed}

    def _put(self, table: Table, rows: pd.DataFrame, meta: Mapping[str, Any]) -> None:
        """Writes a table. First renames a table of another run that stands in its place, and prints the new name."""
        former, described = table_file(table.out), self._former(table.out)
        if former.is_file() and not self._is_this_run(described):
            date = str(described.get("date", "former"))[:19].replace(":", "")
            moved = former.with_name(former.name.replace(".csv", f".{date}.csv"))
            shutil.copyfile(meta_path(former), meta_path(moved))
            former.replace(moved)
            print(f"{moved}: what was {former.name}, of another commit, card or version", flush=True)
        write_table(rows, table.out, table.schema, meta)

    def _former(self, out: Path) -> Mapping[str, Any]:
        return read_meta(table_file(out)) if table_file(out).is_file() else {}

    def _is_this_run(self, described: Mapping[str, Any]) -> bool:
        return {name: described.get(name) for name in ONE_RUN} == self.run


def check_beside(store: Store, key: str) -> None:
    """Removes a result whose file KEY.pt is damaged or another run's, so that both are computed anew."""
    path = store.folder / f"{key}.pt"
    if not path.is_file() or (store.read(key) or {}).get("sha256") != digest(path):
        path.unlink(missing_ok=True)
        store.remove(key)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rows_folder(out: Path) -> Path:
    """Returns the folder of the rows of the table at `out`: NAME.rows, beside it."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.rows")
