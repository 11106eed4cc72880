"""The end of a process: by itself, or by a signal that comes before there is anything to save or after all is done."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 130  # as a shell reports a command that Ctrl-C ended


def heeded() -> list[signal.Signals]:
    """Returns the signals that end a command: SIGINT, SIGTERM, and SIGHUP unless `nohup` has it ignored.

    A script's shell makes its background commands ignore SIGINT. It is handled here all the same: torchrun passes it
    on, and kills the processes that still run half a minute later.
    """
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def end_when_told() -> None:
    """Makes a signal end this process at once, with a line and code 130; a command calls it before all else.

    Raising KeyboardInterrupt would not do: amid the import of a library it may be swallowed, or come out as another
    error. Nothing is written yet that could be lost. In the interpreter's last moments signals are ignored.
    """
    atexit.register(_ignore)  # the first one registered is the last one called
    for number in heeded():
        signal.signal(number, leave_at_once)


def leave_at_once(_number: int, _frame: object) -> NoReturn:
    """Handles a signal: prints one line, under torchrun only in the first process, and ends this process with 130."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # stderr is closed, or a terminal that is gone
            os.write(2, b"medddpm: interrupted\n")
    os._exit(INTERRUPTED)


def end(code: int) -> NoReturn:
    """Ends the process with an exit code; a signal meanwhile ends it at once with that code.

    Python's last search for cycles of objects is skipped: over the modules of PyTorch and MONAI it
    takes half a second to a second and a half, and the process's memory is the system's again in any case.
    """
    for number in heeded():
        signal.signal(number, lambda *_: os._exit(code))
    gc.freeze()
    sys.exit(code)


def _ignore() -> None:
    for number in heeded():
        signal.signal(number, signal.SIG_IGN)
