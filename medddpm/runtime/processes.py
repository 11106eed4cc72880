"""The device a run computes on, signals that wait for the current step to end, and processes that load volumes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from medddpm.errors import BadInput
from medddpm.runtime.reports import log, silence

Item = TypeVar("Item")
SAME_SIGNAL = 1.0  # seconds
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def pick_device(name: str = "auto") -> torch.device:
    """Returns the device of that name; "auto" is this process's GPU, or the CPU where there is none.

    Raises:
        BadInput: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":  # which computes nothing
            raise RuntimeError
        if device.type == "cuda":
            device = torch.device(
                "cuda", int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
            )
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError, AttributeError) as error:  # AttributeError: PyTorch without CUDA
        raise BadInput("--device", *_absent(name, error)) from None
    return device


def _absent(name: str, error: Exception) -> tuple[str, str]:
    """What is wrong with a device that cannot be used, and the remedy."""
    if not re.fullmatch(r"cuda(:\d+)?", name):
        return f"there is no {name} here", "give auto, cpu, cuda, cuda:1 …"
    if not torch.cuda.is_available():
        return f"there is no {name} here: PyTorch finds no NVIDIA GPU", "give cpu, or run it on a machine with a GPU"
    count, index = torch.cuda.device_count(), name.partition(":")[2]
    wanted = int(index or os.environ.get("LOCAL_RANK", "0"))
    if wanted < count:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return f"cuda:{wanted} cannot be used: {first}", "free that GPU, or give another device"
    found = "the only GPU is cuda:0" if count == 1 else f"the GPUs are cuda:0 to cuda:{count - 1}"
    remedy = "give one that is there, or leave it out" if index else f"start at most {count} processes"
    return f"there is no cuda:{wanted} here: {found}", remedy


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


class Items(Protocol):
    """What can be loaded: items by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Handed(Dataset[Any]):
    """A data set whose `BadInput` is an item: a loader's process hands it over as that, and `iterated` raises it.

    Raised in the process it would come as a RuntimeError with that process's traceback in it.
    """

    def __init__(self, items: Items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.items[index]
        except BadInput as error:
            return error


def collated(items: Sequence[Any]) -> Any:
    """PyTorch's collation; of items with a `BadInput` among them, the first of those."""
    return next((item for item in items if isinstance(item, BadInput)), None) or default_collate(list(items))


def iterated(loader: DataLoader[Item]) -> Iterator[Item]:
    """Yields what the loader yields; its processes live and die with this one, and hear no signal but from it.

    A batch system, as a terminal, signals the whole process group. Loading processes leave it when they begin, so that
    this process saves its work first; they end with it, however it ends. A signal that arrives while they begin reaches
    this process afterwards.

    Args:
        loader: of a data set that is `Handed`, collating by `collated`.

    Raises:
        BadInput: an item is bad, or a loading process was killed.
    """
    loader.worker_init_fn = functools.partial(_serve, os.getpid())
    waiting = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    try:
        items = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except RuntimeError as error:
            if "worker" not in str(error):
                raise
            raise BadInput(
                "--workers", "a process that loads volumes was killed", "use fewer, or leave the machine more memory"
            ) from None
        if isinstance(item, BadInput):
            raise item
        yield item


def end_with_parent() -> None:
    """Has the system kill this process when its parent ends, however that ends; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(parent: int, _worker: int) -> None:
    """Makes a loading process its parent's alone, as it begins."""
    end_with_parent()
    if os.getppid() != parent:  # which died before that
        os._exit(1)
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # forgets one that came while they were blocked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
