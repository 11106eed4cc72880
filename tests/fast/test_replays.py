"""What a replay, which runs no Python, might get wrong: each use beside the network without graphs."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.graphs import Doubles, Network, weight_normed
from helpers.twins import Twins, loss_of, step
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from medddpm.fast.patch import accelerate, restore
from medddpm.fast.replay import contents
from medddpm.fast.replay.fingerprint import Fingerprint


def alike(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return recordings.device(request.param, monkeypatch)


@pytest.fixture
def draws(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cpu":
        recordings.drawing_on_the_device(monkeypatch)


class Drops(Network):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout3d(0.5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return super().forward(self.drop(functional.dropout(x, 0.5, self.training)), scale)


@pytest.mark.usefixtures("draws")
def test_dropout_draws_what_it_draws_without_a_graph(device: torch.device) -> None:
    twins = Twins(device, Drops)
    after = []
    for seed in range(6):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            torch.manual_seed(seed)
            step(network, optimizer, twins.x(seed))
            after.append(torch.rand(3, device=device))  # the generator has drawn as much
        alike(*after[-2:])
        twins.check()
    assert twins.graphs.captured == 1


@pytest.mark.usefixtures("draws")
def test_a_second_backward_drops_what_the_forward_did(device: torch.device) -> None:
    twins = Twins(device, Drops)
    for seed in range(5):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            out = network(twins.x(seed))
            torch.rand(3, device=device)
            loss_of(out).backward(retain_graph=True)
            loss_of(out, slice(1)).backward()
            optimizer.step()
        twins.check()
    assert twins.graphs.captured == 1


@pytest.mark.usefixtures("draws")
def test_dropout_in_an_evaluation(device: torch.device) -> None:
    """As Monte Carlo dropout has it, and another rate later."""
    twins = Twins(device, Drops)

    def outs(seed: int, **settings: Any) -> list[Any]:
        def evaluated(network: Any) -> Any:
            vars(network.drop).update(settings)
            torch.manual_seed(seed)
            return network(twins.x(seed))

        with torch.no_grad():
            return twins.each(lambda network, _: evaluated(network.eval()))

    for settings in ({"training": False}, {"training": True}, {"training": True, "p": 0.9}):
        for seed in range(4):
            alike(*outs(seed, **settings))


def changed_views() -> dict[str, Callable[[Tensor], Tensor]]:
    return {"a part": lambda t: t[:2], "another order": Tensor.t, "another dtype": lambda t: t.view(torch.int32)}


@pytest.mark.parametrize("change", changed_views().values(), ids=changed_views())
def test_another_view_of_the_same_memory_is_seen(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a parameter, a buffer and an attribute, on a device: there only their places are compared."""
    monkeypatch.setattr(contents, "SMALL", 0)
    for held in (nn.Parameter(torch.ones(4, 4), requires_grad=False), torch.ones(4, 4)):
        for buffer in (False, True):
            network: Any = nn.Module()
            if buffer and not isinstance(held, nn.Parameter):
                network.register_buffer("held", held)
            else:
                network.held = held
            fingerprint = Fingerprint(network)
            assert fingerprint.holds()
            before = held.data
            held.data = change(before)
            assert not fingerprint.holds()
            held.data = before
            assert fingerprint.holds()


def test_channels_that_are_pruned(device: torch.device) -> None:
    """The rest of the weight stays where it was, with the same strides."""
    twins = Twins(device)
    twins.train(4)
    assert twins.graphs.captured == 1
    for network in twins:
        for p in network.second.parameters():  # type: ignore[union-attr]
            p.data = p.data[:2]
    twins.optimizers = [torch.optim.SGD(n.parameters(), 0.05) for n in twins]
    outs = twins.each(lambda n, o: step(n, o, twins.x(9)))
    alike(*outs)
    assert outs[0][0].shape[1] == 2


def ramps(maxsize: int | None) -> Callable[[int, torch.device], Tensor]:
    @functools.lru_cache(maxsize)
    def ramp(size: int, device: torch.device) -> Tensor:
        return torch.linspace(0, 1, size, device=device)

    return ramp


RAMP = ramps(1)


class Ramped(Network):
    """Multiplies by what a cache holds, whose place is a cell, a global or the class."""

    def __init__(self, place: str) -> None:
        super().__init__()
        ramp = ramps(1)
        self.ramp = {"a cell": lambda *of: ramp(*of), "a global": lambda *of: RAMP(*of), "the class": self.own}[place]

    @functools.lru_cache(2)  # noqa: B019
    def own(self, size: int, device: torch.device) -> Tensor:
        return torch.linspace(0, 1, size, device=device)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        ramp = self.own(x.shape[-1], x.device) * self.ramp(x.shape[-1], x.device)
        return tuple(ramp * t for t in super().forward(x, scale))


