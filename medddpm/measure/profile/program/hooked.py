"""Hooks into a program's PyTorch, under `medddpm profile -- python …`: what tells its steps and phases, and records.

Steps are told by `medddpm.measure.step()`, an NVTX range of `torch.cuda.nvtx`, or the calls of `torch.optim`'s
optimizers. Phases: `torch.autograd.backward` (and with it `Tensor.backward`) is the backward pass, an optimizer's call
the update, a `DataLoader`'s next batch the loading, and all else of a step the forward pass: the copy of a batch to the
GPU, `zero_grad`, `torch.autograd.grad`, what an optimizer's closure computes. What a CUDA graph replays is of the phase
that replays it.

This module runs in the program's environment: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader

import medddpm.measure
from medddpm.measure.profile.program.observer import Observer, Order
from medddpm.measure.profile.trace import new_profiler, nvtx_range

FOLDER, KIND, WARMUP, TO_THE_END, NVTX, SECONDS = (
    f"MEDDDPM_PROFILE_{name}" for name in ("FOLDER", "KIND", "WARMUP", "TO_THE_END", "NVTX", "SECONDS")
)
"""The environment's variables that say what is wanted; `inject/sitecustomize.py` reads the first too."""


def environment(order: Order) -> dict[str, str]:
    """Returns the variables that say to a program what is wanted of it."""
    return {
        FOLDER: str(order.folder.absolute()),
        KIND: order.kind,
        WARMUP: str(order.warmup),
        **({TO_THE_END: "1"} if order.to_the_end else {}),
        **({NVTX: order.nvtx} if order.nvtx else {}),
        **({SECONDS: str(order.seconds)} if math.isfinite(order.seconds) else {}),
    }


def install() -> None:
    """Installs the hooks in this process, for what its environment says."""
    told = os.environ
    order = Order(
        Path(told[FOLDER]), told[KIND], int(told[WARMUP]), TO_THE_END in told, told.get(NVTX, ""),
        float(told.get(SECONDS, "inf")),
    )  # fmt: skip
    observer = Observer(order, Recorder(order), identity)
    (order.folder / "hooked").touch()
    atexit.register(observer.write)
    medddpm.measure.observer = functools.partial(_step, observer)
    _hook_optimizers(observer)
    _hook_backward(observer)
    _hook_loaders(observer)
    if order.nvtx:
        _hook_nvtx(observer, order.nvtx)


def identity() -> tuple[int, int]:
    """Returns this process's rank, and the number of processes that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Recorder:
    """Records by PyTorch's profiler, or opens the range that ncu profiles, as an `Observer` tells it to."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._profiler: torch.profiler.profile | None = None
        self._alarm: threading.Timer | None = None

    def now(self) -> tuple[float, torch.cuda.Event | None]:
        """Returns the host's time, and an event on the current stream if the program uses a GPU."""
        event = None
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return time.perf_counter(), event

    def between(self, first: Any, last: Any) -> float:
        """Returns the time between two `now`, ms: on the GPU, which lags behind the host, or else on the host."""
        if first[1] is None or last[1] is None:
            return 1e3 * (last[0] - first[0])
        last[1].synchronize()
        return float(first[1].elapsed_time(last[1]))

    def enter(self, stage: str) -> None:
        """Begins to record, if the stage does."""
        if stage == "counted":
            _wait()
            if torch.cuda.is_initialized():
                torch.cuda.profiler.start()
                if math.isfinite(self.order.seconds):
                    self._alarm = threading.Timer(self.order.seconds, torch.cuda.profiler.stop)
                    self._alarm.daemon = True
                    self._alarm.start()
        elif stage == "starting":
            _wait()
            profiler = new_profiler(gpu=torch.cuda.is_available())
            profiler.start()
            self._profiler = profiler
        elif stage == "traced" and self._profiler is not None:
            _wait()
            self._profiler.step()

    def finish(self) -> None:
        """Waits for the GPU, ends the recording and writes a trace to `trace.json`."""
        _wait()
        if self.order.kind == "counters":
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm.join()
            if torch.cuda.is_initialized():
                torch.cuda.profiler.stop()
        elif self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            profiler.export_chrome_trace(str(self.order.folder / "trace.json"))

    def mark(self, name: str) -> Callable[[], None]:
        """Begins a range of the trace, or of NVTX under ncu; returns what ends it."""
        if self.order.kind == "counters":
            context: Any = nvtx_range(name) if torch.cuda.is_initialized() else contextlib.nullcontext()
        else:
            context = torch.profiler.record_function(name)
        context.__enter__()
        return lambda: context.__exit__(None, None, None)


