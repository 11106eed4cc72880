"""Signals before a command has begun and after it is done: one line and 130, or the code that stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.interruptible import interruptible
from helpers.repository import ROOT

MODULE = ["-m", "medddpm"]
SCRIPT = ["-c", "import sys; from medddpm.__main__ import run; sys.exit(run())"]
TRAIN = ["train", "--phantom", "1", "--steps", "1", "--out", "run"]
BLOCKED = """
import sys
print("importing", flush=True)
try:
    sys.stdin.read()
except BaseException:
    pass  # as an import may swallow KeyboardInterrupt
raise ImportError
"""


def blocked(
    folder: Path, module: str, start: list[str], ignored: signal.Signals | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Starts a training that stops amid the import of `module`, and waits until it is there."""
    (folder / f"{module}.py").write_text(BLOCKED)

    def as_started() -> None:
        interruptible()
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    process = subprocess.Popen(
        [sys.executable, *start, *TRAIN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=as_started,
    )  # fmt: skip
    assert process.stdout.readline() == "importing\n"
    return process


@pytest.mark.parametrize(
    ("start", "number", "module"),
    [
        (MODULE, signal.SIGINT, "argparse"),
        (MODULE, signal.SIGINT, "torch"),
        (MODULE, signal.SIGHUP, "torch"),
        (SCRIPT, signal.SIGTERM, "argparse"),
        (SCRIPT, signal.SIGTERM, "torch"),
    ],
)
def test_a_signal_amid_the_imports_ends_it_by_one_line(
    tmp_path: Path, start: list[str], number: signal.Signals, module: str
) -> None:
    process = blocked(tmp_path, module, start)
    process.send_signal(number)
    said = process.communicate(timeout=60)
    assert (process.returncode, *said) == (130, "", "medddpm: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_of_torchruns_processes_the_first_alone_says_so(tmp_path: Path) -> None:
    process = blocked(tmp_path, "torch", MODULE, RANK="1", WORLD_SIZE="2")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)
    assert (process.returncode, *said) == (130, "", "")


def test_under_nohup_a_closed_terminal_is_nothing(tmp_path: Path) -> None:
    process = blocked(tmp_path, "torch", MODULE, signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate("", timeout=60)
    assert "interrupted" not in said
    assert process.returncode == 1  # the import's error


def test_in_the_background_of_a_script_sigint_is_heeded(tmp_path: Path) -> None:
    """Though the shell has it ignored."""
    process = blocked(tmp_path, "torch", MODULE, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "medddpm: interrupted\n")
    assert process.returncode == 130


def test_the_installed_script_starts_as_the_tests_do() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"medddpm": "medddpm.__main__:run"}


LATE = """
import atexit, os, signal
from medddpm.runtime.exits import end, end_when_told
end_when_told()

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGINT, signal.SIGTERM)):
        for number in numbers:
            kill(pid, number)

late = Late()  # goes when Python has restored its own handling of signals
{before}
end(3)
"""


@pytest.mark.parametrize("before", ["", "atexit.register(os.kill, os.getpid(), signal.SIGTERM)"])
def test_once_all_is_done_the_exit_code_stands(before: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LATE.format(before=before)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")
