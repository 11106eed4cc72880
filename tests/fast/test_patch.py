"""How `accelerate` takes a network, what it leaves alone, and that nothing of it stays behind."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import logging
import pickle
import re
import weakref
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.networks import alive, block, distance, dynamic, farthest, passed, volume
from monai.networks.blocks import ResidualUnit
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from medddpm.errors import BadInput
from medddpm.fast import patch
from medddpm.fast.forward import Forward
from medddpm.fast.kernels import dispatch
from medddpm.fast.norm_chains import Norm
from medddpm.fast.patch import FEATURES, RULES, accelerate, restore, rule_of
from medddpm.fast.replay.fingerprint import Fingerprint
from medddpm.fast.root import sound
from medddpm.unet import UNet3D


def replaced(model: nn.Module) -> set[str]:
    return {name for name, _, _ in model.acceleration.replaced}


def test_unknown_layers_are_left_alone_and_named() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    class MyNorm(nn.GroupNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    network = nn.Sequential(nn.Conv3d(3, 8, 1), MyNorm(2, 8), nn.SiLU(), Mine(), nn.SyncBatchNorm(8).eval())
    printed: list[str] = []
    plain, _ = passed(network, volume(2, 3, 4, 4, 4))
    assert accelerate(network, report=printed.append) is network
    fast, _ = passed(network, volume(2, 3, 4, 4, 4))
    assert distance(fast[0], plain[0]) < 1e-5
    assert network.acceleration.left == (("1", "MyNorm"), ("2", "SiLU"), ("3", "Mine"), ("4", "SyncBatchNorm"))
    assert network.acceleration.replaced == (("0", "Conv3d", "convolution"),)
    assert printed == [str(network.acceleration)]
    assert printed[0].splitlines() == [
        f"fast path: bf16, {', '.join(FEATURES)}; on cpu: computed by PyTorch's own functions in float32",
        "  replaced: 1 Conv3d (convolution)",
        "  left alone: 1 Mine, 1 MyNorm, 1 SiLU, 1 SyncBatchNorm",
    ]


class Simple(nn.Conv3d):
    """As torchvision's Conv3DSimple."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, (3, 3, 3), padding=1, bias=False)

    @staticmethod
    def get_downsample_stride(stride: int) -> tuple[int, int, int]:
        return stride, stride, stride


class Stem(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Simple(3, 8), nn.GroupNorm(2, 8), nn.SiLU())


def test_a_subclass_that_changes_nothing_of_pytorchs_layer_takes_its_rule() -> None:
    network = nn.Sequential(Stem(), Simple(8, 8))
    plain, _ = passed(network, volume(2, 3, 4, 4, 4))
    accelerate(network, report=None)
    fast, _ = passed(network, volume(2, 3, 4, 4, 4))
    assert distance(fast[0], plain[0]) < 1e-5
    assert {name for name, kind, _ in network.acceleration.replaced if kind == "Simple"} == {"0.0", "1"}
    assert network.acceleration.left == ()


@pytest.mark.parametrize("changed", ["forward", "_conv_forward", "weight", "padding", "__call__"])
def test_a_subclass_that_changes_something_is_left_alone(changed: str) -> None:
    kind = type("Other", (Simple,), {changed: property(lambda self: None)})
    assert rule_of(Simple) is rule_of(nn.Conv3d) is not None
    assert rule_of(kind) is None


def test_what_python_3_13_writes_into_every_class_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (nn.Conv3d, Simple):
        monkeypatch.setattr(kind, "__firstlineno__", 1, raising=False)
        monkeypatch.setattr(kind, "__static_attributes__", ("kernel_size",), raising=False)
    assert rule_of(Simple) is rule_of(nn.Conv3d)


