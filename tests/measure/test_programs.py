"""Programs run to their end, what they said, and what NVML says of a machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from medddpm.errors import BadInput
from medddpm.measure import programs
from medddpm.measure.machine import machine_meta
from medddpm.measure.profile import ncu
from medddpm.measure.store import Store
from medddpm.runtime import locks


def python(code: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    return programs.run([sys.executable, "-c", code], seconds)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('well')", ""),
        ("import sys; print('first'); print(' no room \\n', file=sys.stderr); sys.exit(3)", "no room"),
        ("import sys; sys.exit(3)", "ended with 3"),
    ],
)
def test_a_program_that_fails_says_why_in_its_last_words(code: str, why: str) -> None:
    assert programs.problem(python(code)) == why


KILLED = "killed by signal 9, SIGKILL (out of memory?); use a smaller --size"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('a notice', flush=True); os.kill(os.getpid(), 9)", KILLED),
        ("print('a notice'); sys.exit(128 + 9)", KILLED),
        ("print('no room', flush=True); os.abort()", "killed by signal 6, SIGABRT; its last words: no room"),
        ("os.kill(os.getpid(), 11)", "killed by signal 11, SIGSEGV"),
        ("print('its own code'); sys.exit(200)", "its own code"),
    ],
)
def test_a_program_that_a_signal_ended_is_not_explained_by_a_notice_before_it(code: str, why: str) -> None:
    assert programs.problem(python(f"import os, sys; {code}")) == why


def test_what_takes_no_size_is_told_another_remedy() -> None:
    done = subprocess.CompletedProcess([], -9, "a notice")
    assert programs.problem(done, "free some memory") == KILLED.replace("use a smaller --size", "free some memory")
    assert ncu.problem(done) == KILLED.partition(";")[0]


def test_a_program_that_takes_too_long_is_killed() -> None:
    done = python("import time; time.sleep(60)", 0.2)
    assert done.returncode == programs.TIMED_OUT
    assert programs.problem(done) == "it took more than 0.2 s"


LEAVES = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("seconds", ["0", "60"], ids=["ended", "killed"])
def test_no_process_of_a_program_outlives_its_run(tmp_path: Path, seconds: str) -> None:
    """As ncu leaves the program that it profiles, in a session of its own."""
    programs.run([sys.executable, "-c", LEAVES, str(tmp_path / "pid"), seconds], 3)
    state = Path("/proc", (tmp_path / "pid").read_text(), "status")
    for _ in range(50):  # a killed process ends soon, not at once
        if not state.exists() or "zombie" in state.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"{state.parent} still runs")


MEASURES = """
import os, sys
from pathlib import Path
from medddpm.measure import programs
from medddpm.measure.store import Store
with Store(Path(sys.argv[1]), {}).alone():
    programs.run(sys.argv[2:])
"""
ROW = "import os, pathlib, time; pathlib.Path('pid.new').write_text(str(os.getpid())); os.rename('pid.new', 'pid'); "


def killed(folder: Path, *command: str) -> int:
    """Kills what measures in a folder by `command`, which runs on and left its number in the file pid; returns that."""
    process = subprocess.Popen([sys.executable, "-c", MEASURES, folder, *command], cwd=folder)
    until = time.monotonic() + 60
    while not (folder / "pid").exists():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    return int((folder / "pid").read_text())


@pytest.mark.parametrize("through", [[], ["sh", "-c", '"$@" & wait', "sh"]], ids=["itself", "as by ncu"])
def test_a_row_that_outlives_a_killed_bench_is_named(tmp_path: Path, through: list[str], monkeypatch) -> None:
    row = killed(tmp_path, *through, sys.executable, "-c", f"{ROW}time.sleep(600)")
    monkeypatch.setattr(locks, "ORPHANS", 0.2)
    parent = int(Path(f"/proc/{row}/stat").read_text().split()[3])
    try:
        with pytest.raises(BadInput) as told, Store(tmp_path, {}).alone():
            pass
        named = int(re.fullmatch(r".*: process (\d+) is measuring there; wait for it.*", str(told.value))[1])
        assert named == row or (through and named == parent)
    finally:
        os.kill(row, signal.SIGKILL)


def test_a_row_that_ends_soon_after_a_killed_bench_is_waited_for(tmp_path: Path) -> None:
    killed(tmp_path, sys.executable, "-c", f"{ROW}time.sleep(1); pathlib.Path('done').touch()")
    assert not (tmp_path / "done").exists()
    with Store(tmp_path, {}).alone():
        assert (tmp_path / "done").exists()


def test_what_a_program_prints_is_known_only_if_it_succeeds() -> None:
    assert programs.output(sys.executable, "-c", "import sys; print(' a '); print('b', file=sys.stderr)") == "a"
    assert programs.output(sys.executable, "-c", "import sys; print('a'); sys.exit(1)") is None
    assert programs.output(sys.executable, "-c", "import time; time.sleep(60)", seconds=0.2) is None
    assert programs.output("no-such-program") is None


def test_a_program_beside_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(programs, "CUDA", str(tmp_path / "cuda"))
    assert programs.find("ncu") is None
    tool = tmp_path / "cuda" / "ncu"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Version 2025.3.1.0 (build 1)'\n")
    tool.chmod(0o755)
    assert programs.find("ncu") == str(tool)
    assert machine_meta()["ncu"] == "2025.3.1.0"


class NVMLError(Exception):
    """As pynvml's own."""


def driver(**answers: object) -> types.SimpleNamespace:
    """What `machine_meta` asks of pynvml; `answers` replace single functions."""
    known = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "580.1", "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVMLError": NVMLError,
        "nvmlDeviceGetMaxClockInfo": lambda _, clock: {1: 1980, 2: 3201}[clock],
    }  # fmt: skip
    return types.SimpleNamespace(**(known | answers))


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.mark.parametrize(
    ("library", "told"),
    [
        (driver(), ("580.1", 1980, 3201)),
        (driver(nvmlDeviceGetMaxClockInfo=refuse), ("580.1", None, None)),
        (driver(nvmlInit=refuse), (None, None, None)),
        (None, (None, None, None)),
    ],
    ids=["whole", "no clocks", "no driver", "no library"],
)
def test_the_driver_tells_its_version_and_clocks(library: object, told: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    meta = machine_meta(["medddpm"])
    assert (meta["driver"], meta["max_sm_mhz"], meta["max_memory_mhz"]) == told
    assert meta["gpu"] == "NVIDIA H200"
