"""Was anything lost? Trains models under several settings and seeds, judges what they draw, and keeps the numbers.

    python -m medddpm.study.parity --plan short --out runs/parity
    python -m medddpm.study.parity --plan long,contrasts --minutes 9 --out runs/parity --tables $OUT
    python -m medddpm.study.parity --plan samplers --checkpoint runs/parity/long_…/train --out runs/parity
    python -m medddpm.study.parity --plan brats --data ../shared/data/brats2021 --out runs/parity

A run is a process of its own, on a GPU of its own unless --at-once asks for several. Killed at any time, the same
command goes on where it was; what is there already is left alone. Plans and their reasons are in `parity.plans`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.runtime.arguments import whole
from medddpm.runtime.files import check_writable
from medddpm.runtime.processes import ended_by_sigterm
from medddpm.study.parity import plans
from medddpm.study.parity.plans import PLANS, Run
from medddpm.study.parity.results import QUALITY, RESULT, collect
from medddpm.study.parity.subjects import prepare
from medddpm.study.records.machine import machine_meta
from medddpm.study.records.store import Store
from medddpm.switches import SETTINGS
from medddpm.training.run_folder import checkpoints_of

LEAST_S = 10.0  # of training and all: with less left a run is not begun
POLL_S = 0.1


@dataclass
class Job:
    """A run in its process."""

    run: Run
    process: subprocess.Popen[bytes]
    began: float


@dataclass
class Queue:
    """The runs over the GPUs: as many processes at a time as there are places on them.

    Args:
        out: a folder a run.
        gpus: what CUDA_VISIBLE_DEVICES names, each as often as it takes runs at once; None where there is no GPU.
        meta: `machine.machine_meta` of this call.
        tables: where the tables go.
        device: of every run.
        deadline: `time.time()` by which all should be judged.
        shared: whether something else uses the GPUs, so that no time is recorded; runs that share one never record any.
        failed: what failed in this call, and why.
        left: runs that there was no time for, or not enough.
    """

    out: Path
    gpus: Sequence[str | None]
    meta: dict[str, Any]
    tables: Path
    device: str = "auto"
    deadline: float = float("inf")
    shared: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def work(self, runs: Sequence[Run]) -> None:
        """Does them in order; returns when all are done, failed or out of time."""
        store = Store(self.out, self.meta)
        waiting = list(runs)
        running: dict[int, Job] = {}
        with ended_by_sigterm(), _ended(running):
            while waiting or running:
                for place, gpu in enumerate(self.gpus):
                    while place not in running and waiting:
                        run = waiting.pop(0)
                        if found := finished(store, run, self.out):
                            print(f"{run.key}: there already, step {found['step']}", flush=True)
                        elif time.time() + LEAST_S > self.deadline - self._judging(run):
                            self.left.append(run.key)
                            print(f"{run.key}: no time left", flush=True)
                        else:
                            running[place] = self._begun(run, gpu)
                time.sleep(POLL_S)
                for place, job in [(p, j) for p, j in running.items() if j.process.poll() is not None]:
                    del running[place]
                    self._ended(store, job)

    def _judging(self, run: Run) -> float:
        """Seconds to keep for judging a run."""
        return plans.seconds(run)[1] if self.gpus[0] is not None else 0.0

    def _begun(self, run: Run, gpu: str | None) -> Job:
        folder = self.out / run.key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        run.write(folder / "spec.json")
        until = self.deadline - self._judging(run)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(self.gpus))))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        words = command(folder, self.out / "data", until, self.device, self.shared or self.gpus.count(gpu) > 1)
        with open(folder / "log.txt", "ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        where = "" if gpu is None else f" on GPU {gpu}"
        print(f"{run.key}: begun{where}", flush=True)
        return Job(run, process, time.monotonic())

    def _ended(self, store: Store, job: Job) -> None:
        run, path = job.run, self.out / job.run.key / RESULT
        spent = f"{time.monotonic() - job.began:.0f} s"
        if job.process.returncode or not path.is_file():
            problem = last_words(path.with_name("log.txt")) or f"ended with {job.process.returncode}"
            self.failed[run.key] = problem
            print(f"{run.key}: failed, {spent}", flush=True)
            print(f"medddpm: {run.key}: {problem}", file=sys.stderr, flush=True)
            return
        store.stamp(path)
        found = store.read(path) or {}
        loss = next(row["value"] for row in found["quality"] if row["metric"] == "held_out_loss")
        done = "" if found["step"] >= run.steps else f" of {run.steps}; the same command goes on"
        if done:
            self.left.append(run.key)
        print(
            f"{run.key}: step {found['step']}{done}, held-out loss {loss:.4f}, training {found['training_s']:.0f} s, "
            f"judging {found['judging_s']:.0f} s, {spent} in all",
            flush=True,
        )
        collect(self.out, self.meta, self.tables)


def finished(store: Store, run: Run, out: Path) -> dict[str, Any] | None:
    """A run's result, if it is this machine's and commit's, of the same run, and of a training that was not cut."""
    found = store.read(out / run.key / RESULT)
    same = found is not None and Run.of(found["spec"]) == run and found["step"] >= run.steps
    return found if same else None


