"""A stand-in for CUDA graphs on a CPU that records operators and replays nothing else; `stand_in` puts it in place.

As with a CUDA graph:

- a capture runs Python, and leaves every tensor and the generator of random numbers as they were;
- a replay runs no Python: attributes, branches, hooks and numbers are those of the capture;
- operators read and write the memory that they did, so a tensor that has been freed since is an error, and a replay
  counts no version of what it writes;
- a tensor made in a capture keeps its memory while something holds it. Otherwise any replay of another graph of the
  pool overwrites it, here with NaN (integers with 0), and until its own first replay it is that, too;
- what waits for the device, or makes as many elements as the values say, cannot be captured;
- random numbers go on from where the generator stands. It is the host's: see `drawing_on_the_device`.

Not modelled are streams and threads; what of memory is not strided (sparse tensors are as a replay finds them); values
copied from the host, of which a graph would have those of the capture; and memory written outside of PyTorch's
operators, as through NumPy.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from medddpm.fast.graphs import graphed_pass
from medddpm.fast.graphs.copies import Copies
from medddpm.fast.graphs.pool import Pool
from medddpm.fast.kernels import operators
from medddpm.fast.replay import graphs, step

WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Has networks and steps on a CPU replayed from recordings."""
    for module in (graphs, step):
        patch.setattr(module, "graphable", lambda device: True)
        patch.setattr(module, "make_pool", Recordings)


def device(kind: str, patch: pytest.MonkeyPatch) -> torch.device:
    """Where a test runs: "cuda" is a GPU, "recorded" a CPU that replays recordings, anything else a CPU as it is."""
    if kind == "recorded":
        stand_in(patch)
    return torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")


def drawing_on_the_device(patch: pytest.MonkeyPatch) -> None:
    """The host's generator stands in for a device's, from which a graph may draw; the host then draws nothing."""

    def drawn(device: torch.device) -> bytes:
        return torch.get_rng_state().numpy().tobytes()

    @contextlib.contextmanager
    def redrawn(device: torch.device, place: bytes | None) -> Iterator[None]:
        with torch.random.fork_rng([], enabled=place is not None):
            if place is not None:
                torch.set_rng_state(torch.frombuffer(bytearray(place), dtype=torch.uint8))
            yield

    patch.setattr(graphs, "generator_place", drawn)
    patch.setattr(graphs, "_host_random", lambda: None)
    patch.setattr(graphed_pass, "generator_place", drawn)
    patch.setattr(graphed_pass, "generator_at", redrawn)


class Recordings(Pool):
    """A pool whose graphs are recordings."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copies = Copies()
        self._turn = self._holds = self.last = None
        self._made = weakref.WeakSet[Recording]()

    def on_stream(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _captured(self, function: Callable[[], Any], generators: Sequence[torch.Generator] = ()) -> tuple[Any, Any]:
        recording = Recording()
        found = recording.of(function)
        self._made.add(recording)
        return found, recording.replay

    def replay(self, replay: Any, *copied: Any) -> None:
        """Replays; what the pool's other graphs left then lies under what this one wrote."""
        super().replay(replay, *copied)
        for each in self._made:
            if each is not replay.__self__:
                each.overwrite()

    def _follow(self) -> None:
        pass


@dataclass(frozen=True)
class View:
    """A tensor of a recorded operator, and the memory that it lies in."""

    memory: StorageWeakRef
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """The tensor as it is now, with a version of its own.

        Raises:
            AssertionError: its memory has been freed.
        """
        storage = torch.UntypedStorage._new_with_weak_ptr(self.memory.cdata)
        assert storage is not None, "a graph reads memory that has been freed"
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class Recording:
    """The operators that a function ran."""

    def __init__(self) -> None:
        self._operators: list[tuple[Any, Any, Any, list[View | None]]] = []
        self._made: dict[int, tuple[torch.UntypedStorage, int]] = {}  # and the byte that overwrites it
        self._numbers: list[Tensor] = []  # may be the host's, and then a graph has the value

    def of(self, function: Callable[[], Any]) -> Any:
        """Runs the function and records it; returns what it returned.

        Raises:
            RuntimeError: it does what cannot be captured.
        """
        before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng([]):
            patch.setattr(operators, "is_in_torch_dispatch_mode", lambda: False)  # a real capture is no mode either
            try:
                with _Watching(self, before):
                    return function()
            finally:
                for storage, values in before.values():
                    storage.copy_(values)
                self.overwrite(held=True)

    def add(self, operator: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Notes an operator that has run."""
        args, kwargs = tree_map_only(Tensor, _view, (args, kwargs))
        known = {view.memory for view in tree_leaves((args, kwargs)) if isinstance(view, View)}
        outputs: list[View | None] = []
        for t in tree_leaves(out):
            view = _view(t) if isinstance(t, Tensor) else None
            new = isinstance(view, View) and view.memory not in known
            outputs.append(view if new else None)  # what is given back, or a view of it, is in place
            if new:
                byte = 255 if t.is_floating_point() or t.is_complex() else 0  # integers may be indices
                self._made[t.untyped_storage()._cdata] = t.untyped_storage(), byte
        self._operators.append((operator, args, kwargs, outputs))

    def has_made(self, t: Tensor) -> bool:
        """Whether a tensor lies in memory of this recording."""
        return t.untyped_storage()._cdata in self._made

    def keep(self, t: Tensor) -> None:
        """Keeps the memory of a number, which may be the host's."""
        self._numbers.append(t.detach())

    def replay(self) -> None:
        """Runs the operators again."""
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for operator, args, kwargs, outputs in self._operators:
                given = tree_map_only(View, View.tensor, (args, kwargs))
                for view, t in zip(outputs, tree_leaves(operator(*given[0], **given[1])), strict=True):
                    if view is not None:
                        view.tensor().copy_(t)

    def overwrite(self, held: bool = False) -> None:
        """Overwrites the memory that nothing else holds, or all that was made."""
        for storage, byte in self._made.values():
            if held or torch._C._storage_Use_Count(storage._cdata) == 1:
                storage.fill_(byte)


class _Watching(TorchDispatchMode):
    """Adds operators to a recording, and keeps what is in the memory that was there before it was touched."""

    def __init__(self, recording: Recording, before: dict[int, Any]) -> None:
        super().__init__()
        self.recording, self.before = recording, before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if WAITS.intersection(func.tags):
            raise RuntimeError(f"{func} waits for the device")
        kwargs = kwargs or {}
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor) and t.layout == torch.strided and not self.recording.has_made(t):
                storage = t.untyped_storage()
                self.before.setdefault(storage._cdata, (storage, storage.clone()))
                if t.dim() == 0 or func is torch.ops.aten.lift_fresh.default:  # which takes constants
                    self.recording.keep(t)
        out = func(*args, **kwargs)
        self.recording.add(func, args, kwargs, out)
        return out


def _view(t: Tensor) -> View | Tensor:
    if t.layout != torch.strided:
        return t
    return View(StorageWeakRef(t.untyped_storage()), t.storage_offset(), t.size(), t.stride(), t.dtype)
