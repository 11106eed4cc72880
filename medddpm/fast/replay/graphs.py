"""Decides whether a network's forward and backward pass are replayed from CUDA graphs or run as they are.

For each shape of its inputs a network runs as it is twice, watched; then it is captured (`graphs.graphed_pass`) and
replayed, as `torch.compile(mode="reduce-overhead")` does. What a graph cannot do is looked for before: Python that a
replay would skip (hooks, counters, random numbers of the host), what waits for the device, inputs that are changed in
place. What a graph depends on is compared before each replay: the modules, their settings and flags, where their
parameters lie.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from medddpm.errors import BadInput
from medddpm.fast import reports
from medddpm.fast.as_contiguous import AsContiguous
from medddpm.fast.graphs import cuda_graphs, nested
from medddpm.fast.graphs.graphed_pass import GraphedPass, generator_place, is_full
from medddpm.fast.graphs.pool import Pool, sparing
from medddpm.fast.hooks import modules_of, still
from medddpm.fast.kernels.operators import traced
from medddpm.fast.known import unknown_in
from medddpm.fast.replay.checks import CHECKED, difference, without_graph
from medddpm.fast.replay.fingerprint import Fingerprint

WATCHED = 2  # calls of a shape before it is captured: the first compiles and searches, the second shows what it does
SHAPES = 8  # at most: each keeps its inputs, outputs and gradients
SEEN = 64  # inputs without a graph, at most: a number that is another at each call makes one each time
WAITS = "called a synchronizing CUDA operation"  # as PyTorch's debug mode warns
UPDATE = "the optimizer's update"  # where a wait is the optimizer's: no line of the user's is to blame
PATIENCE = 1.0  # seconds that a thread waits for another's call, whose forward may be waiting for this thread
CROSSED = 3  # calls of which a thread has waited so long in vain: then no call waits for another
FULL = "there is no memory for one"
ASKED = "give graph=True if it reads nothing but inputs, parameters and attributes, or make a graphed_step"
UNCHECKED = "no memory to compare a CUDA graph with the work done without it"
CHANGING = "its parameters or settings keep changing"
CHANGES = 8  # stop capturing after so many graphs that were invalidated before 10 replays each


class Graphs:
    """The forward of an accelerated network, replayed where that is safe.

    Args:
        network: whose forward it is.
        run: computes the forward of `(args, kwargs)` as it is.
        strict: whether what is in the way of a graph is an error.
        checked: whether replays are compared with the network as it is where the caller's word is all there is.
        why: what is in the way of all graphs; empty if nothing is known to be.

    Attributes:
        captured: the number of shapes that have a graph.
        barred: the shapes that could not be captured, and why.
    """

    def __init__(
        self,
        network: nn.Module,
        run: Callable[[Any], Any],
        strict: bool = False,
        checked: bool = True,
        why: str = "",
    ) -> None:
        self.network, self.run, self.strict, self.checked = network, run, strict, checked
        self._reset()
        self._why = why

    def _reset(self) -> None:
        self._why = ""  # what is in the way of all that have no graph yet
        self.barred: dict[Hashable, str] = {}
        self.pools: dict[torch.device, Any] = {}
        self.by_key: dict[Hashable, tuple[GraphedPass, Fingerprint]] = {}
        self.watched: dict[Hashable, Watched] = {}
        self.changes = self.replays = 0
        self._lock = threading.Lock()  # of the call that may watch, capture or replay
        self._gate = threading.Lock()  # held while one captures, when modules hold other parameters
        self._within: set[int] = set()  # the threads that are in a call
        self._beside = 0  # calls that run without the lock, whatever another thread does
        self._met = False  # whether there was one during the call that has it, or that call captures
        self._crossed = 0  # since the last capture

    @property
    def why(self) -> str:
        """Returns what is in the way; empty if nothing was met."""
        return self._why or next(iter(self.barred.values()), "")

    @property
    def captured(self) -> int:
        """The number of shapes that have a graph."""
        return len(self.by_key)

    def __getstate__(self) -> dict[str, Any]:
        return {"network": self.network, "run": self.run, "strict": self.strict, "checked": self.checked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __str__(self) -> str:
        made = f"of {self.captured} shape{'s' * (self.captured > 1)} of inputs" if self.captured else "none"
        return f"{made}; {self.why}" if self.why else made

    def free(self) -> None:
        """Frees every graph and its memory."""
        self.by_key.clear()
        self.watched.clear()
        self.pools.clear()

    def __call__(self, value: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """The network's outputs for `(args, kwargs)`."""
        device = next((t.device for t in nested.tensors(value)), None)
        thread = threading.get_ident()
        if device is None or not graphable(device) or elsewhere() or thread in self._within:
            return self.run(value)
        self._within.add(thread)
        try:
            if self._crossed >= CROSSED or not self._lock.acquire(timeout=PATIENCE):
                return self._run_beside(value)
            try:
                self._met = False
                return self._called(value, device)
            finally:
                self._lock.release()
        finally:
            self._within.discard(thread)

    def _run_beside(self, value: Any) -> Any:
        """Runs the network as it is while another thread is in a call."""
        with self._gate:
            self._beside += 1
        try:
            if not self._met and self._crossed < CROSSED:
                self._met, self._crossed = True, self._crossed + 1
                if self._crossed == CROSSED:
                    self._unfit("its forward waits for other threads that call it, or they for its slow forward")
            return self.run(value)
        finally:
            with self._gate:
                self._beside -= 1

    def _called(self, value: Any, device: torch.device) -> Any:
        try:
            key = (nested.shape_of(value), self.network.training, flags(device))
        except TypeError as error:
            return self._unfit(f"an input is a {error}", value)
        known = self.by_key.get(key)
        if known is not None:
            graphed, fingerprint = known
            if graphed.pool.busy:  # a backward pass is to come, and would find another's values
                return self.run(value)
            if fingerprint.holds():
                self.replays += 1
                if self.strict and self.checked and self.replays in CHECKED and unknown_in(self.network):
                    return self._compared(graphed, value, device)
                return graphed(value)
            del self.by_key[key], known, graphed
            if self._keep_changing():
                return self._unfit(CHANGING, value)
        self._why = still(self._why, self.network)
        if self._why or key in self.barred:
            return self.run(value)
        watched = self.watched.get(key)
        if watched is not None and not watched.holds():  # it has seen another network
            watched = None
            if self._keep_changing():
                return self._unfit(CHANGING, value)
        if watched is None:
            if not self.strict and (odd := unknown_in(self.network)):
                return self._unfit(f"the forward of {odd} is not known; {ASKED}", value)
            watched = self.watched[key] = Watched()
        if len(self.watched) > SEEN:
            return self._unfit(f"it has had more than {SEEN} shapes or numbers that do not come again", value)
        if not watched.knows_enough:
            try:
                return watched(self.run, value, self.network, device)
            finally:
                if self._met:  # what is seen may be the other call's
                    self.watched.pop(key, None)
                elif watched.why:
                    self._unfit(watched.why)
        if watched.why:  # of the backward pass behind the last call
            return self._unfit(watched.why, value)
        pool = self.pools.get(device) or self.pools.setdefault(device, make_pool(device))
        if pool.busy:
            return self.run(value)
        if len(self.by_key) + len(self.barred) >= SHAPES:
            return self._unfit(f"it has had more than {SHAPES} shapes of inputs: the others run without", value)
        with self._gate:
            if not self._beside:
                self._met = True  # who has waited too long has waited for the capture
                return self._capture(key, value, watched, pool)
        return self.run(value)

    def _capture(self, key: Hashable, value: Any, watched: Watched, pool: Any) -> Any:
        why, of = "", None
        try:
            graphed = GraphedPass(self.run, value, self.network, frozenset(watched.used), pool, watched.draws)
        except RuntimeError as error:  # of CUDA, in words of its own
            line = str(error).partition("\n")[0]
            why, of = (FULL, None) if is_full(error) else (f"it cannot be captured ({line})", key)
        if why:  # only here is the memory free that the error held
            if of is None:
                self.free()  # without a graph the network needs what graphs keep
            return self._unfit(why, value, of)
        fingerprint = Fingerprint(self.network)
        graphed.unchanged = fingerprint.works_alike
        self.by_key[key] = graphed, fingerprint
        self.watched.pop(key, None)
        self.replays, self._crossed = self.replays + 1, 0
        return graphed(value)

    def _compared(self, graphed: GraphedPass, value: Any, device: torch.device) -> Any:
        """Replays a graph, and compares what comes out with what the network computes without it."""
        eager = without_graph(lambda: self.run(value), [self.network], device)
        out = graphed(value)
        if eager is None:
            reports.report(f"{type(self.network).__name__}: {UNCHECKED}")
        elif why := difference(eager, nested.distinct(out)):
            self.free()
            self._unfit(f"its outputs are off ({why}): its forward reads what has changed since")
        return out

    def _keep_changing(self) -> bool:
        """Counts a change since a capture, or since what led to one; whether there are too many."""
        self.changes += 1
        return self.changes >= CHANGES and self.replays < 10 * self.changes

    def _unfit(self, why: str, value: Any = None, key: Hashable = None) -> Any:
        """Says once why there is no graph, and runs the network as it is; of a `key` only that shape has none."""
        if self.strict:
            raise BadInput("graph", f"no CUDA graph: {why}", 'use graph="auto", which runs such a network without')
        if not self._why:
            said = why in self.barred.values()
            if key is None:
                self._why = why
                self.watched.clear()  # with the fingerprints of all that they saw
            else:
                self.barred[key] = why
                self.watched.pop(key, None)
            if not self.by_key:
                self.pools.clear()  # whose memory is no other's while they live
            if not said:
                where = "" if key is None else " for inputs of one shape"
                reports.report(f"{type(self.network).__name__} runs without a CUDA graph{where}: {why}")
        return None if value is None else self.run(value)


