"""The ladder: one network and setting a row, each in a process of its own, gathered into one table of one run."""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.runtime.files import check_writable, replacing
from medddpm.runtime.processes import ended_by_sigterm
from medddpm.study.bench import ceilings
from medddpm.study.bench.networks import NETWORKS, TIMESTEPS
from medddpm.study.bench.results import BANDWIDTH, CEILINGS_TABLE, Results, rows_folder
from medddpm.study.bench.settings import BASE, BY_SLUG, SAMPLED, Rung, default_rungs
from medddpm.study.bench.worker import MEASURES, Case
from medddpm.study.profile import ncu, ncu_csv
from medddpm.study.records import programs
from medddpm.study.records.machine import machine_meta
from medddpm.study.records.tables import meta_path

DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")


@dataclass(frozen=True)
class Job:
    """One process: a row of the ladder.

    Args:
        case: what is computed.
        rung: under which setting.
        measures: what is timed, out of `MEASURES`; none makes only BASE's reference.
    """

    case: Case
    rung: Rung
    measures: tuple[str, ...]

    @property
    def title(self) -> str:
        """Of its progress line."""
        return f"{self.case.network} {self.rung.name}"


@dataclass(frozen=True)
class Options:
    """How every row of a call is measured.

    Args:
        samples: of a forward or a step.
        bandwidth: whether ncu counts DRAM bytes, in a process more for each row.
        again: whether what is there already is measured anew.
        seconds: a row that takes longer is given up.
        timesteps: of a full sample.
        device: "auto", "cuda" or "cpu".
    """

    samples: int = 20
    bandwidth: bool = False
    again: bool = False
    seconds: int = 420
    timesteps: int = TIMESTEPS
    device: str = "auto"


def plan(
    networks: Sequence[str],
    settings: Sequence[str] | None = None,
    measures: Sequence[str] = MEASURES,
    *,
    ladder: bool = False,
    all_samples: bool = False,
    side: int | None = None,
    batch: int | None = None,
    channels: int = 64,
) -> list[Job]:
    """The rows in the order they are measured.

    Args:
        networks: names out of `bench.networks.NETWORKS`.
        settings: slugs out of `bench.settings.BY_SLUG`; by default what `bench.settings.default_rungs` says.
        measures: out of `MEASURES`. Only our network at its published size draws samples.
        ladder: every rung of our network.
        all_samples: the 250-step sample of every setting; by default of `bench.settings.SAMPLED` alone.
        side, batch: of the volumes; by default each network's own.
        channels: base width.
    """
    jobs = []
    for name in networks:
        network = NETWORKS[name]
        case = Case(name, side or network.side, batch or network.batch, channels)
        chosen = default_rungs(network, ladder) if settings is None else [BY_SLUG[slug] for slug in settings]
        for rung in chosen:
            draws = name == "med-ddpm" and (all_samples or settings is not None or rung.name in SAMPLED)
            taken = tuple(m for m in MEASURES if m in measures and (m != "sample" or draws))
            if taken:
                jobs.append(Job(case, rung, taken))
    return jobs


def bench(jobs: Sequence[Job], out: Path, options: Options, *, command: Sequence[str], dry_run: bool = False) -> int:
    """Measures every row that is not there yet, a line each, and writes the table after each.

    A row is there when the same card, driver, cuDNN, PyTorch and commit have measured it: the table holds no other.

    Args:
        jobs: see `plan`.
        out: the table, NAME.csv; NAME.meta.json and ceilings.csv stand beside it, and the rows in NAME.rows.
        options: of every row.
        command: the command line, for the record.
        dry_run: print the commands and run nothing.

    Returns:
        how many rows failed; each was named on stderr, and the rest went on.
    """
    folder = rows_folder(out)
    if dry_run:
        for job in jobs:
            print(shlex.join(row_command(job, options, folder, "python")))
            if options.bandwidth and (counted := _counted(job)):
                print(shlex.join(collection(counted, options, folder).collect_command(folder / "report.ncu-rep")))
        return 0
    check_writable(out)
    folder.mkdir(parents=True, exist_ok=True)
    store = Results(out, machine_meta(command))
    with ended_by_sigterm():
        _ceilings(store, options)
        for place, job in enumerate(jobs, 1):
            _row(store, job, options, f"[{place}/{len(jobs)}] {job.title}")
            if options.bandwidth:
                _bandwidth(store, job, options)
            store.collect()
    table = store.collect()
    if not len(table):
        raise BadInput(out, "nothing was measured", "read the lines above")
    print(f"{out}: {len(table)} rows", flush=True)
    return len(store.failed)


def row_command(job: Job, options: Options, folder: Path, python: str = sys.executable) -> list[str]:
    """The command of a row's process."""
    words: dict[str, object] = {
        "network": job.case.network, "setting": job.rung.slug, "measure": ",".join(job.measures),
        "side": job.case.side, "batch": job.case.batch, "channels": job.case.channels, "samples": options.samples,
        "timesteps": options.timesteps, "device": options.device, "folder": folder,
    }  # fmt: skip
    given = [word for name, value in words.items() if value != "" for word in (f"--{name}", str(value))]
    return [python, "-m", "medddpm.study.bench.worker", *given]


def collection(job: Job, options: Options, folder: Path, python: str = "python") -> ncu.Collection:
    """What ncu is asked for: a row's DRAM bytes, a range a measure, in one pass, so that each is run only once."""
    program = [*row_command(job, options, folder, python), "--mark"]
    return ncu.Collection(
        "ncu", program, ["--replay-mode", "app-range", "--metrics", ",".join(DRAM), "--force-overwrite"]
    )


