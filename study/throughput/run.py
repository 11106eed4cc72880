"""Starts the processes of `python -m study throughput`: a lever is a training in a process of its own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.measure import programs
from medddpm.measure.former_store import rows_folder
from medddpm.measure.launches import Launch, Row, measure
from medddpm.training.network import check_cube
from study.throughput.levers import BY_KEY, Lever
from study.throughput.results import Results


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
        levers: out of `study.throughput.levers.LEVERS`.
        options: how every lever is measured.
        out, command, dry_run: as for `medddpm.measure.launches.measure`, which says what is returned and raised.
    """
    if not dry_run:
        check_cube(options.side, options.channels)
    folder = rows_folder(out)
    launches = [
        Launch(
            [Row(lever.key, f"{lever.group}: {lever.choice}", lever.key)],
            lambda rows: lever_command(BY_KEY[rows[0].word], options, folder),
        )
        for lever in levers
    ]
    results = functools.partial(Results, place={"side": options.side, "channels": options.channels})
    return measure(
        launches, results, out, _told,
        command=command, device=options.device, limit=options.limit, again=options.again, dry_run=dry_run,
    )  # fmt: skip


def lever_command(lever: Lever, options: Options, folder: Path) -> list[str]:
    """The command of a lever's process."""
    words = {
        "lever": lever.key, "side": options.side, "channels": options.channels, "seconds": options.timed,
        "device": options.device, "folder": folder,
    }  # fmt: skip
    return [sys.executable, "-m", "study.throughput.worker", *programs.options(words)]


def _told(found: dict[str, Any]) -> str:
    return f"{found['volumes_a_second']:.4g} volumes/s"
