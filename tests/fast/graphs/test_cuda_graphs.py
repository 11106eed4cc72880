"""What is captured in CUDA graphs: the logic on a CPU, where a stand-in runs the function, the graphs on a GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from medddpm.data.volumes import VolumeFolder
from medddpm.diffusion import SAMPLERS, GaussianDiffusion
from medddpm.fast.graphs import cuda_graphs, pool
from medddpm.switches import FAST, Switches
from medddpm.training.config import TrainConfig
from medddpm.training.graphed_step import lay_out_alike, unchanged
from medddpm.training.trainer import Trainer
from medddpm.unet import UNet3D

TINY = TrainConfig(
    image_size=8,
    model_channels=32,
    channel_mult=(1, 2),
    accumulation=1,
    ema_start=2,
    ema_every=1,
    ema_decay=0.9,
    learning_rate=1e-3,
)


OURS: dict[str, object] = {
    "warm_up": 2, "decay": "cosine", "length": 8, "ema_share": 0.2, "flips": True, "deform": 0.02,
    "prediction": "velocity", "loss": "l2", "weighting": "min-snr", "batch_size": 2,
}  # fmt: skip
"""What a recipe may change of a step."""


class Replayed:
    """What a graph does, by running the function: fixed inputs, warm-up, and outputs overwritten by each call."""

    made = 0

    def __init__(self, function: Callable[..., object], *inputs: Tensor, generators=(), warmup: int = 3) -> None:
        type(self).made += 1
        self.function, self.inputs = function, [tensor.detach().clone() for tensor in inputs]
        for _ in range(warmup):
            outputs = function(*self.inputs)
        self.outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        self.single = isinstance(outputs, Tensor)

    def __call__(self, *inputs: Tensor) -> object:
        for static, tensor in zip(self.inputs, inputs, strict=True):
            assert static.shape == tensor.shape
            static.copy_(tensor)
        results = self.function(*self.inputs)
        for static, result in zip(self.outputs, [results] if self.single else results, strict=True):
            static.copy_(result)
        return self.outputs[0] if self.single else tuple(self.outputs)


class Acceleration:
    """What an accelerated network carries."""


@pytest.fixture
def replayed(monkeypatch) -> type[Replayed]:
    """On this CPU all is done as with graphs on a GPU, but for the graphs."""
    monkeypatch.setattr(cuda_graphs, "GraphedCall", Replayed)
    monkeypatch.setattr(
        cuda_graphs, "wanted", lambda network: cuda_graphs._allowed and hasattr(network, "acceleration")
    )
    monkeypatch.setattr(cuda_graphs, "_cached", {})
    monkeypatch.setattr(Replayed, "made", 0)
    return Replayed


def capturing(volumes: VolumeFolder, **changes: object) -> Trainer:
    """A trainer that makes its steps as it would with its accelerated network on a GPU."""
    trainer = Trainer(replace(TINY, **changes), volumes, torch.device("cpu"))
    trainer._may_capture = True
    trainer.unet.acceleration = Acceleration()
    return trainer


def same(one: object, other: object) -> bool:
    """To the last bit, whatever the nesting."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


# Training


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("changes", [{}, {"clip_norm": 1e-3}, OURS], ids=["published", "clipped", "ours"])
def test_steps_in_a_graph_are_the_steps_outside_one(volumes, changes: dict[str, object]) -> None:
    """Losses, weights, moments and average to the last bit: warming up leaves no trace, and the draws are the same."""
    graphed = capturing(volumes, accumulation=2, **changes)
    eager = Trainer(graphed.config, volumes, graphed.device)
    for _ in range(4):
        graphed.train_step()
        eager.train_step()
    assert Replayed.made == 1
    assert graphed.read_losses() == eager.read_losses()
    assert len(set(graphed.losses)) == 4
    assert same(graphed.state(), eager.state() | {"losses": graphed.state()["losses"]})
    assert not same(graphed.diffusion.state_dict(), graphed.ema.state_dict())


