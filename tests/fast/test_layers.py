"""Single layers and chains of them on the fast path, against what PyTorch computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.networks import beyond, check_near, distance, distances, passed, volume
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.forward import Weight, cast
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.layers import convolve
from medddpm.fast.patch import FEATURES, accelerate, restore


def same_as_before(model: nn.Module, *args: Tensor) -> None:
    """Accelerates, and holds outputs and gradients against the model's own; in float64, where little is lost."""
    model.double()
    expected = passed(model, *args)
    accelerate(model, report=None)
    check_near(passed(model, *args), expected, 1e-9, 1e-9)


ACTIVATIONS = [nn.SiLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(8), nn.ELU(0.7)]
ACTIVATIONS += [nn.GELU(), nn.Identity()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 8), nn.GroupNorm(8, 8, affine=False), nn.InstanceNorm3d(8), nn.BatchNorm3d(8)], ids=repr
)
def test_a_chain_of_layers(norm: nn.Module, activation: nn.Module) -> None:
    layers = [
        nn.Conv3d(3, 8, 3, 2, 1),
        copy.deepcopy(norm),
        nn.Dropout(0.0),
        copy.deepcopy(activation),
        nn.Conv3d(8, 5, 1),
    ]
    same_as_before(nn.Sequential(*layers), volume(2, 3, 7, 6, 5, dtype=torch.float64))


@pytest.mark.parametrize("layer", [nn.Conv3d(1, 16, 4, 4), nn.Conv3d(3, 5, (4, 5, 6), (4, 5, 6), bias=False)], ids=repr)
def test_a_convolution_that_cuts_patches_is_a_matrix_product(layer: nn.Conv3d) -> None:
    """What is left over at the ends of the volume belongs to no patch; a volume smaller than a patch is refused."""
    x = volume(2, layer.in_channels, 9, 11, 13, dtype=torch.float64)
    same_as_before(layer, x)
    with torch.autograd.profiler.profile() as profiler:
        layer(x)
    assert not [event for event in profiler.function_events if "conv3d" in event.name]
    with pytest.raises(RuntimeError, match="Kernel size"):
        layer(x[..., :3])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv3d(4, 6, (1, 3, 2), (2, 1, 1), (0, 1, 1), dilation=(1, 2, 1), groups=2),
        nn.Conv3d(4, 4, (3, 1, 5), 2, (1, 0, 2), groups=4),
        nn.Conv3d(4, 4, 3, padding="same", groups=4),
        nn.Conv3d(4, 4, 3, padding=2, dilation=2, groups=4, bias=False),
        nn.Conv3d(4, 8, 3, padding=1, groups=4),
        nn.ConvTranspose3d(4, 4, 3, 2, 1, output_padding=1, groups=4),
        nn.Conv3d(4, 8, 3, padding="same", bias=False),
        nn.Conv3d(4, 8, 3, padding=1, padding_mode="replicate"),
        nn.ConvTranspose3d(4, 6, 3, 2, 1, output_padding=1, groups=2),
        nn.Upsample(scale_factor=2, mode="trilinear"),
        nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True),
        nn.Upsample(scale_factor=(1, 2, 3)),
        nn.Upsample(scale_factor=1.5),
        nn.Upsample(size=(5, 6, 7)),
        nn.AvgPool3d(2),
        nn.AvgPool3d((1, 2, 2), (1, 2, 2)),
        nn.AvgPool3d(3, 2, 1),
        nn.MaxPool3d(2),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm3d(4, affine=True),
        nn.InstanceNorm3d(4, affine=True, track_running_stats=True),
        nn.Linear(4, 3),
        nn.LayerNorm(4),
        nn.LayerNorm((6, 4), elementwise_affine=False),
    ],
    ids=repr,
)
def test_layers_by_themselves(layer: nn.Module) -> None:
    network = nn.Sequential(nn.Conv3d(3, 4, 1), copy.deepcopy(layer))
    side = 4
    if isinstance(layer, nn.Linear):
        network[0] = nn.Conv3d(3, 4, (1, 1, 1))
    same_as_before(network, volume(2, 3, 6, 6, side, dtype=torch.float64))