@pytest.mark.parametrize("place", ["a cell", "a global", "the class"])
def test_a_tensor_that_a_cache_lets_go_of(device: torch.device, place: str) -> None:
    """The graph of one size reads it when sizes come in turn."""
    twins = Twins(device, lambda: Ramped(place))
    for side in (5, 6, 5, 6):
        twins.train(3, side=side)
    assert twins.graphs.captured == 2


@pytest.mark.parametrize("maxsize", [1, None])
def test_the_fingerprint_keeps_what_caches_hold(maxsize: int | None) -> None:
    ramp, network = ramps(maxsize), nn.Identity()
    network.ramp = ramp  # type: ignore[assignment]
    held = ramp(3, torch.device("cpu"))
    fingerprint = Fingerprint(network)
    assert any(isinstance(table, contents.Contents) and table.of is held for table in fingerprint.tables)
    ramp(4, torch.device("cpu"))
    assert fingerprint.holds()


class Named(Network):
    single = False

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Any:
        first, second = super().forward(x, scale)
        if self.single:
            return {"first": first + second[:, :1]}
        return {
            "first": first if mask is None else first * mask,
            "all": [second, second[:, :1]],
            "count": 2,
            "no": None,
        }


def test_watched_calls_of_another_network_are_forgotten(device: torch.device) -> None:
    """Settings changed between them: of outputs that were used, of a hook, of dropout."""
    twins = Twins(device, Named)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        loss_of(network(twins.x(seed))).backward()
        optimizer.step()

    def train(steps: int) -> None:
        for seed in range(steps):
            twins.each(lambda n, o, seed=seed: work(n, o, seed))
            twins.check()

    train(2)
    for network in twins:
        network.single = True
    train(1)
    assert twins.graphs.captured == 0
    train(1)
    seen: list[str] = []
    handle = twins.fast.second.register_forward_hook(lambda *_: seen.append("called"))  # type: ignore[union-attr, operator]
    train(2)
    assert seen == ["called"] * 2
    assert twins.graphs.captured == 0
    handle.remove()
    train(4)
    assert twins.graphs.captured == 1


class Asks(Network):
    """Does what PyTorch's settings say."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        factor = 2.0 if torch.backends.cuda.flash_sdp_enabled() else 1.0
        added = torch.zeros(1, device=x.device)
        return tuple(factor * t + added for t in super().forward(x, scale))


@contextlib.contextmanager
def doubles() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "setting",
    [lambda: sdpa_kernel(SDPBackend.MATH), doubles, deterministic],
    ids=["attention", "dtype", "deterministic"],
)
def test_settings_of_pytorch(device: torch.device, setting: Callable[[], AbstractContextManager[Any]]) -> None:
    twins = Twins(device, Asks)
    twins.train(4)
    x = twins.x(9)
    with torch.no_grad():
        for around in (contextlib.nullcontext, setting) * 4:
            with around():
                outs = [n(x) for n in twins]
            alike(*outs)
    assert twins.graphs.captured == 3


def test_a_checkpoint_around_a_network_that_has_graphs(device: torch.device) -> None:
    """Its second forward pass is within the backward pass, where nothing is replayed."""
    twins = Twins(device)
    twins.train(4)
    for seed in range(4):
        for network, optimizer in zip(twins, twins.optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(checkpoint(network, twins.x(seed), use_reentrant=False)).backward()
            optimizer.step()
        twins.check()
    assert twins.graphs.captured == 1


def test_a_weight_that_autocast_has_cast_before(device: torch.device) -> None:
    """Its copy is of that region, and of the weight as it was."""
    twins = Twins(device)
    for seed in range(4):
        with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
            functional.conv3d(twins.x(), twins.fast.first.weight)  # type: ignore[arg-type]
            fast, plain = twins.each(lambda n, o, seed=seed: n(twins.x(seed)))
        torch.testing.assert_close(fast, plain, rtol=1e-2, atol=1e-2)
        with torch.no_grad():
            for network in twins:
                network.first.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    assert twins.graphs.captured == 1


def test_outputs_in_a_dict_and_an_input_that_may_be_missing(device: torch.device) -> None:
    twins = Twins(device, Named)
    masks = None, torch.rand(2, 1, 6, 6, 6, device=device), torch.ones(2, 1, 6, 6, 6, device=device).bool()
    kept = []

    def work(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Any:
        optimizer.zero_grad()
        out = network(twins.x(seed), mask=masks[seed % 3])
        loss_of(out).backward()
        optimizer.step()
        return out

    for seed in range(12):
        kept.append(twins.each(lambda n, o, seed=seed: work(n, o, seed)))
        twins.check()
    for fast, plain in kept:
        assert fast["count"] == plain["count"] == 2
        assert fast["no"] is plain["no"] is None
        alike(fast["first"], plain["first"])
        alike(fast["all"], plain["all"])
    assert twins.graphs.captured == 3


def test_two_shapes_in_turn_one_amid_the_other(device: torch.device) -> None:
    twins = Twins(device)
    kept = []

    def work(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Any:
        optimizer.zero_grad()
        outs = [network(twins.x(seed, side=side)) for side in ((5, 6) if seed % 2 else (6, 5))]
        for out in outs if seed % 3 else outs[::-1]:
            loss_of(out).backward()
        optimizer.step()
        return outs

    for side in (5, 6):
        twins.train(3, side=side)
    for seed in range(6):
        kept.append(twins.each(lambda n, o, seed=seed: work(n, o, seed)))
        twins.check()
    for fast, plain in kept:
        alike(fast, plain)


def test_averages_lent_for_an_evaluation(device: torch.device) -> None:
    """In the weights' own memory, and in other memory."""
    twins = Twins(device)
    for seed in range(6):
        twins.train(1)
        kept = [[p.data for p in n.parameters()] for n in twins]
        for network, weights in zip(twins, kept, strict=True):
            network.eval()
            for p, weight in zip(network.parameters(), weights, strict=True):
                p.data = 0.9 * weight
        with torch.no_grad():
            alike(*[n(twins.x(seed)) for n in twins])
        for network, weights in zip(twins, kept, strict=True):
            network.train()
            for p, weight in zip(network.parameters(), weights, strict=True):
                p.data = weight
    assert twins.graphs.captured >= 1


