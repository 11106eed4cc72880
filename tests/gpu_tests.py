"""`python -m gpu_tests`, which `make test-gpu` calls: runs every test marked `gpu`, and records how each ended.

The table goes to figures/records/<card>/gpu_tests.csv, that of a run on two GPUs to gpu_tests_2_gpus.csv. It is written
when all have run, whether they passed or not; a run cut short leaves the last one's. To run a part, without a record:
`python -m pytest -m gpu PATH`.

pytest is all it needs besides what the tests import: the options for notebooks and pictures are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.machine import gpu_folder_name, machine_meta
from medddpm.measure.tables import write_table
from study.records import gpu_tests, schemas

MARK = "pytest.mark.gpu"  # what a file with such a test has in it: the others are not even imported
OPTIONS = ["-m", "gpu", "-o", "addopts=", "--import-mode=importlib", "--strict-markers", "--strict-config"]
OPTIONS += ["--continue-on-collection-errors", "-p", "no:cacheprovider", "-ra"]


class Recorder:
    """A plugin of pytest that notes how each test ended, by the test's name: outcome, reason and seconds."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[str, str | None, float]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is one that failed."""
        if report.failed:
            self.ended[report.nodeid] = ("failed", f"{report.nodeid}, which cannot be imported", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call and teardown each report: the test failed where one of them did."""
        outcome, reason, seconds = self.ended.get(report.nodeid, ("passed", None, 0.0))
        if report.failed:
            outcome, reason = "failed", report.nodeid
        elif report.skipped:
            outcome, reason = "skipped", _skipped_for(report.longrepr)
        self.ended[report.nodeid] = outcome, reason, seconds + report.duration

    def table(self) -> pd.DataFrame:
        """A row for each file, outcome and reason, the files by name: `schemas.GPU_TESTS`."""
        # Processes that share the tests end them in any order.
        ended = sorted(self.ended.items(), key=lambda item: item[0].split("::")[0])
        rows = [(name.split("::")[0].removeprefix("tests/"), *end, 1) for name, end in ended]
        table = pd.DataFrame(rows, columns=["file", "outcome", "reason", "seconds", "tests"])
        groups = table.groupby(["file", "outcome", "reason"], sort=False, dropna=False)
        return groups[["tests", "seconds"]].sum().reset_index().round({"seconds": 2})


def record(root: Path, folder: Path, workers: int = 1) -> int:
    """Runs the tests marked `gpu` under `root`/tests and writes `folder`/gpu_tests.csv.

    Args:
        root: the repository's.
        folder: of the record.
        workers: processes that share the tests; they share the GPU too, and most of the time goes into compiling.

    Returns:
        0 if none failed.

    Raises:
        BadInput: the run was cut short, or no test is marked; nothing is written.
    """
    files = [str(path) for path in sorted((root / "tests").rglob("test_*.py")) if MARK in path.read_text()]
    if not files:
        raise BadInput(root / "tests", "no test there is marked gpu", "run it from the top of the repository")
    meta = machine_meta(["python", "-m", "gpu_tests"]) | {"pytest": pytest.__version__}
    meta |= {"gpus": torch.cuda.device_count(), "workers": workers}
    shared = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else ["-p", "no:xdist"]
    recorder, begun = Recorder(), time.monotonic()
    code = pytest.main([*OPTIONS, *shared, f"--rootdir={root}", f"--confcutdir={root / 'tests'}", *files], [recorder])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise BadInput(
            "make test-gpu",
            f"the run was cut short (pytest ended with {int(code)})",
            "run it again: nothing was recorded",
        )
    seconds = round(time.monotonic() - begun, 1)
    path = folder / gpu_tests.file_name(meta["gpus"])
    write_table(recorder.table(), path, schemas.GPU_TESTS, meta | {"seconds": seconds})
    print(f"recorded in {path}")
    return int(code)


def main() -> int:
    """The command: 1 where this machine has no GPU, or where a test failed."""
    top = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    top.add_argument("--out", type=Path, help="folder of the record (figures/records/<card>)")
    top.add_argument("--workers", type=int, default=1, help="processes that share the tests (1)")
    arguments = top.parse_args()
    try:
        if not torch.cuda.is_available():
            raise BadInput(
                "make test-gpu", "PyTorch finds no GPU here", "run it where there is one; nothing is recorded"
            )
        own = ROOT / "figures" / "records" / gpu_folder_name(torch.cuda.get_device_name())
        return record(ROOT, arguments.out or own, arguments.workers)
    except BadInput as problem:
        print(problem, file=sys.stderr)
        return 1


def _skipped_for(place: Any) -> str:
    """The reason in what a skipped test reports: (file, line, "Skipped: reason")."""
    said = place[2] if isinstance(place, tuple) else str(place)
    return said.removeprefix("Skipped: ") or "no reason given"


if __name__ == "__main__":
    sys.exit(main())
