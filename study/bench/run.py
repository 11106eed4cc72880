"""Starts the processes of `python -m study bench`: a row is one network under one setting, in a process of its own."""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import rows_folder
from medddpm.measure.tables import check_table, found_at
from medddpm.runtime.signals import ended_by_sigterm
from study.bench import ceilings
from study.bench.fits import check_fits
from study.bench.networks import NETWORKS
from study.bench.results import CEILINGS_TABLE, Results
from study.bench.settings import BASE, BY_SLUG, SAMPLED, BenchSetting, default_settings
from study.bench.worker import MEASURES, Case


@dataclass(frozen=True)
class Job:
    """One process: a row of the bench.

    Args:
        case: what is computed.
        setting: how the network runs.
        measures: what is timed, out of `MEASURES`; where empty, only BASE's output and gradient are saved.
    """

    case: Case
    setting: BenchSetting
    measures: tuple[str, ...]

    @property
    def title(self) -> str:
        """The row's name in progress lines and messages."""
        return f"{self.case.network} {self.setting.name}"


@dataclass(frozen=True)
class Options:
    """How every row of a call is measured.

    Args:
        samples: how often a forward pass or a step is timed, at least.
        again: whether existing results are measured anew.
        seconds: the time after which a row is given up.
        device: "auto", "cuda" or "cpu".
        rounds: how often each row is measured, one row after another; its samples are those of all rounds.
    """

    samples: int = 20
    again: bool = False
    seconds: int = 1800
    device: str = "auto"
    rounds: int = 1


def plan(
    networks: Sequence[str],
    settings: Sequence[str] | None = None,
    measures: Sequence[str] = MEASURES,
    *,
    ladder: bool = False,
    opponents: bool = False,
    all_samples: bool = False,
    side: int | None = None,
    batch: int | None = None,
    channels: int = 64,
) -> list[Job]:
    """The rows in the order they are measured.

    Args:
        networks: names out of `bench.networks.NETWORKS`.
        settings: slugs out of `bench.settings.BY_SLUG`; by default those of `bench.settings.default_settings`.
        measures: out of `MEASURES`. Only med-ddpm draws samples.
        ladder, opponents: which settings our networks are measured under; see `bench.settings.default_settings`.
        all_samples: whether every setting draws the 250-step sample; by default those of `bench.settings.SAMPLED`.
        side, batch: the volumes' side in voxels and their number; by default each network's own.
        channels: base width.
    """
    jobs = []
    for name in networks:
        network = NETWORKS[name]
        case = Case(name, side or network.side, batch or network.batch, channels)
        chosen = (
            default_settings(network, ladder, opponents) if settings is None else [BY_SLUG[slug] for slug in settings]
        )
        for setting in chosen:
            draws = name == "med-ddpm" and (all_samples or settings is not None or setting.name in SAMPLED)
            taken = tuple(m for m in MEASURES if m in measures and (m != "sample" or draws))
            if taken:
                jobs.append(Job(case, setting, taken))
    return jobs


def measure_rows(
    jobs: Sequence[Job], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False
) -> int:
    """Measures each missing row, prints a line for it and writes the table after it.

    A row exists when the same card, driver, cuDNN, PyTorch and commit have measured it: the table holds no other.

    Args:
        jobs: see `plan`.
        out: the table, NAME.csv; NAME.meta.json, ceilings.csv and the folder NAME.rows are written beside it.
        options: how every row is measured.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of rows that failed; stderr names each, and the others are measured all the same.

    Raises:
        BadInput: the table cannot be written or has rows of another base width, another process measures there, a
            network takes no such volumes, or nothing was measured.
    """
    folder = rows_folder(out)
    if dry_run:
        for job in jobs:
            print(shlex.join(row_command(job, options, folder, "python")))
        return 0
    for written in (out, out.with_name(CEILINGS_TABLE)):  # before the folder of the rows is made
        check_table(written)
    store = Results(out, machine_meta(command, options.device))
    store.check()
    store.check_width({job.case.channels for job in jobs})
    check_fits((job.case.network, job.case.side, job.case.channels) for job in jobs)
    with store.alone(), ended_by_sigterm():
        _ceilings(store, options)
        for turn in range(1, options.rounds + 1):
            told = f", round {turn} of {options.rounds}" if options.rounds > 1 else ""
            for place, job in enumerate(jobs, 1):
                try:
                    _row(store, job, options, f"[{place}/{len(jobs)}] {job.title}{told}", turn)
                finally:
                    store.collect()
        table = store.collect()
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{found_at(out)}: {len(table)} rows", flush=True)
    return len(store.failed)