make_pool: Callable[[torch.device], Any] = Pool


def graphable(device: torch.device) -> bool:
    """Returns whether there are CUDA graphs on `device`."""
    return device.type == "cuda"


def replayable() -> bool:
    """Returns whether a graph may stand for what is called now.

    Not where graphs are off; where each operation is to be seen, by a mode of the user's or for anomalies; or where
    calls share computed weights until `parametrize.cached` ends: no graph may hold or make those.
    """
    harmless = DeviceContext, AsContiguous  # modes that only place tensors, or lay them out
    seen = any(not isinstance(mode, harmless) for mode in _get_current_function_mode_stack())
    seen = seen or torch.is_anomaly_enabled() or traced()
    return cuda_graphs.allowed() and not seen and not parametrize._cache_enabled


def elsewhere() -> bool:
    """Returns whether this call belongs to something that a replay would break: a larger graph, a trace, a checkpoint.

    What compiles, records or transforms functions does not come here: `root.Root` sees to it.
    """
    return (
        not replayable()
        or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
        or torch._C._get_tracing_state() is not None
        or torch._C._current_graph_task_id() != -1  # within a backward pass, as a checkpoint's second forward is
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # a checkpoint, offloading
    )


def flags(device: torch.device) -> Hashable:
    """PyTorch's settings that kernels are chosen by, and whether gradients are wanted."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    attention = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple(enabled() for enabled in attention),  # type: ignore[no-untyped-call]
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
        cuda_graphs.precision_flags(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()),
    )


class Watched:
    """Watches calls of one shape for what a graph cannot repeat.

    Args:
        whole: whether a call is a whole step, with its backward pass.

    Attributes:
        calls: how many there were.
        fingerprint: of the network at the last one.
        learns: whether an output requires a gradient.
        used: which of the outputs' tensors a backward pass brought gradients for.
        draws: whether the device's generator is drawn from.
        threads: that made the calls: cuDNN and cuBLAS make each a handle, which they cannot amid a capture.
        why: what is in the way of a graph; empty if nothing is.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        self.calls = 0
        self.fingerprint: Fingerprint | None = None
        self.learns = self.draws = False
        self.used: set[int] = set()
        self.threads: set[int] = set()
        self.why = ""
        self._in_backward = False

    @property
    def knows_enough(self) -> bool:
        """Returns whether this thread may capture what was seen."""
        asks = torch.is_grad_enabled() and self.learns and not self.used  # a backward pass is to come
        return self.calls >= WATCHED and not asks and threading.get_ident() in self.threads

    def holds(self) -> bool:
        """Returns whether the network is as it was at the calls, and has no hooks."""
        return self.fingerprint is None or self.fingerprint.holds()

    def __call__(self, run: Callable[[Any], Any], value: Any, network: nn.Module, device: torch.device) -> Any:
        """Runs the network, and looks on."""
        self._in_backward = False  # one that failed has not ended
        given = list(nested.tensors(value))
        if odd := next((t for t in given if t.device != device), None):
            self.why = f"inputs are on {device} and {odd.device}"
        values = [t.clone() if t.is_inference() else t._version for t in given]
        rest = nested.shape_of(value)
        for part in modules_of(network):  # which the forward would change, where the user has changed parts
            forward: Any = part.__dict__.get("forward")
            if hasattr(forward, "look_again"):
                forward.look_again()
        before = self.fingerprint = Fingerprint(network)
        host, place = _host_random(), generator_place(device)
        waits: list[str] = []
        hooked: list[object] = []
        with _waiting(waits) if self.calls else contextlib.nullcontext(), _hooking(hooked), sparing():
            out = run(value)  # sparing: the last backward pass, on a thread of its own, left workspaces
        self.calls += 1
        self.threads.add(threading.get_ident())
        self.draws = place != generator_place(device)
        if before.why:
            self.why = before.why
        elif not before.holds():
            self.why = "its forward changes attributes of its modules"
        elif host != _host_random():
            self.why = "its forward draws random numbers on the host"
        elif not all(map(_is_as_it_was, given, values)):
            self.why = "its forward changes an input in place"
        elif rest != nested.shape_of(value) or any(map(operator.is_not, given, nested.tensors(value))):
            self.why = "its forward writes into what it is given"
        elif waits:
            self.why = waits[0]
        elif hooked and not self.whole:
            self.why = "its forward registers hooks on tensors"
        try:
            nested.shape_of(out)
        except TypeError as error:
            self.why = f"an output is a {error}"
        for at, tensor in enumerate(nested.distinct(out)):
            if tensor.grad_fn is not None:  # a parameter itself would keep the hook
                self.learns = True
                tensor.register_hook(functools.partial(self._gradient_came, at))
        return out

    def _gradient_came(self, at: int, _: Tensor) -> None:
        """Notes it, and looks at what the rest of the backward pass draws on the host."""
        self.used.add(at)
        if not self._in_backward:
            self._in_backward = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self._backward_ended, _host_random()))

    def _backward_ended(self, host: Hashable) -> None:
        self._in_backward = False
        if host != _host_random():
            self.why = "its backward pass draws random numbers on the host"


