"""Tells the user what the fast path did, through the logger `medddpm`, on rank 0 only."""

from __future__ import annotations

import logging
import sys

from medddpm.kernels.dispatch import first_rank

LOGGER = logging.getLogger("medddpm")
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.INFO)


def log(message: str, level: int = logging.INFO) -> None:
    """Logs a message on rank 0, to stderr if the program has set up no logging: a REPL or a notebook shows it.

    `logging.getLogger("medddpm").setLevel(logging.ERROR)` silences it.
    """
    if not first_rank():
        return
    if LOGGER.hasHandlers():
        LOGGER.log(level, message)
    elif LOGGER.isEnabledFor(level):
        print(message, file=sys.stderr)  # as `logging.lastResort` does, but for reports too
