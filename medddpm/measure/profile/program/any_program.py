"""Profiles a reader's own program as it is: a trace of one whole step, and ncu's page of the step's distinct launches.

The program runs twice, each time from its start, with the hooks of `hooked`; after the profiled step it is ended. It is
told nothing, and no file of it is edited.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.lease import LeftForLater, time_left
from medddpm.measure.machine import machine_meta, without_folders
from medddpm.measure.profile import counters, ncu
from medddpm.measure.profile.kernel_names import launch_keys
from medddpm.measure.profile.program.hooked_run import answer, run_program
from medddpm.measure.profile.program.observer import Order
from medddpm.measure.profile.records import UNFINISHED, is_finished
from medddpm.measure.profile.run import REMEDY
from medddpm.measure.schemas import TRACE
from medddpm.measure.store import digest
from medddpm.measure.tables import check_table, meta_path, read_meta, read_table, write_meta
from medddpm.runtime.files import write_gzipped
from medddpm.runtime.locks import locked
from medddpm.runtime.signals import ended_by_sigterm

LABEL, VIEW = "own", "step"  # in the names of the tables
CUT_SHORT = "counted_seconds"  # in a description: the seconds after which ncu profiled no further launch
PROFILING = "==PROF== Profiling"  # of the line that ncu prints for a launch
INJECTED = Path(__file__).parent / "inject"


@dataclass(frozen=True)
class AnyProgram:
    """A program to profile.

    Args:
        words: its command.
        name: for a reader; empty for its command.
        identity: sums of its files by name, which tell whether it changed.
        warmup: steps before the first that is timed.
        nvtx: name of its NVTX range that is a step; empty without one.
        to_the_end: whether it runs on after the profiled step.
        loads: whether its steps wait for batches, so that their loading time says something.
    """

    words: tuple[str, ...]
    name: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    warmup: int = 3
    nvtx: str = ""
    to_the_end: bool = False
    loads: bool = True


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program, which yields one table.

    Args:
        program: the program.
        number: of the repetition, from 1.
        kind: "trace", every launch of one step in order, or "raw", ncu's page of its distinct launches.
        seconds: after so long ncu profiles no further launch.
    """

    program: AnyProgram
    number: int
    kind: str
    seconds: float = math.inf

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{LABEL}_{VIEW}_run{self.number}_{self.kind}"

    def path(self, out: Path) -> Path:
        """Returns the file of its table; the description stands beside it, at `tables.meta_path`."""
        return out / f"{self.name}.csv.gz"

    def order(self, folder: Path) -> Order:
        """Returns what is wanted of the program."""
        kind = "trace" if self.kind == "trace" else "counters"
        program = self.program
        return Order(folder, kind, program.warmup, program.to_the_end, program.nvtx, self.seconds)

    def command(self, folder: Path) -> list[str]:
        """Returns the program's command with the environment that loads the hooks, whose answers go to `folder`."""
        from medddpm.measure.profile.program import hooked  # and with it torch

        paths = [str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])]
        told = {"PYTHONPATH": os.pathsep.join(paths), **hooked.environment(self.order(folder))}
        return ["env", *(f"{name}={value}" for name, value in told.items()), *self.program.words]

    def collection(self, folder: Path, graphs: bool = False) -> ncu.Collection:
        """Returns ncu's collection of the step.

        Args:
            folder: of the program's answers.
            graphs: whether the step has CUDA graphs, whose launches are then profiled one by one.
        """
        nodes = ("--graph-profiling", "node") if graphs else ()
        metrics = ("--metrics", ",".join(counters.COLLECTED))
        return ncu.Collection(
            self.name,
            self.command(folder),
            [*ncu.EVERY_PROCESS, *nodes, *ncu.DISTINCT_LAUNCHES, *metrics],
            shown=["--print-metric-instances", "details"],
            nvtx=True,
            remedy=REMEDY,
        )

    def is_there(self, out: Path) -> bool:
        """Returns whether the table of the same program, unchanged, is finished.

        Counters that `seconds` cut short do not count where there are more seconds now.
        """
        table = self.path(out)
        if not is_finished(table) or (known := read_meta(table)).get("measurement") != self.measurement():
            return False
        return self.kind == "trace" or self.seconds <= known["program"].get(CUT_SHORT, math.inf)

    def measurement(self) -> dict[str, Any]:
        """Returns what is written of it into the description, as JSON reads it: no folder of this machine is in it."""
        program = {**asdict(self.program), "words": without_folders(self.program.words)}
        return {"label": LABEL, "view": VIEW, "number": self.number, "kind": self.kind, "program": program}


