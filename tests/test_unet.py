"""The network against the published one: every name and shape, and its numbers."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from medddpm.fast.patch import accelerate
from medddpm.unet import ResBlock, UNet3D, config_from_tensors, timestep_embedding

SMALL = {"image_size": 64, "in_channels": 3, "out_channels": 1, "model_channels": 32, "num_res_blocks": 1}
HEAD = {"image_size": 128, "in_channels": 3, "out_channels": 1, "model_channels": 64, "num_res_blocks": 1}
BRATS = {"image_size": 192, "in_channels": 8, "out_channels": 4, "model_channels": 64, "num_res_blocks": 2}


@pytest.mark.parametrize(
    ("listing", "arguments", "parameters"),
    [("small", SMALL, None), ("128", HEAD, 40_226_433), ("brats", BRATS, 57_562_564)],
)
def test_names_and_shapes_are_the_published_ones(
    spec: Path, listing: str, arguments: dict, parameters: int | None
) -> None:
    published = {name: tuple(shape) for name, shape in json.loads((spec / f"state_dict_{listing}.json").read_text())}
    with torch.device("meta"):
        network = UNet3D(**arguments)
        network.load_state_dict({k: torch.empty(s) for k, s in published.items()}, strict=True)
    assert {k: tuple(v.shape) for k, v in network.state_dict().items()} == published
    if parameters is not None:
        assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(
    ("arguments", "published"),
    [(SMALL, 0x4FCFE659), (HEAD, 0xBEF5F9B1), (BRATS, 0x7DE6D26B)],
    ids=["small", "128", "brats"],
)
def test_names_and_shapes_have_the_published_ones_checksum(arguments: dict, published: int) -> None:
    """That of the specification's list, for a machine that does not have the specification."""
    with torch.device("meta"):
        listed = [[name, list(tensor.shape)] for name, tensor in UNet3D(**arguments).state_dict().items()]
    assert zlib.crc32(json.dumps(listed).encode()) == published


def filled(network: UNet3D) -> UNet3D:
    """The network with the specification's weights, which follow from their names."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            a = (
                np.random.RandomState(zlib.crc32(name.encode()))
                .standard_normal(tuple(parameter.shape))
                .astype(np.float32)
            )
            a = a * np.float32(0.05) if a.ndim > 1 else a * np.float32(0.1)
            if name.endswith(".weight") and a.ndim == 1:
                a = a + np.float32(1)
            parameter.copy_(torch.from_numpy(a))
    return network


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_reproduces_the_published_networks_output(spec: Path, memory_format: torch.memory_format) -> None:
    reference = np.load(spec / "unet_small.npz")
    network = filled(UNet3D(**SMALL)).to(memory_format=memory_format)
    with torch.no_grad():
        y = network(torch.from_numpy(reference["x"]), torch.from_numpy(reference["t"])).numpy()
    error = np.linalg.norm(y - reference["y"]) / np.linalg.norm(reference["y"])
    assert error < 1e-5


def test_some_voxels_are_those_of_the_published_network() -> None:
    """Of the specification's case, for a machine that does not have the specification."""
    x = np.random.RandomState(7).standard_normal((2, 3, 16, 16, 16)).astype(np.float32)
    with torch.no_grad():
        y = filled(UNet3D(**SMALL))(torch.from_numpy(x), torch.tensor([3, 217]))
    published = [-0.48968, -0.00329, 0.26016, 0.21131, -0.14203, 0.30437, -0.70463, 0.0848]
    np.testing.assert_allclose(y.flatten()[::1024].numpy(), published, atol=5e-5)


@pytest.mark.parametrize("arguments", [SMALL, HEAD, BRATS, {**SMALL, "image_size": 32}])
def test_configuration_is_read_off_the_tensors(arguments: dict) -> None:
    with torch.device("meta"):
        network = UNet3D(**arguments)
    read = config_from_tensors(network.state_dict())
    config = {
        k: v for k, v in network.config.items() if k not in ("attention_rates", "norm_groups")
    }  # no tensor's shape
    assert {k: read[k] for k in config} == config
    with torch.device("meta"):
        rebuilt = UNet3D(**read)  # type: ignore[arg-type]
    assert rebuilt.state_dict().keys() == network.state_dict().keys()


