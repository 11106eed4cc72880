"""Finds and runs programs, and explains why one failed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from medddpm.runtime.signals import ended_by_sigterm

CUDA = "/usr/local/cuda/bin"  # where NVIDIA's installer leaves its tools, on the PATH or not
TIMED_OUT = 124  # what timeout(1) returns
SHELLS = 128  # a shell returns this plus the signal's number for a program that a signal ended
SMALLER = "use a smaller --size"


def find(name: str) -> str | None:
    """Looks for a program on the PATH and then in `CUDA`; returns its path, or None if it is in neither."""
    return shutil.which(name) or shutil.which(name, path=CUDA)


def run(command: Sequence[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; `stdout` of the result holds the output of both streams.

    A program that takes longer than `seconds` is killed with all that it started, and returns `TIMED_OUT`; so it is if
    this process is told to end. It inherits this process's locks: if this process is killed, no other measures beside
    the program.
    """
    marked = mark()
    try:
        with ended_by_sigterm():
            return subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                errors="replace", timeout=seconds, close_fds=False, env={**os.environ, **marked},
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, TIMED_OUT, f"it took more than {seconds:g} s")
    finally:
        kill_marked(marked)


def mark() -> dict[str, str]:
    """Returns a variable for a program's environment, by which `kill_marked` finds all that the program starts."""
    return {f"MEDDDPM_RUN_{uuid.uuid4().hex}": "1"}


def kill_marked(marked: Mapping[str, str]) -> None:
    """Kills every process with the variable of `mark` that still runs.

    A killed ncu leaves the program that it profiles behind, in another session, with its memory on the GPU. Processes
    are looked for in Linux's /proc; elsewhere none are found.
    """
    (name,) = marked
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if name.encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def start(
    command: Sequence[str], stdin: int, printed: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a program that prints to a file on both streams; it inherits this process's locks, as in `run`."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=printed, stderr=subprocess.STDOUT, env=environment, close_fds=False
    )


def output(*command: str, seconds: float = 20) -> str | None:
    """Runs a program and returns its stdout, stripped; None if the program is missing, fails or hangs."""
    words = [find(command[0]) or command[0], *command[1:]]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def options(values: Mapping[str, object]) -> list[str]:
    """Writes options as words of a command line: `--name value` of each."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def last_words(text: str) -> str:
    """Returns the last line of a program's output; empty if it printed nothing."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def problem(done: subprocess.CompletedProcess[str], remedy: str = SMALLER) -> str:
    """Returns the `reason` of a program's failure; empty if it did not fail."""
    return reason(done.returncode, done.stdout, remedy) if done.returncode else ""


def reason(status: int, said: str, remedy: str = SMALLER) -> str:
    """Explains a program's failure by the signal that ended it, or else by its last words.

    Args:
        status: its exit status; after a signal negative in Python, and 128 more than the signal in a shell.
        said: its output.
        remedy: advice if it was ended because memory was full.
    """
    words = last_words(said)
    if not (how := killed(status)):
        return words or f"ended with {status}"
    # SIGKILL comes from outside, so the output does not explain it; it explains an abort.
    if ended_by(status) == signal.SIGKILL:
        return f"{how}; {remedy}"
    return f"{how}; its last words: {words}" if words else how


def killed(status: int) -> str:
    """Names the signal that ended a program; empty if none did."""
    by_signal = ended_by(status)
    if by_signal is None:
        return ""
    memory = " (out of memory?)" if by_signal == signal.SIGKILL else ""
    return f"killed by signal {by_signal.value}, {by_signal.name}{memory}"


def ended_by(status: int) -> signal.Signals | None:
    """Returns the signal behind an exit status, as Python or a shell gives it; None if there is none."""
    try:
        return signal.Signals(-status if status < 0 else status - SHELLS)
    except ValueError:
        return None
