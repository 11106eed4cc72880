"""Runs `worker` under Nsight Compute in two views: the paper's window of launches, and a whole step."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from medddpm.errors import BadInput
from medddpm.measure import programs, schemas
from medddpm.measure.lease import LeftForLater, time_left
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import counters, ncu
from medddpm.measure.profile.ncu_csv import launches_in
from medddpm.measure.profile.records import UNFINISHED, is_finished
from medddpm.measure.profile.windows import PAPERS_START, WINDOW
from medddpm.measure.tables import check_table, meta_path, read_table, write_meta
from medddpm.runtime.files import write_gzipped
from medddpm.runtime.locks import locked

ESTIMATING = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "SchedulerStats", "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables",
)  # fmt: skip
"""The sections of ncu's full set whose rules give the largest estimates. A whole step under all sections takes more
than ten minutes on an H200; the sections left out decided 2 of the 100 launches of BASE's window."""
PROGRAM = ("-m", "medddpm.measure.profile.worker")
REMEDY = "see `medddpm profile --dry-run` for the command, and try it by hand"


@dataclass(frozen=True)
class Program:
    """The options of the profiled program, `medddpm.measure.profile.worker`. The defaults are the published network.

    Args:
        size, channels: the volume's side and the network's base width.
        accumulation: micro-steps of an optimizer step.
        warmup: steps before the profiled one.
        convert_on: "gpu" or "cpu", where the weights are put into the setting's layout.
        window_start: launches that the window view passes over.
        device: "auto", "cuda" or "cpu".
        cache_control: "all": ncu flushes the GPU's caches before each pass over a launch, so that every launch begins
            cold; "none": it does not. If a launch takes several passes, the caches then hold, from the second pass on,
            data of the pass before and of ncu's saving and restoring of memory, not of the launch before.
        torch: the PyTorch that it runs under, as "2.2.2"; empty for this process's own.
    """

    size: int = 128
    channels: int = 64
    accumulation: int = 1
    warmup: int = 3
    convert_on: str = "gpu"
    window_start: int = PAPERS_START
    device: str = "auto"
    cache_control: str = "all"
    torch: str = ""


PUBLISHED = Program()


@dataclass(frozen=True)
class ProfileRun:
    """One run of the program, under ncu or under the plain trace that weights the step view; it yields one table.

    Args:
        setting: BASE, OPT1, OPT2, OPT12 or FAST.
        view: "window" or "step".
        number: of the repetition, from 1.
        kind: "raw" (the metrics), "details" (ncu's rules, with their estimated speedups) or "trace" (every launch in
            order: of the step; of a window, from the program's first on, two steps long).
        program: its options.
    """

    setting: str
    view: str
    number: int
    kind: str
    program: Program = PUBLISHED

    @property
    def name(self) -> str:
        """The name of its files; another window than the paper's, another preparation or PyTorch show in it."""
        view = self.view
        if view == "window" and self.program.window_start != PAPERS_START:
            view += f"-{self.program.window_start}"
        if self.program.convert_on == "cpu":
            view += "-cpu"
        if self.program.cache_control != "all":
            view += f"-cache-{self.program.cache_control}"
        if self.program.torch:
            view += f"-torch-{self.program.torch.replace('.', '-')}"
        return f"{self.setting.lower()}_{view}_run{self.number}_{self.kind}"

    @property
    def table(self) -> str:
        """The name of its table; the description stands beside it, at `tables.meta_path`."""
        return f"{self.name}.csv.gz"

    def lines(self, out: Path) -> list[str]:
        """Returns the commands that write the same table to `out` on a machine with a GPU."""
        if self.kind == "trace":
            return [shlex.join(trace_command(self, out / self.table))]
        collected, report = collection(self), out / f"{self.name}.ncu-rep"
        export, table = shlex.join(collected.export_command(report)), shlex.quote(str(out / self.table))
        return [shlex.join(collected.collect_command(report)), f"{export} | c++filt | gzip -9n > {table}"]


def plan(
    settings: Iterable[str],
    views: Iterable[str],
    repeat: int = 1,
    details: bool = False,
    program: Program = PUBLISHED,
    first: int = 1,
) -> list[ProfileRun]:
    """Lists all runs in order. A repetition follows all settings of the one before, so that runs show the drift.

    Args:
        settings, views: the profiled ones, each setting in each view.
        repeat: how often.
        details: whether ncu's rules are exported too.
        program: its options. Of windows only the paper's brings a trace, which holds the launches of any other.
        first: the number of the first repetition.
    """
    return [
        ProfileRun(setting, view, number, kind, program)
        for number in range(first, first + repeat)
        for setting in settings
        for view in views
        for kind in _kinds(view, details, program)
    ]


