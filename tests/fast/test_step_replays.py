"""What a replayed step, which runs no Python, might get wrong: each use beside an ordinary loop."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.graphs import Doubles, Network, weight_normed
from helpers.pair import Pair, adam, alike, batch, loss_of, of_a_domain
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

from medddpm import accelerate, graphed_step
from medddpm.errors import BadInput


def check_gradients(pair: Pair) -> None:
    alike([p.grad for p in pair.fast.parameters()], [p.grad for p in pair.plain.parameters()])


@pytest.fixture(params=["recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return recordings.device(request.param, monkeypatch)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1, "scaled": True}, {"accumulate": 2}], ids=" ".join)
def test_gradients_are_left_as_behind_a_loop(device: torch.device, options: dict[str, Any]) -> None:
    pair = Pair(device, **options)
    assert all(p.grad is None for p in pair.fast.parameters()) or "accumulate" in options
    for number in range(6):
        pair.train(1)
        check_gradients(pair)
        if number % 2:
            for optimizer in pair.optimizers:
                optimizer.zero_grad()


def test_gradients_of_a_shape_that_is_not_the_newest_are_none(device: torch.device) -> None:
    pair = Pair(device)
    for side in (5, 4, 5, 4):
        pair.train(1, side=side)
        if side == 4:
            check_gradients(pair)
    pair.train(1, side=5)
    assert all(p.grad is None for p in pair.fast.parameters())


def test_the_two_networks_of_a_gan(device: torch.device) -> None:
    """A generator's loss brings gradients to the discriminator too, which drops and replaces them in its own steps."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Conv3d(4, 1, 1)).to(device)
    makers = [nn.Conv3d(2, 2, 3, padding=1).to(device)]
    makers, critics = [makers[0], copy.deepcopy(makers[0])], [critic, copy.deepcopy(critic)]
    of_makers, of_critics = ([adam(m.parameters()) for m in networks] for networks in (makers, critics))

    def fools(at: int) -> Callable[..., Tensor]:
        return lambda maker, z: -critics[at](maker(z)).mean()

    def tells(at: int) -> Callable[..., Tensor]:
        return lambda critic, x, z: (1 - critic(x)).relu().mean() + (1 + critic(makers[at](z).detach())).relu().mean()

    x, z = batch(device)[0], batch(device, 1)[0]
    for network in critics:
        fools(critics.index(network))(makers[0], z).backward()  # gradients that are there before
    make, judge = (
        graphed_step(makers[1], fools(1), of_makers[1], z, others=[critics[1]]),
        graphed_step(critics[1], tells(1), of_critics[1], (x, z), others=[makers[1]]),
    )
    for seed in range(9):
        x, z = batch(device, seed)[0], batch(device, 100 + seed)[0]
        if seed == 6:
            for network in critics:
                for p in network.parameters():
                    p.data = 1.5 * p.data
        for optimizer, loss, network, given, fast in (
            (of_makers[0], fools(0), makers[0], (z,), make),
            (of_critics[0], tells(0), critics[0], (x, z), judge),
        ):
            optimizer.zero_grad()
            expected = loss(network, *given)
            expected.backward()
            optimizer.step()
            alike(fast(*given), expected.detach())
            alike([p.grad for p in critics[1].parameters()], [p.grad for p in critics[0].parameters()])
    for networks in (makers, critics):
        alike([*networks[1].parameters()], [*networks[0].parameters()])
    assert not make.why
    assert not judge.why


def gan(
    device: torch.device,
) -> tuple[list[Any], list[Any], list[torch.optim.Optimizer], list[Callable[..., Tensor]]]:
    """Two equal pairs of networks, and optimizer and loss of each first."""
    torch.manual_seed(0)
    maker = nn.Conv3d(2, 2, 3, padding=1).to(device)
    critic = nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.Conv3d(4, 1, 1)).to(device)
    makers, critics = ([network, copy.deepcopy(network)] for network in (maker, critic))
    losses = [lambda maker, z, critic=critic: critic(maker(z)).mean() for critic in critics]
    return makers, critics, [adam(m.parameters()) for m in makers], losses