def any_program(words: Sequence[str], **options: Any) -> AnyProgram:
    """Returns the program of a command line.

    Args:
        words: the command.
        options: further arguments of `AnyProgram`.

    Raises:
        BadInput: there is no such program.
    """
    if not shutil.which(words[0]):
        raise BadInput(words[0], "there is no such program", "give the whole command after --, as: -- python train.py")
    files = [Path(word) for word in words if word.endswith(".py") and os.path.isfile(word)]
    sums = {path.name: digest(path) for path in files}
    return AnyProgram(tuple(words), identity=sums, **options)


def step_program(file: Any, tool: str, **options: Any) -> AnyProgram:
    """Returns the program that makes the steps of a reader's file.

    Args:
        file: a `step_file.StepFile`.
        tool: name of one in `tools.COMPARED`; "pytorch" is the step as it is.
        options: further arguments of `AnyProgram`.
    """
    steps = Order(Path(), "trace", options.get("warmup", AnyProgram.warmup)).steps + 1
    given = programs.options({"file": file.path, "function": file.function, "tool": tool, "steps": steps})
    words = (sys.executable, "-m", "medddpm.measure.profile.program.step_worker", *given)
    name = str(file) if tool == "pytorch" else f"{file}, {tool}"
    return AnyProgram(words, name, {**file.identity(), "tool": tool}, loads=False, **options)


def profile(
    program: AnyProgram,
    out: Path,
    *,
    numbers: Sequence[int] = (1,),
    with_counters: bool = True,
    seconds: float = math.inf,
    dry_run: bool = False,
) -> int:
    """Traces a step of the program and, where counters are open, profiles it; prints a line for each.

    Args:
        program: the program.
        out: the folder of NAME.csv.gz and NAME.meta.json.
        numbers: of the repetitions.
        with_counters: whether ncu profiles too. Where it cannot, a line says why, and the traces are all.
        seconds: that ncu has for a step's launches; the counters of those that it has profiled by then are kept.
        dry_run: prints the commands and runs nothing.

    Returns:
        the number of failed runs; stderr names each.

    Raises:
        CannotMeasure: there is no GPU here.
        LeftForLater: as `medddpm.measure.harness.run`.
        BadInput: the folder cannot be written, or the program did not make the steps that are needed.
    """
    kinds = ("trace", "raw") if with_counters else ("trace",)
    runs = [ProgramRun(program, number, kind, seconds) for number in numbers for kind in kinds]
    if dry_run:
        for run in runs:
            print(shlex.join(["mkdir", "-p", str(out / run.name)]))
            command = run.command(out / run.name)
            if run.kind == "raw":
                command = run.collection(out / run.name).collect_command(out / f"{run.name}.ncu-rep")
            print(shlex.join(command))
        return 0
    ncu.need_gpu("profile")
    for run in runs:
        if not run.is_there(out):
            check_table(run.path(out))
    failed, longest, closed = 0, 0.0, False
    with locked(out, out, "measuring", "wait for it, or choose another --out"), ended_by_sigterm():
        for place, run in enumerate(runs, 1):
            label = f"[{place}/{len(runs)}] {run.name}"
            if run.is_there(out):
                print(f"{label}: there already", flush=True)
                continue
            if closed and run.kind == "raw":
                continue
            if (left := time_left()) < longest or not left:
                raise LeftForLater(out, f"{len(runs) - place + 1} of {len(runs)} profiles are left for a later call")
            print(f"{label} … ", end="", flush=True)
            began = time.monotonic()
            try:
                said = _measured(run, out)
                # A terminal's line has shown how many launches are profiled, and is empty now.
                print(f"\r{label} … {said}" if sys.stderr.isatty() else said, flush=True)
            except ncu.CannotMeasure as error:
                print("not possible", flush=True)
                print(f"The trace is all: times, families, phases and idle time, but no counters. {error}", flush=True)
                closed = True
            except BadInput as error:
                print("failed", flush=True)
                if run.kind == "trace":
                    raise
                failed += 1
                print(f"medddpm: {error}", file=sys.stderr, flush=True)
            longest = max(longest, time.monotonic() - began)
    return failed