def test_a_list_that_holds_nothing_is_not_said_to_be_left_alone() -> None:
    """As in MONAI's UNETR."""
    network = block()
    for name, kind in enumerate((nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)):
        network.add_module(f"empty {name}", kind())
    network.add_module("full", nn.ParameterList([nn.Parameter(torch.ones(1))]))
    assert accelerate(network, report=None).acceleration.left == (("full", "ParameterList"),)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_logs_the_report(
    rank: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    network = accelerate(block())
    assert caplog.record_tuples == [("medddpm", logging.INFO, str(network.acceleration))][int(rank) :]


def test_a_report_that_nothing_handles_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a REPL."""
    monkeypatch.setattr(logging.root, "handlers", [])
    network = accelerate(block())
    logging.getLogger("medddpm").setLevel(logging.WARNING)
    accelerate(network)
    logging.getLogger("medddpm").setLevel(logging.INFO)
    assert capsys.readouterr() == ("", f"{network.acceleration}\n")


def test_running_statistics_are_left_to_the_layer() -> None:
    network = accelerate(nn.Sequential(nn.Conv3d(3, 4, 1), nn.InstanceNorm3d(4, track_running_stats=True)), report=None)
    assert replaced(network) == {"0"}
    network(volume(2, 3, 4, 4, 4))
    assert network[1].running_mean.any()


def test_layers_with_hooks_are_left_alone() -> None:
    seen: list[str] = []
    network = block()
    network[1].register_forward_hook(lambda *_: seen.append("norm"))
    network[3] = torch.nn.utils.spectral_norm(network[3])
    network[0] = parametrizations.weight_norm(network[0])
    x = volume(1, 3, 8, 8, 8)
    network.eval()
    plain = network(x)
    accelerate(network, report=None)
    assert replaced(network) == set()
    assert distance(network(x), plain) < 1e-5
    assert seen == ["norm", "norm"]


def test_hooks_that_come_later_are_called() -> None:
    seen: list[str] = []
    network = accelerate(block(), report=None)
    x = volume(1, 3, 8, 8, 8)
    plain = network(x)
    for name, layer in network.named_modules():
        layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    assert distance(network(x), plain) < 1e-5
    assert seen == ["0", "1", "2", "3", ""]


def test_a_part_may_be_replaced_later() -> None:
    network = accelerate(block(), report=None)
    network[3] = nn.Conv3d(8, 7, 1)
    network[2] = nn.ReLU()
    assert network(volume(1, 3, 8, 8, 8)).shape[1] == 7
    assert torch.equal(network[:3](volume(1, 3, 8, 8, 8)).sign().unique(), torch.tensor([0.0, 1.0]))


def test_a_part_that_was_replaced_is_neither_cast_nor_kept() -> None:
    network, x = accelerate(block(), report=None), volume(1, 3, 8, 8, 8)
    network.forward.reduced_on = ("cpu",)
    out, old = network(x), network[3]
    assert len(network.forward.weights) == 4
    network[3] = nn.Conv3d(8, 7, 1)
    network(x)
    assert len(network.forward.weights) == 2
    network[3] = old
    assert torch.equal(network(x), out)
    assert len(network.forward.weights) == 4
    network[3], gone = nn.Conv3d(8, 7, 1), weakref.ref(old)
    network(x)
    del old
    gc.collect()
    assert gone() is None


def test_weights_are_cast_once_and_their_gradients_come_back_wide() -> None:
    network, x = block(), volume(1, 3, 16, 16, 16)
    network[0].weight.requires_grad_(False)
    plain, gradients = passed(network, x)
    accelerate(network, report=None).forward.reduced_on = ("cpu",)
    kinds: list[torch.dtype] = []
    network[2].register_forward_hook(lambda _m, _i, out: kinds.append(out.dtype))
    fast, fast_gradients = passed(network, x)
    assert kinds == [torch.float32]  # hooks see what the network itself has
    assert fast[0].dtype == torch.float32
    assert 1e-4 < distance(fast[0], plain[0]) < 2e-2
    assert fast_gradients["0.weight"] is None
    assert farthest(fast_gradients, gradients) < 5e-2
    assert all(g is None or g.dtype == torch.float32 for g in fast_gradients.values())
    with torch.no_grad():
        assert torch.equal(network(x), fast[0])
    with torch.inference_mode():
        assert torch.equal(network(x), fast[0])


def test_a_checkpoint_s_second_forward() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inside, self.reentrant = block(), reentrant

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inside, x, use_reentrant=self.reentrant)

    x = volume(1, 3, 16, 16, 16).requires_grad_()
    reference = accelerate(block(), report=None)
    reference.forward.reduced_on = ("cpu",)
    plain, gradients = passed(reference, x)
    for reentrant in (False, True):
        network = accelerate(Checkpointed(reentrant), report=None)
        network.forward.reduced_on = ("cpu",)
        fast, fast_gradients = passed(network, x)
        assert torch.equal(fast[0], plain[0])
        assert farthest({n.removeprefix("inside."): g for n, g in fast_gradients.items()}, gradients) < 1e-2


def test_nothing_stays_behind_an_exception() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    network = accelerate(nn.Sequential(block(), Breaks()), report=None)
    network.forward.reduced_on = ("cpu",)
    with pytest.raises(RuntimeError, match="broken"):
        network(volume(1, 3, 8, 8, 8))
    assert not torch.is_autocast_enabled("cpu")
    assert all(w.cast is None for w in network.forward.weights)
    assert len(network.forward.weights) == 4


def test_a_rule_that_fails_leaves_the_network_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: nn.Module, features: frozenset[str]) -> Forward:
        raise RuntimeError("no rule")

    monkeypatch.setitem(RULES, "torch.nn.modules.normalization.GroupNorm", fails)
    network = block()
    strides = [p.stride() for p in network.parameters()]
    with pytest.raises(RuntimeError, match="no rule"):
        accelerate(network, report=None)
    assert not any("forward" in m.__dict__ for m in network.modules())
    assert [p.stride() for p in network.parameters()] == strides


def test_again_and_in_parts() -> None:
    network, x = block(), volume(1, 3, 8, 8, 8)
    strides = [p.stride() for p in network.parameters()]
    plain = network(x)
    accelerate(network, report=None)
    accelerate(network, "tf32", only=("norm",), report=None)
    assert (network.acceleration.precision, network.acceleration.features) == ("tf32", ("norm",))
    outer = nn.Sequential(network, nn.ReLU())
    with pytest.raises(BadInput, match="its part 0 is accelerated by itself; call restore on that first"):
        accelerate(outer)
    assert torch.equal(restore(network)(x), plain)
    assert [p.stride() for p in network.parameters()] == strides
    assert restore(network) is network
    with pytest.raises(BadInput, match=r"NoneType is no torch\.nn\.Module"):
        restore(None)
    accelerate(outer, report=None)
    for part in (network, network[0]):
        with pytest.raises(BadInput, match="accelerated network"):
            accelerate(part)
    assert distance(network(x), plain) < 1e-5  # a part of it, called by itself


def test_what_cannot_be_asked_for() -> None:
    network = block()
    with pytest.raises(BadInput, match="precision: 'fp8' is not known; use one of bf16, tf32"):
        accelerate(network, "fp8")
    with pytest.raises(BadInput, match="only: no feature 'speed'; use norm, upsample"):
        accelerate(network, only=("norm", "speed"))
    with pytest.raises(BadInput, match="no torch"):
        accelerate(functional.relu)  # type: ignore[arg-type]
    network.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="its forward is replaced already"):
        accelerate(network)
    inside = nn.Sequential(network)
    accelerate(inside, report=None)
    assert "0" not in replaced(inside)
    assert torch.equal(inside(volume(1, 3, 2, 2, 2)), volume(1, 3, 2, 2, 2))
    restore(inside)
    assert "forward" in network.__dict__


def test_inputs_and_outputs_of_any_form() -> None:
    class Forms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(3, 4, 1)

        def forward(self, pair: tuple[Tensor, Tensor], *, extra: dict[str, Tensor]) -> dict[str, object]:
            assert all(t.is_contiguous(memory_format=torch.channels_last_3d) for t in (*pair, extra["x"]))
            y = self.conv(pair[0] + extra["x"])
            return {"list": [y, y.argmax(1)], "tuple": (y.mean(), None), "name": "forms"}

    network = accelerate(Forms(), report=None)
    network.forward.reduced_on = ("cpu",)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = volume(1, 3, 8, 8, 8).to(dtype)
        out = network((x, x), extra={"x": x})
        assert out["list"][0].dtype == out["tuple"][0].dtype == torch.float32  # as the parameters
        assert out["list"][0].is_contiguous()
        assert out["list"][1].dtype == torch.int64
        assert (out["tuple"][1], out["name"]) == (None, "forms")
    given_channels_last = x.to(memory_format=torch.channels_last_3d)
    out = network((given_channels_last, x), extra={"x": x})
    assert out["list"][0].is_contiguous(memory_format=torch.channels_last_3d)


def test_parameters_may_change_under_it() -> None:
    network, other, x = accelerate(block(), report=None), block(), volume(1, 3, 8, 8, 8)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    expected = other(x)
    network.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    assert distance(network(x), expected) < 1e-5
    swapped = torch.func.functional_call(accelerate(block(), report=None), dict(other.named_parameters()), (x,))
    assert distance(swapped, expected) < 1e-5
    restore(network)
    assert torch.equal(network(x), expected)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hold", [nn.Module.register_buffer, setattr], ids=["buffer", "tensor"])
@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
def test_a_buffer_or_a_tensor_in_place_of_a_parameter(
    layer: int, hold: Callable[[nn.Module, str, Tensor], None], when: str, reduced: bool
) -> None:
    """As a filter that is fixed, or a bias that another network computes."""

    def changed(network: nn.Sequential, name: str) -> None:
        value = getattr(network[layer], name).detach() + 1
        delattr(network[layer], name)
        hold(network[layer], name, value)

    layers = nn.Conv3d(3, 8, 1), nn.GroupNorm(2, 8), nn.Conv3d(8, 8, 1), nn.LayerNorm(6), nn.Linear(6, 4)
    for name in ("weight", "bias"):
        plain = nn.Sequential(*copy.deepcopy(layers))
        fast, x = copy.deepcopy(plain), volume(2, 3, 6, 6, 6)
        changed(plain, name)
        if when == "before":
            changed(fast, name)
        accelerate(fast, report=None)
        if when == "after":
            changed(fast, name)
        if reduced:
            fast.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
        assert distance(fast(x), plain(x)) < (5e-2 if reduced else 1e-5), name


def test_stand_ins_are_pickled_with_the_network() -> None:
    network, x = accelerate(block(), report=None), volume(1, 3, 8, 8, 8)
    other = pickle.loads(pickle.dumps(network))
    assert isinstance(other[1].forward, Norm)
    assert other[1].forward.module is other[1]
    assert other.acceleration == network.acceleration
    assert torch.equal(other(x), network(x))
    restore(other)
    assert "forward" in network.__dict__


def test_a_cudnn_that_computes_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, good in ((None, True), (90701, True), (90800, False), (91400, False), (91500, True), (92001, True)):
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda version=version: version)
        assert sound() == good


def test_running_statistics_beside_channels_last_neighbours_give_right_gradients() -> None:
    """PyTorch's own backward of one volume misreads a channels-last gradient on a CPU: 32% off where this fails."""
    norm = ("instance", {"affine": True, "track_running_stats": True})
    plain = dynamic(res_block=True, norm_name=norm)
    fast = accelerate(copy.deepcopy(plain), report=None)
    x = volume(1, 1, 16, 16, 16)
    for network in (plain, fast):
        network(x).square().mean().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        assert distance(ours.grad, theirs.grad) < 1e-4
    assert "InstanceNorm3d" in {kind for _, kind in fast.acceleration.left}


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.Conv3d(3, 8, 3, padding=1), "padding_mode", "circular"),
        (nn.Upsample(scale_factor=2, mode="trilinear"), "mode", "nearest"),
        (nn.Upsample(scale_factor=2, mode="trilinear"), "align_corners", True),
        (nn.Upsample(scale_factor=2), "scale_factor", (1.0, 2.0, 3.0)),
        (nn.AvgPool3d(2), "stride", 1),
        (nn.GroupNorm(1, 3), "eps", 10.0),
        (nn.InstanceNorm3d(3), "track_running_stats", True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_settings_changed_afterwards_count(layer: nn.Module, name: str, value: object) -> None:
    network = accelerate(nn.Sequential(copy.deepcopy(layer)), report=None)
    x = volume(1, 3, 6, 6, 6)
    before = network(x)
    for changed in (network[0], layer):
        setattr(changed, name, value)
        if name == "padding_mode":
            changed._reversed_padding_repeated_twice = (1,) * 6
        if name == "track_running_stats":
            changed.register_buffer("running_mean", torch.ones(3))
            changed.register_buffer("running_var", torch.ones(3))
            changed.eval()
    assert network(x).shape != before.shape or distance(network(x), before) > 1e-3
    assert distance(network(x), layer(x)) < 1e-5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("kind", [nn.Conv3d, nn.GroupNorm, nn.Sequential, ResidualUnit, UNet3D])
def test_another_forward_in_the_class(
    kind: type[nn.Module], wraps: bool, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = kind.forward

    def doubled(self: nn.Module, *args: Tensor) -> Tensor:
        return 2 * own(self, *args)

    torch.manual_seed(0)
    given: tuple[Tensor, ...] = (volume(1, 3, 8, 8, 8),)
    plain: nn.Module = nn.Sequential(nn.Conv3d(3, 8, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv3d(8, 2, 1))
    if kind is ResidualUnit:
        plain = nn.ModuleList([plain, ResidualUnit(3, 3, 8)])[1]
    if kind is UNet3D:
        plain, given = alive(UNet3D(8, 3, 1, 32, 1, channel_mult=(1, 2), attention_rates=())), (*given, torch.ones(1))
    fast = copy.deepcopy(plain)
    if when == "after":
        accelerate(fast, report=None)
    monkeypatch.setattr(kind, "forward", functools.wraps(own)(doubled) if wraps else doubled)
    if when == "before":
        accelerate(fast, report=None)
    assert distance(fast(*given), plain(*given)) < 1e-4
    assert distance(pickle.loads(pickle.dumps(fast))(*given), plain(*given)) < 1e-4


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_convolution_of_one_layer(when: str) -> None:
    def standardized(layer: nn.Conv3d) -> None:
        def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return functional.conv3d(x, weight - weight.mean(), bias)

        layer._conv_forward = convolved  # type: ignore[method-assign]

    plain = nn.Sequential(nn.Conv3d(3, 8, 3), nn.Conv3d(8, 2, 1))
    fast, x = copy.deepcopy(plain), volume(1, 3, 8, 8, 8)
    standardized(plain[0])
    if when == "before":
        standardized(fast[0])
    accelerate(fast, report=None)
    if when == "after":
        standardized(fast[0])
    assert distance(fast(x), plain(x)) < 1e-5


def test_weights_tied_by_their_memory_stay_tied() -> None:
    network = nn.Sequential(nn.Conv3d(8, 8, 3, padding=1), nn.Conv3d(8, 8, 3, padding=1))
    network[1].weight.data = network[0].weight.data
    for change in (accelerate, restore):
        change(network)
        assert network[0].weight.data_ptr() == network[1].weight.data_ptr()


def test_arguments_may_be_named_and_the_signature_is_the_network_s() -> None:
    network, x = block(), volume(1, 3, 8, 8, 8)
    plain = network(input=x)
    signatures = [inspect.signature(module.forward) for module in network.modules()]
    accelerate(network, report=None)
    assert [inspect.signature(module.forward) for module in network.modules()] == signatures
    assert distance(network(input=x), plain) < 1e-5
    assert distance(network[0](input=x), restore(network)[0](x)) < 1e-5
    accelerate(network, report=None)
    with pytest.raises(TypeError, match="argument"):
        network(volume=x)


def test_a_network_s_own_attribute_stays() -> None:
    class Car(nn.Sequential):
        acceleration = 9.81

    reports: list[str] = []
    car = accelerate(Car(nn.Conv3d(3, 8, 1)), report=reports.append)
    assert "1 Conv3d (convolution)" in reports[0]
    assert car.acceleration == 9.81
    assert restore(car).acceleration == 9.81
    assert "forward" not in car.__dict__


def test_restore_finds_the_network_in_a_wrapper() -> None:
    network = block()
    strides = [p.stride() for p in network.parameters()]
    wrapper = nn.ModuleDict({"network": accelerate(network, report=None)})
    assert restore(wrapper) is wrapper
    assert [p.stride() for p in network.parameters()] == strides
    assert not any("forward" in module.__dict__ for module in wrapper.modules())


def test_restore_says_that_another_tool_has_wrapped_the_forward() -> None:
    """As Hugging Face's Accelerate does."""
    network, x = block(), volume(1, 3, 8, 8, 8)
    plain = network(x)
    wrapper = nn.ModuleDict({"network": accelerate(network, report=None), "other": accelerate(block(), report=None)})
    fast, graphs = network.forward, network.acceleration.graphs

    @functools.wraps(fast)
    def wrapped(*args: Tensor) -> Tensor:
        return fast(*args)

    network.forward = wrapped
    line = r"^restore: another forward was put over that of Sequential, which stays accelerated; undo that first, then "
    with pytest.warns(UserWarning, match=line):
        assert restore(wrapper) is wrapper
    assert not any("forward" in vars(module) for module in wrapper["other"].modules())
    assert network.forward is wrapped
    assert fast.graphs is graphs
    assert all(isinstance(layer.forward, Forward) for layer in (network[0], network[1], network[3]))
    assert distance(network(x), plain) < 1e-5
    network.forward = fast
    restore(network)
    assert not any({"forward", "acceleration"} & set(vars(module)) for module in network.modules())


def test_restore_where_the_forward_was_deleted() -> None:
    network = accelerate(block(), report=None)
    del network.forward
    restore(network)
    assert [set(vars(m)) for m in network.modules()] == [set(vars(m)) for m in block().modules()]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8, 8), (3, 8, 8, 8)], ids=["empty batch", "no batch"])
