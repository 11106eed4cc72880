"""Reads a profile: from the folder that `medddpm profile` leaves, or from a card's records."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.profile.families import families_of
from medddpm.measure.profile.parse import parse
from medddpm.measure.profile.records import UNFINISHED
from medddpm.measure.profile.step_weights import COUNTERS, grouped
from medddpm.measure.schemas import KERNELS, TRACE
from medddpm.measure.tables import meta_path, read_meta, read_table

# <label>_<part>_run<N>_<kind>.csv.gz in a profile's folder, <table>_<label>_<part>_run<N>.csv among the records
_NAMES = tuple(
    re.compile(pattern + r"\.csv(?:\.gz)?")
    for pattern in (
        r"(?P<label>[a-z0-9]+)_(?P<part>[a-z0-9-]+)_run(?P<run>\d{1,9})_(?P<kind>raw|details|trace)",
        r"(?P<kind>kernels|launches)_(?P<label>[a-z0-9]+)_(?P<part>[a-z0-9-]+)_run(?P<run>\d{1,9})",
    )
)
_TRACES, _COUNTS = ("trace", "launches"), ("raw", "kernels")
_LONGEST_MS = 1e9
_AGAIN = "profile again: medddpm profile"
_CARDS = "of the records give a card's folder, as figures/records/H100"


@dataclass(frozen=True)
class Program:
    """A program's own numbers, which `medddpm profile` writes into the description of its trace.

    Args:
        name: the program's; empty if it is not told.
        step_ms: wall times of whole steps that no profiler slowed.
        loading_ms: times that the host waited for the loader, of the same steps.
        processes, gpus: how many there were.
        graphs: whether it launched CUDA graphs.
        varies: whether its steps differ in their launches.
    """

    name: str = ""
    step_ms: tuple[float, ...] = ()
    loading_ms: tuple[float, ...] = ()
    processes: int = 1
    gpus: int = 1
    graphs: bool = False
    varies: bool = False


@dataclass(frozen=True)
class Profile:
    """A step of one program on one card.

    Args:
        name: the setting of the published network, or the program's name.
        card: the GPU, as its driver names it.
        launches: every launch of the step in order: schema `TRACE`, and start_ns (NaN where it was not recorded).
        kernels: each distinct launch of the step, schema `KERNELS`; None where no counters were measured.
        facts: the description of the trace: card, versions, date.
        path: the table of the trace.
        program: what the description says of the program.
        run: `TRACE` from the program's first launch on; None if only the step was traced.
        counted: every table of kernels of the same label, of windows too; as `kernels`, empty without counters.
    """

    name: str
    card: str
    launches: pd.DataFrame
    kernels: pd.DataFrame | None
    facts: Mapping[str, Any]
    path: Path
    program: Program = field(default_factory=Program)
    run: pd.DataFrame | None = None
    counted: pd.DataFrame = field(default_factory=pd.DataFrame)

    @functools.cached_property
    def by_launch(self) -> pd.DataFrame:
        """`kernels`; without counters the same table from the launches alone, its counters all missing."""
        return _uncounted(self.launches, self.name) if self.kernels is None else self.kernels

    def known(self) -> float:
        """Returns the share of the step's time on the GPU in launches that have counters."""
        table = self.by_launch
        time = table["count"] * table["duration_ns"]
        return float(time[table["cycles_active"].notna()].sum() / time.sum())


@dataclass(frozen=True)
class _File:
    path: Path
    label: str
    part: str
    run: int
    kind: str


def read_profile(folder: str | os.PathLike[str], label: str | None = None, run: int | None = None) -> Profile:
    """Reads one profile of a folder.

    Args:
        folder: what `medddpm profile --out` got, or figures/records/<gpu>.
        label: the setting, or `own`; may be left out where the folder has one only.
        run: the number of its run; by default the first of the step, and the newest from the first launch on.

    Raises:
        BadInput: there is no such profile, or a table or description cannot be read.
    """
    folder = Path(folder)
    files = list(_files(folder))
    steps = [file for file in files if file.kind in _TRACES and file.part.startswith("step")]
    labels = sorted({file.label for file in steps})
    if not labels:
        remedy = f"profile a step: medddpm profile --view step --out {folder}; {_CARDS}"
        raise BadInput(folder, "holds no trace of a step", remedy)
    if label is None and len(labels) > 1:
        raise BadInput(folder, f"holds several profiles: {', '.join(labels)}", "choose one by --setting")
    label = labels[0] if label is None else label.lower()
    chosen = sorted((f for f in steps if f.label == label), key=lambda f: (f.part != "step", f.part, f.run))
    if not chosen:
        raise BadInput(folder, f"holds no profile {label}", f"choose one by --setting: {', '.join(labels)}")
    numbered = [file for file in chosen if run in (None, file.run)]
    if not numbered:
        there = ", ".join(map(str, dict.fromkeys(file.run for file in chosen)))
        raise BadInput(folder, f"holds no run {run} of {label}", f"choose one by --run: {there}")
    return _read(numbered[0], [file for file in files if file.label == label], run)