@pytest.mark.usefixtures("replayed")
def test_a_run_resumed_with_a_graph_goes_on_as_it_would_have(volumes) -> None:
    whole, cut = capturing(volumes), capturing(volumes)
    for _ in range(2):
        cut.train_step()
    cut.read_losses()
    resumed = capturing(volumes)
    resumed.train_step()  # what it had captured is of no use after loading
    resumed.load(cut.state(), Path("checkpoint"))
    for _ in range(2):
        resumed.train_step()
    for _ in range(4):
        whole.train_step()
    whole.read_losses(), resumed.read_losses()
    assert same(whole.state(), resumed.state())


@pytest.mark.usefixtures("replayed")
def test_a_step_outside_between_steps_in_a_graph_changes_nothing(volumes) -> None:
    """The graph's gradients do not reach it; and accelerated anew, the network is captured anew."""
    mixed, eager = capturing(volumes), Trainer(TINY, volumes, torch.device("cpu"))
    for number in range(4):
        with cuda_graphs.off() if number == 1 else contextlib.nullcontext():
            mixed.train_step()
        if number == 2:
            mixed.unet.acceleration = Acceleration()
        eager.train_step()
    assert Replayed.made == 3
    assert mixed.read_losses() == eager.read_losses()
    assert same(mixed.diffusion.state_dict(), eager.diffusion.state_dict())


def test_without_graphs_or_acceleration_nothing_is_captured(volumes, replayed) -> None:
    trainer = Trainer(replace(TINY, setting="FAST"), volumes, torch.device("cpu"), graph=False)
    with FAST.on(trainer.unet):
        trainer.train_step()
    plain = capturing(volumes)
    del plain.unet.acceleration
    plain.train_step()
    assert replayed.made == 0


def test_a_checkpoint_from_a_gpu_goes_on_here(volumes) -> None:
    """There, one kernel updates all weights, inside a graph; a CPU has no such Adam."""
    trainer, there = (Trainer(TINY, volumes, torch.device("cpu")) for _ in range(2))
    for each in (trainer, there):
        each.train_step()
    there.read_losses()
    state = there.state()
    for group in state["optimizer"]["param_groups"]:
        group.update(fused=True, capturable=True)
    resumed = Trainer(TINY, volumes, torch.device("cpu"))
    resumed.load(state, Path("checkpoint"))
    for each in (trainer, resumed):
        each.train_step()
    assert same(trainer.diffusion.state_dict(), resumed.diffusion.state_dict())


def test_weights_and_moments_come_through_a_warm_up_unchanged() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())

    def step() -> None:
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    weight = layer.weight.detach().clone()
    with unchanged(optimizer):
        step()
        assert not torch.equal(layer.weight, weight)
    assert torch.equal(layer.weight, weight)
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())
    step()
    before = {key: value.clone() for key, value in optimizer.state[layer.weight].items()}
    with contextlib.suppress(KeyError), unchanged(optimizer):
        step()
        raise KeyError
    assert same(dict(optimizer.state[layer.weight]), before)


def test_averages_and_moments_take_the_layout_of_their_weights() -> None:
    conv, average = nn.Conv3d(4, 8, 3), nn.Conv3d(4, 8, 3)
    optimizer = torch.optim.Adam(conv.parameters())
    conv(torch.ones(1, 4, 3, 3, 3)).sum().backward()
    optimizer.step()
    moment = optimizer.state[conv.weight]["exp_avg"]
    known = [tensor.detach().clone() for tensor in (conv.weight, average.weight, moment)]
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last_3d)
    lay_out_alike(list(conv.parameters()), list(average.parameters()), optimizer)
    for tensor, values in zip((conv.weight, average.weight, moment), known, strict=True):
        assert tensor.is_contiguous(memory_format=torch.channels_last_3d)
        assert torch.equal(tensor, values)


# Sampling


def diffusion() -> GaussianDiffusion:
    torch.manual_seed(0)
    network = UNet3D(image_size=16, model_channels=32, channel_mult=(1, 2))
    nn.init.normal_(network.out[2].weight, std=0.02)
    return GaussianDiffusion(network, timesteps=6)