def command(
    folder: Path, data: Path, until: float, device: str, shared: bool = False, python: str = sys.executable
) -> list[str]:
    """The command of a run's process."""
    words = [python, "-m", "medddpm.study.parity.worker", str(folder), "--data", str(data), "--device", device]
    words += ["--shared"] if shared else []
    return words if until == float("inf") else [*words, "--until", f"{until:.0f}"]


def last_words(log: Path) -> str:
    """The last line that a run's process said."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def visible_gpus(device: str, most: int | None = None) -> list[str | None]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs here, at most so many; of a machine without, a single None."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return [None]
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = told.split(",") if told else [str(index) for index in range(torch.cuda.device_count())]
    return list(names[:most])


def main(argv: Sequence[str] | None = None) -> int:
    """Does what `parser` describes; returns the exit code. What a user can mend is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        return _main(arguments, ["medddpm.study.parity", *(sys.argv[1:] if argv is None else argv)])
    except BadInput as error:
        print(f"medddpm: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # … --dry-run | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("medddpm: interrupted; the same command goes on", file=sys.stderr)
        return 130


def _main(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    changes = {name: getattr(arguments, name) for name in _CHANGES}
    changes["size"] = None if arguments.size is None else plans.cube(arguments.size)
    checkpoint = None if arguments.checkpoint is None else _checkpoint(arguments.checkpoint)
    runs = plans.planned(
        arguments.plan,
        settings=arguments.settings,
        seeds=arguments.seeds,
        only=arguments.only,
        data=None if arguments.data is None else str(arguments.data.resolve()),
        checkpoint=checkpoint,
        **changes,
    )
    gpus = visible_gpus(arguments.device, arguments.gpus) * arguments.at_once
    expected = plans.makespan(runs, len(gpus)) / 60
    for run in runs:
        training, judging = plans.seconds(run)
        print(f"{run.key}: {run.steps} steps; on an H200 about {training:.0f} s, then {judging:.0f} s to judge")
    print(f"{len(runs)} runs, {len(gpus)} at a time: about {expected:.1f} minutes on H200s", flush=True)
    if arguments.minutes and expected > arguments.minutes:
        print(f"that is more than {arguments.minutes:g} minutes: what is late will be cut, and goes on next time")
    if arguments.dry_run:
        for run in runs:
            folder, data = arguments.out / run.key, arguments.out / "data"
            shared = arguments.shared or arguments.at_once > 1
            print(shlex.join(command(folder, data, float("inf"), arguments.device, shared, "python")))
        return 0
    deadline = time.time() + 60 * arguments.minutes if arguments.minutes else float("inf")
    tables = arguments.tables or arguments.out
    for folder in (arguments.out, tables):
        check_writable(folder / QUALITY)
    machine = machine_meta(words)
    queue = Queue(arguments.out, gpus, machine, tables, arguments.device, deadline, arguments.shared)
    began = time.monotonic()
    prepare(runs, arguments.out / "data")
    print(f"subjects: {time.monotonic() - began:.0f} s", flush=True)
    queue.work(runs)
    table = collect(arguments.out, queue.meta, tables)
    print(f"{tables / QUALITY}: {table['run'].nunique()} runs, {len(table)} rows; {len(queue.left)} to go on with")
    return 1 if queue.failed else 0


_WHOLE = ("channels", "steps", "accumulation", "held_out", "subjects", "batch", "watch")
_CHANGES = (*_WHOLE, "learning_rate", "contrast", "chains", "mult")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="python -m medddpm.study.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--plan", type=_several(PLANS), required=True, metavar="NAME,…", help=", ".join(PLANS))
    top.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder a run; resumed")
    top.add_argument("--tables", type=Path, metavar="DIR", help=f"where {QUALITY} and its kin go (--out)")
    top.add_argument("--minutes", type=float, help="by then all should be judged: training is cut in time for it")
    top.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="PART,…", help="of runs' keys")
    top.add_argument("--gpus", type=whole(1), metavar="N", help="use at most so many")
    top.add_argument(
        "--at-once", type=whole(1), default=1, metavar="N",
        help="runs that share a GPU; more than one keep it busy while others are judged, and are not timed",
    )  # fmt: skip
    top.add_argument("--shared", action="store_true", help="something else uses the GPUs too: no time is recorded")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    top.add_argument("--data", type=Path, metavar="DIR", help="of a BraTS case, for the plan brats")
    top.add_argument("--checkpoint", type=Path, metavar="F", help="file or run's folder, for samplers and redrawn")
    top.add_argument("--dry-run", action="store_true", help="print runs, times and commands, and do nothing")
    own = top.add_argument_group("in place of the plans' own")
    own.add_argument("--settings", type=_several(SETTINGS), metavar="NAME,…")
    own.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], metavar="N,…")
    for name in ("size", *_WHOLE):
        own.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    own.add_argument("--mult", type=lambda text: tuple(map(int, text.split(","))), metavar="1,1,2,4")
    own.add_argument("--learning-rate", type=float)
    own.add_argument("--contrast", choices=["t1", "t2", "flair"])
    own.add_argument("--chains", type=_chains, metavar="ddim:10,…", help="samplers and their steps")
    return top