def _files(folder: Path) -> Iterator[_File]:
    """Lists the finished tables of a folder by name."""
    if not folder.is_dir():
        raise BadInput(folder, "there is no such folder", f"give the folder of medddpm profile --out; {_CARDS}")
    for path in sorted(folder.iterdir()):
        if named := next((match for pattern in _NAMES if (match := pattern.fullmatch(path.name))), None):
            described = meta_path(path).is_file()
            if not described or not read_meta(path).get(UNFINISHED):
                yield _File(path, named["label"], named["part"], int(named["run"]), named["kind"])


def _read(step: _File, files: list[_File], run: int | None) -> Profile:
    launches = read_table(step.path, TRACE)
    if not launches["duration_ns"].sum() > 0:
        raise BadInput(step.path, "holds no launch that takes time", _AGAIN)
    facts = read_meta(step.path) if meta_path(step.path).is_file() else {}
    program = _program(facts.get("program", {}), meta_path(step.path))
    suffix = step.part.removeprefix("step")  # of another PyTorch, as step-torch-2-2-2
    counts = [f for f in files if f.kind in _COUNTS and (f.part == step.part or _is_window(f.part, suffix))]
    tables = {(f.part, f.run): _kernels(f, files, step) for f in counts}
    kernels = tables.get((step.part, step.run))
    if kernels is not None and not (kernels["count"] * kernels["duration_ns"]).sum() > 0:
        raise BadInput(step.path, "the table of its kernels holds no launch that takes time", _AGAIN)
    runs = [f for f in files if f.kind in _TRACES and f.part == f"window{suffix}" and run in (None, f.run)]
    return Profile(
        name=program.name or step.label.upper(),
        card=str(facts.get("gpu") or step.path.parent.name),
        launches=launches,
        kernels=kernels,
        facts=facts,
        path=step.path,
        program=program,
        run=read_table(max(runs, key=lambda f: f.run).path, TRACE) if runs else None,
        counted=pd.concat(tables.values(), ignore_index=True) if tables else pd.DataFrame(),
    )


def _is_window(part: str, suffix: str) -> bool:
    return bool(re.fullmatch(rf"window(-\d+)?{re.escape(suffix)}", part))


def _kernels(file: _File, files: list[_File], step: _File) -> pd.DataFrame:
    """Reads a table of kernels, or parses ncu's page with what lies beside; each kernel's family is told anew."""
    if file.kind == "kernels":
        table = read_table(file.path, KERNELS)
    else:
        view = file.part.partition("-")[0]
        beside = {f.kind: f.path for f in files if (f.part, f.run) == (file.part, file.run)}
        trace = beside.get("trace", step.path) if view == "step" else None
        table = parse(file.path, file.label.upper(), view, details=beside.get("details"), trace=trace).table
    return table.assign(family=families_of(table["kernel"]))


def _uncounted(launches: pd.DataFrame, name: str) -> pd.DataFrame:
    table = grouped(launches[list(TRACE.columns)])
    empty = dict.fromkeys([*COUNTERS, "est_speedup_pct", "priority"], math.nan)
    table = table.assign(config=name, view="step", family=families_of(table["kernel"]), **empty)
    return table[list(KERNELS.columns)]


def _program(told: object, path: Path) -> Program:
    """Reads what a description says of the program.

    Raises:
        BadInput: a value is of another kind than `Program` has.
    """
    if not isinstance(told, dict):
        raise BadInput(path, "its program is no description", _AGAIN)
    program = Program()
    read: dict[str, Callable[[object], Any]] = {
        "name": _name, "step_ms": _times, "loading_ms": _times, "processes": _count, "gpus": _count, "graphs": _flag,
        "varies": _flag,
    }  # fmt: skip
    for name, convert in read.items():
        if told.get(name) is not None:
            try:
                program = replace(program, **{name: convert(told[name])})
            except (TypeError, ValueError, OverflowError):
                raise BadInput(path, f"its program's {name} is {told[name]!r}", _AGAIN) from None
    return program


def _name(told: object) -> str:
    if not isinstance(told, str):
        raise TypeError
    return told[:200]


def _times(told: object) -> tuple[float, ...]:
    if not isinstance(told, list):
        raise TypeError
    times = tuple(float(ms) for ms in told if ms is not None)
    if not all(0 <= ms <= _LONGEST_MS for ms in times):
        raise ValueError
    return times


def _count(told: object) -> int:
    if not isinstance(told, int) or not 1 <= told <= 10**6:
        raise ValueError
    return int(told)


def _flag(told: object) -> bool:
    if not isinstance(told, bool):
        raise TypeError
    return told
