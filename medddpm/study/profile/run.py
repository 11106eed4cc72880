"""Profiles `worker` with Nsight Compute in two views: the paper's window of launches, and a whole step.

The options are those of the Nsight Compute CLI guide, docs.nvidia.com/nsight-compute/NsightComputeCli.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from medddpm.study.profile import counters
from medddpm.study.profile.ncu_csv import launches_in
from medddpm.study.records import schemas, tables
from medddpm.study.records.machine import machine_meta
from medddpm.study.records.tables import read_meta, read_table, write_gzipped

VIEWS = ("window", "step")
WINDOW_START, WINDOW_LAUNCHES = 10, 100  # the paper's
CUDA = "/usr/local/cuda/bin"
ESTIMATING = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "SchedulerStats", "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables",
)  # fmt: skip
"""Of ncu's full set the sections whose rules give the largest estimates. A whole step under all of them takes more than
ten minutes on an H200; those left out decided 2 of the 100 launches of BASE's window."""


class CountersClosed(BadInput):
    """The driver keeps the performance counters for administrators."""

    def __init__(self) -> None:
        super().__init__(
            "ncu",
            "the GPU's performance counters are closed (ERR_NVGPUCTRPERM)",
            "run as root, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0",
        )


@dataclass(frozen=True)
class Program:
    """How the profiled program is run; see `medddpm.study.profile.worker`. The defaults are the published network.

    Args:
        size, channels: the volume's side and the network's base width.
        accumulation: micro-steps of an optimizer step.
        warmup: steps before the marked one.
        convert_on: "gpu" or "cpu", where the weights are put into the setting's layout.
        window_start: launches that the window view passes over.
        device: "auto", "cuda" or "cpu".
    """

    size: int = 128
    channels: int = 64
    accumulation: int = 1
    warmup: int = 3
    convert_on: str = "gpu"
    window_start: int = WINDOW_START
    device: str = "auto"


PUBLISHED = Program()


@dataclass(frozen=True)
class Measurement:
    """One table to bring home: a run of ncu, or of the plain trace that weights the step view.

    Args:
        setting: BASE, OPT1, OPT2, OPT12 or FAST.
        view: "window" or "step".
        number: of the run, from 1.
        kind: "raw" (the metrics), "details" (ncu's rules, with their estimated speedups) or "trace" (every launch in
            order: of the step; of a window, from the run's first on, two steps long).
        program: what is profiled.
    """

    setting: str
    view: str
    number: int
    kind: str
    program: Program = PUBLISHED

    @property
    def name(self) -> str:
        """Of its files; a window other than the paper's, or prepared otherwise, says so."""
        view = self.view
        if view == "window" and self.program.window_start != WINDOW_START:
            view += f"-{self.program.window_start}"
        if self.program.convert_on == "cpu":
            view += "-cpu"
        return f"{self.setting.lower()}_{view}_run{self.number}_{self.kind}"

    @property
    def table(self) -> str:
        """The name of its file; its description stands beside it, as `tables.meta_path` has it."""
        return f"{self.name}.csv.gz"

    def lines(self, out: Path) -> list[str]:
        """What to type on a machine with a GPU to have the same table in `out`."""
        table = shlex.quote(str(out / self.table))
        if self.kind == "trace":
            return [shlex.join(trace_command(self, out / self.table))]
        report = out / f"{self.name}.ncu-rep"
        show = shlex.join(export_command(self, report))
        return [shlex.join(collect_command(self, report)), f"{show} | c++filt | gzip -9n > {table}"]


def plan(
    settings: Iterable[str],
    views: Iterable[str],
    repeat: int = 1,
    details: bool = False,
    program: Program = PUBLISHED,
    first: int = 1,
) -> list[Measurement]:
    """All measurements in order; a repetition begins when all settings are through, so that it meets the drift.

    Args:
        settings, views: of each run.
        repeat: how many runs.
        details: whether ncu's rules are wanted too.
        program: what is profiled. Only the paper's window brings a trace: it holds the launches of any other.
        first: the number of the first run.
    """
    return [
        Measurement(setting, view, number, kind, program)
        for number in range(first, first + repeat)
        for setting in settings
        for view in views
        for kind in _kinds(view, details, program)
    ]


