"""The jobs of `python -m study throughput`: a lever is a training in a program of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store, Table, rows_folder
from medddpm.training.network import check_cube
from study.records import schemas
from study.throughput.levers import Lever
from study.throughput.results import check_place, rows_of


@dataclass(frozen=True)
class Options:
    """The options of measuring, the same for every lever.

    Args:
        side: of a volume, in voxels; for BraTS 128 stands for 192×192×144.
        channels: base width.
        timed: seconds of training that are timed.
        limit: seconds after which a lever is given up.
        device: "auto", "cuda" or "cpu".
        again: whether existing results are measured anew.
    """

    side: int = 128
    channels: int = 64
    timed: float = 5.0
    limit: int = 600
    device: str = "auto"
    again: bool = False


def measure_levers(
    levers: Sequence[Lever], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False
) -> int:
    """Measures each missing lever, prints a line for it and writes the table (schema `THROUGHPUT`) after it.

    Args:
        levers: out of `study.throughput.levers.LEVERS`.
        options: of measuring.
        out: the table, NAME.csv; NAME.meta.json and the folder NAME.rows are written beside it.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of levers that failed.

    Raises:
        BadInput: as `medddpm.measure.harness.run`; or the table has rows of another size or base width.
    """
    folder = rows_folder(out)
    jobs = [
        Job(
            key=lever.key,
            title=f"{lever.group}: {lever.choice}",
            command=lever_command(lever, options, folder),
            need=Need.ALONE,
            limit=options.limit,
            describe=lambda result: f"{result['volumes_a_second']:.4g} volumes/s",
        )
        for lever in levers
    ]
    if dry_run:
        return harness.show(jobs)
    check_cube(options.side, options.channels)
    store = Store(folder, machine_meta(command, options.device), [Table(out, schemas.THROUGHPUT, rows_of)])
    store.check()
    check_place(store, options.side, options.channels)
    return harness.run(jobs, store, again=options.again, device=options.device)


def lever_command(lever: Lever, options: Options, folder: Path) -> tuple[str, ...]:
    """Returns the command of a lever's process."""
    words = {
        "lever": lever.key, "side": options.side, "channels": options.channels, "seconds": options.timed,
        "device": options.device, "folder": folder,
    }  # fmt: skip
    return (sys.executable, "-m", "study.throughput.worker", *programs.options(words))