def publish(out: Path, folder: Path) -> list[Path]:
    """Copies the table at `out`, the ceilings beside it and their descriptions to a machine's records; returns them."""
    tables = [out, out.with_name(CEILINGS_TABLE)]
    copies = []
    for path in (file for table in tables for file in (table, meta_path(table))):
        with replacing(folder / path.name) as temporary:
            temporary.write_bytes(path.read_bytes())
        copies.append(folder / path.name)
    return copies


def _row(store: Results, job: Job, options: Options, label: str) -> None:
    """Measures what is missing of a row, what it is compared with before it; a failure is a line."""
    results = {measure: job.case.result(store.folder, job.rung, measure) for measure in job.measures}
    missing = [measure for measure, path in results.items() if options.again or store.read(path) is None]
    if not missing:
        print(f"{label}: there already", flush=True)
        return
    print(f"{label} … ", end="", flush=True)
    if job.rung != BASE and not store.has_reference(job.case):
        print("BASE's output and gradient first … ", end="", flush=True)
        if problem := _process(store, Job(job.case, BASE, ()), options):
            print("failed", flush=True)
            _fail(store, f"{job.case.network} BASE", f"without it there are no distances: {problem}")
            print(f"{label} … ", end="", flush=True)
        store.stamp_reference(job.case)
    for measure in missing:
        results[measure].unlink(missing_ok=True)
    began = time.monotonic()
    problem = _process(store, Job(job.case, job.rung, tuple(missing)), options)
    for measure in missing:
        store.stamp_row(job.case, job.rung, measure)
    if job.rung == BASE:
        store.stamp_reference(job.case)
    times = [_time(found) for path in results.values() if (found := store.read(path))]
    print(", ".join([*times, *(["failed"] if problem else []), f"{time.monotonic() - began:.0f} s"]), flush=True)
    if problem:
        _fail(store, job.title, problem)


def _time(found: dict[str, Any]) -> str:
    first = found["rows"][0]
    return f"{first['measure']} {statistics.median(first['ms']):.4g} ms"


def _process(store: Results, job: Job, options: Options) -> str:
    """Runs a row's process; returns why it failed, or nothing."""
    return programs.problem(programs.run(row_command(job, options, store.folder), options.seconds))


def _fail(store: Results, title: str, problem: str) -> None:
    store.failed[title] = problem
    print(f"medddpm: {title}: {problem}", file=sys.stderr, flush=True)


def _ceilings(store: Results, options: Options) -> None:
    path = store.folder / ceilings.NAME
    if store.read(path) is not None and not options.again:
        return
    print("ceilings … ", end="", flush=True)
    began = time.monotonic()
    path.unlink(missing_ok=True)
    words = ["--folder", store.folder, "--samples", options.samples, "--device", options.device]
    command = [sys.executable, "-m", "medddpm.study.bench.ceilings", *map(str, words)]
    if problem := programs.problem(programs.run(command, options.seconds)):
        print("failed", flush=True)
        _fail(store, "ceilings", problem)
        return
    store.stamp(path)
    values = [f"{row['ceiling']} {row['value']:.3g} {row['unit']}" for row in (store.read(path) or {})["rows"]]
    print(", ".join([*values, f"{time.monotonic() - began:.0f} s"]), flush=True)


# Bandwidth


def _counted(job: Job) -> Job | None:
    """The process that ncu watches for a row: its forward pass and its step."""
    measures = tuple(m for m in job.measures if m != "sample")
    return Job(job.case, job.rung, measures) if measures else None


def _bandwidth(store: Results, job: Job, options: Options) -> None:
    """Has ncu count a row's DRAM bytes; without them the row stands all the same."""
    counted, path = _counted(job), job.case.result(store.folder, job.rung, BANDWIDTH)
    kept = (store.read(path) or {}).get("bytes", {})
    if counted is None or job.title in store.failed or (not options.again and set(counted.measures) <= set(kept)):
        return
    began = time.monotonic()
    try:
        moved = _count(store, counted, options)
    except BadInput as error:
        print(f"medddpm: no bandwidth of {job.title}: {error}", file=sys.stderr, flush=True)
        return
    store.write(path, {"bytes": kept | moved})
    told = ", ".join(f"{measure} {count / 1e9:.3g} GB" for measure, count in moved.items())
    print(f"    DRAM: {told}, {time.monotonic() - began:.0f} s", flush=True)


def _count(store: Results, job: Job, options: Options) -> dict[str, float]:
    """DRAM bytes by measure.

    Raises:
        BadInput: ncu is missing, failed, or counted something else.
    """
    wanted = collection(job, options, store.folder, sys.executable)
    with tempfile.TemporaryDirectory(prefix="medddpm-") as name:
        page = Path(name) / "raw.csv"
        page.write_text(wanted.text(options.seconds), encoding="utf-8")
        opened = ncu_csv.open_page(page, "raw")
        if absent := [column for column in DRAM if column not in opened.header]:
            raise BadInput("ncu", f"it counted no {absent[0]}", wanted.remedy)
        cells = [row for batch in opened.batches(DRAM) for row in batch]
    counts = [float(sum(ncu_csv.numbers(list(row), "dram bytes", page))) for row in cells]
    if len(counts) != len(job.measures) or not all(count > 0 for count in counts):
        raise BadInput("ncu", f"it counted {len(counts)} ranges of {len(job.measures)}, or no bytes", wanted.remedy)
    return dict(zip(job.measures, counts, strict=True))