def critic_changes() -> dict[str, Callable[[Any], Any]]:
    def nothing(critic: Any) -> None:
        pass

    def forward_hook(critic: Any) -> None:
        critic[1].register_forward_hook(lambda part, given, out: 2 * out)

    def gradient_hook(critic: Any) -> None:
        critic[0].weight.register_hook(lambda gradient: 2 * gradient)

    def evaluation(critic: Any) -> None:
        critic.eval()

    def frozen(critic: Any) -> None:
        for p in critic.parameters():
            p.requires_grad_(False)

    return {f.__name__: f for f in (nothing, forward_hook, gradient_hook, evaluation, frozen)}


@pytest.mark.parametrize("change", critic_changes().values(), ids=critic_changes())
def test_another_network_in_the_loss(device: torch.device, change: Callable[[Any], Any]) -> None:
    """Its statistics have run as often as in a loop; its hooks, mode and frozen layers count when they come later."""
    makers, critics, optimizers, losses = gan(device)
    step = graphed_step(makers[1], losses[1], optimizers[1], batch(device)[0], others=[critics[1]])
    for seed in range(6):
        if seed == 3:
            for critic in critics:
                change(critic)
        z = batch(device, seed)[0]
        optimizers[0].zero_grad()
        expected = losses[0](makers[0], z)
        expected.backward()
        optimizers[0].step()
        alike(step(z), expected.detach())
        alike(critics[1].state_dict(), critics[0].state_dict())
        alike(*([p.grad for p in critic.parameters()] for critic in critics))
    hooked = change.__name__ == "forward_hook"
    assert step.why == ("1 has hooks" if hooked else "")
    assert bool(step._graphs) != hooked


def test_a_comparison_without_the_graph_leaves_another_network_s_statistics_alone(device: torch.device) -> None:
    makers, critics, _, losses = gan(device)
    optimizer = torch.optim.SGD(makers[1].parameters(), 0.0, fused=True)
    step = graphed_step(makers[1], losses[1], optimizer, batch(device)[0], others=[critics[1]])
    for seed in range(12):  # the tenth replay's loss is computed without the graph, too
        losses[0](makers[0], batch(device, seed)[0])
        step(batch(device, seed)[0])
    alike(critics[1].state_dict(), critics[0].state_dict())


def weight_changes() -> dict[str, Callable[[nn.Parameter], Any]]:
    def moved(weight: nn.Parameter) -> None:
        weight.data = 0.5 * weight.data

    def frozen(weight: nn.Parameter) -> None:
        weight.requires_grad_(False)

    def hooked(weight: nn.Parameter) -> None:
        weight.register_hook(lambda gradient: 2 * gradient)

    return {f.__name__: f for f in (moved, frozen, hooked)}


@pytest.mark.parametrize("change", weight_changes().values(), ids=weight_changes())
def test_a_weight_of_the_loss_s_own(device: torch.device, change: Callable[[nn.Parameter], Any]) -> None:
    """That the optimizer learns, though the model does not hold it."""
    torch.manual_seed(0)
    networks = [Network().to(device)]
    networks.append(copy.deepcopy(networks[0]))
    weights = [nn.Parameter(torch.ones((), device=device)) for _ in networks]
    losses = [lambda n, x, y, w=weight: loss_of(n, x, y) * (-w).exp() + w for weight in weights]
    optimizers = [adam([*n.parameters(), w]) for n, w in zip(networks, weights, strict=True)]
    step = graphed_step(networks[1], losses[1], optimizers[1], batch(device))
    for seed in range(6):
        if seed == 3:
            for weight in weights:
                change(weight)
        given = batch(device, seed)
        optimizers[0].zero_grad()
        expected = losses[0](networks[0], *given)
        expected.backward()
        optimizers[0].step()
        alike(step(*given), expected.detach())
        alike(weights[1], weights[0])
    assert not step.why


