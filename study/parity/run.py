"""Does a setting cost quality? Trains models under several settings and seeds, and evaluates what they draw."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from medddpm.checkpoints.files import newest_checkpoint
from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.former_store import Store
from medddpm.measure.machine import machine_meta
from medddpm.measure.tables import found_at
from medddpm.runtime.processes import pick_device
from medddpm.runtime.signals import ended_by_sigterm
from study.parity.checking import check_runs
from study.parity.plans import SPEC, TrainingRun
from study.parity.results import QUALITY, RESULT, check_tables, collect
from study.parity.subjects import prepare
from study.parity.training import WATCH

POLL_S = 0.1


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
    """Trains and evaluates every run that is not there yet, a process and a GPU each, and writes the tables after each.

    Killed at any time, the same call goes on where it was.

    Args:
        runs: of `plans.planned`.
        out: gets a folder for each run.
        tables: folder of the tables; by default `out`.
        command: the command line, for the record.
        gpus: how many to use at most.
        device: "auto", "cuda" or "cpu".
        dry_run: print the commands and run nothing.

    Returns:
        how many runs failed.

    Raises:
        BadInput: a run or the tables cannot be made, which is known before any is begun; another process measures
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
    queue = Queue(out, visible, machine_meta(command, device), tables, device)
    with Store(out, queue.meta).alone():
        print(f"runs: {len(runs)}, {len(queue.gpus)} at a time", flush=True)
        prepare(runs, data)
        queue.work(runs)
        table = collect(out, queue.meta, tables)
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{found_at(tables / QUALITY)}: {table['run'].nunique()} runs, {len(table)} rows")
    return len(queue.failed)


@dataclass
class Job:
    """A run in its process."""

    run: TrainingRun
    process: subprocess.Popen[bytes]
    began: float
    resumed: bool


@dataclass
class Queue:
    """The runs over the GPUs: a process on each.

    Args:
        out: holds a folder for each run.
        gpus: what CUDA_VISIBLE_DEVICES names; a single None where there is no GPU.
        meta: `machine.machine_meta` of this call.
        tables: where the tables go.
        device: of every run.
        failed: what failed in this call, and why.
    """

    out: Path
    gpus: Sequence[str | None]
    meta: Mapping[str, Any]
    tables: Path
    device: str = "auto"
    failed: dict[str, str] = field(default_factory=dict)

    def work(self, runs: Sequence[TrainingRun]) -> None:
        """Does them in order; returns when all are done or failed."""
        store = Store(self.out, self.meta)
        waiting = list(runs)
        running: dict[str | None, Job] = {}
        with ended_by_sigterm(), _ended(running):
            while waiting or running:
                for gpu in self.gpus:
                    while gpu not in running and waiting:
                        run = waiting.pop(0)
                        if finished(store, run):
                            print(f"{run.key}: there already", flush=True)
                        else:
                            running[gpu] = self._begun(run, gpu)
                time.sleep(POLL_S)
                for gpu, job in [(g, j) for g, j in running.items() if j.process.poll() is not None]:
                    del running[gpu]
                    self._done(store, job)

    def _begun(self, run: TrainingRun, gpu: str | None) -> Job:
        folder = self.out / run.key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        run.write(folder / SPEC)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(self.gpus))))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        words = worker_command(folder, self.out / "data", self.device)
        with open(folder / "log.txt", "ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                close_fds=False,  # it has the lock too, as in `programs.run`
            )  # fmt: skip
        resumed = (folder / WATCH).is_file()
        where = "" if gpu is None else f" on GPU {gpu}"
        print(f"{run.key}: {run.steps} steps, begun{where}", flush=True)
        return Job(run, process, time.monotonic(), resumed)

    def _done(self, store: Store, job: Job) -> None:
        run, path = job.run, self.out / job.run.key / RESULT
        spent = f"{time.monotonic() - job.began:.0f} s"
        if job.process.returncode or not path.is_file():
            said = path.with_name("log.txt").read_text(errors="replace")
            problem = programs.reason(job.process.returncode, said)
            self.failed[run.key] = problem
            print(f"{run.key}: failed, {spent}", flush=True)
            print(f"medddpm: {run.key}: {problem}", file=sys.stderr, flush=True)
            return
        store.stamp(path)
        found = store.read(path) or {}
        loss = next(row["value"] for row in found["quality"] if row["metric"] == "held_out_loss")
        training = f"{found['training_s']:.0f} s" + (" (with earlier calls)" if job.resumed else "")
        print(
            f"{run.key}: step {found['step']}, held-out loss {loss:.4f}, training {training}, "
            f"evaluation {found['evaluation_s']:.0f} s; this call took {spent}",
            flush=True,
        )
        collect(self.out, self.meta, self.tables)


def finished(store: Store, run: TrainingRun) -> bool:
    """Returns whether the store holds a result of this very run, by this machine and commit."""
    found = store.read(store.folder / run.key / RESULT)
    return found is not None and TrainingRun.of(found["spec"]) == run


def worker_command(folder: Path, data: Path, device: str, python: str = sys.executable) -> list[str]:
    """The command of a run's process."""
    return [python, "-m", "study.parity.worker", str(folder), "--data", str(data), "--device", device]


def line(run: TrainingRun, folder: Path, data: Path, device: str) -> str:
    """Returns what to type for a run: it writes what is to be done, which its process reads, and does it."""
    words = worker_command(folder, data, device, "python")
    place, spec = (shlex.quote(str(path)) for path in (folder, folder / SPEC))
    described = shlex.quote(json.dumps(asdict(run)))
    return f"mkdir -p {place} && printf '%s\\n' {described} > {spec} && {shlex.join(words)}"


def visible_gpus(device: str, most: int | None = None) -> list[str | None]:
    """Returns what CUDA_VISIBLE_DEVICES calls the GPUs here, at most so many; a single None on a machine without.

    Raises:
        BadInput: the device is a GPU, and there is none.
    """
    if device == "cpu" or not torch.cuda.is_available():
        pick_device(device)
        return [None]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return list(names[:most])


def trained_checkpoint(path: Path) -> Path:
    """The file itself; for a folder of `medddpm train` or of a parity run, its newest checkpoint.

    Raises:
        BadInput: the folder has none.
    """
    trained = path / "train"
    return newest_checkpoint(trained if trained.is_dir() else path).resolve()


@contextlib.contextmanager
def _ended(running: Mapping[str | None, Job]) -> Iterator[None]:
    """On leaving, ends what still runs after its step in hand, and waits for it."""
    try:
        yield
    finally:
        for job in running.values():
            job.process.terminate()
        for job in running.values():
            job.process.wait()
