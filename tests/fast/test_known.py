"""Which networks get CUDA graphs by themselves: those of which every module's forward is known."""

from __future__ import annotations

import doctest
from functools import cached_property
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.more_networks import MORE
from helpers.networks import NETWORKS, distance, volume
from monai.networks.nets import BasicUNetPlusPlus, ControlNet
from torch import Tensor, nn

from medddpm import UNet3D, accelerate, restore
from medddpm.errors import BadArgument
from medddpm.fast import known
from medddpm.fast.known import is_known, known_networks, register, unknown_in

READS_ELSEWHERE = {"VQVAE"}  # whether processes are joined
X = volume(2, 1, 16, 16, 16)


class Wrapper(nn.Module):
    """A reader's own class around a known network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.head = network, nn.Conv3d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.network(x))


def monais() -> Any:
    return NETWORKS["UNet, batch norm"]()


@pytest.mark.parametrize("name", [*NETWORKS, *MORE])
def test_the_networks_of_the_tests_are_known(name: str) -> None:
    network = NETWORKS[name]() if name in NETWORKS else MORE[name][0]()
    assert bool(unknown_in(network)) == (name in READS_ELSEWHERE)


def test_networks_that_take_or_give_more_than_a_volume_are_known() -> None:
    control = ControlNet(
        3, 1, (1, 1), (8, 8), (False, True), norm_num_groups=4, num_head_channels=8,
        conditioning_embedding_num_channels=(8,),
    )  # fmt: skip
    assert unknown_in(control) == unknown_in(BasicUNetPlusPlus(3, 1, 2, features=(4,) * 6)) == ""


def test_ours_is_known() -> None:
    assert unknown_in(UNet3D(32, 3, 1, 32)) == ""


def test_a_subclass_counts_while_it_keeps_the_methods() -> None:
    class Same(nn.BatchNorm3d):
        def __init__(self) -> None:
            super().__init__(2)
            self.note = "x"

    class Other(nn.BatchNorm3d):
        def _check_input_dim(self, input: Tensor) -> None:
            print(input)

    class Forward(nn.BatchNorm3d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert [is_known(layer) for layer in (Same(), Other(2), Forward(2))] == [True, False, False]


class Everything(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain * self.kept + self.of_class(x) + self.static(x)

    @property
    def gain(self) -> float:
        return 1.0

    @cached_property
    def kept(self) -> float:
        return 1.0

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x


OVERRIDES: dict[str, Any] = {
    "gain": property(lambda self: X),
    "kept": cached_property(lambda self: X),
    "of_class": classmethod(lambda cls, x: X),
    "static": staticmethod(lambda x: X),
    "__call__": lambda self, x: X,
    "__getattr__": lambda self, name: X,
    "__getattribute__": lambda self, name: object.__getattribute__(self, name),
}


@pytest.mark.parametrize(("name", "override"), OVERRIDES.items(), ids=OVERRIDES)
def test_a_subclass_that_overrides_any_kind_of_method_does_not_count(name: str, override: Any) -> None:
    register(Everything)
    assert is_known(Everything())
    changed = type("Changed", (Everything,), {name: override})
    assert not is_known(changed())
    register(changed)
    assert is_known(changed())


@pytest.mark.parametrize("wrong", [3, "Net", None, int, type("Bare", (nn.Module,), {}), nn.Identity(), len])
def test_what_is_no_class_with_a_forward_is_refused(wrong: Any) -> None:
    with pytest.raises(BadArgument, match="is no function, and no class with a forward; give one of these"):
        register(wrong)


def test_a_forward_that_is_a_staticmethod_can_be_registered() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x

    assert not is_known(Static())
    register(Static)
    assert is_known(Static())


def test_what_was_put_into_a_network_makes_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    network = monais()
    assert unknown_in(network) == ""
    network.model[0].conv.unit0.conv = Wrapper(nn.Identity())
    assert unknown_in(network) == "model.0.conv.unit0.conv (Wrapper)"
    layer: Any = nn.Conv3d(1, 1, 1)
    layer._conv_forward = lambda *_: X
    assert not is_known(layer)
    layer = nn.Conv3d(1, 1, 1)
    layer.after = lambda x: x
    assert not is_known(layer)
    monkeypatch.setattr(nn.Conv3d, "forward", lambda self, x: x)
    assert not is_known(nn.Conv3d(1, 1, 1))


def test_a_known_network_is_found_in_a_class_of_the_reader_s() -> None:
    wrapper = Wrapper(monais())
    assert unknown_in(wrapper) == "Wrapper"
    assert list(known_networks(wrapper)) == [wrapper.network]
    assert list(known_networks(Wrapper(nn.Sequential(nn.Conv3d(1, 2, 1))))) == [], "layers alone are no network"


def test_a_class_is_registered_in_one_call() -> None:
    found = doctest.DocTestFinder().find(register, globs=vars(known).copy())
    results = [doctest.DocTestRunner().run(each) for each in found if each.examples]
    assert [(each.failed, each.attempted > 2) for each in results] == [(0, True)]


def test_a_method_that_is_registered_counts_where_it_replaces_a_known_one() -> None:
    def silent(self: nn.Module, input: Tensor) -> None:
        pass

    class Silent(nn.BatchNorm3d):
        _check_input_dim = silent  # type: ignore[assignment]

    class Later(Silent):
        def _check_input_dim(self, input: Tensor) -> None:
            print(input)

    layer: Any = nn.Conv3d(1, 1, 1)
    layer._conv_forward = silent
    assert [is_known(module) for module in (Silent(2), layer)] == [False, False]
    register(Silent)
    assert [is_known(module) for module in (Silent(2), Later(2), layer)] == [True, False, True]


@pytest.mark.parametrize("name", ["monai-autoencoder", "maisi-autoencoder", "monai-unet", "nnunet-plain"])
def test_the_benchs_networks_are_known_as_they_are_changed_there(name: str) -> None:
    pytest.importorskip("monai")
    from study.bench.networks import NETWORKS as BENCHS
    from study.bench.networks import build

    assert unknown_in(build(BENCHS[name], 32, 32)) == ""


def trained(network: nn.Module, steps: int = 5) -> list[Tensor]:
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    outputs = []
    for seed in range(steps):
        optimizer.zero_grad()
        out = network(X + seed)
        out.square().mean().backward()
        optimizer.step()
        outputs.append(out.detach())
    return outputs


def test_a_network_in_a_class_of_the_reader_s_has_its_graphs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    torch.manual_seed(0)
    wrapper = Wrapper(monais())
    plain = Wrapper(monais())
    plain.load_state_dict(wrapper.state_dict())
    expected = trained(plain)
    report: list[str] = []
    accelerate(wrapper, report=report.append)
    assert "CUDA graphs of network (UNet) alone: none" in report[0]
    for a, b in zip(trained(wrapper), expected, strict=True):
        assert distance(a, b) < 1e-3
    ((name, graphs),) = wrapper.acceleration.parts  # type: ignore[union-attr,misc]
    assert (name, graphs.captured, wrapper.acceleration.graphs) == ("network", 1, None)  # type: ignore[union-attr]
    accelerate(wrapper, report=None)
    restore(wrapper)
    assert not any("forward" in module.__dict__ for module in wrapper.modules())


def test_any_other_network_runs_without_and_the_report_names_the_ways_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    network, report = Wrapper(nn.Conv3d(1, 2, 1)), []
    accelerate(network, report=report.append)
    assert "CUDA graphs: none; the forward of Wrapper is not known; give graph=True" in report[0]
    assert "graphed_step" in report[0]
    trained(network)
    assert network.acceleration.graphs.captured == 0  # type: ignore[union-attr]
    accelerate(network, graph=True, report=None)
    trained(network)
    assert network.acceleration.graphs.captured == 1  # type: ignore[union-attr]


def test_a_known_network_that_is_changed_later_has_no_graph_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    network = accelerate(nn.Sequential(nn.Conv3d(1, 2, 1), nn.ReLU()), report=None)
    trained(network)
    assert network.acceleration.graphs.captured == 1  # type: ignore[union-attr]
    network[1] = Wrapper(nn.Identity())  # type: ignore[operator,index]
    trained(network)
    assert network.acceleration.graphs.captured == 0  # type: ignore[union-attr]
    assert "the forward of 1 (Wrapper) is not known" in str(network.acceleration)


SCALE = 1.0


class Scaled(nn.Module):
    """Reads a global, whatever its caller said."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * SCALE


@pytest.mark.parametrize("verify", [True, False])
def test_what_the_caller_promised_is_compared_at_replays_10_100_and_1000(
    verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings.stand_in(monkeypatch)
    network = accelerate(Scaled(), graph=True, verify=verify, report=None)
    trained(network, 8)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    if verify:
        with pytest.raises(Exception, match=r"its outputs are off .*its forward reads what has changed since"):
            trained(network, 8)
    else:
        trained(network, 8)


def test_a_known_network_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings.stand_in(monkeypatch)
    monkeypatch.setattr("medddpm.fast.replay.graphs.without_graph", lambda *_: pytest.fail("compared"))
    network = accelerate(nn.Sequential(nn.Conv3d(1, 2, 1)), graph=True, report=None)
    trained(network, 14)
    assert network.acceleration.graphs.replays > 10  # type: ignore[union-attr]