class Counting(torch.optim.Optimizer):
    """Corrects its moments by a count of the updates, in its state, its groups or itself."""

    def __init__(self, parameters: Any, where: str) -> None:
        super().__init__(parameters, {"lr": 0.01, "step": 0})
        self.where, self.count = where, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += self.where == "itself"
        for group in self.param_groups:
            group["step"] += self.where == "a group"
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, moment=torch.zeros_like(p))
                state["step"] += self.where == "the state"
                state["moment"].lerp_(p.grad, 0.1)
                p.sub_(group["lr"] * state["moment"] / (1 - 0.9 ** (state["step"] + group["step"] + self.count)))


@pytest.mark.parametrize("where", ["the state", "a group", "itself"])
def test_an_optimizer_that_counts_on_the_host(device: torch.device, where: str) -> None:
    """A graph would correct all updates as the one that was captured. Amid a training it goes on, from where it is."""
    network = Network().to(device)
    with pytest.raises(BadInput, match="the optimizer counts on the host, which no graph repeats; use Adam"):
        graphed_step(network, loss_of, Counting(network.parameters(), where), batch(device))
    pair = Pair(device)
    pair.train(2)
    pair.optimizers = [Counting(n.parameters(), where) for n in (pair.plain, pair.fast)]
    pair.step.optimizer = pair.optimizers[1]
    pair.train(4)
    assert pair.step.why == "the optimizer counts on the host, which no graph repeats"


class Launches(TorchDispatchMode):
    """Counts the operators that run inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


def test_gradients_of_another_network_come_in_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in one for each of its parameters, as they are summed at each replay."""
    recordings.stand_in(monkeypatch)
    critic = nn.Sequential(*(nn.Conv3d(2, 2, 1) for _ in range(9)))
    maker, x = nn.Conv3d(2, 2, 1), batch(torch.device("cpu"))[0]
    step = graphed_step(maker, lambda maker, x: critic(maker(x)).mean(), adam(maker.parameters()), x)
    (graph,) = step._graphs.values()
    monkeypatch.setattr(graph._pool, "replay", lambda *_: None)  # what is beside the graph counts
    counts = []
    for _ in range(2):  # where there are none yet, and where they are summed
        with Launches() as launches:
            graph((x,))
        counts.append(launches.count)
        assert all(p.grad is not None for p in critic.parameters())
    assert max(counts) < 9


def test_a_tensor_that_is_in_a_batch_twice_has_both_gradients(device: torch.device) -> None:
    network, x = nn.Conv3d(2, 2, 1).to(device), batch(device)[0].requires_grad_()

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (network(x) * y.square()).mean()

    loss(network, x, x).backward()
    assert x.grad is not None
    once, x.grad = x.grad, None
    step = graphed_step(network, loss, torch.optim.SGD(network.parameters(), 0.0, fused=True), (x, x))
    for times in (1, 2):
        step(x, x)
        alike(x.grad, times * once)