def row_command(job: Job, options: Options, folder: Path, python: str = sys.executable) -> list[str]:
    """The command of a row's process."""
    words: dict[str, object] = {
        "network": job.case.network, "setting": job.setting.slug, "measure": ",".join(job.measures),
        "side": job.case.side, "batch": job.case.batch, "channels": job.case.channels, "samples": options.samples,
        "device": options.device, "folder": folder,
    }  # fmt: skip
    given = {name: value for name, value in words.items() if value != ""}
    return [python, "-m", "study.bench.worker", *programs.options(given)]


def _row(store: Results, job: Job, options: Options, label: str, turn: int) -> None:
    """Measures what a row lacks of this round, after BASE's output and gradient; a failure is one line on stderr."""
    results = {measure: job.case.result(store.folder, job.setting, measure) for measure in job.measures}
    anew = options.again and turn == 1
    before = {m: {} if anew else store.read(path) or {} for m, path in results.items()}
    missing = [measure for measure, found in before.items() if _rounds(found) < turn]
    if not missing:
        print(f"{label}: there already", flush=True)
        return
    print(f"{label} … ", end="", flush=True)
    has_reference = store.has_reference(job.case)  # BASE too: its process would keep another run's
    if job.setting != BASE and not has_reference:
        print("BASE's output and gradient first … ", end="", flush=True)
        if problem := _process(store, Job(job.case, BASE, ()), options):
            print("failed", flush=True)
            store.fail(f"{job.case.network} BASE", f"without it there are no distances: {problem}")
            print(f"{label} … ", end="", flush=True)
        store.stamp_reference(job.case)
    for measure in missing:
        if not before[measure]:
            results[measure].unlink(missing_ok=True)
    began = time.monotonic()
    try:
        problem = _process(store, Job(job.case, job.setting, tuple(missing)), options)
    finally:  # what the process left counts, however it ended
        for measure in missing:
            if store.read(results[measure]) is None:  # not stamped yet
                store.stamp_row(job.case, job.setting, measure)
                _join(store, results[measure], before[measure])
        if job.setting == BASE:
            store.stamp_reference(job.case)
    store.stamp_failure(job.case, job.setting, problem)
    times = [_time(found) for path in results.values() if (found := store.read(path))]
    print(", ".join([*times, *(["failed"] if problem else []), f"{time.monotonic() - began:.0f} s"]), flush=True)
    if problem:
        store.fail(job.title, problem)


def _rounds(found: dict[str, Any]) -> int:
    """In how many rounds a result was measured; a result of before there were rounds in one."""
    return found.get("rounds", 1) if found else 0


def _join(store: Results, path: Path, before: dict[str, Any]) -> None:
    """Adds the samples of the rounds before to those of a result."""
    found = store.read(path)
    if found is not None and before:
        rows = [row | {"ms": old["ms"] + row["ms"]} for old, row in zip(before["rows"], found["rows"], strict=True)]
        store.write(path, found | {"rows": rows, "rounds": _rounds(before) + 1})


def _time(found: dict[str, Any]) -> str:
    first = found["rows"][0]
    return f"{first['measure']} {statistics.median(first['ms']):.4g} ms"


def _process(store: Results, job: Job, options: Options) -> str:
    """Runs a row's process; returns why it failed, or nothing."""
    return programs.problem(programs.run(row_command(job, options, store.folder), options.seconds))


def _ceilings(store: Results, options: Options) -> None:
    path = store.folder / ceilings.NAME
    if store.read(path) is not None and not options.again:
        return
    print("ceilings … ", end="", flush=True)
    began = time.monotonic()
    path.unlink(missing_ok=True)
    words = ["--folder", store.folder, "--samples", options.samples, "--device", options.device]
    command = [sys.executable, "-m", "study.bench.ceilings", *map(str, words)]
    if problem := programs.problem(programs.run(command, options.seconds)):
        print("failed", flush=True)
        store.fail("ceilings", problem)
        return
    store.stamp(path)
    values = [f"{row['ceiling']} {row['value']:.3g} {row['unit']}" for row in (store.read(path) or {})["rows"]]
    print(", ".join([*values, f"{time.monotonic() - began:.0f} s"]), flush=True)
