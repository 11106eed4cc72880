"""Reads the kernels tables of every machine and run into one, for the figures and the claims.

`figures/records/<gpu>/kernels_<setting>_<part>_run<N>.csv`, schema `KERNELS`. A part is "window" (the paper's), "step",
or either measured otherwise, as "window-300", "window-cpu", "step-cache-none", "step-by-function" (kernels were told
apart by their function's name alone) or, under another PyTorch, "step-torch-2-2-2" (`medddpm.measure.profile.run`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.schemas import KERNELS, TRACE, VIEWS
from medddpm.measure.tables import gpu_folders, read_table

NAME = re.compile(
    r"(?P<table>kernels|launches)_(?P<setting>[a-z0-9]+)_(?P<part>[a-z0-9-]+)_run(?P<run>\d+)\.csv(?:\.gz)?"
)
MACHINE = ["gpu", "run"]
ORDER = ("BASE", "OPT1", "OPT2", "OPT12", "FAST")
"""Names of `medddpm.switches.SETTINGS`, which imports PyTorch: seconds that a figure need not wait for."""


@dataclass(frozen=True)
class Record:
    """One table, as its name describes it.

    Args:
        path: the file.
        table: "kernels" or "launches" (schema `TRACE`).
        gpu: the folder of its machine.
        setting: BASE, OPT1, OPT2, OPT12, FAST …
        part: "window", "step", "window-300" …
        run: the number of the profile run on that machine, from 1.
    """

    path: Path
    table: str
    gpu: str
    setting: str
    part: str
    run: int


def records(root: Path) -> list[Record]:
    """Lists a repository's tables of kernels and launches, by machine (in its records' order), run, setting, part."""
    machines = gpu_folders(root)
    listed = [record for folder in machines for record in _records_of(folder)]
    places = {folder.name: place for place, folder in enumerate(machines)}

    def order(r: Record) -> tuple[object, ...]:
        return places[r.gpu], r.run, *_place(r.setting), r.part != "window", r.part

    return sorted(listed, key=order)


def next_run(folder: Path, settings: Iterable[str]) -> int:
    """Returns the number of a machine's next run: its last if a setting or view is still missing there, else one more.

    Args:
        folder: figures/records/<gpu>; need not exist.
        settings: of a whole run, each in both `VIEWS`.
    """
    taken = {(r.run, r.setting, r.part) for r in _records_of(folder) if r.table == "kernels" and r.part in VIEWS}
    last = max((run for run, *_ in taken), default=1)
    whole = all((last, name, part) in taken for name in settings for part in VIEWS)
    return last + 1 if whole else last


def kernels(root: Path, parts: tuple[str, ...] = VIEWS) -> pd.DataFrame:
    """Reads every kernels table of some parts, one below the other.

    Args:
        root: the repository.
        parts: see `Record`.

    Returns:
        columns gpu, run and part, then those of `KERNELS`.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    chosen = [r for r in records(root) if r.table == "kernels" and r.part in parts]
    if not chosen:
        raise BadInput(
            root / "figures" / "records", f"holds no kernels table of {' or '.join(parts)}",
            "restore the records (git checkout), or measure on a GPU: python -m study book --from 02 --measure",
        )  # fmt: skip
    tables = []
    for record in chosen:
        table = _read_kernels(record.path)
        tables.append(table.assign(gpu=record.gpu, run=record.run, part=record.part))
    joined = pd.concat(tables, ignore_index=True)
    return joined[[*MACHINE, "part", *KERNELS.columns]]


def launches(root: Path, gpu: str, part: str = "window") -> dict[str, pd.DataFrame]:
    """Reads a machine's newest tables of launches from a run's first on (schema `TRACE`), by setting, in order.

    Args:
        root: the repository.
        gpu: the folder of the machine.
        part: see `Record`.
    """
    newest = {r.setting: r.path for r in records(root) if (r.table, r.gpu, r.part) == ("launches", gpu, part)}
    return {name: read_table(newest[name], TRACE) for name in sorted(newest, key=_place)}


def each_run(tables: pd.DataFrame, summed: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """Applies `summed` to each run of each machine by itself; the index gains gpu and run in front.

    Args:
        tables: as `kernels` returns them.
        summed: a function of `medddpm.measure.profile.summaries`.
    """
    parts = {key: summed(group) for key, group in tables.groupby(MACHINE, sort=False)}
    return pd.concat(parts, names=MACHINE)


def over_runs(by_run: pd.DataFrame) -> pd.DataFrame:
    """Averages a table of `each_run` over each machine's runs, settings in order; its index loses run."""
    names = [name for name in by_run.index.names if name != "run"]
    return _in_order(by_run.groupby(level=names, sort=False).mean())


def spread(by_run: pd.DataFrame) -> pd.DataFrame:
    """Returns the spread of a machine's runs: the largest minus the smallest value, divided by their mean.

    0.02 says that the two runs farthest apart differ by two percent. A single run has no spread: missing.

    Args:
        by_run: as `each_run` returns it.
    """
    names = [name for name in by_run.index.names if name != "run"]
    groups = by_run.groupby(level=names, sort=False)
    apart = (groups.max() - groups.min()) / groups.mean().abs()
    return _in_order(apart.where(groups.count() > 1))


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by machine and view as they come first, then by setting: a run may have settings that earlier ones lack."""
    places = table.index.to_frame(index=False)
    for name, values in places.items():
        places[name] = values.map(_place) if name == "config" else pd.factorize(values)[0]
    return table.iloc[places.sort_values(places.columns.tolist()).index]


def _place(setting: str) -> tuple[int, str]:
    """Returns a setting's sorting key: those of `ORDER` first, then others by name."""
    return (ORDER.index(setting) if setting in ORDER else len(ORDER)), setting


def _records_of(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.csv*")):
        if named := NAME.fullmatch(path.name):
            yield Record(path, named["table"], folder.name, named["setting"].upper(), named["part"], int(named["run"]))


@functools.lru_cache(maxsize=128)
def _read_once(path: Path, _changed: int) -> pd.DataFrame:
    return read_table(path, KERNELS)


def _read_kernels(path: Path) -> pd.DataFrame:
    return _read_once(path, path.stat().st_mtime_ns)