def test_unusual_shapes(shape: tuple[int, ...], device: str) -> None:
    network = block().to(device)
    x = torch.zeros(shape, device=device) + 1
    plain = network(x)
    accelerate(network, report=None)
    for _ in range(4):  # the last of them with CUDA graphs, where there are any
        fast = network(x)
        fast.sum().backward()
        assert fast.shape == plain.shape
        assert fast.numel() == 0 or distance(fast, plain) < (1e-5 if device == "cpu" else 2e-2)


@pytest.mark.filterwarnings("ignore:input's size at dim=1")  # PyTorch's, of None
def test_layers_that_know_their_sizes_later_or_never() -> None:
    network = nn.Sequential(nn.LazyConv3d(8, 3), nn.InstanceNorm3d(None))
    accelerate(network, report=None)
    x = volume(1, 3, 8, 8, 8)
    fast = network(x)
    assert distance(fast, restore(network)(x)) < 1e-5


def test_shapes_alone_on_the_meta_device() -> None:
    network = accelerate(block(), report=None).to("meta")
    assert network(torch.empty(1, 3, 8, 8, 8, device="meta")).shape == block()(volume(1, 3, 8, 8, 8)).shape


@pytest.mark.parametrize("reduced", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("end", [nn.Conv3d(8, 8, 1), nn.Softplus()])
def test_under_an_outer_autocast_outputs_have_the_dtype_they_would_have(reduced: torch.dtype, end: nn.Module) -> None:
    network = nn.Sequential(nn.Conv3d(3, 8, 1), nn.GroupNorm(2, 8), copy.deepcopy(end))
    x = volume(1, 3, 8, 8, 8)
    with torch.autocast("cpu", reduced):
        plain = network(x)
        fast = accelerate(network, report=None)(x)
        network.forward.reduced_on = ("cpu",)
        faster = network(x)
    assert fast.dtype == plain.dtype
    assert faster.dtype == (plain.dtype if plain.dtype == reduced else faster.dtype)
    assert network(x).dtype == torch.float32


@pytest.mark.parametrize("before", [False, True], ids=["plain", "accelerated"])
def test_a_model_on_an_old_card_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    network = block()
    strides = [parameter.stride() for parameter in network.parameters()]
    if before:
        accelerate(network, report=None)
    monkeypatch.setattr(dispatch, "too_old", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
    said: list[str] = []
    line = r"^accelerate: compute capability 7\.5 of Tesla T4 is below 8\.0: the model is left as it is$"
    with pytest.warns(UserWarning, match=line):
        assert accelerate(network, report=said.append) is network
    assert not said
    assert not any("forward" in vars(module) for module in network.modules())
    said = "compute capability 7.5 of Tesla T4 is below 8.0: the model is left as it is"
    assert str(network.acceleration) == f"fast path: off; {said}"
    assert str(pickle.loads(pickle.dumps(network)).acceleration) == str(network.acceleration)
    assert not hasattr(restore(network), "acceleration")
    assert [parameter.stride() for parameter in network.parameters()] == strides


def on_card(
    monkeypatch: pytest.MonkeyPatch,
    network: nn.Module,
    capability: tuple[int, int] = (9, 0),
    dtype: torch.dtype = torch.float32,
) -> None:
    """Has the network's parameters seem to lie on a card with Triton."""
    parameter = SimpleNamespace(device=torch.device("cuda:0"), dtype=dtype, is_floating_point=lambda: True)
    monkeypatch.setattr(network, "parameters", lambda recurse=True: iter([parameter]))
    monkeypatch.setattr(dispatch, "serves", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)


def test_the_report_says_where_the_network_is_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `accelerate(model).cuda()`."""
    printed: list[str] = []
    network = accelerate(block(), report=printed.append)
    other = copy.deepcopy(network).double()
    own = ": computed by PyTorch's own functions in "
    assert f"; on cpu{own}float32\n" in printed[0]
    assert f"; on cpu{own}float32\n" in str(network.acceleration)
    assert f"; on cpu{own}float64\n" in str(other.acceleration)
    assert f"; on cpu{own}bfloat16\n" in str(network.bfloat16().acceleration)
    assert f"; on meta{own}bfloat16\n" in str(network.to("meta").acceleration)
    assert f"; on cpu{own}float64\n" in str(pickle.loads(pickle.dumps(other)).acceleration)
    on_card(monkeypatch, network)
    first = f"fast path: bf16, {', '.join(FEATURES)}"
    assert str(network.acceleration).splitlines()[0] == first
    on_card(monkeypatch, network, dtype=torch.float64)
    assert str(network.acceleration).splitlines()[0] == f"{first}; with parameters in float64{own}float64"
    on_card(monkeypatch, network, capability=(7, 5))
    old = "compute capability 7.5 of Tesla T4 is below 8.0"
    assert str(network.acceleration).splitlines()[0] == f"{first}; {old}{own}float32"


@pytest.mark.parametrize(("capability", "known"), [((9, 0), True), ((8, 6), False), ((12, 0), False)])
def test_the_report_says_where_the_kernels_were_never_tested(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], known: bool
) -> None:
    network = block()
    on_card(monkeypatch, network, capability)
    note = patch._note(network, "bf16")
    assert (note == "") == known
    assert (
        known
        or note == f"; compute capability {capability[0]}.{capability[1]}: the kernels were never tested on such a card"
    )


def test_a_copy_of_a_part_is_restored_and_accelerated_again() -> None:
    network = nn.Sequential(block(), nn.Conv3d(2, 2, 1))
    plain = copy.deepcopy(network[0])
    accelerate(network, report=None)
    part, x = copy.deepcopy(network[0]), volume(1, 3, 8, 8, 8)
    assert distance(part(x), plain(x)) < 1e-5
    with pytest.raises(BadInput, match="it was part of an accelerated network; call restore on the model first"):
        accelerate(part, report=None)
    assert restore(part) is part
    assert [set(vars(m)) for m in part.modules()] == [set(vars(m)) for m in plain.modules()]
    assert torch.equal(part(x), plain(x))
    assert distance(accelerate(part, report=None)(x), plain(x)) < 1e-5
    restore(network[0])
    assert "forward" in vars(network[0])  # the original stays as it was


@pytest.mark.parametrize("inside", [False, True], ids=["by itself", "in another network"])
def test_a_part_taken_out_is_accelerated_after_the_remedy_that_is_named(inside: bool) -> None:
    outer = accelerate(nn.Sequential(block(), nn.Conv3d(2, 2, 1)), report=None)
    model: nn.Module = nn.Sequential(outer[0]) if inside else outer[0]
    with pytest.raises(BadInput, match="is part of an accelerated network"):
        accelerate(model, report=None)
    outer[0] = nn.Identity()
    with pytest.raises(BadInput, match="was part of an accelerated network; call restore on the model first"):
        accelerate(model, report=None)
    x = volume(1, 3, 8, 8, 8)
    plain = restore(model)(x)
    assert distance(accelerate(model, report=None)(x), plain) < 1e-5


def test_one_feature_may_be_named_without_a_list() -> None:
    assert accelerate(block(), only="norm", report=None).acceleration.features == ("norm",)
    with pytest.raises(BadInput, match="only: no feature 'speed'; use norm"):
        accelerate(block(), only="speed")


@pytest.mark.parametrize("before", [False, True], ids=["plain", "accelerated"])
def test_a_report_that_raises_leaves_the_network_restored(before: bool) -> None:
    network, own = block(), [set(vars(m)) for m in block().modules()]
    if before:
        accelerate(network, report=None)

    def fails(words: str) -> None:
        raise OSError(f"no room for {words[:9]}")

    with pytest.raises(OSError, match="no room for fast path"):
        accelerate(network, report=fails)
    assert [set(vars(m)) for m in network.modules()] == own


def test_functions_that_belong_to_no_module() -> None:
    """As `eval` and `exec` make them."""
    torch.manual_seed(0)
    network = block()
    network.act = eval("lambda x: x.relu()", {})
    fast, x = accelerate(copy.deepcopy(network), "tf32", report=None), volume(1, 3, 4, 4, 4)
    torch.testing.assert_close(fast(x), network(x), rtol=1e-4, atol=1e-5)
    assert not Fingerprint(network).why


# other tools' wrappers


def prepared(model: nn.Module) -> nn.Module:
    """As Hugging Face's `Accelerator.prepare` does under mixed precision: autocast around the forward, outputs widened.

    What is bound to the module is bound anew; what is no method, as a stand-in, is called as it is.
    """
    inner: Any = getattr(model.forward, "__func__", model.forward)

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args, **kwargs).float()

    model.forward = MethodType(forward, model) if hasattr(model.forward, "__func__") else forward
    return model


def test_after_prepare_the_line_names_the_order() -> None:
    """Before it, both work."""
    order = "is replaced already, as Hugging Face's prepare does; accelerate the network first, then prepare it"
    with pytest.raises(BadInput, match=order):
        accelerate(prepared(block()), report=None)
    network, x = accelerate(block(), report=None), volume(1, 3, 8, 8, 8)
    plain = prepared(block())(x)
    assert distance(prepared(network)(x), plain) < 1e-2
    assert network(x).dtype == torch.float32
    with pytest.raises(BadInput, match=order):
        accelerate(network, report=None)


@pytest.mark.parametrize("held", [nn.DataParallel, lambda network: nn.Sequential(nn.DataParallel(network))])
def test_what_dataparallel_holds_is_refused_in_a_line(held: Callable[[nn.Module], nn.Module]) -> None:
    """It would hand the stand-ins of the network's parts to its copies on other devices."""
    with pytest.raises(BadInput, match="model: DataParallel holds it; accelerate the network first, then wrap it"):
        accelerate(held(block()), report=None)
    assert nn.DataParallel(accelerate(block(), report=None))(volume(1, 3, 8, 8, 8)).shape[1] == 2


@pytest.mark.parametrize(
    ("layers", "options", "says"),
    [
        (
            (nn.Conv2d(3, 4, 1), nn.ReLU()),
            {},
            "2-D and the kernels are for 3-D ones: on a GPU it gets autocast to BF16 and CUDA",
        ),
        ((nn.Conv2d(3, 4, 1), nn.Conv1d(3, 4, 1)), {"graph": False}, "2-D .* it gets autocast to BF16$"),
        ((nn.ConvTranspose1d(3, 4, 1),), {"precision": "tf32", "graph": False}, "1-D .* it gets nothing$"),
        ((nn.Conv2d(3, 4, 1), nn.Conv3d(3, 4, 1)), {}, ""),
        ((nn.Linear(3, 4),), {}, ""),
    ],
)
def test_a_network_that_is_not_3d_is_told_so(layers: tuple[nn.Module, ...], options: dict[str, Any], says: str) -> None:
    report = str(accelerate(nn.Sequential(*layers), report=None, **options).acceleration)
    lines = [line for line in report.splitlines() if "its convolutions are" in line]
    assert len(lines) == bool(says)
    assert all(re.search(says, line) for line in lines)
