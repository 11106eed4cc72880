"""Signals that wait for a step to end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from helpers.interruptible import interruptible

from medddpm.runtime import signals
from medddpm.runtime.signals import deferred_signals, ended_by_sigterm

SCRIPT = """
import sys, time
from medddpm.runtime.signals import deferred_signals
with deferred_signals() as stop:
    print("ready", flush=True)
    while not stop.is_set():
        time.sleep(0.01)
    print("seen", flush=True)
    time.sleep(float(sys.argv[1]))
print("saved", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one(number: signal.Signals) -> None:
    """As torchrun's processes get it: from their group and from torchrun."""
    process = started("3")
    os.kill(process.pid, number)
    assert process.stdout.readline() == "seen\n"
    os.kill(process.pid, number)
    assert process.communicate(timeout=60)[0] == "saved\n"
    assert process.returncode == 0


def test_a_closed_terminal_lets_it_save(tmp_path: Path) -> None:
    """Its later output would raise errors, and is discarded."""
    saved = tmp_path / "saved"
    script = f"{SCRIPT}\nprint('to nobody', file=sys.stderr, flush=True)\nopen({str(saved)!r}, 'w').close()\n"
    child, terminal = pty.fork()
    if child == 0:
        interruptible()
        os.execv(sys.executable, [sys.executable, "-c", script, "1"])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert saved.exists()


def test_under_nohup_a_closed_terminal_is_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_one_later_ends_it_at_once() -> None:
    process = started("600")
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "seen\n"
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == -signal.SIGTERM


AMID_AN_IMPORT = """
import sys
from medddpm.runtime.signals import ended_by_sigterm
sys.path.insert(0, sys.argv[1])
with ended_by_sigterm():
    import swallows
print("went on")
"""
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException:
    pass
"""


def test_amid_an_import_that_would_swallow_it_a_signal_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    command = [sys.executable, "-c", AMID_AN_IMPORT, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "medddpm: interrupted\n")


def test_a_name_imported_from_a_loaded_package_is_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of pyzmq, in a notebook's run: its clean-up, and the line that says how to go on, are not skipped."""
    package = ModuleType("loaded")
    package.__path__ = []

    def interrupted(name: str) -> None:
        if name != "name":
            raise AttributeError(name)
        signal.raise_signal(signal.SIGTERM)

    package.__getattr__ = interrupted  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "loaded", package)
    monkeypatch.setattr(signals, "_left", -signals.SAME_SIGNAL)
    monkeypatch.setattr(signals, "leave_at_once", lambda *_: pytest.fail("it left at once"))
    with ended_by_sigterm(), pytest.raises(KeyboardInterrupt):
        from loaded import name  # noqa: F401


def test_what_a_signal_sets_off_is_not_disturbed_by_the_same_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(signals, "_left", 0.0)
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with ended_by_sigterm(), ended_by_sigterm():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        now[0] += 1.5
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def started(seconds: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, seconds], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process
