"""Captures work as a CUDA graph and launches it as one (PyTorch's notes on CUDA semantics, whole-network capture)."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Outputs = TypeVar("Outputs")


class GraphedCall(Generic[Outputs]):
    """`function(*example_inputs)` as one graph: it is run a few times, captured, and from then on replayed.

    The function must do the same work on the same addresses each time: it may not read a value back, make tensors on
    the host or branch on a tensor's content. It runs `warmup` times before the capture, side effects included, and does
    not run again: the caller keeps alive whatever it reads beside its inputs (weights, tables).

    Args:
        function: takes tensors; its outputs may be tensors in any nesting.
        example_inputs: on one CUDA device, in the shape, dtype and layout of all later inputs.
        generators: those of that device from which the function draws. A replay uses their seed and offset at that
            time, so one seeded before a call draws in the graph what it would draw outside.
        warmup: runs before the capture, in which libraries choose and load their kernels.

    Attributes:
        inputs: the tensors the graph reads.

    Raises:
        RuntimeError: if an input is not on a CUDA device, or the function cannot be captured.
    """

    def __init__(
        self,
        function: Callable[..., Outputs],
        *example_inputs: Tensor,
        generators: Sequence[torch.Generator] = (),
        warmup: int = 3,
    ) -> None:
        devices = {tensor.device for tensor in example_inputs}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            places = ", ".join(sorted(map(str, devices))) or "nowhere"
            raise RuntimeError(f"a CUDA graph takes tensors of one CUDA device, and these are on {places}")
        (device,) = devices
        self.inputs = tuple(tensor.detach().clone() for tensor in example_inputs)
        with torch.cuda.device(device):
            # One stream for both: autograd's streams of the warm-up then serve the capture.
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), off():  # no graph within the graph
                for _ in range(warmup):
                    function(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            for generator in generators:
                self._graph.register_generator_state(generator)
            with capturing(self._graph, stream):
                self._outputs = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Outputs:
        """Copies the inputs to the tensors that the graph reads and replays it, without waiting for the device.

        Args:
            inputs: in the examples' shapes; on any device. Pinned host memory is copied asynchronously.

        Returns:
            the captured outputs: the same tensors at each call, overwritten by the next one.

        Raises:
            ValueError: if the number or the shapes of the inputs differ.
        """
        if [tensor.shape for tensor in inputs] != [tensor.shape for tensor in self.inputs]:
            given, known = ([tuple(tensor.shape) for tensor in tensors] for tensors in (inputs, self.inputs))
            raise ValueError(f"the graph was captured for inputs of shape {known}, not {given}")
        for static, tensor in zip(self.inputs, inputs, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._graph.replay()
        return self._outputs


def wanted(network: nn.Module) -> bool:
    """Returns whether to capture work on `network`: it is accelerated, on a GPU, and graphs are not `off`."""
    first = next(network.parameters(), None)
    return _allowed and is_accelerated(network) and first is not None and first.is_cuda


def is_accelerated(network: nn.Module) -> bool:
    """Returns whether `accelerate` replaced this network's forward; an attribute `acceleration` may be its own."""
    return getattr(network.__dict__.get("forward"), "what", None) == "network"  # of `fast.root.Root`, a layer above


def allowed() -> bool:
    """Returns whether graphs are not `off`."""
    return _allowed


def precision_flags() -> tuple[str, str]:
    """PyTorch's settings of float32 products, by which it chooses kernels: of matrices and of cuDNN's convolutions."""
    backends = torch.backends
    return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Inside, no graph is captured or replayed: every kernel is launched by itself, for measuring and profiling."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before


def kept(owner: nn.Module, network: nn.Module, key: Hashable, capture: Callable[[], GraphedCall[Any]]) -> Any:
    """Returns the graph that `capture` made for this key, and captures it again only if it no longer fits.

    One graph is kept for each acceleration of a network, and freed with it. It fits as long as the tensors of `owner`
    have their addresses and the precision flags their values.

    Args:
        owner: holds all tensors that the captured function reads beside its inputs.
        network: the accelerated network.
        key: whatever else the graph depends on, such as the inputs' shapes.
        capture: makes the graph.
    """
    acceleration = network.acceleration
    places = tuple(tensor.data_ptr() for tensor in (*owner.parameters(), *owner.buffers()))
    number, key = id(acceleration), (key, places, precision_flags(), network.training)
    known = _kept.get(number)
    if known is None or known[1] != key:
        _kept.pop(number, None)  # its memory is free for the new one
        of = weakref.ref(acceleration, lambda _, kept=_kept: kept.pop(number, None))  # type: ignore[misc]
        known = _kept[number] = (of, key, capture())
    return known[2]


def forget(network: nn.Module) -> None:
    """Frees the graph `kept` for a network, and its memory."""
    _kept.pop(id(getattr(network, "acceleration", None)), None)


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


_allowed = True
_sparing: set[int] = set()  # threads inside `sparing`
_kept: dict[int, tuple[weakref.ref[Any], Hashable, GraphedCall[Any]]] = {}
