"""Where a run computes and how it ends: device, torchrun's processes, and signals that wait for the step in hand."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.utils.data import DataLoader

from medddpm.errors import BadInput

Item = TypeVar("Item")


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; "auto" is the GPU of this process where there is one, else the CPU.

    Raises:
        BadInput: where there is no such device.
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
    except (RuntimeError, AssertionError, AttributeError):  # the last of a PyTorch without CUDA
        raise BadInput(
            "--device", f"there is no {name} here", "leave it out: a GPU is used where there is one"
        ) from None
    return device


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins torchrun's processes, where it started this one, by the means of the device they compute on."""
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
    """Inside, the first Ctrl-C or SIGTERM sets the event and nothing more; the next one acts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield event
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: object) -> None:
        event.set()
        print("stopping after this step; once more to stop at once", file=sys.stderr)
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
    """Inside, SIGTERM is a Ctrl-C: the processes that were started, which would go on by themselves, are ended too."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread, which alone is told
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def iterated(loader: DataLoader[Item]) -> Iterator[Item]:
    """`iter(loader)`, whose processes never hear Ctrl-C, which reaches the whole group: the parent ends them.

    This process hears what came meanwhile once they are begun.
    """
    loader.worker_init_fn = _end_when_told
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_when_told(_worker: int) -> None:
    """SIGTERM ends a process that loads volumes, whatever it does in the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def told_to_stop(stopped: threading.Event, device: torch.device) -> bool:
    """Whether any process was, so that all leave after the same step; a collective call where they are several."""
    if distributed.is_initialized():
        flag = torch.tensor(float(stopped.is_set()), device=device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        if flag.item():
            stopped.set()
    return stopped.is_set()
