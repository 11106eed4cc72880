"""What a reader's loop does between and within its steps: captured steps and replayed networks beside plain ones."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers import recordings
from helpers.graphs import Network
from helpers.pair import Pair, adam, alike, batch, loss_of
from helpers.ranks import run_ranks
from helpers.twins import Twins
from helpers.twins import loss_of as loss_of_twin
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from medddpm import accelerate, graphed_step
from medddpm.errors import BadInput


@pytest.fixture(params=["recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return recordings.device(request.param, monkeypatch)


def parts(network: Any) -> list[list[nn.Parameter]]:
    """The parameters in two halves, each for an optimizer of its own."""
    encoder, decoder = (network.first, network.norm, network.batch), (network.second, network.aside)
    return [[p for part in half for p in part.parameters()] for half in (encoder, decoder)]


def test_two_optimizers_each_with_a_step(device: torch.device) -> None:
    torch.manual_seed(0)
    plain = Network().to(device)
    fast = copy.deepcopy(plain)
    optimizers = [[adam(part) for part in parts(network)] for network in (plain, fast)]
    steps = [graphed_step(fast, loss_of, optimizer, batch(device)) for optimizer in optimizers[1]]
    for seed in range(6):
        for optimizer, step in zip(optimizers[0], steps, strict=True):
            optimizer.zero_grad()
            expected = loss_of(plain, *batch(device, seed))
            expected.backward()
            optimizer.step()
            alike(step(*batch(device, seed)), expected.detach())
            alike(*([p.grad for p in network.parameters()] for network in (fast, plain)))
    alike(fast.state_dict(), plain.state_dict())
    assert [step.why for step in steps] == ["", ""]


def test_two_steps_with_one_optimizer(device: torch.device) -> None:
    """As a supervised and an unsupervised loss in turn, and a rate set by hand."""

    def flat(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(network, x, y) + network(x)[0].square().mean()

    torch.manual_seed(0)
    plain = Network().to(device)
    fast, losses = copy.deepcopy(plain), (loss_of, flat)
    optimizers = [adam(network.parameters()) for network in (plain, fast)]
    steps = [graphed_step(fast, loss, optimizers[1], batch(device)) for loss in losses]
    for seed in range(10):
        for optimizer in optimizers:
            if seed in (4, 5):
                optimizer.param_groups[0]["lr"] = 0.002 * seed
            if seed == 7:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizers[0].zero_grad()
        expected = losses[seed % 2](plain, *batch(device, seed))
        expected.backward()
        optimizers[0].step()
        alike(steps[seed % 2](*batch(device, seed)), expected.detach())
    alike(fast.state_dict(), plain.state_dict())
    assert [step.why for step in steps] == ["", ""]


def test_two_optimizers_and_gradients_that_are_zeroed_and_clipped(device: torch.device) -> None:
    twins = Twins(device)
    optimizers = [[torch.optim.SGD(part, 0.05) for part in parts(network)] for network in twins]
    for seed in range(7):
        for network, (first, second) in zip(twins, optimizers, strict=True):
            first.zero_grad()
            second.zero_grad(set_to_none=False)
            loss_of_twin(network(twins.x(seed))).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            nn.utils.clip_grad_value_(network.parameters(), 0.05)
            first.step()
            if seed % 2:
                second.step()
        twins.check()
    assert twins.graphs.captured == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_are_zeroed_or_added_to_between_captured_steps(device: torch.device, accumulate: int) -> None:
    pair = Pair(device, accumulate=accumulate)
    for number in range(8):
        pair.train(1)
        for network, optimizer in zip((pair.plain, pair.fast), pair.optimizers, strict=True):
            if number % 4 == 1:
                optimizer.zero_grad(set_to_none=False)
            if number % 4 == 2:
                loss_of(network, *batch(device, 50)).backward()
        alike(*([p.grad for p in n.parameters()] for n in (pair.fast, pair.plain)))
    assert not pair.step.why


def test_layers_frozen_and_freed_in_turn(device: torch.device) -> None:
    pair, twins = Pair(device), Twins(device)
    for number in range(12):
        pair.train(1)
        twins.train(1)
        if number % 4 == 3:
            for network in (pair.plain, pair.fast, *twins):
                network.first.requires_grad_(number == 7)  # type: ignore[union-attr, operator]
    assert not pair.step.why
    assert not twins.graphs.why


def test_an_evaluation_in_inference_mode_between_captured_steps(device: torch.device) -> None:
    pair = Pair(device)
    for seed in range(5):
        pair.train(1)
        with torch.inference_mode():
            alike(*(n.eval()(batch(device, seed)[0]) for n in (pair.fast, pair.plain)))
        for network in (pair.fast, pair.plain):
            network.train()
    assert not pair.step.why


@pytest.mark.parametrize("steps", [0, 4])
def test_averages_copied_from_a_network_before_and_amid_its_training(device: torch.device, steps: int) -> None:
    """A copy has graphs of its own; its original's go on."""
    twins = Twins(device)
    root: Any = twins.fast.forward
    root.graphs.run = root.run  # the counter would be copied
    if steps:
        twins.train(steps)
    copies = [copy.deepcopy(network) for network in twins]
    averages = [AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True) for network in twins]
    for seed in range(5):
        twins.train(1)
        for network, copied, average in zip(twins, copies, averages, strict=True):
            average.update_parameters(network)
            with torch.no_grad():
                torch._foreach_lerp_(list(copied.parameters()), list(network.parameters()), 0.1)
        with torch.no_grad():
            for networks in (copies, averages):
                alike(*(network.eval()(twins.x(seed)) for network in networks))
    assert twins.graphs.captured == copies[0].acceleration.graphs.captured == 1  # type: ignore[union-attr]


