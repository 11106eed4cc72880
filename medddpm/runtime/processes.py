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


def visible_gpus(device: str, most: int | None = None) -> list[str | None]:
    """Returns CUDA_VISIBLE_DEVICES' names of the GPUs here, at most `most`; a single None on a machine without.

    Raises:
        BadInput: the device is a GPU, and there is none.
    """
    if device == "cpu" or not torch.cuda.is_available():
        pick_device(device)
        return [None]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return list(names[:most])


def wait(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Starts the measurement of peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """Returns the most bytes that tensors held at once since `reset_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _absent(name: str, error: Exception) -> tuple[str, str]:
    """Returns the problem of a device that cannot be used, and the remedy."""
    if not re.fullmatch(r"cuda(:\d+)?", name):
        return f"there is no {name} here", "give auto, cpu, cuda, cuda:1 …"
    if not torch.cuda.is_available():
        return f"there is no {name} here: PyTorch finds no NVIDIA GPU", "give cpu, or run it on a machine with a GPU"
    count, index = torch.cuda.device_count(), name.partition(":")[2]
    number = int(index or os.environ.get("LOCAL_RANK", "0"))
    if number < count:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return f"cuda:{number} cannot be used: {first}", "free that GPU, or give another device"
    present = "the only GPU is cuda:0" if count == 1 else f"the GPUs are cuda:0 to cuda:{count - 1}"
    remedy = "give one that is there, or leave it out" if index else f"start at most {count} processes"
    return f"there is no cuda:{number} here: {present}", remedy


class Items(Protocol):
    """A data set: items by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Handed(Dataset[Any]):
    """A data set that returns a `BadInput` as an item, for `iterated` to raise.

    Raised in a loading process it would become a RuntimeError with that process's traceback in it.
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
    """Collates items as PyTorch does; if one of them is a `BadInput`, returns the first such item."""
    return next((item for item in items if isinstance(item, BadInput)), None) or default_collate(list(items))


def iterated(loader: DataLoader[Item]) -> Iterator[Item]:
    """Yields the loader's items; its processes end with this one, and receive signals from this one only.

    A batch system or a terminal signals the whole process group. Loading processes leave the group when they start, so
    that this process saves its work first. They end with it, however it ends. A signal that arrives during their start
    reaches this process afterwards.

    Args:
        loader: of a `Handed` data set, with `collated` as its collation.

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
    """Asks the system to kill this process when its parent ends, in whatever way; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(parent: int, _worker: int) -> None:
    """Detaches a starting loading process from the process group, and ties its life to its parent's."""
    end_with_parent()
    if os.getppid() != parent:  # which died before that
        os._exit(1)
    os.setpgid(0, 0)
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # forgets a signal that came while it was blocked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
