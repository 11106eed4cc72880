"""Messages to the user: Python's logger "medddpm", which speaks on the first of torchrun's processes alone."""

from __future__ import annotations

import logging
import os
import sys


def is_first() -> bool:
    """Whether this is torchrun's first process, or the only one."""
    return os.environ.get("RANK", "0") == "0"


log = logging.getLogger("medddpm")
log.addFilter(lambda _record: is_first())
if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)


def report(message: str) -> None:
    """Logs what was done. Without logging set up, as in a REPL or a notebook, it goes to stderr, as warnings do anyway.

    `logging.getLogger("medddpm").setLevel(logging.ERROR)` silences it.
    """
    if log.hasHandlers():
        log.info(message)
    elif is_first() and log.isEnabledFor(logging.INFO):
        print(message, file=sys.stderr)
