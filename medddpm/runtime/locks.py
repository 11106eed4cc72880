"""The lock of a folder: one command at a time works there, with the processes that it started."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import check_writable, is_dead, named_failures

LOCK = ".lock"
ORPHANS = 10.0  # s, in which a killed command's processes have ended


@contextlib.contextmanager
def locked(folder: Path, named: Path, work: str, remedy: str) -> Iterator[None]:
    """Locks a folder, which is made if it is missing, against other processes that ask for the lock.

    The lock lasts until this process ends, in whatever way, and the processes that it started: forks, and programs
    that `subprocess` starts with `close_fds=False`.

    Args:
        folder: holds the lock's file.
        named: the path in the error.
        work: the verb in the error, as in "process 1 is training there".
        remedy: the advice in the error.

    Raises:
        BadInput: another process works there (the message names it), the folder cannot be written to, or its `.lock`
            is another program's.
    """
    check_writable(folder / LOCK)
    with open(folder / LOCK, "ab+", buffering=0) as lock:
        if not _take(lock):
            raise BadInput(named, f"process {_holder(lock)} is {work} there", remedy)
        if (owner := _owner(lock)) and not owner.isdigit():
            raise BadInput(folder / LOCK, "it is another program's", "choose another folder")
        os.set_inheritable(lock.fileno(), True)
        with named_failures(folder / LOCK):
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
        yield


def _take(lock: FileIO) -> bool:
    """Takes the lock; waits for the children of a killed process, which may live on for some seconds.

    A training's loading process checks every five seconds whether its parent lives.
    """
    waits_until = time.monotonic() + ORPHANS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_left(_owner(lock)) or time.monotonic() > waits_until:
                return False
            time.sleep(0.05)
        except OSError:  # a file system without locks: whoever asks gets it
            return True
        else:
            return True


def _owner(lock: FileIO) -> str:
    lock.seek(0)
    return lock.read(20).decode(errors="replace")


def _is_left(owner: str) -> bool:
    """Returns whether the process that took the lock is dead; its children then hold the lock."""
    return owner.isdigit() and is_dead(int(owner))


def _holder(lock: FileIO) -> str:
    """Returns the process that took the lock; if it is dead, a child that holds the lock, if the system shows one."""
    owner = _owner(lock) or "another"
    for place in map(Path, glob.iglob("/proc/[0-9]*/fd/*") if _is_left(owner) else ()):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            described = (place.parents[1] / "fdinfo" / place.name).read_text()
            if "FLOCK" in described and os.path.samestat(place.stat(), os.fstat(lock.fileno())):
                return place.parts[2]
    return owner