def moves() -> dict[str, Callable[[Any], Any]]:
    def order(network: Any) -> None:
        network.to(memory_format=torch.channels_last_3d)

    def state(network: Any) -> None:
        network.load_state_dict({key: 1.1 * v for key, v in network.state_dict().items()}, assign=True)

    def layer(network: Any) -> None:
        torch.manual_seed(3)
        network.second = nn.Conv3d(8, 3, 1).to(network.first.weight.device)

    def statistics(network: Any) -> None:
        network.batch.reset_running_stats()
        network.batch.momentum = 0.3

    def weight_norm(network: Any) -> None:
        parametrizations.weight_norm(network.second)

    def spectral_norm(network: Any) -> None:
        torch.manual_seed(3)
        parametrizations.spectral_norm(network.first)

    def old_weight_norm(network: Any) -> None:
        nn.utils.weight_norm(network.second)

    return {f.__name__: f for f in (order, state, layer, statistics, weight_norm, spectral_norm, old_weight_norm)}


@pytest.mark.parametrize("move", moves().values(), ids=moves())
def test_weights_that_are_moved_replaced_or_computed(device: torch.device, move: Callable[[Any], Any]) -> None:
    pair, twins = Pair(device), Twins(device)
    pair.train(2)
    twins.train(4)
    for network in (pair.plain, pair.fast, *twins):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the old weight norm's
            move(network)
    pair.optimizers = [adam(network.parameters()) for network in (pair.plain, pair.fast)]
    pair.step.optimizer = pair.optimizers[1]
    twins.optimizers = [torch.optim.SGD(network.parameters(), 0.05) for network in twins]
    pair.train(4)
    twins.train(4)
    why = "second has hooks" if move.__name__ == "old_weight_norm" else ""
    assert pair.step.why == twins.graphs.why == why


def test_an_optimizer_that_keeps_weights_which_the_network_has_no_more(device: torch.device) -> None:
    """In a loop, too, nothing is updated then, and gradients go to the new weights."""
    pair = Pair(device)
    pair.train(2)
    for network in (pair.plain, pair.fast):
        network.load_state_dict({key: v.clone() for key, v in network.state_dict().items()}, assign=True)
    pair.train(3)
    alike(*([p.grad for p in network.parameters()] for network in (pair.fast, pair.plain)))


def test_a_state_saved_amid_an_accumulation_and_loaded_into_a_plain_loop(device: torch.device) -> None:
    pair = Pair(device, scaled=True, accumulate=2)

    def state(at: int) -> list[Any]:
        return [(pair.plain, pair.fast)[at], pair.optimizers[at], pair.scalers[at]]

    def move(at: int, to: int) -> None:
        file = io.BytesIO()
        torch.save([each.state_dict() for each in state(at)], file)
        file.seek(0)
        for each, saved in zip(state(to), torch.load(file, map_location=device), strict=True):
            each.load_state_dict(saved)

    pair.train(4)
    for at in (0, 1):
        move(at, at)
    pair.train(4)
    move(1, 0)
    pair.train(4)
    move(0, 1)
    pair.train(4)
    assert not pair.step.why


