"""The jobs of `python -m study scaling`: torchrun for each setting, network and number of GPUs, a row a job."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medddpm.errors import BadInput
from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store, Table, rows_folder
from study.bench.fits import check_fits
from study.records import schemas
from study.scaling.cases import GPUS, Case
from study.scaling.results import rows_of
from study.scaling.worker import FAILED

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node")
SIGNAL = re.compile(r"Signal (\d+) \(\w+\) received")  # by which torchrun says that a process was killed


@dataclass(frozen=True)
class Options:
    """The options of measuring, the same for every row.

    Args:
        samples: how often a row is timed at most.
        limit: seconds a row after which a launch is given up.
        device: "auto", "cuda" or "cpu".
        again: whether existing rows are measured anew.
    """

    samples: int = 20
    limit: int = 600
    device: str = "auto"
    again: bool = False


def present(gpus: Sequence[int] | None, device: str) -> list[int]:
    """Returns the numbers of GPUs to measure on: `gpus`, or by default those of `GPUS` that this machine has.

    On a CPU as many processes share its cores: by default 1 and 2.

    Raises:
        BadInput: this machine has fewer GPUs, or the device is one of several.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise BadInput("--device", "with --scaling each process takes a GPU of its own", "give auto, cuda or cpu")
    if device == "cpu" or not torch.cuda.is_available():
        return list(gpus or (1, 2))
    there = torch.cuda.device_count()
    if gpus and max(gpus) > there:
        raise BadInput("--gpus", f"there are {there} GPUs here", f"give numbers up to {there}")
    return list(gpus or (count for count in GPUS if count <= there))


def measure_cases(
    planned: Sequence[Sequence[Case]], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False
) -> int:
    """Measures each missing row and writes the table (schema `SCALING`) after each launch.

    Args:
        planned: the rows of each launch; see `study.scaling.cases.plan`.
        options: of measuring.
        out: the table, NAME.csv; NAME.meta.json and the folder NAME.rows are written beside it.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of rows that failed.

    Raises:
        BadInput: as `medddpm.measure.harness.run`; or a network takes no such volumes.
    """
    folder = rows_folder(out)
    jobs = [
        Job(
            key=case.key,
            title=case.title,
            command=launch_command(case, options, folder),
            need=Need.ALONE,
            word=case.word,
            limit=options.limit,
            describe=_describe,
            problem=_problem,
        )
        for cases in planned
        for case in cases
    ]
    if dry_run:
        return harness.show(jobs)
    check_fits((case.network, case.side, case.channels) for cases in planned for case in cases)
    store = Store(folder, machine_meta(command, options.device), [Table(out, schemas.SCALING, rows_of)])
    return harness.run(jobs, store, again=options.again, device=options.device)


def launch_command(place: Case, options: Options, folder: Path) -> tuple[str, ...]:
    """Returns a launch's command, whose rows share the network, setting and sizes of `place`; their words follow."""
    words = {
        "network": place.network, "setting": place.setting, "side": place.side, "channels": place.channels,
        "samples": options.samples, "device": options.device, "folder": folder,
    }  # fmt: skip
    worker_options = programs.options(words)
    return (sys.executable, "-m", *TORCHRUN, str(place.gpus), "-m", "study.scaling.worker", *worker_options, "--rows")


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """Explains a launch's failure by the line of the first process to fail, or the signal that ended it."""
    if not done.returncode:
        return ""
    lines = done.stdout.splitlines()
    said = next((line.split(FAILED, 1)[1] for line in lines if FAILED in line), "")
    signals = (int(match[1]) for line in lines if (match := SIGNAL.search(line)))
    if not said and (number := next(signals, 0)):
        return programs.reason(-number, "")  # the last words are torchrun's
    return said or programs.problem(done)


def _describe(result: dict[str, Any]) -> str:
    median = float(np.median(result["ms"]))
    alone = result.get("alone_ms")
    return f"{median:.4g} ms" + ("" if alone is None or result["case"]["gpus"] == 1 else f", alone {alone:.4g} ms")
