"""Keeps the results that processes leave, a JSON file each; only those of one run count."""

from __future__ import annotations

import abc
import contextlib
import functools
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import of_machine
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import check_table, found_at, meta_path, read_meta, write_table
from medddpm.runtime.files import check_writable, read_json, write_json
from medddpm.runtime.locks import locked

ONE_RUN = ("gpu", "driver", "cudnn", "torch", "commit")
"""What results must have in common to stand in one table."""


@dataclass
class Store:
    """Reads and stamps the results of one run.

    Args:
        folder: where the results lie.
        meta: `machine_meta` of this call.
        failed: what could not be measured in this call, and why.
    """

    folder: Path
    meta: Mapping[str, Any]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def given(self) -> Path:
        """Returns what a user calls the results."""
        return self.folder

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Within it, no other command measures here, which would spoil the times of both.

        Raises:
            BadInput: on entering it, where one does; names its process. Or the folder cannot be written to.
        """
        return locked(self.folder, self.given, "measuring", "wait for it, or choose another --out")

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """The card, versions and commit that the results of a run have in common."""
        return {name: self.meta[name] for name in ONE_RUN}

    def read(self, path: Path) -> dict[str, Any] | None:
        """A result of this run; None if there is none, or only another run's."""
        try:
            found = read_json(path, "")
        except BadInput:
            return None
        return found if found.get("run") == self.run else None

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Keeps a result as one of this run."""
        write_json(path, {**content, "run": self.run})

    def fail(self, title: str, problem: str) -> None:
        """Keeps in mind what could not be measured and why, and says so in a line on stderr."""
        self.failed[title] = problem
        print(f"medddpm: {title}: {problem}", file=sys.stderr, flush=True)

    def stamp(self, path: Path, **known: object) -> None:
        """Marks a result that a process left, if it left one, as one of this run, and adds what else is known of it."""
        if path.is_file():
            self.write(path, read_json(path, "measure it again") | known)


class TableStore(Store):
    """The results of one run beside the table of them.

    Args:
        out: the table, NAME.csv; the results lie in NAME.rows.
        meta: `machine_meta` of this call.

    Attributes:
        schema: of the table.
    """

    schema: Schema

    def __init__(self, out: Path, meta: Mapping[str, Any]) -> None:
        super().__init__(rows_folder(out), meta)
        self.out = out

    @property
    def given(self) -> Path:
        """As `Store.given`: the table."""
        return self.out

    def check(self) -> None:
        """Makes the folder of the rows, and checks, before long work, that rows and table can be written.

        Raises:
            BadInput: they cannot, or the table would take the place of one that this package did not write, or that has
                other columns: each mode of `python -m study bench` has a table of its own.
        """
        check_table(self.out)
        if (former := found_at(self.out)).is_file():
            there = read_meta(former).get("columns", {})
            if any(name not in there for name, column in self.schema.columns.items() if not column.later):
                raise BadInput(self.out, "it is the table of another measurement", "give --out another name")
        check_writable(self.row("row"))

    def row(self, key: str) -> Path:
        """The file of a row."""
        return self.folder / f"{key}.json"

    def stamp(self, path: Path, **known: object) -> None:
        """As `Store.stamp`; adds this call's command line, and the machine as a row has it."""
        super().stamp(path, command=self.meta["command"], machine=of_machine(self.meta), **known)

    def description(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What the table's description says beside its columns: the machine, and the commands that measured rows."""
        commands = dict.fromkeys(str(row.get("command", self.meta["command"])) for row in rows)
        return {**self.meta, "command": "; ".join(commands), "failed": self.failed}

    def put(self, table: pd.DataFrame, schema: Schema, meta: Mapping[str, Any]) -> None:
        """Writes the table. A table of another run that stands in its place is kept under another name, which is said.

        Args:
            table, schema, meta: as for `write_table`.
        """
        former = found_at(self.out)
        if former.is_file():
            described = read_meta(former)
            if {name: described.get(name) for name in ONE_RUN} != self.run:
                date = str(described.get("date", "former"))[:19].replace(":", "")
                kept = former.with_name(former.name.replace(".csv", f".{date}.csv"))
                shutil.copyfile(meta_path(former), meta_path(kept))
                former.replace(kept)
                print(f"{kept}: what was {former.name}, of another commit, card or version", flush=True)
        write_table(table, self.out, schema, meta)

    @abc.abstractmethod
    def collect(self) -> pd.DataFrame:
        """Writes the table of this run's results; returns it."""


def rows_folder(out: Path) -> Path:
    """The folder of the rows of the table at `out`: NAME.rows, beside it."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.csv')}.rows")