def test_a_fresh_network_predicts_nothing_and_can_still_learn() -> None:
    torch.manual_seed(0)
    network = UNet3D(**SMALL)
    y = network(torch.randn(1, 3, 8, 16, 24), torch.tensor([3]))
    assert y.shape == (1, 1, 8, 16, 24)
    assert y.abs().max() == 0  # the output convolution starts at zero…
    (y - 1).square().sum().backward()
    assert network.out[2].weight.grad.abs().max() > 0  # …and receives a gradient


def test_volumes_of_a_batch_do_not_touch_each_other() -> None:
    """Gradient accumulation of two equals a batch of two only if no norm reaches across the batch."""
    torch.manual_seed(0)
    network = UNet3D(**SMALL)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    x, t = torch.randn(2, 3, 8, 8, 8), torch.tensor([1, 200])
    together = network(x, t)
    alone = torch.cat([network(x[i : i + 1], t[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 2, 8, 8, 8), (1, 3, 8, 8, 12)])
def test_a_shape_it_does_not_take_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes .N, 3, D, H, W., channels .* and the mask together, .* of 8$"):
        UNet3D(**SMALL)(torch.zeros(shape), torch.zeros(1))


def test_a_width_the_norm_cannot_divide_is_named() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        UNet3D(model_channels=48)


def test_groups_of_several_channels_show_the_brightness_that_groups_of_one_take_away() -> None:
    """Away from the border: padding tells the brightness from nothing, also to the norm that takes it away."""
    x = torch.randn(1, 3, 32, 32, 32, generator=torch.Generator().manual_seed(0))
    inside = (..., slice(8, 24), slice(8, 24), slice(8, 24))
    change = {}
    for groups in (32, 8):
        torch.manual_seed(0)
        block = ResBlock(32, 128, 32, groups)
        nn.init.normal_(block.out_layers[3].weight, std=0.05)
        lift = nn.Conv3d(3, 32, 3, padding=1, bias=False)
        with torch.no_grad():
            plain, shifted = (block(lift(v), torch.zeros(1, 128)) - lift(v) for v in (x, x + 3.0))
        change[groups] = float((shifted - plain)[inside].norm() / plain[inside].norm())
    assert change[32] < 0.4 * change[8], change
    network = UNet3D(**{**SMALL, "norm_groups": 8})
    assert {m.num_groups for m in network.modules() if isinstance(m, nn.GroupNorm)} == {8}
    assert UNet3D(**network.config).config == network.config  # type: ignore[arg-type]


def test_the_embedding_has_the_published_period() -> None:
    emb = timestep_embedding(torch.tensor([0, 7]), 64)
    assert emb.shape == (2, 64)
    torch.testing.assert_close(emb[0], torch.cat([torch.ones(32), torch.zeros(32)]))
    torch.testing.assert_close(emb[1, 31], torch.cos(torch.tensor(7 * 1000 ** (-31 / 32))))


def gradient(net: UNet3D, activations: str) -> tuple[list[Tensor], int]:
    """The gradients of a step whose network recomputes `what`, and the bytes kept between its two passes."""
    net.recompute(activations)
    net.zero_grad()
    x, t = torch.randn(1, 3, 16, 16, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([7])
    stored: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    # Inside, recomputed regions have hooks of their own: what those keep does not reach these.
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = net(x, t).square().mean()
    loss.backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None], sum(
        stored.values()
    )


@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_is_recomputed_changes_memory_and_not_the_gradient(fast: bool) -> None:
    torch.manual_seed(0)
    net = UNet3D(image_size=16, model_channels=32, channel_mult=(1, 2, 2), attention_rates=(2,))
    for parameter in net.parameters():  # the published start has zeros that would hide gradients
        parameter.data += 0.02 * torch.randn_like(parameter)
    if fast:
        accelerate(net, report=None)
    whole, most = gradient(net, "none")
    by_choice = {activations: gradient(net, activations) for activations in ("attention", "1", "2", "all")}
    for grads, _ in by_choice.values():
        assert len(grads) == len(whole)
        assert all(map(torch.equal, grads, whole))
    sizes = {activations: size for activations, (_, size) in by_choice.items()}
    assert sizes["attention"] < most
    assert sizes["all"] < sizes["2"] < sizes["1"] < 0.8 * most
    assert gradient(net, "none")[1] == most


def test_only_known_parts_are_recomputed() -> None:
    with pytest.raises(ValueError, match=r"recompute is 'some': it must be one of none, attention, 1"):
        UNet3D(image_size=8, model_channels=32).recompute("some")