NORMED = [
    nn.BatchNorm3d(8),
    nn.BatchNorm3d(8, momentum=None),
    nn.BatchNorm3d(8, affine=False, momentum=0.7, eps=1e-2),
    nn.BatchNorm3d(8, track_running_stats=False),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", NORMED, ids=repr)
def test_batch_norm_keeps_its_statistics(layer: nn.BatchNorm3d, training: bool) -> None:
    """Between a convolution and an activation, by itself, in training and in evaluation, and between the two."""
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 8, 3, 1, 1), copy.deepcopy(layer), nn.PReLU(), copy.deepcopy(layer)]
    network = nn.Sequential(*layers).double()
    for norm in (network[1], network[3]):
        if norm.track_running_stats:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    fast = accelerate(copy.deepcopy(network), report=None)
    assert {kind for _, kind in fast.acceleration.left} == set()
    for step, side in enumerate((5, 4, 3)):
        x = volume(2, 3, side, 4, 5, dtype=torch.float64)
        for model in (network, fast):
            model.train(training if step < 2 else not training)
        check_near(passed(fast, x), passed(network, x), 1e-9, 1e-9)
        for name, buffer in network.named_buffers():
            assert torch.allclose(fast.get_buffer(name), buffer, rtol=1e-9, atol=1e-12), name


def test_batch_norm_of_one_value_and_other_shapes() -> None:
    one = accelerate(nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4)), report=None)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        one(volume(1, 3, 1, 1, 1))
    assert one(volume(2, 3, 1, 1, 1)).shape == (2, 4, 1, 1, 1)
    assert one.eval()(volume(1, 3, 1, 1, 1)).shape == (1, 4, 1, 1, 1)
    with pytest.raises(ValueError, match="expected 5D input"):
        accelerate(nn.BatchNorm3d(4), report=None)(volume(4, 3, 3, 3))


def test_volumes_that_are_none() -> None:
    """Unbatched volumes, rows and images are computed as they always were."""
    same_as_before(nn.Sequential(nn.Conv3d(3, 4, 3), nn.InstanceNorm3d(4), nn.ReLU()), volume(3, 5, 5, 5).double())
    same_as_before(nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), volume(2, 3, 9).double())
    same_as_before(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), volume(2, 3, 9, 9).double())
    one = accelerate(nn.Sequential(nn.Conv3d(3, 4, 1), nn.InstanceNorm3d(4)), report=None)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        one(volume(1, 3, 1, 1, 1))


def test_one_channel_is_channels_last_too() -> None:
    x = channels_last(volume(2, 1, 4, 5, 6).requires_grad_())
    assert x.stride() == (120, 1, 30, 6, 1)
    assert channels_last(x) is x
    assert channels_last(volume(2, 3, 4, 5, 6)).stride() == (360, 1, 90, 18, 3)


