"""A measuring program's side of the harness: reports that it is ready, and waits until it has card and host alone."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

HARNESS = "MEDDDPM_HARNESS"
"""In the environment of a program whose standard input is a socket to the harness that started it."""


def rounds() -> Iterator[int]:
    """Yields the number of each round that this program is to measure, as soon as it has card and host alone.

    Started by hand, with no socket as its standard input, a program has one round, at once. The harness starts several
    programs beside each other: work before the first round may overlap with the others' work, so every choice by time
    belongs into a round. If the harness has no more rounds, or has been killed, the generator ends, and the program
    after it.
    """
    # Removed, so that programs started by this one do not wait either. Set by hand, it says nothing.
    if not os.environ.pop(HARNESS, "") or _is_other_than_a_socket(0):
        yield 1
        return
    with contextlib.suppress(OSError), open(0, "rb", closefd=False) as harness:  # OSError: the harness is gone
        while True:
            os.write(0, b"ready\n")
            if not (line := harness.readline().strip()):
                return
            yield int(line)


def _is_other_than_a_socket(handle: int) -> bool:
    """Returns whether a file descriptor is open and no socket: a harness's would be one, also where it is closed."""
    try:
        return not stat.S_ISSOCK(os.fstat(handle).st_mode)
    except OSError:
        return False


def round_path(path: Path, number: int) -> Path:
    """Returns the file of a result in a round: KEY.json in the first, KEY.2.json in the second."""
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
