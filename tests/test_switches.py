"""Flags and strides inside a setting and after it, also after an exception."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from medddpm import switches
from medddpm.cli import options
from medddpm.fast.graphs.cuda_graphs import is_accelerated
from medddpm.fast.kernels import dispatch
from medddpm.switches import BASE, FAST, OPT1, OPT2, OPT12, SETTINGS, Switches
from medddpm.unet import UNet3D

EVERY = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def flags() -> tuple[object, ...]:
    backends = torch.backends
    return (
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
    )


def network() -> UNet3D:
    return UNet3D(image_size=32, model_channels=32, channel_mult=(1, 2))


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last_3d) and not tensor.is_contiguous()


class Spy(nn.Module):
    """Notes the layout of what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 3)
        self.layouts: list[bool] = []

    def forward(self, x: Tensor, t: Tensor, *, mask: Tensor) -> Tensor:
        assert t.shape == (2,)
        self.layouts += [is_channels_last(x), is_channels_last(mask)]
        return self.conv(x)


@pytest.fixture(params=["fresh", "tf32 everywhere", "set by operator"])
def state(request):
    """The flags as a process may have them: untouched, turned on, or set through the newer names."""
    before = flags()
    if request.param == "tf32 everywhere":
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = True
    elif request.param == "set by operator":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.allow_tf32 = before[1]
    torch.set_float32_matmul_precision(before[2])
    operators = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    for operator, precision in zip(operators, before[3:], strict=True):
        operator.fp32_precision = precision


def precisions() -> list[str]:
    backends = torch.backends
    return [operator.fp32_precision for operator in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)]


def test_a_pytorch_without_named_precisions_has_its_flags_set(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = SimpleNamespace(allow_tf32=True)  # of PyTorch 2.2, which has no fp32_precision there
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    before = torch.backends.cudnn.allow_tf32
    for setting in (BASE, OPT1):
        with setting:
            assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (setting.tf32, setting.tf32)
        assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (True, before)


@EVERY
@pytest.mark.usefixtures("state")
def test_flags_are_set_both_ways_and_put_back(setting: Switches) -> None:
    before = precisions()
    with setting.on(nn.Identity()):
        assert torch.backends.cuda.matmul.allow_tf32 is setting.tf32
        assert torch.backends.cudnn.allow_tf32 is setting.tf32
        assert precisions() == ["tf32" if setting.tf32 else "ieee"] * 3
    assert precisions() == before


@pytest.mark.parametrize("setting", [BASE, OPT1])
def test_a_setting_of_flags_alone_needs_no_network(setting: Switches) -> None:
    before = flags()
    with setting:
        assert torch.backends.cudnn.allow_tf32 is setting.tf32
        with BASE:
            assert torch.backends.cudnn.allow_tf32 is False
        assert torch.backends.cudnn.allow_tf32 is setting.tf32
    assert flags() == before


@pytest.mark.parametrize("setting", [OPT2, OPT12, FAST])
def test_a_setting_that_moves_weights_asks_whose(setting: Switches) -> None:
    before = flags()
    with pytest.raises(TypeError, match=rf"{setting.name}\.on\(network\)"), setting:
        pass
    assert flags() == before


@EVERY
@pytest.mark.parametrize("start", [torch.contiguous_format, torch.channels_last_3d])
def test_weights_are_laid_out_both_ways_and_put_back(setting: Switches, start: torch.memory_format) -> None:
    net = network().to(memory_format=start)
    weights = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    strides = {name: parameter.stride() for name, parameter in net.named_parameters()}
    identities = [id(parameter) for parameter in net.parameters()]
    with setting.on(net):
        for parameter in net.parameters():
            if parameter.dim() == 5:
                assert parameter.is_contiguous(memory_format=setting.memory_format)
    assert {name: parameter.stride() for name, parameter in net.named_parameters()} == strides
    assert all(torch.equal(parameter, weights[name]) for name, parameter in net.named_parameters())
    assert [id(parameter) for parameter in net.parameters()] == identities  # an optimizer still holds them


@EVERY
def test_inputs_are_laid_out_both_ways_while_inside(setting: Switches) -> None:
    spy = Spy()
    plain = torch.randn(2, 3, 4, 4, 4)
    last = plain.contiguous(memory_format=torch.channels_last_3d)
    with setting.on(spy):
        spy(plain, torch.zeros(2), mask=last)
        spy(last, torch.zeros(2), mask=plain)
    assert spy.layouts == [setting.channels_last] * 4
    spy.layouts.clear()
    spy(plain, torch.zeros(2), mask=last)
    assert spy.layouts == [False, True]


@EVERY
def test_what_fits_both_layouts_gets_the_strides_of_the_setting(setting: Switches) -> None:
    """As `.to(memory_format=…)` gives them: of one channel or one voxel, cuDNN's convolutions go by the strides."""
    net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.Conv3d(4, 4, 3, groups=4), nn.Conv3d(4, 2, 1))
    expected = [p.detach().to(memory_format=torch.channels_last_3d).stride() for p in net.parameters() if p.dim() == 5]
    contiguous = [p.stride() for p in net.parameters() if p.dim() == 5]
    assert all(a != b for a, b in zip(expected, contiguous, strict=True))
    of_inputs: list[tuple[int, ...]] = []
    net[0].forward = lambda x: of_inputs.append(x.stride()) or x.expand(-1, 4, -1, -1, -1)  # type: ignore[func-returns-value]
    x = torch.zeros(1, 1, 4, 5, 6)
    with setting.on(net):
        strides = [p.stride() for p in net.parameters() if p.dim() == 5]
        assert strides == (expected if setting.channels_last else contiguous)
        net(x)
    last = x.to(memory_format=torch.channels_last_3d)
    with setting.on(net):
        net(last)
    if not setting.fast:
        assert of_inputs == [last.stride() if setting.channels_last else x.stride()] * 2


