"""Our own network on the fast path: the same function, whatever is turned on, hooked or given."""

from __future__ import annotations

import copy
import functools
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.networks import alive, check_near, distance, passed
from torch import nn

from medddpm.fast.kernels import add as kernels_add
from medddpm.fast.networks import unet
from medddpm.fast.patch import FEATURES, accelerate, restore
from medddpm.unet import ResBlock, UNet3D


@functools.cache
def drawn(groups: int) -> UNet3D:
    """Every kind of block: attention in a level and in the middle, skips with and without a convolution."""
    torch.manual_seed(0)
    net = UNet3D(32, 3, 1, 32, 2, channel_mult=(1, 2, 2), attention_rates=(4,), norm_groups=groups)
    alive(net)
    return net


def network(groups: int = 32) -> UNet3D:
    """A copy of `drawn`, which takes a tenth of the time."""
    return copy.deepcopy(drawn(groups))


def given(batch: int = 2, side: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, side, side, side, generator=generator), torch.tensor([3, 170])[:batch]


def grown() -> list[tuple[str, ...]]:
    """Each feature alone, and the ladder's sets."""
    return sorted({*((f,) for f in FEATURES), *(tuple(FEATURES[:n]) for n in range(1, len(FEATURES) + 1))})


@pytest.mark.parametrize(
    ("features", "groups"), [*((f, 32) for f in grown()), (FEATURES[:1], 8), (FEATURES, 8)],
    ids=lambda value: str(value) if isinstance(value, int) else "+".join(value),
)  # fmt: skip
@pytest.mark.long
def test_output_and_gradients_with_these_features(features: tuple[str, ...], groups: int) -> None:
    net, inputs = network(groups), given()
    expected = passed(net, *inputs)
    accelerate(net, only=features, report=None)
    check_near(passed(net, *inputs), expected, 1e-4, 1e-3)
    restore(net)
    (again,), _ = passed(net, *inputs)
    assert torch.equal(again, expected[0][0])


