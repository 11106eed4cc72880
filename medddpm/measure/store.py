"""Keeps the results that programs leave, a JSON file each, and writes their tables; only those of one run count."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import of_machine
from medddpm.measure.ready import round_path
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import check_table, found_at, meta_path, read_meta, write_table
from medddpm.runtime.files import check_writable, read_json, write_json
from medddpm.runtime.locks import locked

ONE_RUN = ("gpu", "driver", "cudnn", "torch", "commit")
"""What results must have in common to stand in one table."""


@dataclass(frozen=True)
class Table:
    """A table of results.

    Args:
        out: NAME.csv; NAME.meta.json is written beside it.
        schema: of the table.
        rows: makes the table of the results of one run, and what its description says of them beside the machine, the
            commands and what failed. Without a row no table is written.
        beside: whether it only accompanies another table: where that has no rows, nothing was measured.
    """

    out: Path
    schema: Schema
    rows: Callable[[Sequence[Mapping[str, Any]]], tuple[pd.DataFrame, Mapping[str, Any]]]
    beside: bool = False


@dataclass
class Store:
    """Reads and stamps the results of one run, and writes their tables.

    Args:
        folder: where the results lie, KEY.json, of a second round KEY.2.json.
        meta: `machine_meta` of this call.
        tables: of the results; the first is the one that a user names.
        write: writes tables in another way than each by itself, in place of `tables`.
        failed: what could not be measured in this call, and why.
    """

    folder: Path
    meta: Mapping[str, Any]
    tables: Sequence[Table] = ()
    write: Callable[[Store], object] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    _locked: bool = False

    @property
    def given(self) -> Path:
        """Returns what a user calls the results: the first table, or the folder where the tables lie in it too."""
        out = self.tables[0].out if self.tables else self.folder
        return self.folder if out.parent == self.folder else out

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, no other command measures here, which would spoil the times of both.

        Raises:
            BadInput: on entering it, where one does; names its process. Or the folder cannot be written to.
        """
        if self._locked:
            yield
            return
        with locked(self.folder, self.given, "measuring", "wait for it, or choose another --out"):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """The card, versions and commit that the results of a run have in common."""
        return {name: self.meta[name] for name in ONE_RUN}

    def path(self, key: str, number: int = 1) -> Path:
        """The file of a result, in a round."""
        return round_path(self.folder / f"{key}.json", number)

    def log(self, key: str) -> IO[bytes]:
        """Opens the file of what a queued program prints, log.txt beside its result, at its end."""
        path = self.path(key).with_name("log.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab+")

    def read(self, key: str, number: int = 1) -> dict[str, Any] | None:
        """A result of this run; None if there is none, or only another run's."""
        return self._read(self.path(key, number))

    def lacks(self, key: str, number: int = 1) -> bool:
        """Returns whether a result is still to be measured: a partial one is too, though it has rows."""
        found = self.read(key, number)
        return found is None or bool(found.get("partial"))

    def remove(self, key: str, number: int = 1) -> None:
        """Removes a result that is to be measured anew."""
        self.path(key, number).unlink(missing_ok=True)

    def remove_beyond(self, key: str, number: int) -> None:
        """Removes a result's rounds behind `number`."""
        for path in self.folder.glob(f"{key}.[0-9]*.json"):
            if int(path.stem.rpartition(".")[2]) > number:
                path.unlink()

    def stamp(self, key: str, number: int = 1, title: str = "") -> bool:
        """Marks a result that a program left as one of this run, with command and machine; returns whether it did.

        A damaged one, of a program that ended while writing, does not count as left.
        """
        path = self.path(key, number)
        try:
            found = read_json(path, "")
        except BadInput:
            return False
        known = {"key": key, "title": title, "command": self.meta.get("command"), "machine": of_machine(self.meta)}
        write_json(path, {**found, **known, "run": self.run})
        return True

    def results(self) -> list[dict[str, Any]]:
        """Returns every result of this run, by the names of their files."""
        return [found for path in sorted(self.folder.rglob("*.json")) if (found := self._read(path)) is not None]

    def check(self) -> None:
        """Makes the folder of the results, and checks, before long work, that they and the tables can be written.

        Raises:
            BadInput: they cannot, or a table would take the place of one that this package did not write, or that has
                other columns: each command has a table of its own.
        """
        for table in self.tables:
            check_table(table.out)
        for table in self.tables:
            if (former := found_at(table.out)).is_file():
                there = read_meta(former).get("columns", {})
                if any(name not in there for name, column in table.schema.columns.items() if not column.later):
                    raise BadInput(table.out, "it is the table of another measurement", "give --out another name")
        check_writable(self.path("row"))

    def collect(self) -> list[pd.DataFrame]:
        """Writes the tables of this run's results; returns those that have rows."""
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
            raise BadInput(self.given, "nothing was measured", "read the lines above")
        for out, count in counts.items():
            if count:
                print(f"{found_at(out)}: {count} rows", flush=True)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            found = read_json(path, "")
        except BadInput:
            return None
        return found if found.get("run") == self.run else None

    def _description(self, table: Table, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a table's description says: the machine, the commands that measured rows, and what is not measured."""
        commands = dict.fromkeys(str(found.get("command")) for found in results)
        measured = {found.get("title") for found in results}
        former = self._former(table.out)
        before = former.get("failed", {}) if self._is_this_run(former) else {}
        failed = {title: why for title, why in before.items() if title not in measured}
        return {**self.meta, "command": "; ".join(commands), "failed": failed | self.failed}

    def _put(self, table: Table, rows: pd.DataFrame, meta: Mapping[str, Any]) -> None:
        """Writes a table. One of another run that stands in its place is kept under another name, which is said."""
        former, described = found_at(table.out), self._former(table.out)
        if former.is_file() and not self._is_this_run(described):
            date = str(described.get("date", "former"))[:19].replace(":", "")
            kept = former.with_name(former.name.replace(".csv", f".{date}.csv"))
            shutil.copyfile(meta_path(former), meta_path(kept))
            former.replace(kept)
            print(f"{kept}: what was {former.name}, of another commit, card or version", flush=True)
        write_table(rows, table.out, table.schema, meta)

    def _former(self, out: Path) -> Mapping[str, Any]:
        return read_meta(found_at(out)) if found_at(out).is_file() else {}

    def _is_this_run(self, described: Mapping[str, Any]) -> bool:
        return {name: described.get(name) for name in ONE_RUN} == self.run


def rows_folder(out: Path) -> Path:
    """The folder of the rows of the table at `out`: NAME.rows, beside it."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.rows")
