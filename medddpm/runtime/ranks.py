"""The processes that torchrun started together: how they join, agree before each step, and end with one message."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from medddpm.errors import BadInput

MINUTES = 10  # after which a process that hears nothing from the others gives up


def processes() -> int:
    """How many processes torchrun started, this one among them; 1 without it.

    Raises:
        BadInput: WORLD_SIZE is not a number.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        raise BadInput("WORLD_SIZE", f"{size!r} is no number of processes", "unset it, or start with torchrun")
    return int(size)


def share() -> tuple[int, int]:
    """This process's number among torchrun's, and how many there are, for work that needs no process group.

    Raises:
        BadInput: WORLD_SIZE is set without a RANK below it: a share that nobody does would be missing.
    """
    world = processes()
    if world == 1:
        return 0, 1
    rank = os.environ.get("RANK")
    if rank is None or not rank.isdecimal() or int(rank) >= world:
        problem = f"it is {world}, and RANK is {'not set' if rank is None else f'{rank!r}, no number below it'}"
        raise BadInput("WORLD_SIZE", problem, "unset it, or start with torchrun")
    return int(rank), world


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Joins torchrun's process group, where torchrun started this process.

    Tensors on GPUs go through NCCL, tensors on the host through Gloo, whose calls leave the GPU alone.

    Raises:
        BadInput: as `share`, or it is not said where the processes meet.
    """
    rank, world = share()
    if world == 1 or distributed.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with peers():
        try:
            store = next(rendezvous("env://"))[0]
        except ValueError as error:  # MASTER_ADDR or MASTER_PORT is missing
            raise BadInput("WORLD_SIZE", f"it is {world}: {error}", "unset it, or start with torchrun") from None
        store = PrefixStore(_token(store, rank, world), store)
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timedelta(minutes=MINUTES)
        )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _token(store: Store, rank: int, world: int) -> str:
    """A name that these processes alone share, not those that torchrun started before them in the same store.

    torchrun keeps its store over a restart, with the addresses of the processes that have ended; whoever reads those
    waits for them (PyTorch 2.13, `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`). So each process asks under a name of its own,
    and the first one answers until all have its token.
    """
    ours = uuid.uuid4().hex
    if rank:
        store.set(f"medddpm/ask/{rank}", ours)
        token: str = store.get(f"medddpm/answer/{ours}").decode()
        store.set(f"medddpm/has/{token}/{rank}", "")
        return token
    waiting, end = set(range(1, world)), time.monotonic() + 60 * MINUTES
    while waiting:
        for other in sorted(waiting):
            if store.check([f"medddpm/ask/{other}"]):
                store.set(f"medddpm/answer/{store.get(f'medddpm/ask/{other}').decode()}", ours)
            if store.check([f"medddpm/has/{ours}/{other}"]):
                waiting.remove(other)
        if time.monotonic() > end:
            raise RuntimeError(f"rank {min(waiting)} did not come within {MINUTES} minutes")
        time.sleep(0.01)
    return ours


class Ranks:
    """This process among those that train together; one alone agrees with itself.

    Args:
        stopped: set when this process was told to stop.
        alone: leaves the other processes aside, though they have joined.

    Attributes:
        rank, world: its number, from 0, and how many there are.
    """

    def __init__(self, stopped: threading.Event | None = None, alone: bool = False) -> None:
        known = distributed.is_initialized() and not alone
        self.rank, self.world = (distributed.get_rank(), distributed.get_world_size()) if known else (0, 1)
        self.stopped = stopped or threading.Event()
        self._all_stop = False

    @property
    def lead(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    @property
    def stopping(self) -> bool:
        """Whether all are to stop: as they last agreed, so that all leave after the same step."""
        return self.stopped.is_set() if self.world == 1 else self._all_stop

    def agree(self, problem: BadInput | None = None) -> None:
        """Every process calls this at the same point, with what is wrong on it; also learns who was told to stop.

        It costs a message between hosts and nothing on a GPU. Without it the others would wait in a collective for a
        process that has ended, until that times out.

        Raises:
            BadInput: something is wrong on some process; on the first process that line, on the others SystemExit.
        """
        if self.world == 1:
            if problem is not None:
                raise problem
            return
        word = torch.tensor([int(self.stopped.is_set()), 0 if problem is None else self.rank + 1])
        with peers():
            distributed.all_reduce(word, distributed.ReduceOp.MAX)
        self._all_stop, failed = bool(word[0]), int(word[1])
        if failed:
            found = self.told(problem, failed - 1)
            raise found if self.lead else SystemExit(1)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block after which all agree: what is bad for one process ends all of them.

        Raises:
            BadInput: as `agree`.
        """
        problem = None
        try:
            yield
        except BadInput as error:
            problem = error
        self.agree(problem)

    def told(self, value: Any, source: int = 0) -> Any:
        """What process `source` gave for `value`; the others' is ignored."""
        if self.world == 1:
            return value
        held = [value]
        with peers():
            distributed.broadcast_object_list(held, source, device=torch.device("cpu"))
        return held[0]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place."""
        if self.world > 1:
            with peers():
                distributed.all_reduce(tensor)
        return tensor

    def gathered(self, numbers: list[float]) -> list[list[float]]:
        """Every process's numbers, by rank."""
        if self.world == 1:
            return [numbers]
        ours = torch.tensor(numbers, dtype=torch.float64)
        all_of_them = [torch.empty_like(ours) for _ in range(self.world)]
        with peers():
            distributed.all_gather(all_of_them, ours)
        return [each.tolist() for each in all_of_them]


@contextlib.contextmanager
def peers() -> Iterator[None]:
    """Around a call that waits for other processes.

    Raises:
        BadInput: one of them has ended, or was not heard of for `MINUTES`.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise BadInput(
            "torchrun",
            f"rank {os.environ.get('RANK', '0')} lost another process ({_first_line(error)})",
            "look for what ended that one; the same command goes on from the last checkpoint, if there is one",
        ) from None


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0].split("] ", 1)[
        -1
    ]  # behind its place in Gloo's source
    return line.split(". ")[0].strip(" .")