def test_gradients_of_a_batch_are_summed_in_it(device: torch.device) -> None:
    def penalized(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(network, x, y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()

    plain = Network().to(device)
    fast = copy.deepcopy(plain)
    optimizers = [adam(n.parameters()) for n in (plain, fast)]
    x, y = batch(device)
    own, other = (x.clone().requires_grad_() for _ in range(2))
    step = graphed_step(fast, penalized, optimizers[1], (other, y))
    for seed in range(4):
        optimizers[0].zero_grad()
        expected = penalized(plain, own, batch(device, seed)[1])
        expected.backward()
        optimizers[0].step()
        alike(step(other, batch(device, seed)[1]), expected.detach())
        alike(other.grad, own.grad)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_batch_that_another_network_learns_by_is_refused(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients would end at the graph's inputs; on a CPU it is refused as on a GPU."""
    if graphs:
        recordings.stand_in(monkeypatch)
    network, (x, y) = Network(), batch(torch.device("cpu"))
    step = graphed_step(network, loss_of, adam(network.parameters()), (x, y))
    encoder = nn.Conv3d(2, 2, 1)
    with pytest.raises(BadInput, match="gradients would flow through a tensor of it"):
        step(encoder(x), y)
    assert step(encoder(x).detach(), y) > 0


def twice(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 2 * loss_of(network, x, y)


@pytest.mark.parametrize("part", ["loss_fn", "optimizer", "scaler", "accumulate", "model", "after"])
def test_a_part_of_the_step_that_is_assigned_anew(device: torch.device, part: str) -> None:
    pair = Pair(device, scaled=True, accumulate=2)
    pair.train(4)
    if part == "loss_fn":
        pair.step.loss_fn = pair.loss = twice
    if part == "model":
        pair.fast, pair.plain = (copy.deepcopy(n) for n in (pair.fast, pair.plain))
        pair.step.model = pair.fast
    if part in ("model", "optimizer"):
        pair.optimizers = [torch.optim.SGD(n.parameters(), 0.1, fused=True) for n in (pair.plain, pair.fast)]
        pair.step.optimizer = pair.optimizers[1]
    if part == "scaler":
        pair.scalers = [torch.amp.GradScaler(device.type, init_scale=2.0, growth_interval=1) for _ in range(2)]
        pair.step.scaler = pair.scalers[1]
    if part == "accumulate":
        pair.step.accumulate = pair.options["accumulate"] = 1
    if part == "after":
        updates = torch.zeros((), device=device)
        pair.step.after = lambda: updates.add_(1)
    pair.train(4)
    assert pair.scalers[0].get_scale() == pair.scalers[1].get_scale()  # type: ignore[union-attr]
    assert part != "after" or updates == 2


def test_state_that_lies_elsewhere(device: torch.device) -> None:
    """In the same objects, or another scale than the scaler's of then."""
    pair = Pair(device, scaled=True)
    pair.train(3)
    for network, optimizer in zip((pair.plain, pair.fast), pair.optimizers, strict=True):
        moment = optimizer.state[network.second.weight]["exp_avg"]  # type: ignore[index, union-attr]
        moment.data = torch.ones_like(moment)
    pair.train(2)
    for scaler in pair.scalers:
        scaler._scale = torch.tensor(2.0, device=device)  # type: ignore[union-attr]
    pair.train(3)
    assert pair.scalers[0].get_scale() == pair.scalers[1].get_scale()  # type: ignore[union-attr]


def test_noise_and_dropout(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cpu":
        recordings.drawing_on_the_device(monkeypatch)

    class Drops(Network):
        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            return super().forward(functional.dropout(x, 0.5, self.training), scale)

    pair = Pair(device, loss=lambda n, x, y: loss_of(n, x + torch.randn_like(x), y), make=Drops, accumulate=2)
    for seed in range(6):
        given, losses = batch(device, seed), []
        for work in (functools.partial(pair.ordinary, seed), pair.step):
            torch.manual_seed(seed)
            losses += [work(*given), torch.rand(2, device=device)]
        alike(losses[:2], losses[2:])
    pair.check()
    assert not pair.step.why


def test_a_scale_that_overflows(device: torch.device) -> None:
    pair = Pair(device, scaled=True, clip_norm=1.0)
    for seed in range(7):
        x, y = batch(device, seed)
        if seed in (2, 3):
            y = y * float("inf")
        pair.ordinary(seed, x, y)
        pair.step(x, y)
        assert pair.scalers[0].get_scale() == pair.scalers[1].get_scale()  # type: ignore[union-attr]
    pair.check()


def test_deep_supervision(device: torch.device) -> None:
    class Deep(Network):
        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            first, second = super().forward(x, scale)
            return [first, functional.avg_pool3d(first, 2), second] if self.training else first

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        targets = y, functional.avg_pool3d(y, 2), y[:, :2]
        return torch.stack([functional.mse_loss(*both) for both in zip(network(x), targets, strict=True)]).sum()

    pair = Pair(device, loss=loss, make=Deep)
    for seed in range(3):
        pair.train(2)
        with torch.no_grad():
            alike(*(network.eval()(batch(device, seed)[0]) for network in (pair.fast, pair.plain)))
        pair.fast.train()
        pair.plain.train()


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.5)], [3]
        ),
        lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.02, step_size_up=2, cycle_momentum=False),
    ],
    ids=["restarts", "warm-up", "cycles"],
)
def test_schedules(device: torch.device, schedule: Callable[[torch.optim.Optimizer], Any]) -> None:
    pair = Pair(device)
    pair.train_under(schedule, steps=7)
    rates = [float(optimizer.param_groups[0]["lr"]) for optimizer in pair.optimizers]
    assert rates[1] == pytest.approx(rates[0])
    assert not pair.step.why