@EVERY
def test_all_is_put_back_after_an_exception(setting: Switches) -> None:
    net, before = network(), flags()
    strides = [parameter.stride() for parameter in net.parameters()]
    with pytest.raises(RuntimeError, match="in the middle"), setting.on(net):
        raise RuntimeError("in the middle")
    assert flags() == before
    assert [parameter.stride() for parameter in net.parameters()] == strides
    assert not net._forward_pre_hooks


@EVERY
def test_the_function_stays_the_same(setting: Switches) -> None:
    torch.manual_seed(0)
    net = network()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    x, t = torch.randn(1, 3, 8, 8, 8), torch.tensor([9])
    expected = net(x, t)
    with setting.on(net):
        torch.testing.assert_close(net(x, t), expected, rtol=1e-4, atol=1e-4)


def test_the_command_knows_every_setting() -> None:
    assert tuple(name.lower() for name in SETTINGS) == options.SETTINGS
    assert [(s.tf32, s.channels_last) for s in SETTINGS.values()] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
        (True, True),
    ]
    assert [s.name for s in SETTINGS.values() if s.fast] == ["FAST"]


# The fast path


def test_a_fast_setting_accelerates_and_undoes_it() -> None:
    net = network()
    for setting, precision in ((FAST, "bf16"), (replace(FAST, precision="tf32"), "tf32")):
        with setting.on(net):
            assert net.acceleration.precision == precision
            assert any("forward" in vars(module) for module in net.modules())
        assert not any("forward" in vars(module) for module in net.modules())
        assert not hasattr(net, "acceleration")


def test_a_fast_setting_leaves_a_network_on_an_old_card_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "too_old", lambda device: True)
    net = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has said so itself
        with FAST.on(net):
            assert not any("forward" in vars(module) for module in net.modules())


@pytest.mark.parametrize("inner", [FAST, OPT12], ids=["FAST", "OPT12"])
def test_settings_may_be_nested_on_one_network_and_on_another(inner: Switches) -> None:
    """As where a sample is drawn from the average, or from the network itself, while that is being trained."""
    trained, average, before = network(), network(), flags()
    strides = [parameter.stride() for parameter in trained.parameters()]
    with FAST.on(trained):
        acceleration, places = trained.acceleration, [parameter.data_ptr() for parameter in trained.parameters()]
        inside = flags()
        for net in (trained, average):
            with inner.on(net):
                assert hasattr(average, "acceleration") == (inner.fast and net is average)
            assert not hasattr(average, "acceleration")
        with pytest.raises(RuntimeError, match="in the middle"), inner.on(trained):
            raise RuntimeError("in the middle")
        assert flags() == inside
        assert trained.acceleration is acceleration
        assert [parameter.data_ptr() for parameter in trained.parameters()] == places  # which a graph has noted down
    assert not hasattr(trained, "acceleration")
    assert [parameter.stride() for parameter in trained.parameters()] == strides
    assert flags() == before


def test_one_warning_says_that_the_kernels_are_not_used(monkeypatch, caplog) -> None:
    monkeypatch.setattr(switches, "_said", set())
    for _ in range(2):
        with FAST.on(network()), FAST.on(network()):
            pass
    ((logger, level, message),) = caplog.record_tuples
    assert (logger, level) == ("medddpm", logging.WARNING)
    assert message.startswith("FAST: its kernels need a GPU")


def test_a_network_with_an_attribute_acceleration_of_its_own_is_accelerated() -> None:
    network = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1))
    network.acceleration = 4  # of a scan, say
    with FAST.on(network):
        assert is_accelerated(network)
    assert not is_accelerated(network)
    assert network.acceleration == 4
