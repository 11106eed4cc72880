"""Signals that wait for the current step to end, or that end a command with the processes it started."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from medddpm.runtime.reports import log, silence

SAME_SIGNAL = 1.0  # seconds


@contextlib.contextmanager
def deferred_signals() -> Iterator[threading.Event]:
    """Within it, the first Ctrl-C, SIGTERM or SIGHUP only sets the yielded event; the next one acts as usual.

    SIGHUP comes when a terminal is closed: what is printed from then on goes nowhere. Under `nohup` it stays ignored.
    What follows within `SAME_SIGNAL` seconds is the first one still: a signal to the process group reaches a training
    under torchrun twice, from the group and from torchrun.
    """
    event, first = threading.Event(), 0.0
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield event
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, _frame: object) -> None:
        nonlocal first
        if number == signal.SIGHUP:
            _leave_terminal()
        if not event.is_set():
            event.set()
            first = time.monotonic()
            log.warning("stopping after this step; once more to stop at once")
        elif time.monotonic() - first > SAME_SIGNAL:
            signal.signal(number, before[number] or signal.SIG_DFL)
            signal.raise_signal(number)

    try:
        for number in before:
            signal.signal(number, note)
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _leave_terminal() -> None:
    """Has what still goes to a terminal go nowhere: it is gone, and each line written to it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, closed, or no file
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                silence(stream)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it, SIGTERM acts as Ctrl-C, so that this process also ends the processes it started.

    So does SIGHUP, by which a closed terminal ends what runs in it, except under `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return

    def leave(number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
