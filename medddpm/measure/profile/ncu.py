"""Runs a program under Nsight Compute (ncu), exports one page of the report, and explains failures.

The options are those of the Nsight Compute CLI guide, docs.nvidia.com/nsight-compute/NsightComputeCli.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.profile.ncu_csv import CLOSED, NO_KERNELS, OPEN_COUNTERS, launches_in

EVERY_PROCESS = ("--target-processes", "all")
DISTINCT_LAUNCHES = (
    *("--profile-from-start", "off", "--filter-mode", "per-launch-config", "--launch-count", "1"),
    *("--kernel-name-base", "mangled"),
)
"""The first launch of each kernel, grid and block between the program's marks: replaying every launch of a step takes
too long. By its default ncu tells kernels apart by the function's bare name and takes one launch for all instances of a
template: 230 instead of 353 of OPT12's step."""


class CannotMeasure(BadInput):
    """This machine lacks what profiling needs."""


class CountersClosed(CannotMeasure):
    """The driver keeps the performance counters for administrators."""

    def __init__(self) -> None:
        super().__init__("ncu", f"the GPU's performance counters are closed ({CLOSED})", OPEN_COUNTERS)


@dataclass(frozen=True)
class Collection:
    """One run of a program under ncu, and the exported page of its report.

    Args:
        name: of the run, in a failure's message.
        program: the profiled command.
        options: ncu's, which choose the launches and the metrics.
        page: "raw" (the metrics) or "details" (the rules, with their estimated speedups).
        shown: further options of the export.
        nvtx: whether the report and the page hold the program's NVTX ranges.
        remedy: advice to the reader if the run fails.
    """

    name: str
    program: Sequence[str]
    options: Sequence[str]
    page: str = "raw"
    shown: Sequence[str] = ()
    nvtx: bool = False
    remedy: str = "try the command of --dry-run by hand"

    def collect_command(self, report: Path, ncu: str = "ncu") -> list[str]:
        """Returns the command that profiles into `report`, at the clock that the program runs at."""
        return [
            ncu, *["--clock-control", "none"], *["--import-source", "no"], *(["--nvtx"] if self.nvtx else []),
            *self.options, *["-o", str(report).removesuffix(".ncu-rep")], *self.program,
        ]  # fmt: skip

    def export_command(self, report: Path, ncu: str = "ncu", nvtx: bool | None = None) -> list[str]:
        """Returns the command that prints `report` as CSV: unrounded base units, kernels by their mangled names."""
        ranges = ["--nvtx"] if (self.nvtx if nvtx is None else nvtx) else []
        page = ["--page", self.page, "--csv", "--print-kernel-base", "mangled", "--print-units", "base"]
        return [ncu, "--import", str(report), *ranges, *page, *self.shown]

    def text(
        self,
        seconds: float | None = None,
        partial: bool = False,
        collect: Callable[[Sequence[str]], subprocess.CompletedProcess[str]] | None = None,
    ) -> str:
        """Profiles the program and returns the page as ncu prints it: CSV among lines of its log.

        Args:
            seconds: a program that takes longer is killed.
            partial: whether a report counts that a failing program left.
            collect: runs the command that profiles; `programs.run` without it.

        Raises:
            CannotMeasure: there is no ncu here, or the counters are closed.
            BadInput: ncu or the program failed; quotes its message.
        """
        ncu = find()
        with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:  # a report is too large to keep
            report = Path(folder) / "report.ncu-rep"
            command = self.collect_command(report, ncu)
            done = collect(command) if collect else programs.run(command, seconds)
            if CLOSED in done.stdout:
                raise CountersClosed
            if not report.is_file() or (done.returncode and not partial):
                raise BadInput(self.name, problem(done), self.remedy)
            # A report holds the NVTX ranges; not every ncu prints them from one.
            for nvtx in (True, False) if self.nvtx else (False,):
                done = programs.run(self.export_command(report, ncu, nvtx), seconds)
                if done.returncode == 0 and launches_in(done.stdout):
                    return done.stdout
        raise BadInput(self.name, problem(done), self.remedy)


def find() -> str:
    """Returns the path of ncu.

    Raises:
        CannotMeasure: it is not installed.
    """
    if path := programs.find("ncu"):
        return path
    where = f"it is neither on the PATH nor in {programs.CUDA}"
    raise CannotMeasure("ncu", where, "install NVIDIA Nsight Compute, or run the same on a machine that has it")


def need_gpu(subject: str) -> None:
    """Checks that this machine has a GPU.

    Raises:
        CannotMeasure: it has none; `subject` begins the line.
    """
    import torch  # not for a dry run, which can do without

    if not torch.cuda.is_available():
        remedy = "run the same on a machine with one; the records need none"
        raise CannotMeasure(subject, "PyTorch finds no NVIDIA GPU here", remedy)


def problem(done: subprocess.CompletedProcess[str]) -> str:
    """Explains why ncu failed: the signal that ended it, its first error, that it saw no kernel, or its last line.

    If the program under ncu failed, its own last words explain it.
    """
    if how := programs.killed(done.returncode):
        return how
    lines = [line.strip() for line in done.stdout.splitlines()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    none = [line for line in lines if NO_KERNELS in line]
    words = next(iter([*errors, *none]), programs.last_words(done.stdout) or "it said nothing")
    if errors and "application returned an error" in words:
        words = programs.last_words("\n".join(line for line in lines if not line.startswith("=="))) or words
    return f"ended with {done.returncode}: {words}" if done.returncode else words
