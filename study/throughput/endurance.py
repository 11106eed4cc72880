"""Watches the default training from outside, as `nvidia-smi` and `top` would: `python -m study endurance`."""

from __future__ import annotations

import argparse
import bisect
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch

from medddpm.data.phantom import write_phantom
from medddpm.errors import BadInput
from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta, now, nvml
from medddpm.measure.store import Store, Table, rows_folder
from medddpm.measure.tables import table_of
from medddpm.runtime.exits import INTERRUPTED, end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import pick_device
from medddpm.runtime.signals import ended_by_sigterm
from medddpm.training.network import check_cube
from study.records import publishing, schemas

SUBJECTS = 64
EVERY = 10.0  # s a row
MARGIN = 900.0  # s in which the subjects are written, and the training begins and ends
READ_EVERY = 0.2  # s: NVML's busy share is that of its last period, a sixth of a second to a second long
MIB = 2**20


@dataclass(frozen=True)
class Options:
    """The training that is watched; everything else is as `medddpm train` has it by default.

    Args:
        steps: of the training.
        side: of a volume, voxels.
        channels: base width.
        seconds: after which the training is ended; its rows until then are kept.
        device: "auto", "cuda" or "cpu".
        every: seconds a row.
        again: whether a training of this name that was watched to its end is watched anew.
        files: the subjects come from a folder of .nii.gz, which is written first, not from the phantom itself.
    """

    steps: int
    side: int = 128
    channels: int = 64
    seconds: float = 600
    device: str = "auto"
    every: float = EVERY
    again: bool = False
    files: bool = False

    @property
    def source(self) -> str:
        """The volumes' source, as schema `ENDURANCE` has it."""
        return "nii.gz" if self.files else "phantom"

    @property
    def size(self) -> str:
        """D×H×W of a volume, as 128x128x128."""
        return "x".join([str(self.side)] * 3)

    @property
    def title(self) -> str:
        """The training's name in progress lines and messages."""
        return f"{self.size} from {self.source}"

    @property
    def key(self) -> str:
        """The name of its result."""
        return self.title.replace(" ", "-")

    @property
    def watched(self) -> dict[str, Any]:
        """The options that tell one training from another."""
        return asdict(replace(self, again=False))

    def training(self, run: Path) -> list[str]:
        """Returns the training's command line, for this Python."""
        subjects = ["--data", str(run.with_name("data"))] if self.files else ["--phantom", str(SUBJECTS)]
        size = [*subjects, "--size", str(self.side), "--channels", str(self.channels)]
        how = ["--setting", "fast", "--steps", str(self.steps), "--device", self.device, "--out", str(run)]
        return [sys.executable, "-m", "medddpm", "train", *size, *how]


def watch(out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False) -> int:
    """Trains, unless the training's rows exist, and writes a row every `options.every` seconds (schema `ENDURANCE`).

    The run itself is removed. Rows of other trainings stay in the table. After Ctrl-C or SIGTERM the table has the rows
    until then, and the next call watches anew.

    Args:
        out: the table, NAME.csv; NAME.meta.json and the folder NAME.rows are written beside it.
        options: of the training.
        command: the command line, for the record.
        dry_run: whether to print the command and run nothing.

    Returns:
        1 if the training failed.

    Raises:
        BadInput: the table cannot be written, or has another training of this name; another process measures there;
            or the training failed or ended before its first row, and the table has no other rows.
        KeyboardInterrupt: it was interrupted.
    """
    words = {
        "steps": options.steps, "side": options.side, "channels": options.channels, "seconds": options.seconds,
        "device": options.device, "every": options.every, "folder": rows_folder(out),
    }  # fmt: skip
    line = (sys.executable, "-m", "study.throughput.endurance", *programs.options(words))
    line += ("--files",) if options.files else ()
    job = Job(
        key=options.key,
        title=options.title,
        command=line,
        need=Need.ALONE,
        limit=options.seconds + MARGIN,
        expected=options.seconds,
        describe=_describe,
    )
    if dry_run:
        return harness.show([job])
    check_cube(options.side, options.channels)
    table = Table(out, schemas.ENDURANCE, _rows)
    store = Store(rows_folder(out), machine_meta(command, options.device), [table])
    store.check()
    there = store.read(job.key)
    if there is not None and not (options.again or store.lacks(job.key)) and there["watched"] != options.watched:
        problem = f"it holds another training of {options.title}, of {there['watched']['steps']} steps"
        raise BadInput(out, problem, "give --again to replace it, or choose another name")
    failed = harness.run([job], store, again=options.again, device=options.device)
    if (store.read(job.key) or {}).get("partial"):
        raise KeyboardInterrupt
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Watches one training and writes FOLDER/KEY.json; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.throughput.endurance", description=__doc__)
    top.add_argument("--steps", type=int, required=True, help="of the training")
    top.add_argument("--side", type=int, default=128, help="of a volume, voxels (128)")
    top.add_argument("--channels", type=int, default=64, help="base width (64)")
    top.add_argument("--seconds", type=float, default=600, help="after which the training is ended (600)")
    top.add_argument("--every", type=float, default=EVERY, help="seconds a row (10)")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    top.add_argument("--files", action="store_true", help="from a folder of .nii.gz, which is written first")
    top.add_argument("--folder", type=Path, required=True, help="of the result")
    words = vars(top.parse_args(argv))
    folder = words.pop("folder")
    try:
        return _watch(Options(**words), folder)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1