def test_the_last_sums_bias_is_the_last_norms_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient would take a sweep over the largest volume."""
    net, biases = network(), []
    accelerate(net, report=None)

    def add(*args: torch.Tensor, **kwargs: torch.Tensor | None) -> torch.Tensor:
        biases.append(kwargs.get("bias"))
        return kernels_add.add(*args, **kwargs)

    monkeypatch.setattr(unet, "add", add)
    net(*given())
    assert [bias is None for bias in biases] == [False] * (len(biases) - 1) + [True]


def test_the_published_case(spec: Path) -> None:
    case = np.load(spec / "unet_small.npz")
    net = UNet3D(image_size=64, model_channels=32)
    for key, parameter in net.state_dict().items():
        values = np.random.RandomState(zlib.crc32(key.encode())).standard_normal(parameter.shape).astype("float32")
        values = values * (0.05 if parameter.dim() > 1 else 0.1)
        parameter.copy_(torch.from_numpy(values + (key.endswith(".weight") and parameter.dim() == 1)))
    accelerate(net, report=None)
    with torch.no_grad():
        y = net(torch.from_numpy(case["x"]), torch.from_numpy(case["t"]))
    assert distance(y, torch.from_numpy(case["y"])) < 1e-5


def test_in_bf16_within_two_hundredths() -> None:
    net, inputs = network(), given(1, 12)  # not 16: a CPU's products in BF16 are slow where a size is a power of two
    (output,), gradients = passed(net, *inputs)
    accelerate(net, report=None)
    net.forward.reduced_on = ("cpu",)  # type: ignore[attr-defined]
    (fast,), fast_gradients = passed(net, *inputs)
    assert fast.dtype == output.dtype
    assert 1e-4 < distance(fast, output) < 2e-2  # not float32 by mistake
    assert all(g is None or g.dtype == torch.float32 for g in fast_gradients.values())
    assert set(fast_gradients) == set(gradients)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "close"), [("bf16", 3e-2), ("tf32", 5e-3)])
def test_on_a_gpu_close_to_what_a_cpu_computes(precision: str, close: float) -> None:
    net, inputs = network(), given(2, 16)
    (output,), gradients = passed(net, *inputs)  # in float32: a GPU's would round products to TF32
    accelerate(net.cuda(), precision, report=None)
    (fast,), fast_gradients = passed(net, *(a.cuda() for a in inputs))
    assert fast.dtype == torch.float32
    assert (1e-4 if precision == "bf16" else 0) < distance(fast.cpu(), output) < close
    total, fast_total = (
        torch.cat([g.flatten().cpu() for g in map(found.get, gradients)]) for found in (gradients, fast_gradients)
    )
    assert distance(fast_total, total) < 2 * close


WHEN = pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])


@WHEN
@pytest.mark.parametrize(
    "name",
    [
        "", "input_blocks.0", "output_blocks.1", "middle_block", "input_blocks.0.0", "input_blocks.1.0",
        "input_blocks.1.0.in_layers.1", "output_blocks.0.0.emb_layers.1",
        "output_blocks.1.0.skip_connection", "middle_block.1", "middle_block.1.qkv", "output_blocks.2.2",
        "output_blocks.2.2.conv", "input_blocks.3.0", "input_blocks.3.0.op", "out.1", "time_embed.0",
    ],
)  # fmt: skip
def test_hooks_are_called(name: str, when: str) -> None:
    net, inputs = network(), given(1)
    module = net.get_submodule(name)
    (output,), _ = passed(net, *inputs)
    seen: list[tuple[int, ...]] = []
    if when == "after":
        accelerate(net, report=None)
    module.register_forward_hook(lambda _m, _i, out: seen.append(tuple(out.shape)))
    if when == "before":
        accelerate(net, report=None)
    (fast,), _ = passed(net, *inputs)
    assert len(seen) == 1
    assert distance(fast, output) < 1e-4


def sets(**values: object) -> Callable[[nn.Module], None]:
    return lambda module: vars(module).update(values)


def becomes(name: str, make: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        torch.manual_seed(5)
        parent, _, last = name.rpartition(".")
        module.get_submodule(parent).register_module(last, make(module.get_submodule(name)))

    return change


def conv(bias: bool = True) -> Callable[[nn.Module], nn.Module]:
    return lambda old: nn.Conv3d(old.in_channels, old.out_channels, old.kernel_size, 1, old.padding, bias=bias)


CHANGES: dict[str, tuple[str, Callable[[nn.Module], None]]] = {
    "activation": ("input_blocks.1.0", becomes("in_layers.1", lambda _: nn.ReLU())),
    "second activation": ("output_blocks.1.0", becomes("out_layers.1", lambda _: nn.GELU())),
    "activation of the timestep": ("middle_block.0", becomes("emb_layers.0", lambda _: nn.Tanh())),
    "dropout": ("output_blocks.0.0.out_layers.2", sets(p=0.4)),
    "another layer's forward": ("input_blocks.2.0.in_layers.1", sets(forward=torch.tanh)),
    "one layer more": ("input_blocks.1.0.in_layers", lambda m: m.append(nn.Tanh())),
    "one layer less": ("input_blocks.1.0.in_layers", lambda m: m.pop(1)),
    "padding": ("input_blocks.1.0.in_layers.2", sets(padding_mode="circular")),
    "dilation": ("output_blocks.0.0.out_layers.3", sets(dilation=(2, 2, 2), padding=(2, 2, 2))),
    "no bias": ("input_blocks.2.0", becomes("in_layers.2", conv(bias=False))),
    "no bias of the timestep": ("input_blocks.2.0", becomes("emb_layers.1", lambda m: nn.Linear(128, 32, bias=False))),
    "no norm": ("output_blocks.0.0", becomes("in_layers.0", lambda _: nn.Identity())),
    "another norm": ("output_blocks.0.0", becomes("out_layers.0", lambda m: nn.InstanceNorm3d(m.num_channels))),
    "bare norm": ("input_blocks.1.0", becomes("in_layers.0", lambda _: nn.GroupNorm(8, 32, affine=False))),
    "another convolution": ("output_blocks.1.0", becomes("in_layers.2", conv())),
    "another skip": ("output_blocks.1.0", becomes("skip_connection", conv())),
    "a skip of two layers": ("output_blocks.1.0", becomes("skip_connection", lambda m: nn.Sequential(m, nn.Tanh()))),
    "another first layer": ("input_blocks.0", becomes("0", conv())),
    "behind the first layer": ("input_blocks.0", lambda m: m.append(nn.Tanh())),
    "another last layer": ("out", becomes("2", conv())),
    "last activation": ("out", becomes("1", lambda _: nn.Tanh())),
    "attention without a norm": ("middle_block.1", becomes("norm", lambda _: nn.Identity())),
    "attention without biases": ("middle_block.1", becomes("qkv", lambda m: nn.Conv1d(64, 192, 1, bias=False))),
    "padding of an upsampling": ("output_blocks.2.2.conv", sets(padding_mode="replicate")),
}


@WHEN
@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_was_changed(change: str, when: str) -> None:
    name, made = CHANGES[change]
    net, fast, inputs = network(), network(), given(1)
    made(net.get_submodule(name))
    if when == "before":
        made(fast.get_submodule(name))
    accelerate(fast, report=None)
    if when == "after":
        made(fast.get_submodule(name))
    check_near(passed(fast, *inputs), passed(net, *inputs), 1e-4, 1e-3)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm], ids=["hook", "class"])
def test_weights_that_are_computed(normed: Callable[[nn.Module], nn.Module]) -> None:
    net, inputs = network(), given()
    normed(net.output_blocks[1][0].in_layers[2])  # type: ignore[index, union-attr]
    normed(net.output_blocks[0][0].emb_layers[1])  # type: ignore[index, union-attr]
    normed(net.middle_block[1].qkv)  # type: ignore[union-attr, arg-type]
    expected = passed(net, *inputs)
    accelerate(net, report=None)
    check_near(passed(net, *inputs), expected, 1e-4, 1e-3)


def test_a_wrong_input_is_refused_in_the_same_words() -> None:
    net = network()
    said = []
    for _ in range(2):
        with pytest.raises(ValueError, match="multiples of 4") as error:
            net(torch.zeros(1, 3, 6, 8, 8), torch.zeros(1))
        said.append(str(error.value))
        accelerate(net, report=None)
    assert said[0] == said[1]


def test_blocks_on_their_own_and_their_copies() -> None:
    net = network()
    block = next(m for m in net.modules() if isinstance(m, ResBlock) and hasattr(m.skip_connection, "weight"))
    width = block.in_layers[2].in_channels
    x, emb = torch.randn(1, width, 4, 4, 4), torch.randn(1, 128)
    plain = block(x, emb)
    accelerate(net, report=None)
    assert distance(block(x, emb), plain) < 1e-4
    twin = copy.deepcopy(net)
    inputs = given()
    (first,), _ = passed(net, *inputs)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    (second,), _ = passed(twin, *inputs)
    assert torch.equal(first, second)  # a copy reads its own weights


def test_the_report_names_every_kind_of_block() -> None:
    net = network()
    accelerate(net, report=None)
    report = str(net.acceleration)
    assert all(word in report for word in ("UNet3D", "ResBlock", "AttentionBlock", "Upsample", "left alone"))
    assert json.dumps([name for name, _, _ in net.acceleration.replaced]).count("output_blocks") > 3
