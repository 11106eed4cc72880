"""The one way to capture a CUDA graph: into a `Pool` of memory, on its stream (PyTorch's notes on CUDA semantics)."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from medddpm.fast.graphs.copies import Copies


class Turn:
    """A forward pass whose backward pass may still come; it lives as long as the outputs' graph does."""


class Pool:
    """The memory that the passes of one network share, and the stream they are captured on.

    What a forward pass leaves for its backward pass lies there, and the next replay of any pass overwrites it.

    Attributes:
        copies: hands out the parameters' gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copies = Copies()
        self.stream = torch.cuda.Stream(device)
        self.handle = torch.cuda.graph_pool_handle()
        self._turn: weakref.ref[Turn] | None = None
        self._holds: Any = None
        self.last: torch.cuda.Stream | None = None  # that replayed

    @property
    def busy(self) -> bool:
        """Returns whether a backward pass may still come: no pass may be replayed now."""
        return self._turn is not None and self._turn() is not None

    def begin(self) -> Turn:
        """A forward pass that awaits its backward pass."""
        turn = Turn()
        self._turn = weakref.ref(turn)
        return turn

    def end(self, turn: Turn) -> bool:
        """Ends a turn; False if it had ended."""
        current = self._turn is not None and self._turn() is turn
        if current:
            self._turn = None
        return current

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Inside, work goes to the stream that captures: autograd's streams of the warm-up then serve the capture."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:  # where memory was short, the weights are restored behind what still writes to them
            current.wait_stream(self.stream)

    def capture(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Any, Callable[[], None]]:
        """Captures `function()`, without running it.

        Args:
            function: does the same work on the same addresses each time.
            generators: those it draws from beside the device's default one.

        Returns:
            what the function returned, overwritten by each replay; and the function that replays it.

        Raises:
            RuntimeError: it cannot be captured.
        """
        cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a weight that was cast before the capture would stay as it was
        try:
            if self._holds is None:  # PyTorch takes no second capture into a pool whose graphs are all gone
                _, self._holds = self._captured(lambda: torch.zeros((), device=self.device))
            return self._captured(function, generators)
        finally:
            torch.set_autocast_cache_enabled(cache)

    def _captured(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.stream(torch.cuda.current_stream(self.device)):  # a capture that fails leaves its own current
            try:
                with capturing(graph, self.stream, self.handle):
                    outputs = function()
            except BaseException:
                self._recover()
                raise
        return outputs, graph.replay

    def _recover(self) -> None:
        """After a capture that failed, PyTorch's allocator and generator still take themselves to be in it."""
        handle, self.handle, self._holds = self.handle, torch.cuda.graph_pool_handle(), None
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index or 0, handle)
        with contextlib.suppress(RuntimeError), capturing(torch.cuda.CUDAGraph(), self.stream):
            torch.zeros((), device=self.device)

    def replay(self, replay: Callable[[], None], into: Sequence[Tensor] = (), given: Sequence[Tensor] = ()) -> None:
        """Copies what is `given` `into` the tensors that a graph reads, and replays it, on the current stream."""
        self._follow()  # before the copies: another stream's replay may still read what they overwrite
        for static, tensor in zip(into, given, strict=True):
            static.copy_(tensor, non_blocking=True)
        replay()

    def _follow(self) -> None:
        """Has the current stream wait for what another stream was given of this memory."""
        stream = torch.cuda.current_stream(self.device)
        if self.last is not None and self.last != stream:
            stream.wait_stream(self.last)
        self.last = stream


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """Inside, what is launched goes into `graph`, whose memory comes from `pool`, or from one of its own.

    Garbage is collected before, and not amid it: with it goes a graph that nobody holds any more, and CUDA takes the
    end of a graph during a capture for an error of that capture.
    """
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        # thread_local: a data loader's thread may pin memory meanwhile.
        with (
            sparing(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Inside, cuBLAS has only the workspaces that it takes there, and an accelerated forward pass leaves none.

    A capture's come from its pool; once freed they are free memory of that pool, like that of any tensor which the
    capture let go of. What comes afterwards takes new ones.
    """
    thread = threading.get_ident()
    outermost = thread not in _sparing
    _sparing.add(thread)
    try:
        free_workspaces()
        yield
    finally:
        if outermost:
            _sparing.discard(thread)
        free_workspaces()


def forward_ended() -> None:
    """Inside `sparing`, frees an accelerated forward pass's workspaces: the loss is next, where memory peaks."""
    if threading.get_ident() in _sparing:
        free_workspaces()


def free_workspaces() -> None:
    """Frees cuBLAS's workspaces: on a Hopper card 32 MiB for each thread and stream that multiplied."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # `torch.compile`'s own graphs call it too
    if clear is not None:
        clear()


_sparing: set[int] = set()  # threads inside `sparing`
