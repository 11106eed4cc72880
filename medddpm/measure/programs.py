"""Programs that the study starts: where they are, how they are run to their end, and why one failed."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from medddpm.runtime.signals import ended_by_sigterm

CUDA = "/usr/local/cuda/bin"  # where NVIDIA's installer leaves its tools, on the PATH or not
TIMED_OUT = 124  # what timeout(1) returns
SHELLS = 128  # a shell returns this plus the signal's number for a program that a signal ended
SMALLER = "use a smaller --size"


def find(name: str) -> str | None:
    """The path of a program, looked for on the PATH and then in `CUDA`; None if it is in neither."""
    return shutil.which(name) or shutil.which(name, path=CUDA)


def run(command: Sequence[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; `stdout` of the result holds what it printed on both streams.

    A program that takes longer than `seconds` is killed, and returns `TIMED_OUT`; it is killed as well if this process
    is told to end. It has this process's locks too: if this process is killed, no other measures beside what goes on.
    """
    try:
        with ended_by_sigterm():
            return subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                errors="replace", timeout=seconds, close_fds=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, TIMED_OUT, f"it took more than {seconds:g} s")


def start(
    command: Sequence[str], stdin: int, printed: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a program that prints to a file on both streams; it has this process's locks too, as in `run`."""
    return subprocess.Popen(
        command, stdin=stdin, stdout=printed, stderr=subprocess.STDOUT, env=environment, close_fds=False
    )


def output(*command: str, seconds: float = 20) -> str | None:
    """Returns what a program prints on stdout, stripped; None if the program is missing, fails or hangs."""
    words = [find(command[0]) or command[0], *command[1:]]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def options(values: Mapping[str, object]) -> list[str]:
    """The words of a command line that give options their values: `--name value` of each."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def last_words(text: str) -> str:
    """The last line of what a program printed; empty if it printed nothing."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def problem(done: subprocess.CompletedProcess[str], remedy: str = SMALLER) -> str:
    """Why a program failed, as `reason` says it; empty if it did not fail."""
    return reason(done.returncode, done.stdout, remedy) if done.returncode else ""


def reason(status: int, said: str, remedy: str = SMALLER) -> str:
    """Why a program failed: the signal that ended it, else its last words.

    Args:
        status: how it ended: negative for a signal as Python tells it, or as a shell does, 128 more than the signal.
        said: what it printed.
        remedy: what to do if it was ended because memory was full.
    """
    words = last_words(said)
    if not (how := killed(status)):
        return words or f"ended with {status}"
    # SIGKILL comes from outside, and what was printed before says nothing about it; an abort is explained there.
    if ended_by(status) == signal.SIGKILL:
        return f"{how}; {remedy}"
    return f"{how}; its last words: {words}" if words else how


def killed(status: int) -> str:
    """Names the signal that ended a program; empty if none did."""
    found = ended_by(status)
    if found is None:
        return ""
    return f"killed by signal {found.value}, {found.name}{' (out of memory?)' if found == signal.SIGKILL else ''}"


def ended_by(status: int) -> signal.Signals | None:
    """The signal that a program's exit status tells of, as Python or a shell gives it; None if it tells of none."""
    try:
        return signal.Signals(-status if status < 0 else status - SHELLS)
    except ValueError:
        return None
