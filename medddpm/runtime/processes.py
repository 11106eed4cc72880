"""The device a run computes on, and processes that load volumes."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from medddpm.errors import BadInput

Item = TypeVar("Item")
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


def wait(device: torch.device) -> None:
    """Waits until the device has done what it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _absent(name: str, error: Exception) -> tuple[str, str]:
    """Returns what is wrong with a device that cannot be used, and the remedy."""
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
    waiting = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    try:
        items = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        while True:
            try:
                item: Item | BadInput = next(items)
            except StopIteration:
                return
            except RuntimeError as error:
                if "worker" not in str(error):
                    raise
                remedy = "use fewer, or leave the machine more memory"
                item = BadInput("--workers", "a process that loads volumes was killed", remedy)
            if isinstance(item, BadInput):
                raise item
            yield item
    finally:
        del items  # its processes end here: who holds the error holds this frame, and at exit they would be killed


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
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # forgets one that came while they were blocked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