MASK = torch.rand(2, 2, 4, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sample_by_a_graph_is_the_sample_without(sampler: str) -> None:
    """Also the second one, from the graph of the first, and without spoiling the first."""
    model = diffusion()
    steps = 6 if sampler == "ddpm" else 4

    def drawn(seed: int) -> tuple[Tensor, list[Tensor]]:
        path: list[Tensor] = []
        generator = torch.Generator().manual_seed(seed)
        return model.sample(MASK, steps, sampler, generator=generator, trajectory=path), path

    expected = [drawn(seed) for seed in (1, 2)]
    model.denoise_fn.acceleration = Acceleration()
    found = [drawn(seed) for seed in (1, 2)]
    assert Replayed.made == 1
    for (sample, path), (wanted, wanted_path) in zip(found, expected, strict=True):
        assert torch.equal(sample, wanted)
        assert len({step.sum().item() for step in path}) == steps + 1
        assert all(torch.equal(*steps) for steps in zip(path, wanted_path, strict=True))


@pytest.mark.usefixtures("replayed")
def test_a_graph_is_kept_as_long_as_it_fits() -> None:
    model = diffusion()
    network = model.denoise_fn
    network.acceleration = Acceleration()

    def captures(mask: Tensor = MASK, of: GaussianDiffusion = model) -> int:
        before = Replayed.made
        of.sample(mask, 1, "ddim")
        return Replayed.made - before

    assert (captures(), captures()) == (1, 0)
    assert captures(MASK[:1]) == 1, "another shape"
    assert captures(of=GaussianDiffusion(network, timesteps=9)) == 1, "another schedule"
    assert (captures(), captures()) == (1, 0)
    with torch.no_grad():
        network.out[2].weight.mul_(2)
    assert captures() == 0, "what changes in place is read anew"
    network.out[2].weight.data = network.out[2].weight.data.clone()
    assert captures() == 1, "another place"
    with Switches("TF32", tf32=not torch.backends.cudnn.allow_tf32, channels_last=False):
        assert captures() == 1, "another precision"
    assert captures() == 1
    with cuda_graphs.off():
        assert captures() == 0
    cuda_graphs.forget(network)
    assert captures() == 1
    network.acceleration = Acceleration()
    gc.collect()
    assert not cuda_graphs._cached, "a graph goes with the acceleration it was captured under"


# What decides


def test_only_accelerated_networks_on_a_gpu_are_captured() -> None:
    network = nn.Conv3d(1, 1, 1)
    assert not cuda_graphs.wanted(network)
    network.acceleration = Acceleration()
    assert not cuda_graphs.wanted(network)
    assert not cuda_graphs.wanted(nn.Identity())


@pytest.mark.parametrize("inputs", [(torch.zeros(1),), ()])
def test_without_a_gpu_a_graph_is_refused_in_so_many_words(inputs: tuple[Tensor, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"tensors of one CUDA device, and these are on (cpu|nowhere)$"):
        cuda_graphs.GraphedCall(torch.neg, *inputs)


def test_no_garbage_is_collected_amid_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(pool, "sparing", contextlib.nullcontext)
    seen = []

    def capture(error: type[Exception] | None = None) -> None:
        with pool.capturing(None, None):
            seen.append(gc.isenabled())
            if error is not None:
                raise error

    with pytest.raises(KeyError):
        capture(KeyError)
    assert gc.isenabled()
    gc.disable()
    try:
        capture()
        assert not gc.isenabled()  # as its user has it
    finally:
        gc.enable()
    assert seen == [False, False]


# On a GPU


@pytest.mark.gpu
def test_a_graph_computes_and_draws_as_its_function_does() -> None:
    device = torch.device("cuda")
    first, second = (torch.Generator(device) for _ in range(2))

    def work(x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(5, generator=first, device=device), torch.randn(5, generator=second, device=device)
        return x + drawn[0], x - drawn[1]

    call = cuda_graphs.GraphedCall(work, torch.zeros(5, device=device), generators=[first, second])
    results = []
    for run in (call, work):
        for seed in (1, 2):
            first.manual_seed(seed), second.manual_seed(seed + 7)
            results.append([y.clone() for y in run(torch.full((5,), float(seed), device=device))])
    assert all(torch.equal(*pair) for pair in zip(results[0] + results[1], results[2] + results[3], strict=True))
    assert not torch.equal(results[0][0], results[1][0])
    pinned = torch.full((5,), 3.0).pin_memory()
    torch.testing.assert_close(call(pinned)[0].mean().item(), 3.0, rtol=0, atol=3)
    with pytest.raises(ValueError, match="captured for inputs of shape"):
        call(torch.zeros(1, device=device))


@pytest.mark.gpu
def test_a_graph_that_is_gone_leaves_no_memory_behind() -> None:
    """Each has a stream of its own, and cuBLAS a workspace for each stream that multiplies."""
    x = torch.ones(64, 64, device="cuda")
    held = []
    for _ in range(4):
        call = cuda_graphs.GraphedCall(torch.matmul, x, x)
        assert call(x, x)[0, 0] == 64
        del call
        held.append(torch.cuda.memory_allocated())
    assert held[-1] == held[0]


@pytest.mark.gpu
def test_a_graph_that_becomes_garbage_amid_a_capture_is_no_error_of_it() -> None:
    """CUDA takes the end of a graph for one, and a cycle's comes whenever the collector does."""
    x = torch.ones(5, device="cuda")
    cycle: list[object] = [cuda_graphs.GraphedCall(torch.neg, x)]
    cycle.append(cycle)
    held, runs = [cycle], []
    del cycle

    def work(x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) == 4:  # three come before the capture
            held.clear()
            runs.extend([] for _ in range(100_000))  # the collector comes by how much was made
        return x + 1

    assert cuda_graphs.GraphedCall(work, x)(x).tolist() == [2.0] * 5
    assert not held
    assert gc.isenabled()


@contextlib.contextmanager
def stepped(volumes: VolumeFolder, graph: bool, steps: int = 3, **changes: object) -> Iterator[Trainer]:
    config = replace(TINY, setting="FAST", accumulation=2, **changes)
    trainer = Trainer(config, volumes, torch.device("cuda"), graph=graph)
    with FAST.on(trainer.unet):
        for _ in range(steps):
            trainer.train_step()
        yield trainer


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.1}, OURS], ids=["published", "clipped", "ours"])
def test_training_in_a_graph_equals_training_outside(volumes, changes: dict[str, object]) -> None:
    """From the same draws: losses agree, and weights move the same way, within BF16's noise.

    The learning rate that a recipe changes at every step reaches the graph: the weights move as far as outside.
    """
    with stepped(volumes, graph=True, **changes) as graphed, stepped(volumes, graph=False, **changes) as eager:
        assert graphed._graphed is not None
        assert eager._graphed is None
        torch.testing.assert_close(graphed.read_losses(), eager.read_losses(), rtol=5e-3, atol=0)
        start = Trainer(TINY, volumes, torch.device("cuda")).unet
        for name in ("out.2.weight", "input_blocks.0.0.weight"):
            moved, expected, before = (net.get_parameter(name).detach() for net in (graphed.unet, eager.unet, start))
            assert (moved - expected).norm() < 0.1 * (expected - before).norm()
        assert all(state["step"].is_cuda and state["step"] == 3 for state in graphed.optimizer.state.values())


@pytest.mark.gpu
def test_a_run_cut_on_a_gpu_goes_on_in_a_graph(volumes) -> None:
    with stepped(volumes, graph=True, steps=4) as whole, stepped(volumes, graph=True, steps=2) as cut:
        cut.read_losses()
        resumed = Trainer(cut.config, volumes, cut.device)
        resumed.load(cut.state(), Path("checkpoint"))
        with FAST.on(resumed.unet):
            resumed.train_step()
            resumed.train_step()
            torch.testing.assert_close(resumed.read_losses(), whole.read_losses()[2:], rtol=5e-3, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_sampling_by_a_graph_equals_sampling_without(sampler: str, source: str) -> None:
    model, mask = diffusion().cuda(), MASK.cuda()

    def drawn() -> Tensor:
        return model.sample(mask, 6, sampler, generator=torch.Generator(source).manual_seed(4))

    with FAST.on(model.denoise_fn):
        first, second = drawn(), drawn()
        with cuda_graphs.off():
            expected = drawn()
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-2)