def _wait() -> None:
    """Waits for the GPUs that the process uses."""
    if not torch.cuda.is_initialized():
        return
    is_used: Callable[[int], bool] = getattr(torch._C, "_cuda_hasPrimaryContext", lambda _device: False)
    for device in {torch.cuda.current_device(), *filter(is_used, range(torch.cuda.device_count()))}:
        torch.cuda.synchronize(device)


def _is_capturing() -> bool:
    """Returns whether a CUDA graph is captured: what happens then happens in its replays again."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def _step(observer: Observer, by: str = "medddpm.measure.step()") -> Iterator[None]:
    observer.told_by_marks(by)
    is_ours = observer.marked and observer.begin()
    try:
        yield
    except BaseException:
        if is_ours:
            observer.abandon()
        raise
    if is_ours:
        observer.end()


def _hook_optimizers(observer: Observer) -> None:
    """Takes calls of optimizers, and updates that a gradient scaler leaves out, as the ends of steps."""
    from torch.optim import optimizer as optim

    if not hasattr(optim, "register_optimizer_step_post_hook"):
        raise RuntimeError(f"PyTorch 2.3 or later is needed, and this is {torch.__version__}")
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    original, calls = scaler.step, [0]

    def before(_optimizer: Any, args: Any, kwargs: Any) -> Any:
        if _is_capturing():
            return None
        observer.phase("update")
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) or not observer.has_phase:
            return None

        def computed() -> Any:  # Lightning's whole forward and backward pass
            earlier = observer.phase("forward")
            try:
                return closure()
            finally:
                observer.phase(earlier)

        if "closure" in kwargs:
            return args, {**kwargs, "closure": computed}
        return (args[0], computed, *args[2:]), kwargs

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        calls[0] += 1
        if not _is_capturing():
            observer.phase("forward")
            observer.stepped(optimizer, f"the calls of {type(optimizer).__name__}")

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        earlier = calls[0]
        made = original(self, optimizer, *args, **kwargs)
        if calls[0] == earlier:
            observer.skipped(optimizer)
        return made

    optim.register_optimizer_step_pre_hook(before)
    optim.register_optimizer_step_post_hook(after)
    scaler.step = step


def _hook_backward(observer: Observer) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # what is compiled holds PyTorch's own
            return original(*args, **kwargs)
        before = observer.phase("backward")
        try:
            return original(*args, **kwargs)
        finally:
            observer.phase(before)

    torch.autograd.backward = backward


def _hook_loaders(observer: Observer) -> None:
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def following(self: Any) -> Any:
        return observer.load(lambda: original(self))

    iterator.__next__ = following


def _hook_nvtx(observer: Observer, name: str) -> None:
    """Takes the ranges of that name, pushed and popped by `torch.cuda.nvtx`, as steps."""
    nvtx: Any = torch.cuda.nvtx
    push, pop = nvtx.range_push, nvtx.range_pop
    open_ranges: list[contextlib.AbstractContextManager[None] | None] = []

    def range_push(message: str) -> Any:
        context = _step(observer, f"the NVTX range {name}") if message == name else None
        if context:
            context.__enter__()
        open_ranges.append(context)
        return push(message)

    def range_pop() -> Any:
        depth = pop()
        if open_ranges and (context := open_ranges.pop()):
            context.__exit__(None, None, None)
        return depth

    nvtx.range_push, nvtx.range_pop = range_push, range_pop