def _kinds(view: str, details: bool, program: Program) -> list[str]:
    traced = view == "step" or (program.window_start, program.convert_on) == (WINDOW_START, "gpu")
    return ["raw", *(["details"] if details else []), *(["trace"] if traced else [])]


def profile(measurements: Sequence[Measurement], out: Path, *, dry_run: bool = False) -> int:
    """Makes every measurement that `out` does not hold already, a line each.

    Args:
        measurements: see `plan`.
        out: the folder of NAME.csv.gz and NAME.meta.json.
        dry_run: print the commands and run nothing.

    Returns:
        how many failed; each was named on stderr, and the rest went on.

    Raises:
        BadInput: where nothing can be measured here (no GPU, no ncu, closed counters); the commands are printed then.
    """
    lines = [line for m in measurements for line in m.lines(out)]
    if dry_run:
        print("\n".join(lines))
        return 0
    try:
        if any(m.program.device != "cpu" for m in measurements):
            _need_gpu()
        ncu = find_ncu()
        return _measure_all(measurements, out, ncu)
    except (CountersClosed, _CannotMeasure):
        print("These commands measure the same on a machine that can:")
        print("\n".join(lines))
        raise


def find_ncu() -> str:
    """The path of ncu.

    Raises:
        BadInput: where it is not installed.
    """
    found = shutil.which("ncu") or shutil.which("ncu", path=CUDA)
    if found is None:
        raise _CannotMeasure(
            "ncu", f"it is neither on the PATH nor in {CUDA}", "install NVIDIA Nsight Compute, or measure elsewhere"
        )
    return found


def collect_command(measurement: Measurement, report: Path, ncu: str = "ncu", python: str = "python") -> list[str]:
    """The command that profiles into `report`.

    The step view profiles each distinct launch once: replaying every launch of a step takes too long. A clock that ncu
    fixed would not be the one the program runs at.
    """
    if measurement.view == "window":
        chosen = ["--launch-skip", str(measurement.program.window_start), "--launch-count", str(WINDOW_LAUNCHES)]
    else:
        chosen = ["--profile-from-start", "off", "--filter-mode", "per-launch-config", "--launch-count", "1"]
    if measurement.kind == "raw":
        counted = ["--metrics", ",".join(counters.COLLECTED)]
    elif measurement.view == "window":
        counted = ["--set", "full"]
    else:
        counted = [word for section in ESTIMATING for word in ("--section", section)]
    return [
        ncu, *["--clock-control", "none"], *["--target-processes", "all"], "--nvtx", *["--import-source", "no"],
        *chosen, *counted, *["-o", str(report).removesuffix(".ncu-rep")], *program_command(measurement, python),
    ]  # fmt: skip


def export_command(measurement: Measurement, report: Path, ncu: str = "ncu", nvtx: bool = True) -> list[str]:
    """The command that prints `report` as CSV: unrounded base units, kernels by their mangled names."""
    page = ["--page", measurement.kind, "--csv", "--print-kernel-base", "mangled", "--print-units", "base"]
    instances = ["--print-metric-instances", "details"] if measurement.kind == "raw" else []
    return [ncu, "--import", str(report), *(["--nvtx"] if nvtx else []), *page, *instances]


def trace_command(measurement: Measurement, path: Path, python: str = "python") -> list[str]:
    """The command that writes the plain trace of the step to `path`."""
    return [*program_command(measurement, python), "--trace", str(path)]


def program_command(measurement: Measurement, python: str) -> list[str]:
    """The marked step, as this measurement needs it."""
    program = measurement.program
    view = {("step", "trace"): "trace", ("window", "trace"): "launches"}.get(
        (measurement.view, measurement.kind), measurement.view
    )
    options: dict[str, object] = {
        "switches": measurement.setting.lower(), "view": view, "size": program.size, "channels": program.channels,
        "accumulation": program.accumulation, "convert-on": program.convert_on, "device": program.device,
    }  # fmt: skip
    if view in ("window", "launches"):
        options["steps"] = 2 + program.window_start // 500  # the published network launches more than 500 a step
    else:
        options["warmup"] = program.warmup
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [python, "-m", "medddpm.study.profile.worker", *words]


def is_complete(measurement: Measurement, out: Path) -> bool:
    """Whether `out` holds it whole, made by the same commands; the description is written last."""
    try:
        meta = read_meta(out / measurement.table)
    except BadInput:
        return False
    return (out / measurement.table).is_file() and meta.get("commands") == measurement.lines(Path())


