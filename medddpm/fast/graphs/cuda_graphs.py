"""A function as one CUDA graph, and where graphs are wanted."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from medddpm.fast.graphs.pool import Pool

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
        self._pool = Pool(device)
        with torch.cuda.device(device):
            with self._pool.on_stream(), off():  # no graph within the graph
                for _ in range(warmup):
                    function(*self.inputs)
            self._outputs, self._replay = self._pool.capture(lambda: function(*self.inputs), generators)

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
        self._pool.replay(self._replay, self.inputs, inputs)
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


def cached(owner: nn.Module, network: nn.Module, key: Hashable, capture: Callable[[], GraphedCall[Any]]) -> Any:
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
    entry = _cached.get(number)
    if entry is None or entry[1] != key:
        _cached.pop(number, None)  # its memory is free for the new one
        of = weakref.ref(acceleration, lambda _, graphs=_cached: graphs.pop(number, None))  # type: ignore[misc]
        entry = _cached[number] = (of, key, capture())
    return entry[2]


def forget(network: nn.Module) -> None:
    """Frees the graph `cached` for a network, and its memory."""
    _cached.pop(id(getattr(network, "acceleration", None)), None)


_allowed = True
_cached: dict[int, tuple[weakref.ref[Any], Hashable, GraphedCall[Any]]] = {}