def test_autocast_on_and_off_between_captured_steps(device: torch.device) -> None:
    pair = Pair(device)
    for seed in range(8):
        with torch.autocast(device.type, torch.bfloat16, enabled=bool(seed // 2 % 2)):
            expected = pair.ordinary(seed, *batch(device, seed))
            torch.testing.assert_close(pair.step(*batch(device, seed)), expected, rtol=2e-2, atol=2e-2)
    assert not pair.step.why
    assert len(pair.step._graphs) == 2


def test_two_backwards_and_gradients_that_are_differentiated(device: torch.device) -> None:
    twins = Twins(device)
    for seed in range(6):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of_twin(network(twins.x(seed)))
            slopes = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
            loss.backward(retain_graph=True)
            torch.stack([slope.square().sum() for slope in slopes]).sum().backward()
            optimizer.step()
        twins.check()


def test_outputs_that_are_written_into(device: torch.device) -> None:
    twins = Twins(device)
    for seed in range(5):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            optimizer.zero_grad()
            first, second = network(twins.x(seed))
            first.mul_(2)
            second += 1
            loss_of_twin((first, second.relu_())).backward()
            optimizer.step()
        twins.check()
    assert twins.graphs.captured == 1


def test_updates_within_the_backward_pass(device: torch.device) -> None:
    twins = Twins(device)
    for network in twins:
        for p in network.parameters():
            own = torch.optim.SGD([p], 0.05)

            def update(p: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
                own.step()
                own.zero_grad()

            p.register_post_accumulate_grad_hook(update)
    for seed in range(6):
        for network in twins:
            loss_of_twin(network(twins.x(seed))).backward()
        twins.check()
    assert twins.graphs.captured == 1


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("unused", [False, True])
def test_an_accelerated_network_in_ddp(unused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    torch.manual_seed(0)
    plain = Network()
    fast: Any = accelerate(copy.deepcopy(plain), "tf32", report=None)
    wrapped = [DistributedDataParallel(network, find_unused_parameters=unused) for network in (plain, fast)]
    optimizers = [torch.optim.AdamW(network.parameters(), 0.01, weight_decay=0.3) for network in wrapped]
    for seed in range(6):
        for network, optimizer in zip(wrapped, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of_twin(network(batch(torch.device("cpu"), seed)[0]), slice(1 if unused else None)).backward()
            optimizer.step()
        alike(fast.state_dict(), plain.state_dict())
        assert [p.grad is None for p in fast.parameters()] == [p.grad is None for p in plain.parameters()]
    assert fast.acceleration.graphs.captured == 1
    with pytest.raises(BadInput, match="DistributedDataParallel holds it"):
        graphed_step(wrapped[1], loss_of, adam(wrapped[1].parameters()), batch(torch.device("cpu")))


SUMMED = """
import copy, os, sys
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from helpers import recordings
from helpers.graphs import Network
from helpers.twins import loss_of, step
from medddpm import accelerate
from medddpm.runtime.ranks import joined

rank = int(os.environ["RANK"])
device = torch.device(sys.argv[1], rank)
if device.type == "cuda":
    torch.cuda.set_device(device)
else:
    device = recordings.device("recorded", pytest.MonkeyPatch())

def batch(seed):
    return torch.randn(2, 2, 6, 6, 6, generator=torch.Generator().manual_seed(seed)).to(device)

with joined(device):
    torch.manual_seed(0)
    plain = Network().to(device)
    fast = accelerate(copy.deepcopy(plain), "tf32", report=None)
    wrapped = DistributedDataParallel(fast, [rank] if device.type == "cuda" else None)
    optimizers = [torch.optim.SGD(network.parameters(), 0.05, momentum=0.9) for network in (plain, fast)]
    for seed in range(0, 12, 2):
        optimizers[0].zero_grad()
        for part in range(2):  # those of both processes; their mean is what the sum of gradients makes of it
            (loss_of(plain(batch(seed + part))) / 2).backward()
        optimizers[0].step()
        step(wrapped, optimizers[1], batch(seed + rank))
        for p, q in zip(fast.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=2e-4)
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
    graphs = fast.acceleration.graphs
    print(graphs.captured, graphs.why)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(count=2))])
def test_ddp_sums_the_gradients_that_graphs_compute(device: str) -> None:
    """Two processes, each with its own batch, against one that trains the network as it is on both."""
    for ended in run_ranks(2, SUMMED, device):
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.split() == ["1"]