@pytest.mark.parametrize("layer", [nn.Conv3d(3, 5, 3, 2, 1), nn.Conv3d(16, 3, 1), nn.ConvTranspose3d(3, 2, 3, 2, 1, 1)])
def test_few_channels_are_padded_without_a_trace(layer: nn.Conv3d | nn.ConvTranspose3d) -> None:
    """The same sum with zeros in it: BF16 products, so that the padding is used, of numbers that BF16 holds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (1, layer.in_channels, 8, 8, 8), generator=generator).bfloat16()
    weight = torch.randint(-3, 4, layer.weight.shape, generator=generator).bfloat16().requires_grad_()
    bias = torch.randint(-3, 4, (layer.out_channels,), generator=generator).bfloat16().requires_grad_()
    results = []
    for few_channels in (False, True):
        y = convolve(channels_last(x), weight, bias, layer, few_channels)
        results.append((y, *torch.autograd.grad(y.float().square().sum() / 1024, (weight, bias))))
    plain, padded = results
    assert torch.equal(plain[0], padded[0])
    assert padded[0].shape[1] == layer.out_channels
    assert distance(padded[1].float(), plain[1].float()) < 1e-2
    assert distance(padded[2].float(), plain[2].float()) < 1e-2


def test_casting_is_the_identity_to_gradients() -> None:
    layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)])
    weights = [Weight(layer, name) for layer in layers for name in ("weight", "bias")]
    with torch.autocast("cpu", torch.bfloat16), cast(weights, torch.bfloat16):
        held = [w() for w in weights]
        assert {h.dtype for h in held if h is not None} == {torch.bfloat16}
        assert all(torch.equal(h, w.parameter.bfloat16()) for h, w in zip(held, weights, strict=True))
        torch.autograd.backward([held[0].sum() * 2, held[3].sum() * 3])
    assert torch.equal(layers[0].weight.grad, torch.full((4, 3), 2.0))
    assert torch.equal(layers[1].bias.grad, torch.full((2,), 3.0))
    assert layers[0].bias.grad is None
    assert layers[2].weight.grad is None
    assert all(w.cast is None and w() is w.parameter for w in weights)


def test_a_layer_used_twice_and_a_weight_held_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(4, 8)
            self.a = nn.Sequential(nn.Conv3d(8, 8, 3, padding=1), self.norm, nn.SiLU())
            self.b = nn.Sequential(nn.Conv3d(8, 8, 3, padding=1), self.norm, nn.PReLU())
            self.b[0].weight = self.a[0].weight
            self.a_again = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.a_again(self.b(self.a(x)))

    torch.manual_seed(0)
    network, x = Twice(), volume(1, 8, 8, 8, 8)
    same_as_before(network, x.double())
    restore(network).float()
    expected = passed(network, x)
    accelerate(network, report=None).forward.reduced_on = ("cpu",)
    check_near(passed(network, x), expected, 2e-2, 0.1)


class TwoFirst(nn.Module):
    """Two convolutions of the volume that comes in, as in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.straight = nn.Conv3d(2, 16, 3, padding=1)
        self.strided = nn.Conv3d(2, 16, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.straight(x), self.strided(x)


@pytest.mark.gpu(kernels=True)
def test_the_kernels_of_any_card_agree_with_float64_where_the_card_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a size that fills the card, at which Hopper's kernels would be used; no farther than twice autocast."""
    from medddpm.fast.kernels import conv3d

    if conv3d.GLUON:
        monkeypatch.setattr(conv3d.on_hopper, "takes", lambda *_: pytest.fail("Hopper's kernels were asked"))
    torch.manual_seed(0)
    layers = [nn.Conv3d(1, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv3d(64, 64, 3, padding=1)]
    network = nn.Sequential(*layers, nn.Conv3d(64, 1, 3, padding=1)).cuda()
    x = volume(1, 1, 64, 64, 64).cuda()
    outputs, gradients = passed(copy.deepcopy(network).double(), x.double())
    with torch.autocast("cuda", torch.bfloat16):
        usual_outputs, usual_gradients = passed(network, x)
    accelerate(network, only=set(FEATURES) - {"hopper"}, report=None)
    for _ in range(4):  # the third call captures its graphs
        fast_outputs, fast_gradients = passed(network, x)
    assert distance(fast_outputs[0], outputs[0]) < 2 * distance(usual_outputs[0], outputs[0])
    found, usual = (distances(each, gradients, 1e-2) for each in (fast_gradients, usual_gradients))
    assert beyond(found, usual, 2) == []


@pytest.mark.gpu
def test_first_convolutions_keep_one_copy_of_the_volume() -> None:
    model = accelerate(TwoFirst().cuda(), graph=False, report=None)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        model(volume(1, 2, 6, 8, 10).cuda())
    large = [t for t in kept if t.numel() >= 2 * 6 * 8 * 10]
    assert [(t.dtype, t.shape) for t in large] == 2 * [(torch.bfloat16, (1, 8, 10, 12, 2))]
    assert large[0].data_ptr() == large[1].data_ptr()


class OwnNorm(nn.Module):
    """Norms a single volume by a call of its own, beside a map that is channels-last where it is accelerated."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(2, 4, 3, padding=1), norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return functional.leaky_relu(functional.group_norm(x, 2) / 2 + self.norm(x), 0.2)


def by_a_function(x: Tensor) -> Tensor:
    return functional.instance_norm(x)


def by_torch(x: Tensor) -> Tensor:
    return torch.instance_norm(x, None, None, None, None, True, 0.1, 1e-5, False)


@pytest.mark.parametrize(
    "norm",
    [by_a_function, by_torch, nn.InstanceNorm3d(4, affine=True, track_running_stats=True), nn.InstanceNorm3d(4)],
    ids=["F.instance_norm", "torch.instance_norm", "module with running statistics", "module"],
)
def test_an_instance_norm_of_one_volume_has_the_gradient_of_finite_differences(norm: Any) -> None:
    """On a CPU PyTorch's backward pass of it misreads a channels-last gradient."""
    torch.manual_seed(0)
    network = accelerate(OwnNorm(copy.deepcopy(norm)).double(), report=None)
    x, weight = volume(1, 2, 6, 6, 6, dtype=torch.float64), network.first.weight

    def loss() -> Tensor:
        y = network(x)
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum()

    loss().backward()
    direction, step = torch.randn_like(weight), 1e-6
    with torch.no_grad():
        weight += step * direction
        above = loss()
        weight -= 2 * step * direction
        slope = (above - loss()) / (2 * step)
    torch.testing.assert_close((weight.grad * direction).sum(), slope, rtol=1e-5, atol=1e-5)
