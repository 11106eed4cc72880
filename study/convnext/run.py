"""Starts the processes of `python -m study convnext`: one for each part of the measurement, and one under ncu."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.measure import ncu, programs
from medddpm.measure.machine import machine_meta
from medddpm.runtime.files import replacing
from medddpm.runtime.processes import pick_device
from medddpm.runtime.signals import ended_by_sigterm
from study.convnext.counted import METRICS
from study.convnext.results import COUNTERS, PAGE, Results
from study.convnext.training import cifar
from study.convnext.worker import PARTS as MEASURED
from study.convnext.worker import check_part, in_order
from study.records.publishing import copied

PARTS = (*MEASURED, COUNTERS)


@dataclass(frozen=True)
class Options:
    """How every part of a call is measured.

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
        options: how.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of parts that failed; stderr names each.

    Raises:
        BadInput: a part cannot be measured here or kept, which is known first; another process measures there; or
            nothing was measured.
    """
    if dry_run:
        for part in parts:
            print(shlex.join(_command(part, out, options, "python")))
        return 0
    store = Results(out, machine_meta(command, options.device))
    _check([part for part in parts if options.again or store.read(store.part(part)) is None], store, options)
    with store.alone(), ended_by_sigterm():
        for part in parts:
            _part(store, part, options)
        written = store.collect()
    if not written:
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{out}: {', '.join(path.name for path in written)}", flush=True)
    return len(store.failed)


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the tables of `out` and their descriptions into a machine's records; returns the copies."""
    return copied(sorted(out.glob("convnext_*.csv*")), folder)


def _command(part: str, out: Path, options: Options, python: str = sys.executable) -> list[str]:
    words = ["--part", "kernels" if part == COUNTERS else part, "--folder", str(out), "--device", options.device]
    if part == COUNTERS:
        words.append("--mark")
    if part == "training":
        words += ["--steps", str(options.steps), *(["--data", str(options.data)] if options.data else [])]
    return [python, "-m", "study.convnext.worker", *words, *(["--toy"] if options.toy else [])]


def _check(parts: Sequence[str], store: Results, options: Options) -> None:
    """Checks, before any work, that parts can be measured here and that nobody else's file is in their place."""
    device = pick_device(options.device)
    for part in parts:
        check_part(part, device, options.toy)
    if COUNTERS in parts:
        ncu.find()
    if "training" in parts and options.data:
        cifar(options.data)
    store.check(parts)


def _part(store: Results, part: str, options: Options) -> None:
    if store.read(store.part(part)) is not None and not options.again:
        print(f"{part}: there already", flush=True)
        return
    print(f"{part} … ", end="", flush=True)
    began = time.monotonic()
    store.part(part).unlink(missing_ok=True)
    problem = _count(store, options) if part == COUNTERS else _process(store, part, options)
    print(f"{'failed, ' if problem else ''}{time.monotonic() - began:.0f} s", flush=True)
    if problem:
        store.fail(part, problem)


def _process(store: Results, part: str, options: Options) -> str:
    problem = programs.problem(programs.run(_command(part, store.folder, options), options.seconds), "free some memory")
    store.stamp(store.part(part))
    return problem


def _count(store: Results, options: Options) -> str:
    """Has ncu count the launches of every version; returns why it could not, or nothing."""
    wanted = ncu.Collection(
        "ncu",
        _command(COUNTERS, store.folder, options),
        ["--profile-from-start", "off", "--metrics", ",".join(METRICS), "--force-overwrite"],
    )
    try:
        text = wanted.text(options.seconds)
        with replacing(store.folder / PAGE) as temporary:
            temporary.write_text(text, encoding="utf-8")
        store.keep_counters(store.folder / PAGE, in_order(options.toy, pick_device(options.device)))
    except BadInput as error:
        return str(error)
    return ""
