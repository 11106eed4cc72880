"""The progress that a run shows, and its log, also where that cannot be written."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from medddpm.errors import BadInput
from medddpm.training.reports import progress
from medddpm.training.run_folder import save

WEIGHTS = {"a": torch.ones(2)}

SCRIPT = """
import resource, sys
from pathlib import Path
from medddpm.training.reports.progress import Report
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # a limit on the size of a file stands for the disk
with Report(Path(sys.argv[1]), "x", 0, 500, shown=False, logged=True) as report:
    for step in range(1, 501):
        report.losses([0.5], step)
print("to the end")
"""


def test_a_log_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert ended.stdout == "to the end\n"
    assert ended.stderr.count("the training goes on without its log") == 1
    assert "Traceback" not in ended.stderr
    assert "tensorboard" in ended.stderr


@pytest.mark.parametrize(("name", "problem"), [("run", "file exists"), ("\udcff", "its name is not in UTF-8")])
def test_a_log_that_cannot_be_begun_costs_no_training(tmp_path: Path, caplog, name: str, problem: str) -> None:
    (tmp_path / name).mkdir()
    if name == "run":
        (tmp_path / name / "tensorboard").touch()
    with progress.Report(tmp_path / name, "x", 0, 9, shown=False, logged=True) as report:
        report.losses([0.5], 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f"tensorboard: {problem}; the training goes on without its log")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that `progress` reads; a test moves them."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("quiet_on_a_terminal", [False, True])
def test_without_a_bar_there_is_a_line_a_minute(
    tmp_path: Path, clock: list[float], quiet_on_a_terminal: bool, monkeypatch, capsys, caplog
) -> None:
    """120 steps of 4 volumes, one a second from step 10 on."""
    caplog.set_level("INFO", "medddpm")
    if quiet_on_a_terminal:
        monkeypatch.setattr(sys, "stderr", Terminal())
    how = {"shown": True, "bar": not quiet_on_a_terminal, "logged": False}
    with progress.Report(tmp_path, "FAST", 10, 130, 4, **how) as report:
        for step in range(11, 131):
            clock[0] += 1
            report.losses([0.5], step)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "FAST: step 70 of 130, 1 steps/s, 4 volumes/s, 01:00 left, loss 0.5000",
        "FAST: step 130 of 130, 1 steps/s, 4 volumes/s, 00:00 left, loss 0.5000",
    ]
    said = sys.stderr.getvalue() if quiet_on_a_terminal else capsys.readouterr().err
    assert "step/s" not in said


def test_a_terminal_shows_both_rates_and_the_time_left(tmp_path: Path, monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Report(tmp_path, "FAST", 0, 1000, 2, shown=True, logged=False) as report:
        report.losses([0.5], 1)
        report._bar.refresh()
    shown = terminal.getvalue().split("\r")[-2 if terminal.getvalue().endswith("\r") else -1]
    assert re.search(r"FAST: +0%\|.*\| 1/1000 \[\d\d:\d\d<[\d:?]+, .*step/s, .*volume/s, loss=0\.5000\]", shown)


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_is_said_when_nothing_is_to_be(tmp_path: Path, clock: list[float], shown: bool, caplog) -> None:
    caplog.set_level("INFO", "medddpm")
    with progress.Report(tmp_path, "FAST", 0, 10, shown=shown, logged=False) as report:
        clock[0] += progress.EVERY if shown else 0
        clock[0] += -1 if shown else 600
        report.losses([0.5], 1)
    assert caplog.records == []


def test_a_loss_that_is_no_number_says_which_checkpoint_is_kept_if_one_is(tmp_path: Path) -> None:
    with progress.Report(tmp_path, "x", 0, 9, shown=False, logged=False) as report:
        with pytest.raises(BadInput, match=r"no longer a number at step 3; .*; no checkpoint was written yet$"):
            report.losses([float("nan")], 3)
        save(tmp_path, {"step": 3, "model": WEIGHTS, "ema": WEIGHTS}, keep=1)
        with pytest.raises(BadInput, match=r"; the last checkpoint is kept: step-0000003\.pt$"):
            report.losses([float("nan")], 4)