def _kinds(view: str, details: bool, program: Program) -> list[str]:
    papers = (program.window_start, program.convert_on, program.cache_control) == (PAPERS_START, "gpu", "all")
    traced = view == "step" or papers
    return ["raw", *(["details"] if details else []), *(["trace"] if traced else [])]


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the program.

    Args:
        path: of its executable.
        versions: `machine.software` there, if it is not this process's own; a run's description names them.
        folder: holds the subject for a Python that may lack the libraries to make it.
    """

    path: str = sys.executable
    versions: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    @property
    def torch(self) -> str:
        """The release of its PyTorch, as "2.2.2"; empty for this process's own."""
        release = re.match(r"[\d.]+", str(self.versions.get("torch", "")))
        return release[0] if release else ""


OWN, TYPED = Interpreter(), Interpreter("python")  # this process's, and as a reader types it


def interpreter(path: str) -> Interpreter:
    """Finds another Python than this process's, as of an environment with another PyTorch.

    Raises:
        BadInput: it does not start, or cannot run the program.
    """
    remedy = "give the Python of an environment with torch, nibabel, safetensors and tqdm that finds medddpm"
    problem = "it is no Python that runs the profiled program"
    try:
        done = programs.run([path, *PROGRAM, "--about"])
        if not done.returncode:
            versions = json.loads(programs.last_words(done.stdout))  # an old PyTorch may warn before
            return Interpreter(path, {name: versions[name] for name in ("cuda", "cudnn", "torch", "triton", "python")})
        problem = f"it cannot run the profiled program ({programs.problem(done, 'free some memory')})"
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise BadInput(path, problem, remedy)


def profile(runs: Sequence[ProfileRun], out: Path, *, python: Interpreter = OWN, dry_run: bool = False) -> int:
    """Carries out every run whose table `out` lacks, and prints a line for each.

    Args:
        runs: see `plan`.
        out: the folder of NAME.csv.gz and NAME.meta.json.
        python: runs the program; `Program.torch` names its PyTorch.
        dry_run: prints the commands and runs nothing. The commands leave the same tables, without the descriptions
            that `profiles.adopt` needs; `medddpm parse` reads such tables.

    Returns:
        the number of failed runs; stderr names each.

    Raises:
        CannotMeasure: there is no GPU or ncu here, or its counters are closed.
        LeftForLater: as `medddpm.measure.harness.run`.
        BadInput: the folder cannot be written, a table that this command did not write stands where one is to go,
            another process measures there, or the network takes no such volumes.
    """
    if dry_run:
        commands = [["mkdir", "-p", str(out)], *prepare_commands(runs)]
        print("\n".join([*map(shlex.join, commands), *(line for run in runs for line in run.lines(out))]))
        return 0
    if any(run.program.device != "cpu" for run in runs):
        ncu.need_gpu("profile")
    ncu.find()
    from medddpm.measure.published import check_cube  # and with it torch, which a dry run can do without

    for program in dict.fromkeys(run.program for run in runs):
        check_cube(program.size, program.channels)
    for run in runs:
        if not _is_there(run, out):
            check_table(out / run.table)
    alone = locked(out, out, "measuring", "wait for it, or choose another --out")
    with alone, tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        for command in prepare_commands(runs, replace(OWN, folder=Path(folder))):
            if problem := programs.problem(programs.run(command)):
                raise BadInput("profile", f"the subject cannot be prepared ({problem})", REMEDY)
        return _profile_all(runs, out, replace(python, folder=Path(folder)))


def collection(run: ProfileRun, python: Interpreter = TYPED) -> ncu.Collection:
    """Returns ncu's collection of a run that brings metrics or rules."""
    # ncu's own default is "all"
    caches = ("--cache-control", run.program.cache_control) if run.program.cache_control != "all" else ()
    window = ("--launch-skip", str(run.program.window_start), "--launch-count", str(WINDOW))
    if run.kind == "raw":
        counted = ["--metrics", ",".join(counters.COLLECTED)]
    elif run.view == "window":
        counted = ["--set", "full"]
    else:
        counted = [word for section in ESTIMATING for word in ("--section", section)]
    return ncu.Collection(
        run.name,
        program_command(run, python),
        [*ncu.EVERY_PROCESS, *caches, *(window if run.view == "window" else ncu.DISTINCT_LAUNCHES), *counted],
        page=run.kind,
        shown=["--print-metric-instances", "details"] if run.kind == "raw" else [],
        nvtx=True,
        remedy=REMEDY,
    )


