"""A measuring program's side of the harness: it says that it is ready, and waits until it has card and host alone."""

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
    programs beside each other: what each does before its first round may overlap with the others' work, so whatever
    chooses by time belongs into a round. Where the harness wants nothing more, or has been killed, there is no further
    round: the program ends by itself.
    """
    # Removed, so that what this program starts does not wait either. Set by hand, it says nothing.
    if not os.environ.pop(HARNESS, "") or _is_other_than_a_socket(0):
        yield 1
        return
    with contextlib.suppress(OSError), open(0, "rb", closefd=False) as told:  # OSError: the harness is gone
        while True:
            os.write(0, b"ready\n")
            if not (line := told.readline().strip()):
                return
            yield int(line)


def _is_other_than_a_socket(handle: int) -> bool:
    """Returns whether a file descriptor is open and no socket: a harness's would be one, also where it is closed."""
    try:
        return not stat.S_ISSOCK(os.fstat(handle).st_mode)
    except OSError:
        return False


def round_path(path: Path, number: int) -> Path:
    """The file of a result in a round: of the first its own, of the second KEY.2.json."""
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
