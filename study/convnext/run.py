"""The jobs of `python -m study convnext`: one for each part of the measurement, and one that runs under ncu."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta, package_version
from medddpm.measure.profile import ncu
from medddpm.measure.store import Store
from medddpm.measure.tables import table_file
from medddpm.runtime.processes import pick_device
from study.convnext.counters import COUNTERS
from study.convnext.results import PACKAGES, TABLES, check, tables
from study.convnext.training import cifar
from study.convnext.worker import PARTS as MEASURED
from study.convnext.worker import check_part
from study.records.publishing import copied

PARTS = (*MEASURED, COUNTERS)


@dataclass(frozen=True)
class Options:
    """The options of measuring, the same for every part of a call.

    Args:
        steps: of the optimizer, in training.
        data: folder of CIFAR-10's binary files; scikit-learn's digits without it.
        again: whether existing results are measured anew.
        seconds: the time after which a part is given up.
        device: "auto", "cuda" or "cpu".
        toy: the smallest sizes.
    """

    steps: int = 2000
    data: Path | None = None
    again: bool = False
    seconds: int = 600
    device: str = "auto"
    toy: bool = False


def measure(parts: Sequence[str], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False) -> int:
    """Measures each missing part, prints a line for it and writes the tables.

    Args:
        parts: out of `PARTS`.
        out: folder of the parts and the tables.
        options: of measuring.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of parts that failed; stderr names each.

    Raises:
        BadInput: a part cannot be measured here or written, which is checked first; another process measures there;
            or nothing was measured.
    """
    jobs = [
        Job(part, part, _command(part, out, options), Need.ALONE, limit=options.seconds, problem=_problem)
        for part in parts
    ]
    if dry_run:
        return harness.show(jobs)
    meta = machine_meta(command, options.device) | {"packages": {name: package_version(name) for name in PACKAGES}}
    store = Store(out, meta, tables(out))
    _check([part for part in parts if options.again or store.lacks(part)], store, options)
    return harness.run(jobs, store, again=options.again, device=options.device)


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the tables of `out` and their descriptions into a machine's records; returns the copies."""
    return copied([path for name in TABLES if (path := table_file(out / f"{name}.csv")).is_file()], folder)


def _command(part: str, out: Path, options: Options) -> tuple[str, ...]:
    place = ["--folder", str(out), "--device", options.device, *(["--toy"] if options.toy else [])]
    if part == COUNTERS:
        return (sys.executable, "-m", "study.convnext.counters", *place)
    if part == "training":
        place += ["--steps", str(options.steps), *(["--data", str(options.data)] if options.data else [])]
    return (sys.executable, "-m", "study.convnext.worker", "--part", part, *place)


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    return programs.problem(done, "free some memory")


def _check(parts: Sequence[str], store: Store, options: Options) -> None:
    """Checks, before any work, that parts can be measured here and that no other file is in their place."""
    device = pick_device(options.device)
    for part in parts:
        check_part(part, device, options.toy)
    if COUNTERS in parts:
        ncu.find()
    if "training" in parts and options.data:
        cifar(options.data)
    check(store, parts)
