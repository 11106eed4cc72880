"""Starts the processes of `medddpm bench --throughput`: a lever is a training in a process of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import check_writable
from medddpm.runtime.processes import ended_by_sigterm
from medddpm.study.records import programs
from medddpm.study.records.machine import machine_meta
from medddpm.study.records.store import rows_folder
from medddpm.study.throughput.levers import Lever
from medddpm.study.throughput.results import Results


@dataclass(frozen=True)
class Options:
    """How every lever is measured.

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
        levers: out of `medddpm.study.throughput.levers.LEVERS`.
        out: the table, NAME.csv; NAME.meta.json and the folder NAME.rows are written beside it.
        options: how every lever is measured.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of levers that failed; stderr names each, and the others are measured all the same.

    Raises:
        BadInput: the table cannot be written, or nothing was measured.
    """
    folder = rows_folder(out)
    if dry_run:
        for lever in levers:
            print(shlex.join(lever_command(lever, options, folder, "python")))
        return 0
    check_writable(out)
    folder.mkdir(parents=True, exist_ok=True)
    store = Results(out, machine_meta(command))
    with ended_by_sigterm():
        for place, lever in enumerate(levers, 1):
            path, label = folder / f"{lever.key}.json", f"[{place}/{len(levers)}] {lever.group}: {lever.choice}"
            if store.read(path) is not None and not options.again:
                print(f"{label}: there already", flush=True)
                continue
            path.unlink(missing_ok=True)
            problem = programs.problem(programs.run(lever_command(lever, options, folder), options.limit))
            store.stamp(path)
            if problem:
                store.failed[lever.key] = problem
                print(f"medddpm: {label}: {problem}", file=sys.stderr, flush=True)
                continue
            store.collect()
            found = store.read(path) or {}
            print(f"{label}: {found['volumes_a_second']:.4g} volumes/s", flush=True)
    table = store.collect()
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{out}: {len(table)} rows", flush=True)
    return len(store.failed)


def lever_command(lever: Lever, options: Options, folder: Path, python: str = sys.executable) -> list[str]:
    """The command of a lever's process."""
    words = {
        "lever": lever.key, "side": options.side, "channels": options.channels, "seconds": options.timed,
        "device": options.device, "folder": folder,
    }  # fmt: skip
    given = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    return [python, "-m", "medddpm.study.throughput.worker", *given]
