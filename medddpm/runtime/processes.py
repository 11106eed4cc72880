"""The device a run computes on, torchrun's processes, and signals that wait for the current step to end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.utils.data import DataLoader

from medddpm.errors import BadInput
from medddpm.runtime.reports import log

Item = TypeVar("Item")


def pick_device(name: str = "auto") -> torch.device:
    """Returns the device of that name; "auto" is this process's GPU, or the CPU where there is none.

    Raises:
        BadInput: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda":
            device = torch.device(
                "cuda", int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
            )
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, AttributeError):  # AttributeError: PyTorch without CUDA
        raise BadInput(
            "--device", f"there is no {name} here", "leave it out: a GPU is used where there is one"
        ) from None
    return device


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins torchrun's process group, where torchrun started this process: NCCL on GPUs, else Gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextlib.contextmanager
def deferred_signals() -> Iterator[threading.Event]:
    """Within it, the first Ctrl-C or SIGTERM only sets the yielded event; the next one acts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield event
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: object) -> None:
        event.set()
        log.warning("stopping after this step; once more to stop at once")
        signal.signal(number, before[number] or signal.SIG_DFL)

    try:
        for number in before:
            signal.signal(number, note)
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it, SIGTERM acts as Ctrl-C, so that this process also ends the processes it started."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # only the main thread may set a handler
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def iterated(loader: DataLoader[Item]) -> Iterator[Item]:
    """Returns `iter(loader)`, whose worker processes ignore the Ctrl-C sent to the whole group: the parent ends them.

    A Ctrl-C that arrives while they start reaches this process afterwards.
    """
    loader.worker_init_fn = _end_when_told
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_when_told(_worker: int) -> None:
    """Lets SIGTERM end a loading process, whatever its handler in the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def told_to_stop(stopped: threading.Event, device: torch.device) -> bool:
    """Whether any process was told to stop, so that all leave after the same step; a collective call."""
    if distributed.is_initialized():
        flag = torch.tensor(float(stopped.is_set()), device=device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        if flag.item():
            stopped.set()
    return stopped.is_set()
