"""That a step captured whole trains as the loop that it stands for."""

from __future__ import annotations

import copy
import operator
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.graphs import Network
from helpers.pair import Pair, adam, batch, loss_of, of_a_domain
from helpers.repository import ROOT
from monai.data import MetaTensor
from torch import Tensor, nn
from torch.nn import functional

from medddpm import accelerate, graphed_step, restore
from medddpm.errors import BadInput
from medddpm.fast.replay import step as module


@pytest.fixture(params=["as it is", "recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return recordings.device(request.param, monkeypatch)


def test_a_loop(device: torch.device) -> None:
    pair = Pair(device)
    pair.train()
    assert pair.step.calls == 6


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.1},
        {"accumulate": 3},
        {"average": True},
        {"scaled": True},
        {"scaled": True, "clip_norm": 0.1},
        {"accumulate": 2, "clip_norm": 0.1, "average": True, "scaled": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_what_loops_have(device: torch.device, options: dict[str, Any]) -> None:
    Pair(device, **options).train(7)


def test_a_learning_rate_that_changes(device: torch.device) -> None:
    pair = Pair(device)
    pair.train_under(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch), steps=5)
    assert float(pair.optimizers[1].param_groups[0]["lr"]) == pytest.approx(0.01 * 0.5**5)
    for optimizer in pair.optimizers:
        optimizer.param_groups[0]["lr"] = 0.02
        optimizer.param_groups[0]["weight_decay"] = 0.5
    pair.train(3)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("stale", [False, True])
def test_a_parameter_that_is_not_used_is_left_as_it_is(device: torch.device, accumulate: int, stale: bool) -> None:
    """AdamW would let it decay if it had a gradient of zeros; what an earlier loop left of one goes too."""

    class Spare(Network):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    torch.manual_seed(0)
    network = Spare().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 0.01, weight_decay=0.5, fused=True)
    if stale:
        network.spare.grad = torch.zeros_like(network.spare)
    step = graphed_step(network, loss_of, optimizer, batch(device), accumulate=accumulate)
    before = network.second.weight.detach().clone()
    for seed in range(2 * accumulate):
        step(*batch(device, seed))
    assert network.spare.tolist() == [1.0, 1.0, 1.0]
    assert not torch.equal(before, network.second.weight)


def test_a_parameter_that_only_the_last_of_an_accumulation_uses(device: torch.device) -> None:
    """As where every other batch comes from another domain, with a head of its own."""
    torch.manual_seed(0)
    plain = Network().to(device)
    fast = copy.deepcopy(plain)
    optimizers = [adam(n.parameters()) for n in (plain, fast)]
    step = graphed_step(fast, of_a_domain, optimizers[1], batch(device), accumulate=2)
    for number in range(6):
        given = batch(device, number, 5 - number % 2)
        if number % 2 == 0:
            optimizers[0].zero_grad()
        (of_a_domain(plain, *given) / 2).backward()
        if number % 2:
            optimizers[0].step()
        step(*given)
    for p, q in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-5)


def test_gradients_that_are_dropped_amid_an_accumulation(device: torch.device) -> None:
    pair = Pair(device, accumulate=3)
    for number in range(9):
        given = batch(device, number)
        if number == 4:
            for optimizer in pair.optimizers:
                optimizer.zero_grad()
        pair.ordinary(number, *given)
        pair.step(*given)
    pair.check()


def test_settings_that_change_at_every_call(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    """OneCycleLR moves Adam's betas, which a graph has in it."""
    pair = Pair(device)
    pair.train_under(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=20), steps=12)
    if not module.graphable(device):
        return
    assert pair.step.why == "the optimizer's betas keep changing"
    said = "graphed_step runs without a CUDA graph: the optimizer's betas keep changing; only the learning rate may"
    assert caplog.messages == [said]