class _CannotMeasure(BadInput):
    """This machine lacks what profiling needs."""


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise _CannotMeasure(
            "profile", "PyTorch finds no NVIDIA GPU here", "measure on a machine with one; the records need none"
        )


def _measure_all(measurements: Sequence[Measurement], out: Path, ncu: str) -> int:
    failed = 0
    for place, measurement in enumerate(measurements, 1):
        label = f"[{place}/{len(measurements)}] {measurement.name}"
        if is_complete(measurement, out):
            print(f"{label}: there already", flush=True)
            continue
        print(f"{label} … ", end="", flush=True)
        try:
            launches, seconds = _measure(measurement, out, ncu)
            print(f"{launches} launches, {seconds:.0f} s", flush=True)
        except CountersClosed:
            print("not possible", flush=True)
            raise
        except BadInput as error:
            failed += 1
            print("failed", flush=True)
            print(f"medddpm: {error}", file=sys.stderr, flush=True)
    return failed


def _measure(measurement: Measurement, out: Path, ncu: str) -> tuple[int, float]:
    """Makes one, writes it and its description; returns its number of launches and the time it took, s."""
    from medddpm.study.profile import trace

    began = time.monotonic()
    path, meta_path = out / measurement.table, tables.meta_path(out / measurement.table)
    meta_path.unlink(missing_ok=True)  # killed from here on, it is not complete
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:  # a report is too large to keep
        if measurement.kind == "trace":
            launches = _trace(measurement, path)
        else:
            text = _counters(measurement, Path(folder) / "report.ncu-rep", ncu)
            launches = launches_in(text)
            if measurement.view == "window" and launches != WINDOW_LAUNCHES:
                raise _failure(measurement, f"ncu profiled {launches} launches of {WINDOW_LAUNCHES}")
            write_gzipped(trace.demangled(text).encode(), path)
    seconds = round(time.monotonic() - began, 1)
    described = machine_meta(shlex.split(measurement.lines(Path())[0]))
    meta = {
        **described,
        "ncu": described["ncu"] or _version(ncu),
        "measurement": asdict(measurement),
        "launches": launches,
        "seconds": seconds,
        "commands": measurement.lines(Path()),
    }
    with replacing(meta_path) as temporary:
        temporary.write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return launches, seconds


def _counters(measurement: Measurement, report: Path, ncu: str) -> str:
    """ncu's CSV of a new report."""
    said = _run(collect_command(measurement, report, ncu, sys.executable))
    if "ERR_NVGPUCTRPERM" in said.stdout:
        raise CountersClosed
    if said.returncode or not report.is_file():
        raise _failure(measurement, _complaint(said))
    # A report holds the NVTX ranges; not every ncu prints them from one.
    for nvtx in (True, False):
        shown = _run(export_command(measurement, report, ncu, nvtx))
        if shown.returncode == 0 and launches_in(shown.stdout):
            return shown.stdout
    raise _failure(measurement, _complaint(shown))


def _trace(measurement: Measurement, path: Path) -> int:
    """Has the plain trace written to `path`; returns its number of launches, fills and copies included."""
    said = _run(trace_command(measurement, path, sys.executable))
    if said.returncode:
        raise _failure(measurement, _complaint(said))
    return len(read_table(path, schemas.TRACE))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; what it says on both streams is in `stdout`."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    )


def _complaint(said: subprocess.CompletedProcess[str]) -> str:
    """Why a program failed, in its own words: ncu's first error, else the last line it printed."""
    lines = [line.strip() for line in said.stdout.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    words = errors[0] if errors else next(iter(lines[::-1]), "it said nothing")
    # That the program under ncu failed says nothing about why; its own last words stand before.
    if errors and "application returned an error" in words:
        words = next((line for line in lines[::-1] if not line.startswith("==")), words)
    return f"ended with {said.returncode}: {words}" if said.returncode else words


def _failure(measurement: Measurement, problem: str) -> BadInput:
    return BadInput(measurement.name, problem, "see `medddpm profile --dry-run` for the command, and try it by hand")


def _version(ncu: str) -> str | None:
    found = re.search(r"Version ([\d.]+)", _run([ncu, "--version"]).stdout)
    return found.group(1) if found else None
