"""Messages to the user: Python's logger "medddpm", which speaks on the first of torchrun's processes alone."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO


def is_first() -> bool:
    """Tells whether this process speaks to the user: it is the only one, or rank 0 of those that train together."""
    distributed = sys.modules.get("torch.distributed")  # a command speaks before it imports PyTorch
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"  # as torchrun sets it


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


def silence(stream: TextIO) -> None:
    """Has what a stream still holds go nowhere: it cannot be written, and Python would say so once more as it ends."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def bars() -> dict[str, Any]:
    """Returns tqdm's options: one line a minute in a log, a width of 80 where a terminal says 0."""
    live = sys.stderr.isatty() or "ipykernel" in sys.modules  # a notebook's stream is no terminal either
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal, or a stream without a file
        columns = None
    return {"mininterval": 0.1 if live else 60.0, "ncols": 80 if columns == 0 else None}