def changes() -> dict[str, Callable[[Any, torch.optim.Optimizer], Any]]:
    def parameter_hook(network: Any, _: torch.optim.Optimizer) -> None:
        network.second.weight.register_hook(lambda gradient: gradient * 0)

    def hook_behind_the_gradient(network: Any, _: torch.optim.Optimizer) -> None:
        def halve(p: Tensor) -> None:
            assert p.grad is not None
            p.grad.mul_(0.5)

        network.second.weight.register_post_accumulate_grad_hook(halve)

    def forward_hook(network: Any, _: torch.optim.Optimizer) -> None:
        network.register_forward_hook(lambda module, given, out: tuple(2 * t for t in out))

    def optimizer_hook(network: Any, optimizer: torch.optim.Optimizer) -> None:
        def decay(*_: Any) -> None:
            network.second.weight.data.mul_(0.9)

        optimizer.register_step_post_hook(decay)

    return {f.__name__: f for f in (parameter_hook, hook_behind_the_gradient, forward_hook, optimizer_hook)}


@pytest.mark.parametrize("change", changes().values(), ids=changes())
def test_hooks_that_come_later_are_in_the_next_graph(
    device: torch.device, change: Callable[[Any, torch.optim.Optimizer], Any]
) -> None:
    pair = Pair(device)
    pair.train(3)
    kept = len(pair.step._graphs)
    for network, optimizer in zip((pair.plain, pair.fast), pair.optimizers, strict=True):
        change(network, optimizer)
    pair.train(4)
    assert len(pair.step._graphs) == kept + (1 if module.graphable(device) else 0)


