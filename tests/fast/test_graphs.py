"""That an accelerated network replayed from graphs trains as the network itself, whatever its user does between calls.

On a CPU a stand-in for the graphs replays recorded operators (`helpers.recordings`); with a GPU the same tests run on
real graphs.
"""

from __future__ import annotations

import _thread
import copy
import gc
import inspect
import pickle
import random
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.graphs import Network
from helpers.networks import NETWORKS
from helpers.twins import Twins, loss_of, step
from torch import Tensor, nn
from torch.nn import functional

from medddpm.errors import BadInput
from medddpm.fast import root
from medddpm.fast.graphs import cuda_graphs, pool
from medddpm.fast.patch import accelerate, restore
from medddpm.fast.replay import graphs
from medddpm.fast.replay.fingerprint import Fingerprint
from medddpm.fast.replay.step import graphed_step


@pytest.fixture(params=["recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return recordings.device(request.param, monkeypatch)


def test_a_loop_is_replayed_and_trains_as_the_network_does(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(3)
    assert twins.graphs.captured == 1
    assert twins.graphs.why == ""
    runs = twins.runs
    twins.train(5)
    assert twins.runs == runs
    assert str(twins.fast.acceleration).endswith("CUDA graphs: of 1 shape of inputs")


def test_outputs_and_gradients_may_be_kept(device: torch.device) -> None:
    twins = Twins(device)
    kept = []
    for seed in range(6):
        outs = twins.each(lambda n, o, seed=seed: step(n, o, twins.x(seed)))
        kept.append((outs, [[p.grad for p in n.parameters()] for n in twins]))
    for (fast, plain), (grads, others) in kept:
        for a, b in zip((*fast, *grads), (*plain, *others), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_two_forwards_before_a_backward(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(3)

    def twice(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        first, second = network(twins.x(1)), network(twins.x(2))
        loss_of(second).backward()
        loss_of(first).backward()
        optimizer.step()

    for _ in range(3):
        twins.each(twice)
        twins.check()


def test_a_gan_s_evaluation_between_forward_and_backward(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(3)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        out = network(twins.x(1))
        with torch.no_grad():
            target = network(twins.x(2))[0]
        (loss_of(out) + (out[0] - target).square().mean()).backward()
        optimizer.step()
        return target

    for _ in range(4):
        fast, plain = twins.each(work)
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
        twins.check()


def test_gradients_accumulate(device: torch.device) -> None:
    twins = Twins(device)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        for seed in range(3):
            loss_of(network(twins.x(seed))).backward()
        optimizer.step()

    for _ in range(3):
        twins.each(work)
        twins.check()
    assert twins.graphs.captured == 1


def test_evaluation_between_steps(device: torch.device) -> None:
    twins = Twins(device)
    for seed in range(4):
        twins.train(2)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                fast, plain = twins.each(lambda n, o, seed=seed: n.eval()(twins.x(seed), scale=2.0))
            torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
        for network in twins:
            network.train()
    assert twins.graphs.captured == 3


def test_an_evaluation_that_forgets_no_grad(device: torch.device) -> None:
    twins = Twins(device)
    for seed in range(5):
        outs = twins.each(lambda n, o, seed=seed: n.eval()(twins.x(seed)))
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    assert twins.graphs.captured == 0  # its backward pass is not known
    for network in twins:
        network.train()
    twins.train(5)
    assert twins.graphs.captured == 1


def test_calls_without_gradients_before_a_training_and_one_in_evaluation_mode(device: torch.device) -> None:
    twins = Twins(device)
    with torch.no_grad():
        for seed in range(4):
            outs = twins.each(lambda n, o, seed=seed: n(twins.x(seed)))
            torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    twins.train(4)
    for network in twins:
        network.eval()
    twins.train(4)
    assert twins.graphs.captured == 3


def changes() -> dict[str, Callable[[nn.Module], None]]:
    def moved(network: nn.Module) -> None:
        for p in network.parameters():
            p.data = p.data.clone() * 1.1

    def replaced(network: Any) -> None:
        torch.manual_seed(5)
        network.second = nn.Conv3d(8, 3, 1).to(network.first.weight.device)

    def weight(network: Any) -> None:
        network.second.weight = nn.Parameter(network.second.weight.detach() * 2)

    def another_parameter_in_the_same_memory(network: Any) -> None:
        network.second.weight = nn.Parameter(network.second.weight.data)

    def its_own_state_assigned(network: nn.Module) -> None:
        network.load_state_dict(network.state_dict(), assign=True)

    def the_same_memory_in_another_order(network: Any) -> None:
        network.first.weight.data = network.first.weight.data.transpose(2, 3)

    def frozen(network: Any) -> None:
        network.first.requires_grad_(False)

    def one_output(network: Any) -> None:
        network.both = False

    def padding(network: Any) -> None:
        network.first.padding_mode = "circular"
        network.first._reversed_padding_repeated_twice = [1] * 6

    def epsilon(network: Any) -> None:
        network.norm.eps = 0.5

    def setting_in_a_list_in_a_dict(network: Any) -> None:
        network.settings["scales"][0][1] = 2.0

    def number_on_the_host(network: Any) -> None:
        network.number.mul_(2)

    def number_written_through_numpy(network: Any) -> None:
        network.number.numpy()[...] = 5

    all_of_them = (
        moved, replaced, weight, another_parameter_in_the_same_memory, its_own_state_assigned,
        the_same_memory_in_another_order, frozen, one_output, padding, epsilon, setting_in_a_list_in_a_dict,
        number_on_the_host, number_written_through_numpy,
    )  # fmt: skip
    return {f.__name__: f for f in all_of_them}


@pytest.mark.parametrize("change", changes().values(), ids=changes())
def test_what_changes_in_the_network_is_seen(device: torch.device, change: Callable[[nn.Module], None]) -> None:
    twins = Twins(device)
    twins.train(4)
    assert twins.graphs.captured == 1
    for network in twins:
        change(network)
    twins.optimizers = [torch.optim.SGD(n.parameters(), 0.05) for n in twins]
    twins.train(1)
    assert twins.graphs.captured == 0
    twins.train(4)
    assert twins.graphs.captured == 1


def test_a_parameter_in_a_new_table_is_seen_though_it_is_equal() -> None:
    """Of one element, it compares: its place tells."""
    network = nn.Sequential(nn.PReLU())
    fingerprint = Fingerprint(network)
    assert fingerprint.holds()
    network[0].__dict__["_parameters"] = network[0]._parameters.copy()
    assert fingerprint.holds()
    network[0].weight = nn.Parameter(network[0].weight.detach().clone())
    assert not fingerprint.holds()


class Smoothing(nn.Module):
    """Holds a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(2, 3, 1)
        self.register_buffer("matrix", torch.eye(6).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (self.matrix @ x[0, 0, 0])


def test_a_sparse_buffer(device: torch.device) -> None:
    twins = Twins(device, Smoothing)
    twins.train(4)
    if device.type == "cpu":  # on a GPU its product may be what no graph can do
        assert twins.graphs.captured == 1
    for network in twins:
        network.matrix.mul_(2)
    twins.train(4)


def test_layers_that_know_their_sizes_after_the_first_call(device: torch.device) -> None:
    network = accelerate(nn.Sequential(nn.LazyConv3d(4, 3), nn.LazyBatchNorm3d()), report=None).to(device)
    for seed in range(4):
        loss_of(network(Twins.x(Twins(device), seed))).backward()
    assert network.acceleration.graphs.captured == 1


def test_new_shapes_are_captured_anew_and_not_without_end(device: torch.device) -> None:
    twins = Twins(device)
    for side in range(4, 4 + graphs.SHAPES + 1):
        twins.train(3, side=side)
    assert twins.graphs.captured == graphs.SHAPES
    assert "shapes of inputs" in twins.graphs.why
    twins.train(2, side=4)


def test_a_number_that_is_another_at_each_call(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    twins = Twins(device)
    for call in range(graphs.SEEN + 5):
        a, b = twins.each(lambda n, o, call=call: n(twins.x(call), 1.0 + call)[0])
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(twins.graphs.watched) <= graphs.SEEN
    assert twins.graphs.why == f"it has had more than {graphs.SEEN} shapes or numbers that do not come again"
    assert len(caplog.messages) == 1


def test_gradients_of_the_inputs(device: torch.device) -> None:
    twins = Twins(device)
    for seed in range(5):
        xs = [twins.x(seed, requires_grad=True) for _ in twins]
        for x, network in zip(xs, twins, strict=True):
            network.zero_grad()
            loss_of(network(x)).backward()
        torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=1e-4, atol=1e-6)
        twins.check()
    assert twins.graphs.captured == 1


def test_an_output_that_no_loss_uses(device: torch.device) -> None:
    """Its parameters have no gradient, which an optimizer that decays weights would take for one of zeros."""
    twins = Twins(device)
    for seed in range(5):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(network(twins.x(seed)), slice(1)).backward()
            optimizer.step()
        twins.check()
    assert twins.graphs.captured == 1
    assert twins.fast.aside.weight.grad is None  # type: ignore[union-attr]


def test_another_part_of_the_outputs_and_a_second_backward(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(3)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss_of(network(twins.x(1)), slice(1)).backward()
        out = network(twins.x(2))
        loss_of(out).backward(retain_graph=True)
        loss_of(out).backward()

    for _ in range(2):
        twins.each(work)
        twins.check()


class Moving(nn.Module):
    """Multiplies by a buffer that each forward changes, as spectral norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(2, 3, 1)
        self.register_buffer("factor", torch.ones(()))
        self.factor: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * self.factor.clone()
        with torch.no_grad():
            self.factor.mul_(0.5).add_(0.1)
        return y


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_second_backward_reads_buffers_as_the_forward_did(device: torch.device, differentiated: bool) -> None:
    twins = Twins(device, Moving)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        out = network(twins.x(2))
        if differentiated:
            (first,) = torch.autograd.grad(loss_of(out), [network.layer.weight], create_graph=True)  # type: ignore[union-attr]
            first.square().sum().backward()
        else:
            loss_of(out).backward(retain_graph=True)
            loss_of(out).backward()

    for _ in range(5):
        twins.each(work)
        twins.check()
    assert differentiated or twins.graphs.captured == 1


def test_a_second_backward_in_the_mode_and_the_autocast_of_the_forward(device: torch.device) -> None:
    """It computes the forward pass again, which was in training and under autocast; the backward pass is not."""
    twins = Twins(device)

    def both(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, evaluate: bool = False) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            out = network(x)
        network.train(not evaluate)
        loss_of(out, slice(0, 1) if evaluate else slice(None)).backward(retain_graph=True)
        if evaluate:
            loss_of(out, slice(1, 2)).backward()
        network.train()

    for seed in range(4):
        twins.each(lambda n, o, seed=seed: both(n, o, twins.x(seed)))
    assert twins.graphs.captured == 1
    for evaluate in (True, False):
        twins.each(lambda n, o, evaluate=evaluate: both(n, o, twins.x(5), evaluate))
        twins.check()


def test_a_setting_changed_before_a_second_backward_is_an_error(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(4)
    out = twins.fast(twins.x())
    loss_of(out).backward(retain_graph=True)
    twins.fast.norm.eps = 0.5
    with pytest.raises(RuntimeError, match="a setting of the network has changed"):
        loss_of(out).backward()


@pytest.mark.parametrize("again", [False, True])
def test_what_is_frozen_between_forward_and_backward(device: torch.device, again: bool) -> None:
    twins = Twins(device)
    twins.train(4)

    def frozen(network: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        out = network(twins.x(7))
        network.first.requires_grad_(False)
        for _ in range(1 + again):
            loss_of(out).backward(retain_graph=True)

    twins.each(frozen)
    twins.check()


def test_gradients_that_are_differentiated(device: torch.device) -> None:
    """As a penalty of a discriminator's gradients is."""
    twins = Twins(device)

    def penalized(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        x = twins.x(seed, requires_grad=True)
        out = network(x)
        (slope,) = torch.autograd.grad(loss_of(out), x, create_graph=True)
        (loss_of(out) + 100 * slope.square().sum()).backward()
        optimizer.step()

    for seed in range(6):
        twins.each(lambda n, o, seed=seed: penalized(n, o, seed))
    twins.check()
    assert twins.graphs.captured == 1


def test_a_weight_changed_before_the_backward_is_an_error(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(3)
    loss = loss_of(twins.fast(twins.x()))
    with torch.no_grad():
        twins.fast.second.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_ddp_around_it(device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        twins = Twins(device)
        wrapped = nn.parallel.DistributedDataParallel(twins.fast)
        for seed in range(6):
            for network, optimizer in zip((wrapped, twins.plain), twins.optimizers, strict=True):
                step(network, optimizer, twins.x(seed))
            twins.check()
        assert twins.graphs.captured == 1
        assert twins.graphs.why == ""
    finally:
        torch.distributed.destroy_process_group()


def test_two_networks_in_turn_and_one_within_a_larger_one(device: torch.device) -> None:
    class Larger(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.last = nn.Conv3d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(x)[0]) + self.inner(x + 1)[0]

    twins = Twins(device)
    torch.manual_seed(1)
    last = nn.Conv3d(3, 3, 1).to(device)
    larger = [Larger(n) for n in twins]
    for network in larger:
        network.last = copy.deepcopy(last)
    for seed in range(5):
        for network in larger:
            network.zero_grad()
            loss_of(network(twins.x(seed))).backward()
        twins.check()


class Odd(nn.Module):
    """What a graph cannot do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Conv3d(2, 3, 1)
        self.kind, self.calls = kind, 0
        self.seen: tuple[list[int]] = ([],)

    def forward(self, x: Tensor, seen: Any = None) -> Any:
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "draws":
            x = x * random.random()
        if self.kind == "torch's":
            x = x * torch.rand(()).item()
        if self.kind == "in place":
            x.mul_(2)
        if self.kind == "list in a tuple":
            self.seen[0].append(len(x))
        if self.kind == "writes":
            seen.append(x)
        if self.kind == "waits" and x.mean().item() > 100:
            x = -x
        y = self.layer(x)
        if self.kind == "hooks" and y.requires_grad:
            y.register_hook(GRADIENTS.append)
        return [self] if self.kind == "returns" else y


ODD = {
    "counts": "its forward changes attributes of its modules",
    "draws": "its forward draws random numbers on the host",
    "torch's": "its forward draws random numbers on the host",
    "in place": "its forward changes an input in place",
    "returns": "an output is a Odd",
    "list in a tuple": "its forward changes attributes of its modules",
    "writes": "its forward writes into what it is given",
    "hooks": "its forward registers hooks on tensors",
}
GRADIENTS: list[Tensor] = []  # as Grad-CAM keeps them


@pytest.mark.parametrize("kind", ODD)
def test_what_no_graph_can_do_runs_as_it_is_and_says_so(
    device: torch.device, kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    network = accelerate(Odd(kind).to(device), graph="auto", report=None)
    xs = [Twins.x(Twins(device), seed).contiguous(memory_format=torch.channels_last_3d) for seed in range(5)]
    given = [[]] if kind == "writes" else []
    for x in xs:
        network(x, *given)
    assert network.acceleration.graphs.captured == 0
    assert network.acceleration.graphs.why == ODD[kind]
    assert caplog.messages == [f"Odd runs without a CUDA graph: {ODD[kind]}"]
    strict = accelerate(Odd(kind).to(device), report=None, graph=True)

    def called() -> None:
        for x in xs:
            strict(x, *([[]] if given else []))

    with pytest.raises(BadInput, match=f"no CUDA graph: {ODD[kind]}"):
        called()


@pytest.mark.gpu
def test_what_waits_for_the_device_is_named() -> None:
    network = accelerate(Odd("waits").cuda(), graph="auto", report=None)
    twins = Twins(torch.device("cuda", 0))
    for seed in range(5):
        network(twins.x(seed))
    assert network.acceleration.graphs.captured == 0
    assert "test_graphs.py:" in network.acceleration.graphs.why
    assert torch.cuda.get_sync_debug_mode() == 0
    twins.train(5)
    assert twins.graphs.captured == 1


def test_another_thread_that_waits_is_no_reason_against_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that loads the next batch."""
    for name, value in (("is_available", True), ("get_sync_debug_mode", 0), ("set_sync_debug_mode", None)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    found: list[str] = []
    with graphs._waiting(found), ThreadPoolExecutor(1) as other:
        other.submit(warnings.warn, graphs.WAITS).result()
        assert not found
        warnings.warn(graphs.WAITS, stacklevel=1)
        ended = threading.Lock()
        ended.acquire()
        _thread.start_new_thread(lambda: (warnings.warn(graphs.WAITS, stacklevel=1), ended.release()), ())
        assert ended.acquire(timeout=60)  # a thread that is none of Python's, as of a backward pass
    assert len(found) == 2
    for each in found:
        assert re.fullmatch(r"test_graphs\.py:\d+ waits for the device", each)


def test_a_wait_within_pytorch_is_the_user_s_line_or_the_optimizer_s_update() -> None:
    def from_within(path: str) -> str:
        space: dict[str, Any] = {"place": graphs._place}
        exec(compile("def waits():\n    return place()\n", path, "exec"), space)
        return space["waits"]()

    assert re.fullmatch(r"test_graphs\.py:\d+", from_within(functional.__file__))
    for kind in (torch.optim.SGD, torch.amp.GradScaler):
        assert from_within(inspect.getfile(kind)) == graphs.UPDATE


def test_hooks_are_called_and_graphs_come_back_without_them(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(4)
    seen: list[str] = []
    handle = twins.fast.second.register_forward_hook(lambda *_: seen.append("second"))
    outer = twins.fast.register_forward_hook(lambda *_: seen.append("network"))
    twins.train(4)
    assert seen == ["second", "network"] * 4
    assert twins.graphs.why == "second has hooks"
    handle.remove()
    twins.train(4)
    assert twins.graphs.captured == 1
    assert seen == ["second", "network"] * 4 + ["network"] * 4
    outer.remove()


def test_an_outer_autocast_is_another_graph(device: torch.device) -> None:
    twins = Twins(device)
    for _ in range(4):
        twins.train(1)
        outs = []
        for network in twins:
            with torch.autocast(device.type, torch.bfloat16):
                out = network(twins.x())
            loss_of(out).backward()
            outs.append(out)
        assert outs[0][0].dtype == outs[1][0].dtype == torch.bfloat16
    assert twins.graphs.captured == 2


def test_what_earlier_steps_left_alive_is_in_no_graph_s_way(device: torch.device) -> None:
    """A loss that is not deleted holds its step's part of autograd, and the stream of that."""
    twins = Twins(device)
    alive = []
    for seed in range(5):
        alive += twins.each(lambda n, o, seed=seed: loss_of(n(twins.x(seed))))
        for loss in alive[-2:]:
            loss.backward()
    twins.check()
    assert twins.graphs.captured == 1


class Beside(nn.Module):
    """Reads a parameter that no module of it holds."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.inner = nn.Conv3d(2, 2, 1, device=device)
        self.beside = (nn.Parameter(torch.ones(1, device=device)),)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.beside[0]


def test_a_parameter_that_no_module_holds_keeps_its_gradient(device: torch.device) -> None:
    network = accelerate(Beside(device), "tf32", report=None)
    (parameter,) = network.beside
    x = torch.randn(1, 2, 4, 4, 4, device=device)
    for _ in range(4):
        network.zero_grad()
        parameter.grad = None
        network(x).sum().backward()
        assert parameter.grad is not None
    assert "none of its modules holds" in network.acceleration.graphs.why


@pytest.mark.gpu
def test_after_a_capture_that_failed_the_device_is_as_it_was() -> None:
    from medddpm.fast.graphs.pool import Pool

    pool = Pool(torch.device("cuda", 0))
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError):
        pool.capture(lambda: x.sum().item())
    torch.cuda.synchronize()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(8, device="cuda").std() > 0
    doubled, replay = pool.capture(lambda: 2 * x)
    pool.replay(replay)
    assert doubled.tolist() == [2.0] * 4


@pytest.mark.gpu
def test_another_thread_draws_on_the_device_during_a_capture() -> None:
    """PyTorch gives a capture a state of its own; before it did, the other thread had an error. The graph is right."""
    from medddpm.fast.graphs.pool import Pool

    pool, drawn = Pool(torch.device("cuda", 0)), list[Any]()
    x = torch.ones(1000, device="cuda")

    def work() -> Tensor:
        with ThreadPoolExecutor(1) as other:
            drawn.append(other.submit(torch.rand, 8, device="cuda"))
            drawn[-1].exception(60)
        return x + torch.rand(1000, device="cuda")

    noisy, replay = pool.capture(work)
    error = drawn[0].exception()
    assert error is None or "outside graph capture" in str(error)
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        pool.replay(replay)
        found.append(noisy.clone())
        torch.rand(8, device="cuda")
    torch.manual_seed(5)
    torch.testing.assert_close(found, [1 + torch.rand(1000, device="cuda")] * 2)


class Splits(Network):
    """Calls itself in a thread, for half of a batch."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        if len(x) == 1:
            return super().forward(x, scale)
        with ThreadPoolExecutor(1) as other:
            first = other.submit(self, x[:1])
            assert first.exception(60) is None
        return [torch.cat(pair) for pair in zip(first.result(), super().forward(x[1:], scale), strict=True)]


def test_a_forward_that_waits_for_a_thread_that_calls_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "PATIENCE", 0.1)
    twins = Twins(device, Splits)
    twins.train(6)
    assert twins.graphs.captured == 0
    assert "waits for other threads" in twins.graphs.why


def test_threads_that_call_it_at_once(device: torch.device) -> None:
    twins = Twins(device)
    xs = [twins.x(seed, requires_grad=False) for seed in range(12)]
    for network in twins:
        network.eval().requires_grad_(False)
    with ThreadPoolExecutor(4) as threads:
        outs = list(threads.map(twins.fast, xs))
    for x, out in zip(xs, outs, strict=True):
        torch.testing.assert_close(out, twins.plain(x), rtol=1e-4, atol=1e-5)
    assert twins.graphs.captured == 1


def test_a_thread_captures_what_it_has_computed_itself(device: torch.device) -> None:
    """A thread's first convolution makes a handle of cuDNN's, which ends a capture."""
    twins = Twins(device)
    x = twins.x(requires_grad=False)
    for network in twins:
        network.eval().requires_grad_(False)
    with ThreadPoolExecutor(1) as other:
        for _ in range(graphs.WATCHED):
            other.submit(twins.fast, x).result()
        twins.fast(x)
        assert twins.graphs.captured == 0
        torch.testing.assert_close(other.submit(twins.fast, x).result(), twins.plain(x), rtol=1e-4, atol=1e-5)
    assert twins.graphs.captured == 1
    torch.testing.assert_close(twins.fast(x), twins.plain(x), rtol=1e-4, atol=1e-5)


def test_threads_that_wait_for_a_capture_are_no_reason_against_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(recordings.Recordings):
        def capture(self, function: Callable[[], Any]) -> tuple[Any, Any]:
            threads.append(ThreadPoolExecutor(1))
            outs.append(threads[-1].submit(twins.fast, x))
            time.sleep(0.2)
            return super().capture(function)

    recordings.stand_in(monkeypatch)
    monkeypatch.setattr(graphs, "make_pool", Slow)
    monkeypatch.setattr(graphs, "PATIENCE", 0.05)
    twins, threads, outs = Twins(torch.device("cpu")), list[ThreadPoolExecutor](), list[Any]()
    for network in twins:
        network.eval().requires_grad_(False)
    for side in (4, 5, 6, 7):
        x = twins.x(side=side, requires_grad=False)
        for _ in range(3):
            twins.fast(x)
        torch.testing.assert_close(outs[-1].result(60), twins.plain(x), rtol=1e-4, atol=1e-5)
        threads[-1].shutdown()
    assert twins.graphs.captured == 4
    assert twins.graphs.why == ""


def test_memory_is_free_where_there_are_no_graphs_any_more(device: torch.device) -> None:
    twins = Twins(device)
    twins.train(4)
    assert twins.graphs.pools
    for call in range(graphs.CHANGES):
        for network in twins:
            network.norm.eps = 0.1 + call
        twins.train(3)
    assert twins.graphs.why == graphs.CHANGING
    assert not twins.graphs.pools
    assert not twins.graphs.watched


def test_copies_pickles_and_restoring(device: torch.device) -> None:
    twins = Twins(device)
    root: Any = twins.fast.forward
    root.graphs.run = root.run  # the counter cannot be pickled
    twins.train(4)
    for other in (copy.deepcopy(twins.fast), pickle.loads(pickle.dumps(twins.fast))):
        assert other.acceleration.graphs is other.forward.graphs
        assert other.acceleration.graphs.captured == 0
        assert other.acceleration.graphs.network is other
        torch.testing.assert_close(other(twins.x()), twins.plain(twins.x()), rtol=1e-4, atol=1e-5)
        twins.plain.load_state_dict(twins.fast.state_dict())
    restore(twins.fast)
    assert "forward" not in twins.fast.__dict__


def test_a_network_that_was_restored_goes_with_its_last_reference(device: torch.device) -> None:
    network = accelerate(Network().to(device), report=None)
    x = Twins.x(Twins(device))
    for _ in range(4):
        loss_of(network(x)).backward()
    record = network.acceleration
    said, graphs_kept = str(record).partition("\n  CUDA graphs")[0], record.graphs
    assert graphs_kept.captured == 1
    gc.collect()
    gc.disable()
    try:
        gone = [weakref.ref(part) for part in (network, network.first, network.first.weight)]
        restore(network)
        assert graphs_kept.captured == 0
        del network, graphs_kept
        assert [ref() for ref in gone] == [None, None, None]
        assert str(record) == said, "the record stays, without the graphs"
    finally:
        gc.enable()


def test_off_and_false_mean_never(device: torch.device) -> None:
    twins = Twins(device)
    with cuda_graphs.off():
        twins.train(4)
    assert twins.graphs.captured == 0
    assert twins.plain.acceleration.graphs is None
    with pytest.raises(BadInput, match="'always' is not known"):
        accelerate(nn.Identity(), graph="always")


def test_on_a_cpu_there_are_none() -> None:
    twins = Twins(torch.device("cpu"))
    twins.train(4)
    assert twins.graphs.captured == 0
    assert "CUDA graphs" not in str(twins.fast.acceleration)


@pytest.mark.gpu
def test_several_streams() -> None:
    twins = Twins(torch.device("cuda", 0))
    twins.train(4)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for seed in range(9):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            stream = streams[seed % 3]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step(network, optimizer, twins.x(seed))
            torch.cuda.current_stream().wait_stream(stream)
    twins.check()


@pytest.mark.gpu
def test_a_graph_around_it() -> None:
    twins = Twins(torch.device("cuda", 0))
    twins.train(4)
    for network in twins:
        network.eval()
    with torch.no_grad():
        call = cuda_graphs.GraphedCall(twins.fast, twins.x(0))
        for seed in range(3):
            torch.testing.assert_close(call(twins.x(seed)), twins.plain(twins.x(seed)), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_user_s_own_graph_of_a_training_step() -> None:
    """As PyTorch's notes on CUDA graphs make one: a warm-up on another stream, then the capture."""
    twins = Twins(torch.device("cuda", 0))
    x, optimizer = twins.x(0), twins.optimizers[0]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # of which the third is replayed
            step(twins.fast, optimizer, x)
    torch.cuda.current_stream().wait_stream(stream)
    assert twins.graphs.captured == 1
    with torch.cuda.graph(graph):
        step(twins.fast, optimizer, x)
    for seed in range(3):
        with torch.no_grad():
            x.copy_(twins.x(seed))
        graph.replay()
    for seed in (0, 0, 0, 0, 1, 2):
        step(twins.plain, twins.optimizers[1], twins.x(seed))
    twins.check()
    twins.train(3)


@pytest.mark.gpu
def test_no_memory_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(torch.device("cuda", 0))

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(graphs, "GraphedPass", full)
    twins.train(4)
    assert twins.graphs.why == "there is no memory for one"


def test_workspaces_are_freed_around_a_watched_forward_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It first frees what the last backward pass left, and its own before it returns outputs; unwatched, nothing."""
    twins = Twins(recordings.device("recorded", monkeypatch))
    events: list[str] = []
    monkeypatch.setattr(pool, "free_workspaces", lambda: events.append("freed"))
    for part, name in ((root.Root, "_computed"), (root, "handed_back")):
        own = getattr(part, name)
        monkeypatch.setattr(part, name, lambda *a, own=own, name=name: (events.append(name), own(*a))[1])
    step(twins.fast, twins.optimizers[0], twins.x(0))
    assert events == ["freed", "_computed", "freed", "handed_back", "handed_back", "freed"]
    events.clear()
    with cuda_graphs.off():
        step(twins.fast, twins.optimizers[0], twins.x(0))
    assert events == ["_computed", "handed_back", "handed_back"]


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [False, True], ids=["loop", "graphed_step"])
def test_at_most_one_workspace_of_cublas_and_none_at_the_loss(whole: bool) -> None:
    """It has 32 MiB on a Hopper card: as much as a small network's maps."""
    network = nn.Sequential(nn.Conv3d(32, 32, 1), nn.Conv3d(32, 32, 1)).cuda()
    network = accelerate(network, report=None)
    x = torch.randn(1, 32, 8, 8, 8, device="cuda")
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def held() -> int:
        gc.collect()
        return torch.cuda.memory_allocated()

    pool.free_workspaces()
    before = held()
    with cuda_graphs.off(), torch.no_grad():
        network(x)
    workspace = held() - before
    assert workspace > 4 << 20
    pool.free_workspaces()
    assert held() - before < workspace // 8

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean() + 0 * torch.ones(workspace // 4, device="cuda").sum()

    def ordinary() -> None:
        optimizer.zero_grad()
        loss_of(network, x).backward()
        optimizer.step()

    if not whole:
        ordinary()
    torch.cuda.reset_peak_memory_stats()
    if whole:
        graphed_step(network, loss_of, optimizer, (x,))(x)
    else:
        for _ in range(4):
            ordinary()
        assert network.acceleration.graphs.captured == 1
    assert torch.cuda.max_memory_allocated() - before < 1.5 * workspace


def test_deep_supervision_of_dynunet_is_replayed(device: torch.device) -> None:
    """MONAI's class leaves the outputs of its heads in a list, which changes at each call."""
    twins = Twins(device, lambda: NETWORKS["DynUNet, deep supervision"]().train())
    heads = list(twins.fast.heads)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 1, 8, 8, 8, generator=generator).to(device)
        fast, plain = (network(x) for network in twins)
        assert fast.shape == plain.shape
        assert (fast - plain).abs().max() < 1e-4 * plain.abs().max()
        fast.square().mean().backward()
        plain.square().mean().backward()
    assert twins.graphs.captured == 1
    assert twins.graphs.why == ""
    assert all(a is b for a, b in zip(twins.fast.heads, heads, strict=True))
