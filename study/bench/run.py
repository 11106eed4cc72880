"""The jobs of `python -m study bench`: a program is one network under one setting, a job one measure of it."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.measure import harness, programs
from medddpm.measure.harness import Job, Need
from medddpm.measure.machine import machine_meta
from medddpm.measure.store import Store, check_beside, rows_folder
from medddpm.measure.tools import Tool
from study.bench import ceilings
from study.bench.fits import check_fits
from study.bench.networks import NETWORKS
from study.bench.results import check_width, tables
from study.bench.settings import BASE, BY_SLUG, SAMPLED, default_settings
from study.bench.worker import MEASURES, REFERENCE, Case

LARGEST_BESIDE = 128  # side of volumes; other programs wait beside steps up to this size
PREPARED = 3.0
"""GiB that a program holds at most before it goes. A choice: a process that has just begun takes one (two took 1.95 in
the H200's `endurance.csv`), and the largest network's weights, gradients and BF16 copies another."""


@dataclass(frozen=True)
class Row:
    """A network under a setting.

    Args:
        case: the network, its volumes and width.
        setting: the network's.
        measures: the timed ones, out of `MEASURES`.
    """

    case: Case
    setting: Tool
    measures: tuple[str, ...]

    @property
    def title(self) -> str:
        """The row's name in progress lines and messages."""
        return f"{self.case.network} {self.setting.name}"


@dataclass(frozen=True)
class Options:
    """The options of measuring, the same for every row of a call.

    Args:
        samples: how often a forward pass or a step is timed, at least.
        again: whether existing results are measured anew.
        seconds: the time after which a measure is given up.
        device: "auto", "cuda" or "cpu".
        rounds: how often each row is measured, in turn with the others; its samples are those of all rounds.
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
) -> list[Row]:
    """Returns the rows in the order they are measured.

    Args:
        networks: names out of `bench.networks.NETWORKS`.
        settings: slugs out of `bench.settings.BY_SLUG`; by default those of `bench.settings.default_settings`.
        measures: out of `MEASURES`. Only med-ddpm draws samples.
        ladder, opponents: which settings our networks are measured under; see `bench.settings.default_settings`.
        all_samples: whether every setting draws the 250-step sample; by default those of `bench.settings.SAMPLED`.
        side, batch: the volumes' side in voxels and their number; by default each network's own.
        channels: base width.
    """
    rows = []
    for name in networks:
        network = NETWORKS[name]
        case = Case(name, side or network.side, batch or network.batch, channels)
        chosen = (
            default_settings(network, ladder, opponents) if settings is None else [BY_SLUG[slug] for slug in settings]
        )
        for setting in chosen:
            draws = name == "med-ddpm" and (all_samples or settings is not None or setting.name in SAMPLED)
            taken = tuple(m for m in MEASURES if m in measures and (m != "sample" or draws))
            if setting.halved:
                taken = tuple(m for m in taken if m == "forward")
            if taken:
                rows.append(Row(case, setting, taken))
    return rows


def measure_rows(
    rows: Sequence[Row], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False
) -> int:
    """Measures the missing measures of each row, prints a line for each and writes the table after it.

    A row exists when the same card, driver, cuDNN, PyTorch and commit have measured it: the table holds no other.

    Args:
        rows: see `plan`.
        out: the table, NAME.csv; NAME.meta.json, ceilings.csv and the folder NAME.rows are written beside it.
        options: of measuring.
        command: the command line, for the record.
        dry_run: whether to print the commands and run nothing.

    Returns:
        the number of measures that failed; stderr names each, and the others are taken all the same.

    Raises:
        BadInput: the table cannot be written or has rows of another base width, another process measures there, a
            network takes no such volumes, or nothing was measured.
    """
    folder = rows_folder(out)
    of_case: dict[Case, list[Job]] = {}
    for row in rows:
        of_case.setdefault(row.case, []).extend(_job(row, measure, options, folder) for measure in row.measures)
    jobs = [_ceilings(options, folder)]
    for case, its_jobs in of_case.items():
        jobs += [*_references(case, options, folder), *its_jobs]
    if dry_run:
        return harness.show(jobs)
    store = Store(folder, machine_meta(command, options.device), tables(out))
    store.check()
    check_width(store, {row.case.channels for row in rows})
    check_fits((row.case.network, row.case.side, row.case.channels) for row in rows)
    with store.alone():
        for case, its_jobs in of_case.items():
            if options.again or any(store.lacks(job.key, n) for job in its_jobs for n in range(1, job.rounds + 1)):
                check_beside(store, case.reference_key)
        return harness.run(jobs, store, again=options.again, device=options.device)


def row_command(case: Case, setting: Tool, options: Options, folder: Path) -> tuple[str, ...]:
    """Returns the command of a row's program; the measures follow."""
    words: dict[str, object] = {
        "network": case.network, "setting": setting.slug, "side": case.side, "batch": case.batch,
        "channels": case.channels, "samples": options.samples, "device": options.device, "folder": folder,
    }  # fmt: skip
    filled_words = {name: value for name, value in words.items() if value != ""}
    return (sys.executable, "-m", "study.bench.worker", *programs.options(filled_words), "--measure")


def _job(row: Row, measure: str, options: Options, folder: Path) -> Job:
    return Job(
        key=row.case.result_key(row.setting, measure),
        title=f"{row.title} {measure}",
        command=row_command(row.case, row.setting, options, folder),
        need=Need.READY,
        word=measure,
        limit=options.seconds,
        gib=_gib(row.case),
        rounds=options.rounds,
        group=row.case.key,
        describe=_time,
    )


def _references(case: Case, options: Options, folder: Path) -> list[Job]:
    """Returns the job of BASE's output and gradient of a case, from which distances are measured."""
    return [
        Job(
            key=case.reference_key,
            title=f"{case.network} BASE, its output and gradient",
            command=row_command(case, BASE, options, folder),
            need=Need.READY,
            word=REFERENCE,
            limit=options.seconds,
            gib=_gib(case),
        )
    ]


def _gib(case: Case) -> float:
    """Returns a program's memory before it goes; infinite if its step may take more than half a card."""
    return PREPARED if max(NETWORKS[case.network].sides(case.side)) <= LARGEST_BESIDE else math.inf


def _ceilings(options: Options, folder: Path) -> Job:
    words = {"folder": folder, "samples": options.samples, "device": options.device}
    command = (sys.executable, "-m", "study.bench.ceilings", *programs.options(words))
    return Job(
        ceilings.KEY, "ceilings", command, Need.READY, limit=options.seconds, gib=PREPARED,
        describe=lambda result: ", ".join(
            f"{row['ceiling']} {row['value']:.3g} {row['unit']}" for row in result["ceilings"]
        ),
    )  # fmt: skip


def _time(result: dict[str, Any]) -> str:
    return f"{statistics.median(result['rows'][0]['ms']):.4g} ms"
