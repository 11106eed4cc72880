"""The processes of torchrun: they join, agree before each step, and end with one message."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from medddpm.errors import BadInput, first_line

MINUTES = 10  # that a process waits for the others
PAUSE = 0.05  # seconds between two looks for another process
CONNECTING = 30  # seconds in which a store that listens takes a connection


def processes() -> int:
    """Returns the number of processes that torchrun started, this one included; 1 without torchrun.

    Raises:
        BadInput: WORLD_SIZE is not a number.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        raise BadInput("WORLD_SIZE", f"{size!r} is no number of processes", "unset it, or start with torchrun")
    return int(size)


def share() -> tuple[int, int]:
    """Returns this process's rank and the number of processes, for work that needs no process group.

    Raises:
        BadInput: WORLD_SIZE is set without a RANK below it, so that a share of the work would be missing.
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
    """Joins torchrun's process group, if torchrun started this process.

    Tensors on GPUs go through NCCL, tensors on the host through Gloo, whose calls leave the GPU alone.

    PyTorch waits in C++, where Python handles no signal, so it is called once all processes have come.

    Raises:
        BadInput: as `share`; no meeting place is set; or a process did not come within `MINUTES`.
    """
    rank, world = share()
    if world == 1 or distributed.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    limit = timedelta(minutes=MINUTES)
    with peers():
        store = _store(rank, world, limit)
        store = PrefixStore(_token(store, rank, world), store)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _store(rank: int, world: int, limit: timedelta) -> Store:
    """Returns the store by which the processes find each other: torchrun's, or the first process's."""
    host, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port.isdecimal() or int(port) >= 2**16:
        problem = f"it is {world}, and MASTER_ADDR {host!r} with MASTER_PORT {port!r} is no place to meet"
        raise BadInput("WORLD_SIZE", problem, "unset it, or start with torchrun")
    if rank and not _comes(lambda: _listens(host, int(port))):
        raise _absent([0], world, f" to {host}:{port}")
    try:  # as one process of one, so that it does not wait
        store = next(rendezvous("env://", rank, 1, timeout=timedelta(seconds=CONNECTING)))[0]
    except RuntimeError as error:  # another program has the port, or the first one is not at that address
        remedy = "correct it or MASTER_PORT, or start with torchrun"
        raise BadInput("MASTER_ADDR", f"{host}:{port}: {_first_sentence(error)}", remedy) from None
    store.set_timeout(limit)
    return store


def _token(store: Store, rank: int, world: int) -> str:
    """Returns a name that only these processes share, not earlier ones that torchrun started with the same store.

    After a restart torchrun's store still has the addresses of the processes that have ended; a process that reads them
    waits for those (PyTorch 2.13, `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`). So each process asks under a unique name, and
    the first process answers. All wait until every process has the token.
    """
    token = uuid.uuid4().hex
    if rank:
        answer = f"medddpm/answer/{token}"
        store.set(f"medddpm/ask/{rank}", token)
        if not _comes(lambda: store.check([answer])):
            raise _absent([0], world)
        token = store.get(answer).decode()
        store.set(f"medddpm/has/{token}/{rank}", "")
    has = {other: f"medddpm/has/{token}/{other}" for other in range(1, world)}

    def all_have() -> bool:
        for other in has if rank == 0 else ():
            if store.check([f"medddpm/ask/{other}"]):
                store.set(f"medddpm/answer/{store.get(f'medddpm/ask/{other}').decode()}", token)
        return store.check(list(has.values()))

    if not _comes(all_have):
        raise _absent([other for other, key in has.items() if not store.check([key])], world)
    return token


def _comes(look: Callable[[], bool]) -> bool:
    """Returns whether `look` returns True within `MINUTES`."""
    end = time.monotonic() + 60 * MINUTES
    while not look():
        if time.monotonic() > end:
            return False
        time.sleep(PAUSE)
    return True


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except (OSError, UnicodeError):  # nothing listens there, or the host is not known, yet; or that is no name
        return False
    return True


def _absent(missing: Sequence[int], world: int, where: str = "") -> BadInput:
    who = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    problem = f"it is {world}, and {who} did not come{where} within {MINUTES} minutes"
    return BadInput("WORLD_SIZE", problem, "start all, or look for what ended one; unset it for one alone")


class Ranks:
    """This process among the processes that train together; a single process agrees with itself.

    Args:
        stopped: set when this process received a signal to stop.
        alone: ignores the other processes, although they have joined.

    Attributes:
        rank, world: the process's number, from 0, and the number of processes.
    """

    def __init__(self, stopped: threading.Event | None = None, alone: bool = False) -> None:
        known = distributed.is_initialized() and not alone
        self.rank, self.world = (distributed.get_rank(), distributed.get_world_size()) if known else (0, 1)
        self.stopped = stopped or threading.Event()
        self._all_stop = False

    @property
    def lead(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    @property
    def stopping(self) -> bool:
        """True if all processes should stop: as last agreed, so that all stop after the same step."""
        return self.stopped.is_set() if self.world == 1 else self._all_stop

    def agree(self, problem: BadInput | None = None) -> None:
        """Shares problems and stop signals among all processes, which call it at the same point.

        It costs a message between hosts and nothing on a GPU. Without it the others would wait in a collective for a
        process that has ended, until that times out.

        Args:
            problem: this process's problem, if it has one.

        Raises:
            BadInput: a process has a problem. The first process raises it, the others raise SystemExit.
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
            reported = self.told(problem, failed - 1)
            raise reported if self.lead else SystemExit(1)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Surrounds a block after which all processes agree: a problem of one process ends all of them.

        Raises:
            BadInput: as `agree`.
        """
        problem = None
        try:
            yield
        except BadInput as error:
            problem = error
        self.agree(problem)

    @contextlib.contextmanager
    def unhurried(self, block: str) -> Iterator[None]:
        """Surrounds a block that may take the first process more than `MINUTES`; the others poll until it is done.

        Args:
            block: its name, used once within `joined`.

        Raises:
            BadInput: the first process has ended.
        """
        yield
        if self.world == 1:
            return
        store, key = _get_default_store(), f"medddpm/through/{block}"
        with peers():
            if self.lead:
                store.set(key, "")
            while not store.check([key]):
                time.sleep(PAUSE)

    def told(self, value: Any, source: int = 0) -> Any:
        """Returns the `value` of process `source`; every process calls it, and the other values are ignored."""
        if self.world == 1:
            return value
        values = [value]
        with peers():
            distributed.broadcast_object_list(values, source, device=torch.device("cpu"))
        return values[0]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place."""
        if self.world > 1:
            with peers():
                distributed.all_reduce(tensor)
        return tensor

    def gathered(self, numbers: list[float]) -> list[list[float]]:
        """Returns every process's numbers, by rank."""
        if self.world == 1:
            return [numbers]
        sent = torch.tensor(numbers, dtype=torch.float64)
        received = [torch.empty_like(sent) for _ in range(self.world)]
        with peers():
            distributed.all_gather(received, sent)
        return [tensor.tolist() for tensor in received]


@contextlib.contextmanager
def peers() -> Iterator[None]:
    """Surrounds a call that waits for other processes.

    Raises:
        BadInput: a process has ended, or did not answer for `MINUTES`.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise BadInput(
            "torchrun",
            f"rank {os.environ.get('RANK', '0')} lost another process ({_first_sentence(error)})",
            "look for what ended that one; the same command goes on from the last checkpoint, if there is one",
        ) from None


def _first_sentence(error: BaseException) -> str:
    """Returns an error's first sentence, without its place in Gloo's source."""
    return first_line(error).split("] ", 1)[-1].split(". ")[0].strip(" .")
