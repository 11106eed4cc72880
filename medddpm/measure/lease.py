"""The time that a lent machine has: what measures begins no work that would not end in it."""

from __future__ import annotations

import math
import os
import time

from medddpm.errors import BadInput

UNTIL = "MEDDDPM_UNTIL"
"""In the environment of a measuring process: the Unix time at which its time is over."""


class LeftForLater(BadInput):
    """Something was not measured for lack of time; the results that there are count.

    Args:
        path: where they are.
        problem: what is left.
    """

    REMEDY = "measure again, with the results so far"

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(path, problem, self.REMEDY)


def time_left() -> float:
    """Returns the seconds until `UNTIL`, at least 0; infinite where nobody has set it."""
    until = os.environ.get(UNTIL, "")
    return max(0.0, float(until) - time.time()) if until else math.inf