def _watch(options: Options, results: Path) -> int:
    """Watches a training and writes its rows; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder, ended_by_sigterm():
        run = Path(folder) / "run"
        if options.files:
            write_phantom(run.with_name("data"), SUBJECTS, (options.side,) * 3)
        observed, status = _watched(options, run)
        if status not in (0, INTERRUPTED):
            remedy = programs.SMALLER if programs.ended_by(status) == signal.SIGKILL else "try the command by hand"
            raise BadInput("medddpm train", programs.killed(status) or f"ended with {status}", remedy)
        steps = logged_steps(run / "tensorboard")
    rows = [
        {"size": options.size, "source": options.source, "step": step_at(row["at"], steps), **row} for row in observed
    ]
    if rows:
        result = {"watched": options.watched, "rows": rows, "partial": status == INTERRUPTED}
        write_json(results / f"{options.key}.json", result)
    elif status != INTERRUPTED:
        remedy = f"give it more than {options.steps} steps"
        raise BadInput("medddpm train", "it ended before anything was seen", remedy)
    return status


def _rows(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Makes the table of results (schema `ENDURANCE`), a file for each size and source."""
    return table_of(
        [{**row, **result["machine"]} for result in results for row in result["rows"]], schemas.ENDURANCE
    ), {}


def _describe(result: Mapping[str, Any]) -> str:
    last = result["rows"][-1]
    return f"step {last['step']} after {last['seconds']:.0f} s"


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the table at `out` into a machine's records; recorded rows of another size or source stay."""
    key = ("size", "source")
    return publishing.joined(out, folder, schemas.ENDURANCE, key, lambda table: table.sort_values([*key, "seconds"]))


def logged_steps(folder: Path) -> list[tuple[float, int]]:
    """Reads the Unix time at which each step was logged, in order; empty if none was."""
    if not folder.is_dir():  # it ended before its first step
        return []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    if "steps_per_second" not in events.Tags()["scalars"]:
        return []
    return [(event.wall_time, event.step) for event in events.Scalars("steps_per_second")]


def step_at(moment: float, steps: Sequence[tuple[float, int]]) -> int:
    """Returns the last step logged by a moment; 0 before the first."""
    place = bisect.bisect_right([when for when, _ in steps], moment)
    return steps[place - 1][1] if place else 0


def _watched(options: Options, run: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows of a training, and its exit status; 0 if it was ended after `options.seconds`.

    The status is `INTERRUPTED` if Ctrl-C or SIGTERM ended the training or this function.
    """
    began, rows = time.time(), list[dict[str, Any]]()
    process = subprocess.Popen(options.training(run), close_fds=False)  # it inherits the lock, as in `programs.run`
    try:
        with _card(pick_device(options.device)) as card:
            while time.time() < began + options.seconds:
                row = _row(process, card, options.every)
                if process.poll() is not None:
                    return rows, process.returncode
                at = time.time()
                rows.append({"at": at, "seconds": round(at - began, 2), **row, "date": now()})
        process.terminate()  # it saves, and ends
        process.wait()
        return rows, 0
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return rows, INTERRUPTED
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _row(process: subprocess.Popen[bytes], card: tuple[Any, Any] | None, every: float) -> dict[str, Any]:
    busy = list[int]()
    until = time.monotonic() + every
    while time.monotonic() < until and process.poll() is None:
        time.sleep(min(READ_EVERY, every))
        if card is not None:
            library, handle = card
            busy.append(library.nvmlDeviceGetUtilizationRates(handle).gpu)
    on_card = None if card is None else card[0].nvmlDeviceGetMemoryInfo(card[1]).used / MIB
    return {
        "busy_pct": round(sum(busy) / len(busy), 2) if busy else None,
        "host_mib": round(memory_of(process.pid) / MIB, 2),
        "card_mib": None if on_card is None else round(on_card, 2),
    }


def memory_of(pid: int) -> int:
    """Returns the bytes of memory that a process and its children hold; shared memory is counted once."""
    taken = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                memory = process.memory_full_info()
                taken += getattr(memory, "pss", memory.uss)  # Linux tells the proportional share
    return taken


@contextlib.contextmanager
def _card(device: torch.device) -> Iterator[tuple[Any, Any] | None]:
    """Opens NVML, with its handle of the device's card; None on a CPU."""
    if device.type != "cuda":
        yield None
        return
    with nvml(torch.cuda.get_device_properties(device).uuid) as opened:
        yield opened


if __name__ == "__main__":
    end(main())
