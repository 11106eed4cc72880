"""Python processes without the seconds that each takes to import PyTorch: forks of one that has imported it."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import pytest

from medddpm.measure import programs

SLOW = (
    "nibabel", "nilearn.datasets", "pandas", "scipy.interpolate", "scipy.spatial.transform", "torch._dynamo",
    "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.tensorboard",
)  # fmt: skip
"""Imported once, by the server of which every process is a fork: in each anew they take longer than most scripts."""

MODULE = "import runpy, sys; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
"""Does what `python -m` does with the words that follow."""


FORKED = ("medddpm", "study", "torch.distributed.run")
as_it_is, started_as_it_is = programs.run, programs.start


def run(command: Sequence[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Does what `medddpm.measure.programs.run` does, but this Python's `-m` of a module of `FORKED` as a fork."""
    if list(command[:2]) != [sys.executable, "-m"] or not command[2].startswith(FORKED):
        return as_it_is(command, seconds)
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        process = start(MODULE, list(command[2:]), os.environ, printed, printed)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            return subprocess.CompletedProcess(command, programs.TIMED_OUT, f"it took more than {seconds:g} s")
        return subprocess.CompletedProcess(command, process.exitcode, printed.read_text(errors="replace"))


class Fork:
    """What `subprocess.Popen` is for a program, for a fork: as much of it as the harness uses."""

    def __init__(self, process: BaseProcess) -> None:
        self.process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> None:
        self.process.terminate()


class Here:
    """What `subprocess.Popen` is for a program, for one that has run to its end in this process."""

    def __init__(self, returncode: int) -> None:
        self.returncode, self.pid = returncode, os.getpid()

    def poll(self) -> int:
        return self.returncode


class Handed:
    """The number of an open file, which another process gets as its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(handed: Any) -> int:
    return int(handed.detach())


def started(command: Sequence[str], stdin: int, printed: IO[bytes], environment: Mapping[str, str]) -> Any:
    """Does what `medddpm.measure.programs.start` does, but this Python's `-m` of a module of `FORKED` as a fork."""
    if list(command[:2]) != [sys.executable, "-m"] or not command[2].startswith(FORKED):
        return started_as_it_is(command, stdin, printed, environment)
    out = Handed(printed.fileno())
    given = None if stdin == subprocess.DEVNULL else Handed(stdin)
    return Fork(start(MODULE, list(command[2:]), environment, out, out, given))


def start(
    script: str, words: list[str], environment: Mapping[str, str], out: Path | Handed, err: Path | Handed,
    given: Handed | None = None,
) -> BaseProcess:  # fmt: skip
    """Starts `python -c SCRIPT WORDS`, which prints to two files or one, as a fork of one that has imported `SLOW`.

    Nothing has been computed there, and no thread started, that a fork could lack.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(SLOW))
    process = context.Process(target=_run, args=(script, words, dict(environment), os.getcwd(), out, err, given))
    # A fork would load this process's main module too; a test may have left one there that cannot be loaded.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


@contextlib.contextmanager
def two_at_once(words: list[str], folder: Path) -> Iterator[tuple[BaseProcess, str, BaseProcess]]:
    """One command twice, of which one is to end: that one, all that it printed, and the one that goes on."""
    printed = [folder / name for name in ("one", "two")]
    both = [start(MODULE, words, os.environ, path, path) for path in printed]
    try:
        until = time.monotonic() + 120
        while all(process.is_alive() for process in both):
            assert time.monotonic() < until, "both go on"
            time.sleep(0.05)
        (ended, said), (going, _) = sorted(zip(both, printed, strict=True), key=lambda each: each[0].is_alive())
        yield ended, said.read_text(), going
    finally:
        for process in both:
            process.terminate()
        for process in both:
            process.join()


def _run(
    script: str, words: list[str], environment: dict[str, str], folder: str, out: Path | int, err: Path | int,
    given: int | None,
) -> None:  # fmt: skip
    for place, number in ((out, 1), (err, 2)):
        if isinstance(place, int):
            os.dup2(place, number)
            continue
        with place.open("ab") as file:
            os.dup2(file.fileno(), number)
    if given is not None:
        os.dup2(given, 0)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    multiprocessing.set_start_method(None, force=True)  # this process's own is none that its script would find
    sys.argv = ["-c", *words]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(script, "<string>", "exec"), main.__dict__)
    finally:
        atexit._run_exitfuncs()  # as Python does; multiprocessing does from 3.14 on


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    """What measures starts forks, those of a module's fixtures too; `medddpm`, started as a user does, is as in use."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(programs, "run", run)
        monkeypatch.setattr(programs, "start", started)
        yield
