"""A shape of inputs that cannot be captured amid a training: the call runs as it would have without graphs."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.graphs import Network
from helpers.pair import Pair, adam, batch, loss_of
from helpers.twins import Twins
from helpers.twins import loss_of as loss_of_twin
from torch import Tensor, nn

from medddpm import graphed_step
from medddpm.errors import BadInput
from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.graphs.pool import Pool
from medddpm.fast.replay import graphs
from medddpm.fast.replay import step as module

CPU = torch.device("cpu")
FULL, ODD = torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("operation not permitted\nwhen capturing")
LARGE = RuntimeError("CUDA error: out of memory")  # as where a graph is made of what was captured


class Capturing(recordings.Recordings):
    """A pool that tells whether it captures."""

    now = False

    def _captured(self, function: Callable[[], Any], *generators: Any) -> tuple[Any, Any]:
        type(self).now = True
        try:
            return super()._captured(function, *generators)
        finally:
            type(self).now = False


class Failing(nn.Module):
    """Adds nothing, and fails in the forward or the backward pass of a capture of volumes of one side."""

    where, error, side = "", ODD, 4

    def fail(self, where: str) -> None:
        while_made = not cuda_graphs.allowed()
        if where == self.where and (Capturing.now or (self.where == "warm-up" and while_made)):
            raise type(self.error)(*self.error.args)  # whose traceback holds what the capture made

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.side:
            return x
        self.fail("forward")
        self.fail("warm-up")
        return InBackward.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, failing: Failing) -> Tensor:
        ctx.failing = failing
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.failing.fail("backward")
        return gradients[0], None


class Fails(Network):
    def __init__(self) -> None:
        super().__init__()
        self.failing = Failing()

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return tuple(map(self.failing, super().forward(x, scale)))


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    recordings.drawing_on_the_device(monkeypatch)
    for each in (graphs, module):
        monkeypatch.setattr(each, "make_pool", Capturing)


def noisy(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return loss_of(network, x + 0.1 * torch.randn_like(x), y)


@pytest.mark.parametrize(
    "options", [{"clip_norm": 0.1, "scaled": True}, {"accumulate": 2}, {"average": True}], ids=" ".join
)
@pytest.mark.parametrize(
    "error", [FULL, pytest.param(LARGE, marks=pytest.mark.long), ODD], ids=["memory", "graph", "capture"]
)
@pytest.mark.parametrize("where", ["warm-up", "forward", "backward", "update"])
def test_a_step_goes_on_as_a_loop_would(
    where: str, error: Exception, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    if where == "warm-up" and error is ODD:
        pytest.skip("it is an error of the loss's own")
    pair = Pair(CPU, loss=noisy, make=Fails, **options)
    failing: Any = pair.fast.failing
    failing.where, failing.error = where, error

    def fail(*_: Any) -> None:
        if pair.fast.side == failing.side:  # type: ignore[operator]
            failing.fail("update")

    pair.optimizers[1].register_step_pre_hook(fail)
    for number, side in enumerate((5, 5, 4, 4, 5, 4, 5, 4, 5, 5, 4, 5)):
        object.__setattr__(pair.fast, "side", side)
        given, losses = batch(CPU, number, side), []
        for work in (functools.partial(pair.ordinary, number), pair.step):
            torch.manual_seed(number)
            losses += [work(*given), torch.rand(2)]
        torch.testing.assert_close(losses[2:], losses[:2], rtol=1e-4, atol=1e-5)
        pair.check()
    assert {p.grad is None for p in pair.fast.parameters()} == {False}
    if error is not ODD:
        assert pair.step.why == "there is no memory for one"
        assert not pair.step._pools
    else:
        assert not pair.step.why
        assert {key[0][1][0][-1] for key in pair.step._graphs} == {5}
    assert len(caplog.messages) == 1


def test_moments_of_which_only_some_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that is new amid a training begins as it would have without the attempt."""
    pair, made, own = Pair(CPU), list[object](), torch.zeros_like
    pair.train(2)
    pair.optimizers = [adam(n.parameters()) for n in (pair.plain, pair.fast)]
    pair.step.optimizer = pair.optimizers[1]

    def full(*args: Any, **options: Any) -> Tensor:
        made.append(args)
        if len(made) == 4 and not cuda_graphs.allowed():
            raise FULL
        return own(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", full)
        pair.step(*batch(CPU))
    pair.ordinary(0, *batch(CPU))
    assert pair.step.why == "there is no memory for one"
    pair.train(3)


@pytest.mark.parametrize("where", ["warm-up", "backward"])
def test_a_step_that_is_made_without_memory_is_refused(where: str) -> None:
    network = Fails()
    network.failing.where, network.failing.error = where, FULL
    with pytest.raises(BadInput, match="graphed_step: there is no memory for one; use a smaller batch"):
        graphed_step(network, loss_of, adam(network.parameters()), batch(CPU, side=4))


def test_shapes_that_cannot_be_captured_are_tried_once_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(CPU, make=Fails)
    failing: Any = pair.fast.failing
    failing.where = "forward"
    sides = range(4, 4 + module.SHAPES + 2)
    for side in sides:
        for _ in range(2):
            failing.side = side
            pair.step(*batch(CPU, 0, side))
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(
        "graphed_step runs without a CUDA graph for batches of one shape: it cannot be"
    )
    assert pair.step.why.startswith(f"batches come in more than {module.SHAPES} shapes")


def test_the_last_gradients_are_freed_before_another_shape_is_captured() -> None:
    """Else a new shape would need room for two sets of them."""
    alive: list[int] = []

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        alive.append(sum(gradient() is not None for gradient in before))
        return loss_of(network, x, y)

    before = list[weakref.ref[Tensor]]()
    pair = Pair(CPU, loss=loss)
    pair.step(*batch(CPU))
    before += [weakref.ref(p.grad) for p in pair.fast.parameters() if p.grad is not None]
    assert len(before) == len(list(pair.fast.parameters()))
    alive.clear()
    pair.step(*batch(CPU, side=4))
    assert alive == [0, 0, 0]  # twice watched, and captured


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_network_goes_on_and_only_that_shape_is_barred(where: str, caplog: pytest.LogCaptureFixture) -> None:
    twins = Twins(CPU, Fails)
    twins.fast.failing.where = where  # type: ignore[union-attr]
    for side in (4, 5, 4, 6, 5):
        twins.train(4, side=side)
    assert twins.graphs.captured == 2
    assert twins.graphs.why == "it cannot be captured (operation not permitted)"
    said = "Fails runs without a CUDA graph for inputs of one shape: it cannot be captured (operation not permitted)"
    assert caplog.messages == [said]
    strict: Any = Twins(CPU, Fails)
    strict.fast.failing.where, strict.graphs.strict = where, True
    with pytest.raises(BadInput, match=r"no CUDA graph: it cannot be captured \(operation not permitted\)"):
        strict.train(4, side=4)


@pytest.mark.parametrize("error", [FULL, LARGE], ids=["memory", "graph"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_network_without_memory_for_a_graph_has_what_the_attempt_took(where: str, error: Exception) -> None:
    twins, outputs, alive = Twins(CPU, Fails), list[weakref.ref[Tensor]](), list[int]()
    twins.fast.failing.where, twins.fast.failing.error = where, error  # type: ignore[union-attr]
    twins.train(4)
    own = twins.graphs.run

    def run(value: Any) -> Any:
        alive.append(sum(out() is not None for out in outputs))
        out = own(value)
        if Capturing.now:
            outputs.append(weakref.ref(out[0]))
        return out

    twins.graphs.run = run
    twins.train(4, side=4)
    assert len(outputs) == (where == "backward")
    assert set(alive) == {0}
    assert twins.graphs.why == "there is no memory for one"
    assert not twins.graphs.by_key
    assert not twins.graphs.pools
    assert loss_of_twin(twins.fast(twins.x())) > 0


def test_work_on_a_stream_that_fails_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is restored behind it is not written over by what it still does."""
    waits: list[tuple[object, object]] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            waits.append((self, other))

    current, own = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    with pytest.raises(torch.OutOfMemoryError), Pool.on_stream(SimpleNamespace(stream=own, device=CPU)):
        raise FULL
    assert waits == [(own, current), (current, own)]
