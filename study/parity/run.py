"""Tests whether a setting costs quality: trains models under several settings and seeds, and evaluates samples."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medddpm.checkpoints.files import newest_checkpoint
from medddpm.errors import BadInput
from medddpm.measure import harness
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store
from medddpm.measure.tables import table_file
from medddpm.runtime.processes import visible_gpus
from study.parity.checking import check_runs
from study.parity.plans import SPEC, TrainingRun
from study.parity.results import QUALITY, check_tables, collect, key_of
from study.parity.subjects import prepare
from study.parity.training import WATCH


def parity(
    runs: Sequence[TrainingRun],
    out: Path,
    tables: Path | None = None,
    *,
    command: Sequence[str],
    gpus: int | None = None,
    device: str = "auto",
    dry_run: bool = False,
) -> int:
    """Trains and evaluates every unfinished run, a process and a GPU each, and writes the tables after each.

    Killed at any time, the same call goes on where it was.

    Args:
        runs: of `plans.planned`.
        out: gets a folder for each run.
        tables: folder of the tables; by default `out`.
        command: the command line, for the record.
        gpus: the most to use.
        device: "auto", "cuda" or "cpu".
        dry_run: prints the commands and runs nothing.

    Returns:
        the number of runs that failed.

    Raises:
        BadInput: a run or the tables cannot be made, which is checked before the first run; another process measures
            there; or nothing was measured.
    """
    data, tables = out / "data", tables or out
    if dry_run:
        for run in runs:
            print(line(run, out / run.key, data, device))
        return 0
    visible = visible_gpus(device, gpus)
    check_tables(tables)
    check_runs(runs, out, data)
    store = Store(out, machine_meta(command, device), write=functools.partial(collect, tables=tables))
    with store.alone():
        print(f"runs: {len(runs)}, {len(visible)} at a time", flush=True)
        prepare(runs, data)
        failed = train(runs, store, device, visible)
        table = collect(store, tables)
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{table_file(tables / QUALITY)}: {table['run'].nunique()} runs, {len(table)} rows")
    return failed


def train(runs: Sequence[TrainingRun], store: Store, device: str, cards: Sequence[str | None]) -> int:
    """Carries out every unfinished run, one on each card; returns the number that failed."""
    for run in runs:
        folder = store.folder / run.key
        if not finished(store, run):
            store.remove(key_of(run))
            folder.mkdir(parents=True, exist_ok=True)
            run.write(folder / SPEC)
    jobs = [
        Job(
            key=key_of(run),
            title=run.key,
            command=tuple(worker_command(store.folder / run.key, store.folder / "data", device)),
            need=Need.QUEUE,
            describe=functools.partial(_describe, resumed=(store.folder / run.key / WATCH).is_file()),
        )
        for run in runs
    ]
    return harness.run(jobs, store, device=device, cards=cards)


def _describe(result: Mapping[str, Any], resumed: bool) -> str:
    loss = next(row["value"] for row in result["quality"] if row["metric"] == "held_out_loss")
    training = f"{result['training_s']:.0f} s" + (" (with earlier calls)" if resumed else "")
    evaluation = f"{result['evaluation_s']:.0f} s"
    return f"step {result['step']}, held-out loss {loss:.4f}, training {training}, evaluation {evaluation}; this call"


def finished(store: Store, run: TrainingRun) -> bool:
    """Returns whether the store holds a result of exactly this run, by this machine and commit."""
    result = store.read(key_of(run))
    return result is not None and TrainingRun.of(result["spec"]) == run


def worker_command(folder: Path, data: Path, device: str, python: str = sys.executable) -> list[str]:
    """Returns the command of a run's process."""
    return [python, "-m", "study.parity.worker", str(folder), "--data", str(data), "--device", device]


def line(run: TrainingRun, folder: Path, data: Path, device: str) -> str:
    """Returns the shell command of a run: it writes the run's fields for its process, and starts it."""
    words = worker_command(folder, data, device, "python")
    place, spec = (shlex.quote(str(path)) for path in (folder, folder / SPEC))
    described = shlex.quote(json.dumps(asdict(run)))
    return f"mkdir -p {place} && printf '%s\\n' {described} > {spec} && {shlex.join(words)}"


def trained_checkpoint(path: Path) -> Path:
    """Finds a checkpoint: the file itself, or the newest of a folder of `medddpm train` or of a parity run.

    Raises:
        BadInput: the folder has none.
    """
    trained = path / "train"
    return newest_checkpoint(trained if trained.is_dir() else path).resolve()
