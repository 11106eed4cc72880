"""A measuring program's side of the harness: reports that it is ready, and waits until it has card and host alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

HARNESS = "MEDDDPM_HARNESS"
"""In the environment of a program whose standard input is a socket to the harness that started it."""


def rounds() -> Iterator[int]:
    """Yields the number of each round that this program is to measure, as soon as it has card and host alone.

    Started by hand, a program has one round, at once. The harness starts several programs beside each other: work
    before the first round may overlap with the others' work, so every choice by time belongs into a round. If the
    harness has no more rounds, or has been killed, the generator ends, and the program after it.
    """
    if not os.environ.pop(HARNESS, ""):  # popped, so that programs started by this one do not wait either
        yield 1
        return
    with contextlib.suppress(OSError), open(0, "rb", closefd=False) as harness:  # OSError: the harness is gone
        while True:
            os.write(0, b"ready\n")
            if not (line := harness.readline().strip()):
                return
            yield int(line)


def round_path(path: Path, number: int) -> Path:
    """Returns the file of a result in a round: KEY.json in the first, KEY.2.json in the second."""
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