@pytest.mark.parametrize("learns", [False, True], ids=["evaluation", "training"])
def test_weights_that_are_computed_once_for_several_calls(device: torch.device, learns: bool) -> None:
    """They are gone when `cached` ends, and computed anew from other parameters then."""

    def work(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Any:
        optimizer.zero_grad()
        with torch.set_grad_enabled(learns), parametrize.cached():
            outs = [network(twins.x(seed + at)) for at in range(4)]
            loss = loss_of(outs) + network.first.weight.square().mean()
        if learns:
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            network.first.parametrizations.weight.original1.mul_(1.1)
        return outs, loss

    twins = Twins(device, weight_normed)
    for seed in range(4):
        alike(*twins.each(lambda n, o, seed=seed: work(n, o, seed)))
        twins.check()
    assert not twins.graphs.captured
    twins.train(4)
    assert twins.graphs.captured == 1
    assert not twins.graphs.why


def test_a_mode_of_functions_sees_them(device: torch.device) -> None:
    """One that says where tensors are made is in no graph's way."""
    twins = Twins(device)
    with torch.device(device):
        twins.train(3)
    assert twins.graphs.captured == 1
    runs = twins.runs
    for seed in range(2):
        with Doubles():
            alike(*twins.each(lambda n, o, seed=seed: step(n, o, twins.x(seed))))
        twins.check()
    assert twins.runs == runs + 2
    twins.train(2)
    assert twins.runs == runs + 2


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_named_by_their_operation(device: torch.device) -> None:
    """And when they are looked for no more, there is a graph."""
    twins = Twins(device)
    with torch.autograd.detect_anomaly():
        twins.train(3)
    twins.train(3)
    assert twins.graphs.captured == 1
    assert not twins.graphs.why
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"'(?!_Replay)\w+' returned nan"):
        (twins.fast(twins.x())[0] * torch.nan).sum().backward()


def test_a_buffer_that_has_the_next_batch_before_the_backward(device: torch.device) -> None:
    """No gradient needs what a frozen layer is given; a second backward pass, which computes it again, does."""
    twins = Twins(device)
    for network in twins:
        network.first.requires_grad_(False)
    buffer = twins.x(requires_grad=False)

    def work(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Tensor:
        buffer.copy_(twins.x(seed))
        optimizer.zero_grad()
        loss = loss_of(network(buffer))
        buffer.zero_()
        loss.backward()
        optimizer.step()
        return loss

    for seed in range(5):
        alike(*twins.each(lambda n, o, seed=seed: work(n, o, seed)))
        twins.check()
    assert twins.graphs.captured == 1
    loss = loss_of(twins.fast(buffer))
    loss.backward(retain_graph=True)
    buffer.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_part_that_is_replaced_when_weights_are_cast_at_once(device: torch.device) -> None:
    """A graph casts those of the parts that there are."""
    network: Any = accelerate(Network().to(device), report=None)
    network.forward.reduced_on = (device.type,)
    network.second, network.aside.weight = nn.Conv3d(8, 3, 1).to(device), nn.Parameter(network.second.weight[:2])
    plain = copy.deepcopy(network)
    restore(plain)
    for seed in range(5):
        x = torch.randn(2, 2, 6, 6, 6, generator=torch.Generator().manual_seed(seed)).to(device)
        outs = [each(x) for each in (network, plain)]
        torch.testing.assert_close(outs[0], outs[1], rtol=0.05, atol=0.05)
        for each, out in zip((network, plain), outs, strict=True):
            each.zero_grad()
            loss_of(out).backward()
        for p, q in zip(network.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=0.05, atol=0.05)
    assert network.acceleration.graphs.captured == 1
    assert not network.acceleration.graphs.why