def _several(names: Any) -> Any:
    def parse(text: str) -> list[str]:
        known = {name.lower(): name for name in names}
        chosen = [word.strip().lower() for word in text.split(",")]
        if unknown := [word for word in chosen if word not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return [known[word] for word in dict.fromkeys(chosen)]

    return parse


def _chains(text: str) -> tuple[tuple[str, int], ...]:
    from medddpm.diffusion import SAMPLERS

    chains = []
    for word in text.split(","):
        sampler, _, steps = word.partition(":")
        if sampler not in SAMPLERS or not steps.isdigit() or (sampler == "ddpm" and int(steps) != 250):
            raise argparse.ArgumentTypeError(f"{word!r} is no chain: ddpm:250, ddim:10, dpm++:25 …")
        chains.append((sampler, int(steps)))
    return tuple(chains)


def _checkpoint(path: Path) -> Path:
    """The file; of a run's folder its newest."""
    if path.is_dir():
        found = checkpoints_of(path) or checkpoints_of(path / "train")
        if not found:
            raise BadInput(path, "this folder has no checkpoints/step-*.pt", "give a run's folder or a checkpoint")
        path = found[-1]
    return path.resolve()


@contextlib.contextmanager
def _ended(running: dict[int, Job]) -> Iterator[None]:
    """On leaving, what still runs is told to stop after the step in hand, and waited for."""
    try:
        yield
    finally:
        for job in running.values():
            job.process.terminate()
        for job in running.values():
            job.process.wait()


if __name__ == "__main__":
    sys.exit(main())
