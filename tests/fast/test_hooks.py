"""Hooks within an accelerated network, and layers put into it later: both see what the network itself shows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.networks import block, distance, volume
from monai.networks.nets import ResNet
from monai.visualize import CAM, GradCAM, GradCAMpp
from torch import Tensor, nn
from torch.nn.modules import module as torchs

from medddpm.fast.patch import accelerate, restore

X = volume(2, 3, 8, 8, 8)


def flat(t: Tensor) -> Tensor:
    """As code does that takes a map for contiguous and NumPy's."""
    return torch.tensor(t.detach().view(t.shape[0], -1).numpy())


def after(layer: nn.Module, seen: list[Tensor]) -> Any:
    return layer.register_forward_hook(lambda _m, given, out: seen.extend((flat(given[0]), flat(out))))


def before(layer: nn.Module, seen: list[Tensor]) -> Any:
    return layer.register_forward_pre_hook(lambda _m, given: seen.append(flat(given[0])))


def backward(layer: nn.Module, seen: list[Tensor]) -> Any:
    return layer.register_full_backward_hook(lambda _m, new, old: seen.extend((flat(new[0]), flat(old[0]))))


def backward_before(layer: nn.Module, seen: list[Tensor]) -> Any:
    return layer.register_full_backward_pre_hook(lambda _m, old: seen.append(flat(old[0])))


def on_the_gradient(layer: nn.Module, seen: list[Tensor]) -> Any:
    return layer.register_forward_hook(lambda _m, _i, out: out.register_hook(lambda g: seen.append(flat(g))) and None)


def for_all(layer: nn.Module, seen: list[Tensor]) -> Any:
    def hook(module: nn.Module, given: Any, out: Tensor) -> None:
        if module is layer:
            seen.append(flat(out))

    return torchs.register_module_forward_hook(hook)


def seen_by(hook: Callable[..., Any], network: nn.Module, at: int) -> list[Tensor]:
    seen: list[Tensor] = []
    handle = hook(network[at], seen)  # type: ignore[index]
    try:
        network(X.clone().requires_grad_()).square().sum().backward()
    finally:
        handle.remove()
    return seen


def reduced(network: nn.Module) -> nn.Module:
    network.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    return network


@pytest.mark.parametrize("kind", ["float32", "bf16"])
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("hook", [after, before, backward, backward_before, on_the_gradient, for_all])
def test_hooks_may_view_and_hand_to_numpy_what_they_are_given(hook: Callable[..., Any], at: int, kind: str) -> None:
    network = block()
    fast = accelerate(copy.deepcopy(network), report=None)
    if kind == "bf16":
        reduced(fast)
    expected, seen = seen_by(hook, network, at), seen_by(hook, fast, at)
    assert len(seen) == len(expected) > 0
    for a, b in zip(seen, expected, strict=True):
        assert a.dtype == b.dtype
        assert distance(a, b) < (1e-5 if kind == "float32" else 2e-2)


def test_hooks_change_nothing_once_they_are_gone() -> None:
    network = reduced(accelerate(block(), report=None))
    untouched = network(X)
    seen_by(after, network, 1)
    assert torch.equal(network(X), untouched)
    assert not any("_call_impl" in vars(m) for m in network.modules())


def test_a_hook_s_result_and_what_it_writes_go_on() -> None:
    network = block()
    fast = accelerate(copy.deepcopy(network), report=None)
    for each in (network, fast):
        each[0].register_forward_hook(lambda _m, _i, out: 3 * out)
        each[1].register_forward_hook(lambda _m, _i, out: doubled(out) and None)
        each[2].register_forward_pre_hook(lambda _m, given: doubled(given[0]) and None)
    assert distance(fast(X), network(X)) < 1e-5


def doubled(t: Tensor) -> bool:
    t.data.view(2, -1).mul_(2.0)
    return True


def test_a_layer_with_a_hook_that_works_in_place_changes_its_input() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv3d(3, 4, 1), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            self.act(y)
            return y

    network = Twice()
    network.act.register_forward_hook(lambda *_: None)
    fast = accelerate(copy.deepcopy(network), report=None)
    assert distance(fast(X), network(X)) < 1e-5


def test_a_part_that_is_called_by_itself_shows_hooks_the_same() -> None:
    network = nn.Sequential(block(), nn.Conv3d(2, 2, 1))
    fast = accelerate(copy.deepcopy(network), report=None)
    seen: list[Tensor] = []
    after(fast[0][1], seen)  # type: ignore[index]
    fast(X)
    fast[0](X)  # type: ignore[index, operator]
    assert len(seen) == 4
    assert torch.equal(seen[1], seen[3])


@pytest.mark.parametrize("other", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_of_a_network_with_hooks_calls_its_own(other: Callable[[nn.Module], nn.Module]) -> None:
    network = accelerate(block(), report=None)
    network[1].register_forward_hook(shift)  # type: ignore[index, operator]
    expected = network(X)
    copied = other(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()  # a copy that called this network's layers would show it
    assert torch.equal(copied(X), expected)
    assert not any({"forward", "_call_impl"} & vars(m).keys() for m in restore(copied).modules())


def shift(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
    return out.view(out.shape) + 1


def test_pytorch_s_own_hooks_cost_no_copies() -> None:
    network = block()
    nn.utils.weight_norm(network[0])
    accelerate(network, report=None)(X)
    assert "_call_impl" not in vars(network[0])


TOOLS = {
    "CAM": lambda n, x: CAM(n, target_layers="layer4", fc_layers="fc")(x),
    "GradCAM": lambda n, x: GradCAM(n, target_layers="layer2")(x),
    "GradCAMpp": lambda n, x: GradCAMpp(n, target_layers="layer2")(x),
}


@pytest.mark.parametrize("kind", ["float32", "bf16"])
@pytest.mark.parametrize("tool", TOOLS)
def test_monai_s_class_activation_maps(tool: str, kind: str) -> None:
    torch.manual_seed(0)
    network = ResNet("basic", [1, 1, 1, 1], [4, 4, 8, 8], n_input_channels=1, num_classes=2).eval()
    fast = accelerate(copy.deepcopy(network), report=None)
    if kind == "bf16":
        reduced(fast)
    x = volume(1, 1, 16, 16, 16)
    expected, found = (torch.as_tensor(TOOLS[tool](n, x)) for n in (network, fast))
    assert distance(found, expected) < (1e-4 if kind == "float32" else 0.06)


class Flat(nn.Module):
    """Views its map, which PyTorch cannot do of a channels-last one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1).view(x.shape) * 2


@pytest.mark.parametrize("device", ["cpu", "recorded"])
def test_a_layer_put_in_later_may_view_its_map(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.device(device, monkeypatch)
    network = nn.Sequential(block(), nn.Identity())
    fast = accelerate(copy.deepcopy(network), report=None)
    fast(X).sum().backward()
    network[1], fast[1] = Flat(), Flat()  # type: ignore[index, operator]
    for _ in range(4):
        out = fast(X)
        out.sum().backward()
        assert distance(out, network(X)) < 1e-5
    graphs = fast.acceleration.graphs
    assert (graphs.captured, graphs.why) == ((1, "") if device == "recorded" else (0, ""))
    assert not any("forward" in vars(m) for m in restore(fast).modules())