def _measured(run: ProgramRun, out: Path) -> str:
    """Carries out one run, and writes its table and description; returns lines that say what it gave."""
    path, began = run.path(out), time.monotonic()
    meta: dict[str, Any] = {"measurement": run.measurement()}
    write_meta({**meta, UNFINISHED: True}, path)  # killed from here on, it is ours all the same
    try:
        launches, known, lines = (_traced if run.kind == "trace" else _counted)(run, out)
    except BadInput:
        if not path.is_file():
            meta_path(path).unlink()
        raise
    seconds = round(time.monotonic() - began, 1)
    machine = machine_meta(["medddpm", "profile", "--", *run.program.words])
    known["name"] = run.program.name or without_folders(run.program.words)
    write_meta({**machine, **meta, "launches": launches, "seconds": seconds, "program": known}, path)
    return "\n".join([f"{launches} launches, {seconds:.0f} s", *lines])


def _traced(run: ProgramRun, out: Path) -> tuple[int, dict[str, Any], list[str]]:
    """Traces the step; returns the number of its launches, what is known of the program, and lines about it."""
    from medddpm.measure.profile import trace
    from medddpm.measure.profile.program.program_trace import described, read_program_trace

    with tempfile.TemporaryDirectory(prefix="medddpm-") as name:
        folder = Path(name)
        order = run.order(folder)
        status = answer(order, run_program(run.command(folder), order), run.name)
        traced = read_program_trace(folder / "trace.json", run.name)
        processes = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    if not run.program.loads:
        status["loading_ms"] = None
    trace.write(traced.steps[-1], run.path(out))
    return (len(traced.steps[-1]), *described(traced, status, processes))


def _counted(run: ProgramRun, out: Path) -> tuple[int, dict[str, Any], list[str]]:
    """Profiles the step; returns the number of profiled launches, what the trace tells of the program, and lines."""
    from medddpm.measure.profile import trace
    from medddpm.measure.profile.ncu_csv import launches_in
    from medddpm.measure.profile.parse import parse

    traced = ProgramRun(run.program, run.number, "trace").path(out)
    known = dict(read_meta(traced)["program"])
    if known["processes"] > 1:
        problem = f"{known['processes']} processes make its step and wait for each other, and ncu holds them up"
        raise ncu.CannotMeasure(run.name, problem, "profile it as one process: of torchrun, --nproc-per-node 1")
    distinct = launch_keys(read_table(traced, TRACE).dropna(subset="grid")).nunique()  # ncu profiles no copies
    with tempfile.TemporaryDirectory(prefix="medddpm-") as name:
        folder = Path(name)

        def collect(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
            with tqdm(total=distinct, desc=run.name, unit=" launches", disable=None, leave=False) as bar:
                done = run_program(command, run.order(folder), lambda text: bar.update(text.count(PROFILING)))
            if "==ERROR==" not in done.stdout:
                answer(run.order(folder), done, run.name)
            return done

        text = run.collection(folder, known["graphs"]).text(partial=True, collect=collect)
    write_gzipped(trace.demangled(text).encode(), run.path(out))
    counted = launches_in(text)
    try:
        lines = [str(parse(run.path(out), LABEL.upper(), VIEW, trace=traced))]
    except BadInput as error:
        lines = [f"note: {error}"]
    if counted < distinct and math.isfinite(run.seconds):
        known[CUT_SHORT] = run.seconds
        done = f"ncu profiled {counted} of {distinct} distinct launches in {run.seconds:g} s"
        lines.append(f"note: {done}, the first of the step; give more --seconds for the others")
    return counted, known, lines
