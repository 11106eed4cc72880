"""Starts the processes of `python -m study scaling`: torchrun for each setting, network and number of GPUs."""

from __future__ import annotations

import functools
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
from medddpm.measure import programs
from medddpm.measure.former_store import rows_folder
from medddpm.measure.launches import Launch, Row, measure
from study.bench.fits import check_fits
from study.scaling.cases import GPUS, Case
from study.scaling.results import Results
from study.scaling.worker import FAILED

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node")
SIGNAL = re.compile(r"Signal (\d+) \(\w+\) received")  # by which torchrun says that a process was killed


@dataclass(frozen=True)
class Options:
    """How every row is measured.

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
    """The numbers of GPUs to measure on: those asked for, or those of `GPUS` that this machine has.

    On a CPU as many processes share its cores: by default 1 and 2.

    Raises:
        BadInput: there are not so many GPUs, or the device is one of several.
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
        options: how every row is measured.
        out, command, dry_run: as for `medddpm.measure.launches.measure`, which says what is returned and raised.
    """
    if not dry_run:
        check_fits((case.network, case.side, case.channels) for cases in planned for case in cases)
    folder = rows_folder(out)
    launches = [
        Launch(
            [Row(case.key, case.title, case.word) for case in cases],
            functools.partial(launch_command, cases[0], options, folder),
            _problem,
        )
        for cases in planned
    ]
    return measure(
        launches, Results, out, _told,
        command=command, device=options.device, limit=options.limit, again=options.again, dry_run=dry_run,
    )  # fmt: skip


def launch_command(place: Case, options: Options, folder: Path, rows: Sequence[Row]) -> list[str]:
    """The command of a launch, all of whose rows share the place of one."""
    words = {
        "network": place.network, "setting": place.setting, "side": place.side, "channels": place.channels,
        "samples": options.samples, "device": options.device, "folder": folder,
    }  # fmt: skip
    given = programs.options(words)
    torchrun = [sys.executable, "-m", *TORCHRUN, str(place.gpus)]
    return [*torchrun, "-m", "study.scaling.worker", *given, "--rows", *(row.word for row in rows)]


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """Why a launch failed: what the first process to fail said, or the signal that ended it."""
    if not done.returncode:
        return ""
    lines = done.stdout.splitlines()
    said = next((line.split(FAILED, 1)[1] for line in lines if FAILED in line), "")
    signals = (int(found[1]) for line in lines if (found := SIGNAL.search(line)))
    if not said and (number := next(signals, 0)):
        return programs.reason(-number, "")  # the last words are torchrun's
    return said or programs.problem(done)


def _told(found: dict[str, Any]) -> str:
    median = float(np.median(found["ms"]))
    alone = found.get("alone_ms")
    return f"{median:.4g} ms" + ("" if alone is None or found["case"]["gpus"] == 1 else f", alone {alone:.4g} ms")