def test_hooks_on_a_part_that_come_amid_a_training(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    """They are called as often as in a loop; without them there is a graph again."""
    pair, calls = Pair(device), list[nn.Module]()
    pair.train(3)
    handles = []
    for network in (pair.plain, pair.fast):
        handles.append(network.second.register_forward_hook(lambda part, given, out: calls.append(part) or 2 * out))
    pair.train(4)
    assert Counter(calls) == {pair.plain.second: 4, pair.fast.second: 4}
    assert pair.step.why == ("second has hooks" if module.graphable(device) else "")
    said = ["graphed_step runs without a CUDA graph: second has hooks"] if module.graphable(device) else []
    assert caplog.messages == said
    for handle in handles:
        handle.remove()
    pair.train(3)
    assert pair.step.why == ""
    assert bool(pair.step._graphs) == module.graphable(device)
    assert caplog.messages == said


def test_what_no_graph_can_do_amid_a_training(device: torch.device) -> None:
    class Shaken(Network):
        shaken = False

        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            return super().forward(x, random.random() if self.shaken else scale)

    network = Shaken().to(device)
    step = graphed_step(network, loss_of, adam(network.parameters()), batch(device))
    before = step(*batch(device))
    network.shaken = True
    assert step(*batch(device)) != before
    assert step.why == ("its forward draws random numbers on the host" if module.graphable(device) else "")


def test_settings_of_clipping_and_scaler_that_change_later(device: torch.device) -> None:
    pair = Pair(device, clip_norm=1.0, scaled=True)
    pair.train(3)
    kept = len(pair.step._graphs)
    pair.step.clip_norm = pair.options["clip_norm"] = 0.01
    pair.train(3)
    for scaler in pair.scalers:
        scaler.set_growth_interval(1)  # type: ignore[union-attr]
        scaler.set_growth_factor(4.0)  # type: ignore[union-attr]
    pair.train(3)
    assert pair.scalers[0].get_scale() == pair.scalers[1].get_scale()  # type: ignore[union-attr]
    assert len(pair.step._graphs) == kept + (2 if module.graphable(device) else 0)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_rate_that_is_the_user_s_own_tensor(device: torch.device, groups: int) -> None:
    torch.manual_seed(0)
    plain = accelerate(Network().to(device), "tf32", graph=False, report=None)
    networks, rates, optimizers = (plain, copy.deepcopy(plain)), [], []
    for network in networks:
        rates.append(torch.tensor(0.01, device=device))
        parameters = list(network.parameters())
        parts = [parameters] if groups == 1 else [parameters[:2], parameters[2:]]
        sets = [{"params": part, "lr": rates[-1]} for part in parts]
        optimizers.append(torch.optim.AdamW(sets, fused=True))
    step = graphed_step(networks[1], loss_of, optimizers[1], batch(device))
    for seed in range(6):
        if seed == 3:
            for rate, optimizer in zip(rates, optimizers, strict=True):
                if groups == 1:
                    rate.mul_(0.1)
                else:  # one group's alone, as a schedule that writes numbers sets it
                    optimizer.param_groups[1]["lr"] = 0.001
        optimizers[0].zero_grad()
        loss_of(plain, *batch(device, seed)).backward()
        optimizers[0].step()
        step(*batch(device, seed))
    for p, q in zip(networks[1].parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


class Averaging(Network):
    """Puts another buffer in the place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((), 7.0))

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        out = super().forward(x, scale)
        self.mean = 0.9 * self.mean + 0.1 * out[0].detach().mean()
        return out


def test_a_refused_step_leaves_buffers_that_a_forward_replaces(device: torch.device) -> None:
    network = Averaging().to(device)
    if not module.graphable(device):
        pytest.skip("nothing is refused without graphs")
    with pytest.raises(BadInput):
        graphed_step(network, loss_of, adam(network.parameters()), batch(device))(*batch(device))
    assert float(network.mean) == 7.0


@pytest.mark.parametrize("verify", [True, False])
def test_a_loss_that_reads_what_changes_ends_the_graph_at_replay_10(device: torch.device, verify: bool) -> None:
    """As the weight of a term that an epoch raises: it belongs into the batch, or into a tensor."""
    network, weight = Network().to(device), 1.0

    def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return weight * loss_of(network, x, y)

    step = graphed_step(network, loss, adam(network.parameters()), batch(device), verify=verify)
    buffers = copy.deepcopy(network.batch.state_dict())
    for call in range(12):
        weight = 1.0 if call < 6 else 2.0
        step(*batch(device, call))
        ended = verify and call >= 9 and module.graphable(device)
        assert bool(step.why) == ended, call
    if verify and module.graphable(device):
        assert re.match(r"the loss of call 10 is off \(.* with the graph, .* without\)", step.why)
    assert int(network.batch.num_batches_tracked) == 12 + int(buffers["num_batches_tracked"])


def test_a_model_that_counts_its_calls(device: torch.device) -> None:
    """A number on the model that changes at every call would be captured anew at every call."""
    network = Network().to(device)
    step = graphed_step(network, loss_of, adam(network.parameters()), batch(device))
    for seed in range(6):
        network.calls = seed
        step(*batch(device, seed))
    said = "the model's settings or parameters keep changing"
    assert step.why == (said if module.graphable(device) else "")


def test_making_a_step_changes_nothing(device: torch.device) -> None:
    torch.manual_seed(0)
    network = Network().to(device)
    optimizer = adam(network.parameters())
    updates = torch.zeros((), device=device)
    given = batch(device)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(network, *given).backward()
        optimizer.step()
    before = copy.deepcopy((network.state_dict(), optimizer.state_dict()["state"]))
    torch.manual_seed(1)
    graphed_step(network, loss_of, optimizer, given, after=lambda: updates.add_(1), accumulate=2)
    assert updates == 0
    drawn = torch.rand(2, device=device)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(2, device=device))
    after = network.state_dict(), optimizer.state_dict()["state"]
    assert [len(a) for a in after] == [len(b) for b in before]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_other_shapes_modes_and_settings(device: torch.device) -> None:
    pair = Pair(device)
    for side in (5, 4, 5, 6):
        pair.train(2, side=side)
    for network in (pair.plain, pair.fast):
        network.norm.eps = 0.3
    pair.train(2)
    for network in (pair.plain, pair.fast):
        network.batch.eval()
    pair.train(2)


def test_more_than_a_loss_comes_back_and_is_the_caller_s(device: torch.device) -> None:
    torch.manual_seed(0)
    network = accelerate(Network().to(device), report=None)
    given = batch(device)
    step = graphed_step(
        network,
        lambda network, b: (loss_of(network, b["x"], b["y"]), {"mean": b["x"].mean()}),
        adam(network.parameters()),
        [{"x": given[0], "y": given[1]}],
    )
    kept = [step(dict(zip("xy", batch(device, seed), strict=True))) for seed in range(4)]
    for seed, (loss, others) in enumerate(kept):
        torch.testing.assert_close(others["mean"], batch(device, seed)[0].mean())
        assert not loss.requires_grad
    assert len({loss.item() for loss, _ in kept}) == 4


def test_the_readme_s_blocks_pasted_one_after_the_other(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    """Literally, into an empty program, and each by itself; they take a GPU where there is one."""
    text = (ROOT / "README.md").read_text()
    loop, graphed = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    plain = torch.backends.cudnn.benchmark
    try:
        for blocks in ([loop, graphed], [loop], [graphed]):
            known: dict[str, Any] = {}
            for block in blocks:
                exec(block, known)
                assert caplog.messages[0].startswith("fast path: bf16, "), "it prints what it replaced"
                assert "not accelerated" not in caplog.text
                caplog.clear()
                assert known["model"].acceleration.replaced
                assert 0 < known["loss"].item() < 2
                if device.type == "cuda":
                    assert known["device"] == "cuda"
            assert blocks == [loop] or known["step"].calls == 8
    finally:
        torch.backends.cudnn.benchmark = plain


def test_a_network_that_is_not_accelerated_is_told_in_one_line(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    said = "graphed_step: the network is not accelerated; call accelerate(model) first for the fast kernels"
    inner = nn.Conv3d(2, 3, 3, padding=1).to(device)
    model = nn.Sequential(inner)
    for accelerated, lines in ((None, [said]), (inner, []), (model, [])):
        if accelerated is not None:
            restore(model)
            accelerate(accelerated, report=None)
        graphed_step(model, lambda m, x, y: functional.mse_loss(m(x), y), adam(model.parameters()), batch(device))
        assert caplog.messages == lines
        caplog.clear()


def test_what_cannot_be_captured_is_one_line(device: torch.device) -> None:
    network = Network().to(device)
    given = batch(device)

    def odd(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(network, x, y) * random.random()

    if device.type == "cpu" and module.graphable(device) is False:
        assert graphed_step(network, odd, adam(network.parameters()), given)(*given).shape == ()
    else:
        with pytest.raises(BadInput, match="draws random numbers on the host"):
            graphed_step(network, odd, adam(network.parameters()), given)
        network.second.register_forward_hook(lambda *_: None)
        with pytest.raises(BadInput, match="second has hooks"):
            graphed_step(network, loss_of, adam(network.parameters()), given)
    for norm in (-1.0, 0, float("inf"), float("nan"), "1"):
        with pytest.raises(BadInput, match=f"{norm!r} is no norm"):
            graphed_step(network, loss_of, adam(network.parameters()), given, clip_norm=norm)  # type: ignore[arg-type]
    for place, said in ((0, "is no torch.nn.Module"), (2, "is no optimizer"), (3, "is no batch")):
        words = [network, loss_of, adam(network.parameters()), given]
        words[place] = None
        with pytest.raises(BadInput, match=f"NoneType {said}"):
            graphed_step(*words)
    with pytest.raises(BadInput, match="NoneType cannot be called"):
        graphed_step(network, None, adam(network.parameters()), given)
    with pytest.raises(BadInput, match="after: int cannot be called"):
        graphed_step(network, loss_of, adam(network.parameters()), given, after=3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"batch: it holds a MetaTensor; use plain tensors \(.*`\.as_tensor\(\)`"):
        graphed_step(network, loss_of, adam(network.parameters()), [MetaTensor(given[0]), given[1]])
    with pytest.raises(BadInput, match="the loss reaches none of its parameters; make it of model"):
        graphed_step(Network().to(device), loss_of, adam(network.parameters()), given)
    with pytest.raises(BadInput, match="0 is no number of calls"):
        graphed_step(network, loss_of, adam(network.parameters()), given, accumulate=0)
    with pytest.raises(BadInput, match=r"1\.5 is no number of calls"):
        graphed_step(network, loss_of, adam(network.parameters()), given, accumulate=1.5)  # type: ignore[arg-type]
    network = Network().to(device)
    with pytest.raises(BadInput, match="it returns no tensor, but float; return the loss itself"):
        graphed_step(network, lambda *a: loss_of(*a).item(), adam(network.parameters()), given)(*given)
    with pytest.raises(BadInput, match=r"its loss has the shape \(2, .*\); return a scalar, such as its mean"):
        graphed_step(network, lambda m, x, y: (m(x)[0] - y).square(), adam(network.parameters()), given)(*given)
    with pytest.raises(BadInput, match=r"they are on|the model are on"):
        graphed_step(network, loss_of, adam(network.parameters()), [given[0], given[1].to("meta")])


def test_an_optimizer_of_the_loss_s_own_weights_is_taken(device: torch.device) -> None:
    """Whether the loss reaches them only its forward pass tells, which leaves norms as they were."""
    own, given = nn.Parameter(torch.ones((), device=device)), batch(device)
    network = nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.BatchNorm3d(3)).to(device)
    kept = copy.deepcopy(network.state_dict())
    optimizer = torch.optim.SGD([own], 0.01, fused=True)
    step = graphed_step(network, lambda network, x, y: functional.mse_loss(network(x), y) * own, optimizer, given)
    assert own.grad is None
    torch.testing.assert_close(network.state_dict(), kept, rtol=0, atol=0)
    step(*given)
    assert own < 1


@pytest.mark.gpu
def test_what_waits_is_named_with_its_line() -> None:
    network = Network().cuda()
    given = batch(torch.device("cuda"))

    def waits(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(network, x, y)
        assert loss.item() > 0
        return loss

    with pytest.raises(BadInput, match=r"test_step.py:\d+ waits for the device"):
        graphed_step(network, waits, adam(network.parameters()), given)

    class Mine(torch.optim.SGD):
        """One that only its update tells of."""

    for scaler in (None, torch.amp.GradScaler("cuda")):
        for kind in (torch.optim.SGD, Mine):
            unfused = kind(network.parameters(), 0.1)
            with pytest.raises(BadInput, match=r"the optimizer's update waits for the device; make .* fused=True"):
                graphed_step(network, loss_of, unfused, given, scaler=scaler)
    step = graphed_step(network, loss_of, adam(network.parameters()), given)
    assert step(*given).item() > step(*given).item()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_checkpoint_loaded_after_the_step_was_made(device: torch.device, kind: type[torch.optim.Optimizer]) -> None:
    """The graph updates the state that was loaded, not the one that it was captured with."""
    options: dict[str, Any] = {"fused": True} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    torch.manual_seed(0)
    plain = accelerate(Network().to(device), "tf32", graph=False, report=None)
    fast = copy.deepcopy(plain)
    optimizers = [kind(network.parameters(), 0.02, **options) for network in (plain, fast)]  # type: ignore[call-arg]
    step = graphed_step(fast, loss_of, optimizers[1], batch(device))

    def loop(seed: int) -> None:
        optimizers[0].zero_grad()
        loss_of(plain, *batch(device, seed)).backward()
        optimizers[0].step()

    kept: Any = None
    for seed in range(6):
        loop(seed)
        step(*batch(device, seed))
        if seed == 2:
            kept = copy.deepcopy((fast.state_dict(), optimizers[1].state_dict()))
    fast.load_state_dict(kept[0])
    optimizers[1].load_state_dict(copy.deepcopy(kept[1]))
    plain.load_state_dict(kept[0])
    optimizers[0].load_state_dict(copy.deepcopy(kept[1]))
    for seed in range(3, 9):
        loop(seed)
        step(*batch(device, seed))
    for graph in step._graphs.values():
        assert all(map(operator.is_, graph.state, step._moments()))
        assert len(graph.state) == len(step._moments()) > 0
    for p, q in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_scaler_that_is_not_enabled(device: torch.device) -> None:
    """As `GradScaler(enabled=fp16)` makes one in a training in BF16."""
    pair = Pair(device, clip_norm=0.1, accumulate=2)
    pair.step.scaler = torch.amp.GradScaler(device.type, enabled=False)
    pair.train(6)
    assert not pair.step.why


def test_optimizers_and_averages_that_no_graph_repeats_are_refused(device: torch.device) -> None:
    """On a CPU as on a GPU: what a reader tries on a laptop holds on the card."""
    network, given = Network().to(device), batch(device)
    average = torch.optim.swa_utils.AveragedModel(network)
    damped = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, dampening=0.5)
    waits, others = "graphed_step: the optimizer's update waits for the device; ", "use Adam, AdamW, RMSprop, or SGD"
    odd = [
        (torch.optim.NAdam(network.parameters(), 0.1), None, "NAdam begins otherwise than with zeros; use Adam, "),
        (damped, None, "SGD begins otherwise than with zeros"),
        (torch.optim.SGD(network.parameters(), 0.1), None, f"{waits}make the optimizer with fused=True"),
        (torch.optim.Adafactor(network.parameters(), 0.1), None, f"{waits}{others}"),
        (torch.optim.Adagrad(network.parameters(), 0.1), None, f"{waits}{others}"),
        (torch.optim.LBFGS(network.parameters()), None, "optimizer: LBFGS asks for the loss several times"),
        (adam(network.parameters()), lambda: average.update_parameters(network), "AveragedModel counts on the host"),
    ]
    for optimizer, after, says in odd:
        with pytest.raises(BadInput, match=says):
            graphed_step(network, loss_of, optimizer, given, after=after)
    unfused = torch.optim.AdamW(network.parameters(), 0.01)
    with pytest.raises(BadInput, match=f"{waits}make the optimizer with fused=True"):
        graphed_step(network, loss_of, unfused, given, scaler=torch.amp.GradScaler(device.type))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adamax])
def test_optimizers_that_need_not_be_fused(device: torch.device, kind: Any) -> None:
    if module.graphable(device) and device.type == "cpu":
        pytest.skip("PyTorch has no capturable optimizer on a CPU")
    network, given = Network().to(device), batch(device)
    step = graphed_step(network, loss_of, kind(network.parameters(), 0.01), given)
    assert step(*given) > step(*given)


def test_another_s_optimizer_is_taken_as_it_is(device: torch.device) -> None:
    """Only its update can tell whether it waits; this one's does not."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad)

    network, given = Network().to(device), batch(device)
    step = graphed_step(network, loss_of, Plain(network.parameters()), given)
    assert step(*given) > step(*given)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_that_never_come_again(device: torch.device, accumulate: int, caplog: pytest.LogCaptureFixture) -> None:
    network, given = Network().to(device), batch(device)
    seen: list[str] = []

    def loss(network: nn.Module, data: dict[str, Any]) -> Tensor:
        seen.append(data["path"])
        return loss_of(network, *data["pair"])

    first = {"pair": given, "path": "0.nii"}
    step = graphed_step(network, loss, adam(network.parameters()), first, accumulate=accumulate)
    for number in range(module.SHAPES):
        step({"pair": given, "path": f"{number}.nii"})
    assert not step.why
    for number in range(module.SHAPES, module.SHAPES + 3):
        step({"pair": given, "path": f"{number}.nii"})
    if module.graphable(device):
        assert step.why.startswith(f"batches come in more than {module.SHAPES} shapes")
        assert len([m for m in caplog.messages if "without a CUDA graph" in m]) == 1
    assert seen[-1] == f"{module.SHAPES + 2}.nii"