def _is_as_it_was(t: Tensor, before: Tensor | int) -> bool:
    """Returns whether a tensor has its former version, or if an inference tensor, which has none, its former values."""
    if isinstance(before, int):
        return t._version == before
    return bool(((t == before) | (t != t)).all())


def _host_random() -> Hashable:
    """The states of the host's generators."""
    numpy: Any = sys.modules.get("numpy")
    words = None if numpy is None else numpy.random.get_state()
    return (
        random.getstate(),
        torch.get_rng_state().numpy().tobytes(),
        None if words is None else (words[1].tobytes(), words[2:]),
    )


@contextlib.contextmanager
def _hooking(hooks: list[object]) -> Iterator[None]:
    """Inside, hooks that this thread registers on tensors are noted: in a graph's backward pass nothing calls them."""
    register: Callable[..., Any] = Tensor.register_hook
    thread = threading.get_ident()

    def register_hook(self: Tensor, hook: Any) -> Any:
        if threading.get_ident() == thread:
            hooks.append(hook)
        return register(self, hook)

    Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.register_hook = register  # type: ignore[method-assign]


@contextlib.contextmanager
def _waiting(places: list[str]) -> Iterator[None]:
    """Inside, what waits for the device is noted, with its line, in this thread or in PyTorch's own of a backward pass.

    Another of Python's may load data meanwhile.
    """
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    shown, thread = warnings.showwarning, threading.current_thread()

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if WAITS not in str(message):
            shown(message, category, filename, lineno, *rest)
        elif (now := threading.current_thread()) is thread or isinstance(now, threading._DummyThread):
            places.append(f"{_place() or f'{filename}:{lineno}'} waits for the device")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", WAITS)
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        warnings.showwarning = show  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _place() -> str:
    """The innermost line that runs now and is the user's, neither PyTorch's nor this package's; or `UPDATE`."""
    torchs = os.path.dirname(torch.__file__) + os.sep
    ours = torchs, os.path.dirname(__file__) + os.sep, warnings.__file__
    updates = torchs + "optim" + os.sep, torchs + os.path.join("amp", "grad_scaler.py")
    frame = sys._getframe(1)
    while frame is not None and (path := frame.f_code.co_filename).startswith(ours):
        if path.startswith(updates):
            return UPDATE
        frame = frame.f_back  # type: ignore[assignment]
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
