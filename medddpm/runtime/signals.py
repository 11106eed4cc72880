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
from types import FrameType
from typing import Any

from medddpm.fast.reports import log, silence
from medddpm.runtime.exits import heeded, leave_at_once

SAME_SIGNAL = 1.0  # seconds


@contextlib.contextmanager
def deferred_signals() -> Iterator[threading.Event]:
    """Lets the first Ctrl-C, SIGTERM or SIGHUP only set the yielded event; the next signal acts as usual.

    SIGHUP comes when a terminal is closed: later output is discarded. Under `nohup` it stays ignored. A signal within
    `SAME_SIGNAL` seconds counts as the first one: a signal to the process group reaches a training under torchrun
    twice, from the group and from torchrun.
    """
    event, first = threading.Event(), 0.0
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield event
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in heeded()}

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
    """Discards output to a terminal that is gone, where each line would raise an error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, closed, or no file
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                silence(stream)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM act as Ctrl-C, so that this process also ends the processes that it started.

    SIGHUP, from a closed terminal, does so too, except under `nohup`. A signal within `SAME_SIGNAL` seconds counts as
    the first one, so that it does not disturb the clean-up. A signal amid an import ends the process at once:
    KeyboardInterrupt may be swallowed there, or come out as another error.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, _leave) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Lets the signals that end a command wait for the end of the block.

    KeyboardInterrupt may be raised between any two instructions: in `torch.no_grad().__exit__` it leaves gradients
    off, and what the command does before it ends fails in its turn.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    waiting: dict[int, None] = {}
    before: dict[int, Any] = {
        number: signal.signal(number, lambda number, _: waiting.setdefault(number)) for number in heeded()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for number in waiting:
            signal.raise_signal(number)


_left = -SAME_SIGNAL
"""When `_leave` last raised KeyboardInterrupt, by the monotonic clock."""


def _leave(number: int, frame: FrameType | None) -> None:
    global _left
    if number == signal.SIGHUP:
        _leave_terminal()
    if _amid_import(frame):
        leave_at_once(number, frame)
    if time.monotonic() - _left > SAME_SIGNAL:
        _left = time.monotonic()
        raise KeyboardInterrupt


def _amid_import(frame: FrameType | None) -> bool:
    """Returns whether a module is being loaded.

    `from package import name` runs functions of importlib also where the package is loaded, as pyzmq's does for each
    message of a kernel. KeyboardInterrupt passes through those as through any others.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