def test_a_network_with_graphs_of_its_own_beside_the_step(device: torch.device) -> None:
    plain = accelerate(Network().to(device), "tf32", graph=False, report=None)
    fast = accelerate(copy.deepcopy(plain), "tf32", graph="auto", report=None)
    optimizers = [adam(n.parameters()) for n in (plain, fast)]
    step = graphed_step(fast, loss_of, optimizers[1], batch(device))
    for seed in range(6):
        given = batch(device, seed)
        optimizers[0].zero_grad()
        expected = loss_of(plain, *given)
        expected.backward()
        optimizers[0].step()
        alike(step(*given), expected.detach())
        with torch.no_grad():
            alike(*(network.eval()(given[0]) for network in (fast, plain)))
        losses = [loss_of(network.train(), *given) for network in (fast, plain)]
        alike(*losses)
        for loss in losses:
            loss.backward()
    alike(fast.state_dict(), plain.state_dict())
    assert fast.acceleration.graphs.captured == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_a_parameter_without_a_gradient_in_one_accumulation(device: torch.device, frozen: bool) -> None:
    """A head for each of two domains, and batches of one or both; or a layer frozen amid. AdamW would move it."""
    pair = Pair(device, loss=of_a_domain, accumulate=2)
    for number, side in enumerate((5, 5, 4, 4, 5, 4, 4, 4, 5, 5, 4, 5, 4, 5, 5, 5)):
        if frozen and number in (5, 9):
            for network in (pair.plain, pair.fast):
                network.first.requires_grad_(number == 9)  # type: ignore[union-attr, operator]
        pair.train(1, side=side)
        assert [p.grad is None for p in pair.fast.parameters()] == [p.grad is None for p in pair.plain.parameters()]
        alike(*([p.grad for p in n.parameters() if p.grad is not None] for n in (pair.fast, pair.plain)))
    assert not pair.step.why


def test_weights_that_are_computed_once_for_a_step(device: torch.device) -> None:
    """The step shares them with whoever reads them beside it."""

    pair = Pair(device, make=weight_normed)
    for number in range(6):
        with parametrize.cached() if number % 3 == 1 else contextlib.nullcontext():
            with torch.no_grad():
                alike(pair.fast.first.weight, pair.plain.first.weight)
            pair.train(1)
    assert not pair.step.why


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_mode_that_sees_each_operation(device: torch.device) -> None:
    """And the detection of anomalies, which names what made the first."""

    pair = Pair(device)
    pair.train(2)
    with Doubles():
        pair.train(2)
    pair.train(1)
    assert len(pair.step._graphs) == 1
    x, y = batch(device)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="Backward0' returned nan"):
        pair.step(torch.full_like(x, torch.nan), y)
    assert not pair.step.why