def trace_command(run: ProfileRun, path: Path, python: Interpreter = TYPED) -> list[str]:
    """Returns the command that writes a run's plain trace to `path`."""
    return [*program_command(run, python), "--trace", str(path)]


def prepare_commands(runs: Sequence[ProfileRun], python: Interpreter = TYPED) -> list[list[str]]:
    """Returns the commands that write the subjects that runs under another PyTorch read."""
    sizes = sorted({run.program.size for run in runs if run.program.torch})
    return [
        [python.path, *PROGRAM, "--prepare", str(subject_file(size, python)), "--size", str(size)] for size in sizes
    ]


def subject_file(size: int, python: Interpreter) -> Path:
    """Returns the file in which a Python finds the subject of a size."""
    return python.folder / f"subject_{size}.pt"


def program_command(run: ProfileRun, python: Interpreter = TYPED) -> list[str]:
    """Returns the command of the program for a run."""
    program = run.program
    options: dict[str, object] = {
        "setting": run.setting.lower(), "view": run.view, "size": program.size, "channels": program.channels,
        "accumulation": program.accumulation, "convert-on": program.convert_on, "device": program.device,
    }  # fmt: skip
    if run.view == "window":
        options["steps"] = 2 + program.window_start // 500  # the published network launches more than 500 a step
    else:
        options["warmup"] = program.warmup
    if program.torch:
        options["subject"] = subject_file(program.size, python)
    return [python.path, *PROGRAM, *programs.options(options)]


def _is_there(run: ProfileRun, out: Path) -> bool:
    return is_finished(out / run.table, run.lines(Path()))


def _profile_all(runs: Sequence[ProfileRun], out: Path, python: Interpreter) -> int:
    failed = late = 0
    longest = 0.0  # s that a run has taken: one of a lent machine's last seconds would be lost
    for place, run in enumerate(runs, 1):
        label = f"[{place}/{len(runs)}] {run.name}"
        if _is_there(run, out):
            print(f"{label}: there already", flush=True)
            continue
        if (left := time_left()) < longest or not left:
            late += 1
            print(f"{label}: left for a later call", flush=True)
            continue
        print(f"{label} … ", end="", flush=True)
        try:
            launches, seconds = _profiled(run, out / run.table, python)
            print(f"{launches} launches, {seconds:.0f} s", flush=True)
            longest = max(longest, seconds)
        except ncu.CannotMeasure:
            print("not possible", flush=True)
            raise
        except BadInput as error:
            failed += 1
            print("failed", flush=True)
            print(f"medddpm: {error}", file=sys.stderr, flush=True)
    if late:
        raise LeftForLater(out, f"{late} of {len(runs)} profiles are left for a later call")
    return failed


def _profiled(run: ProfileRun, path: Path, python: Interpreter) -> tuple[int, float]:
    """Carries out one run and writes its table and description; returns the number of launches and the time, s."""
    began = time.monotonic()
    write_meta({"measurement": asdict(run), UNFINISHED: True}, path)  # killed from here on, it is ours all the same
    try:
        launches = (_traced if run.kind == "trace" else _counted)(run, path, python)
    except BadInput:
        if not path.is_file():
            meta_path(path).unlink()
        raise
    seconds = round(time.monotonic() - began, 1)
    commands = run.lines(Path())
    meta = {
        **machine_meta(shlex.split(commands[0])),
        **python.versions,
        "measurement": asdict(run),
        "launches": launches,
        "seconds": seconds,
        "commands": commands,
    }
    write_meta(meta, path)
    return launches, seconds


def _counted(run: ProfileRun, path: Path, python: Interpreter) -> int:
    """Writes ncu's page of a new report to `path`; returns its number of launches."""
    from medddpm.measure.profile import trace  # and with it torch, which a dry run can do without

    text = collection(run, python).text()
    launches = launches_in(text)
    if run.view == "window" and launches != WINDOW:
        raise BadInput(run.name, f"ncu profiled {launches} launches of {WINDOW}", REMEDY)
    write_gzipped(trace.demangled(text).encode(), path)
    return launches


def _traced(run: ProfileRun, path: Path, python: Interpreter) -> int:
    """Writes the plain trace to `path`; returns its number of launches, fills and copies included."""
    if problem := programs.problem(programs.run(trace_command(run, path, python))):
        raise BadInput(run.name, problem, REMEDY)
    return len(read_table(path, schemas.TRACE))
