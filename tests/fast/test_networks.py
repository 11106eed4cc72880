"""The networks of MONAI and nnU-Net on the fast path: the same function, gradients, names and values."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet
from dynamic_network_architectures.building_blocks.residual import BasicBlockD
from helpers.networks import (
    NETWORKS,
    alive,
    beyond,
    check_near,
    diffusion,
    distance,
    distances,
    dynamic,
    farthest,
    inputs,
    made,
    monai_unet,
    nnunet,
    passed,
)
from monai.networks import nets
from monai.networks.nets import AttentionUnet, PatchDiscriminator, UNet
from torch import Tensor, nn

from medddpm.fast.patch import FEATURES, accelerate, restore
from medddpm.switches import BASE, OPT1


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_the_network_s(name: str) -> None:
    network, given = made(name, torch.float64), inputs(name, torch.float64)
    outputs, gradients = passed(network, *given)
    accelerate(network, report=None)
    fast_outputs, fast_gradients = passed(network, *given)
    for fast, plain in zip(fast_outputs, outputs, strict=True):
        assert fast.shape == plain.shape
        assert fast.dtype == plain.dtype
        assert fast.is_contiguous()
        assert distance(fast, plain) < 1e-9
    assert farthest(fast_gradients, gradients) < 1e-9


@pytest.mark.parametrize("name", NETWORKS)
def test_in_float32_and_restored_to_the_bit(name: str) -> None:
    network, given = made(name), inputs(name)
    expected = passed(network, *given)
    before = {key: (value.clone(), value.stride()) for key, value in network.state_dict().items()}
    types = [type(m) for m in network.modules()]

    accelerate(network, report=None)
    state = network.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[key], value) for key, (value, _) in before.items())
    assert [type(m) for m in network.modules()] == types
    check_near(passed(network, *given), expected, 1e-4, 1e-3)

    restore(network)
    assert not any("forward" in m.__dict__ for m in network.modules())
    assert not hasattr(network, "acceleration")
    assert all(value.stride() == before[key][1] for key, value in network.state_dict().items())
    again, gradients_again = passed(network, *given)
    assert all(torch.equal(a, b) for a, b in zip(again, expected[0], strict=True))
    assert all(g is None or torch.equal(g, gradients_again[n]) for n, g in expected[1].items())


@pytest.mark.parametrize("name", NETWORKS)
def test_in_bf16_no_farther_than_autocast(name: str) -> None:
    # Where a volume's size is a power of two, a CPU's convolution in BF16 takes five times as long.
    network, given = made(name), inputs(name, side=12 if name.startswith("Diffusion") else 16)
    outputs, gradients = passed(network, *given)
    with torch.autocast("cpu", torch.bfloat16):
        usual_outputs, usual_gradients = passed(network, *given)
    accelerate(network, report=None)
    network.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    fast_outputs, fast_gradients = passed(network, *given)
    allowed = max(distance(a.float(), b) for a, b in zip(usual_outputs, outputs, strict=True))
    reached = max(distance(a, b) for a, b in zip(fast_outputs, outputs, strict=True))
    assert 1e-4 < reached < min(1.1 * allowed, 4e-2)
    assert all(y.dtype == torch.float32 for y in fast_outputs)
    for key, gradient in gradients.items():
        fast = fast_gradients[key]
        assert (fast is None) == (gradient is None)
        assert fast is None or fast.dtype == torch.float32
    # Activations with a kink, behind norms of few voxels: gradients differ by up to 0.6 under autocast as well.
    found, usual = (distances(each, gradients, 1e-2) for each in (fast_gradients, usual_gradients))
    assert beyond(found, usual, 1.5) == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_on_a_gpu_no_farther_from_float64_than_autocast(name: str) -> None:
    """Outputs and gradients, by the kernels."""
    given = [a.cuda() for a in inputs(name, side=16)]
    network = made(name).cuda()
    wide = [a.double() if a.is_floating_point() else a for a in given]
    outputs, gradients = passed(copy.deepcopy(network).double(), *wide)
    with torch.autocast("cuda", torch.bfloat16):
        usual_outputs, usual_gradients = passed(network, *given)
    accelerate(network, report=None)
    fast_outputs, fast_gradients = passed(network, *given)
    allowed = max(distance(a, b) for a, b in zip(usual_outputs, outputs, strict=True))
    # Other roundings than autocast's, on small layers: near its distance, on one side or the other.
    assert 1e-4 < max(distance(a, b) for a, b in zip(fast_outputs, outputs, strict=True)) < 2 * allowed
    found, usual = (distances(each, gradients, 1e-2) for each in (fast_gradients, usual_gradients))
    assert beyond(found, usual, 2) == []


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("UNet", "A.weight"),
        ("UNet, batch norm", "A.weight"),
        ("MedNeXt, residual resampling", ".bias"),
        ("MedNeXt, response norm", ".bias"),
    ],
)
@pytest.mark.long
def test_gradients_of_a_few_numbers_are_no_farther_than_autocast_s(name: str, part: str, device: str) -> None:
    """Of a PReLU's slopes, of biases: sums over all voxels, one of which comes out by chance, and many do not."""
    ours, usual, whole = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(8):
        torch.manual_seed(seed)
        network = alive(NETWORKS[name]()).to(device)
        given = torch.randn(2, 1, 16, 16, 16).to(device)
        _, gradients = passed(copy.deepcopy(network).double(), given.double())
        with torch.autocast(device, torch.bfloat16):
            _, usual_gradients = passed(network, given)
        accelerate(network, graph=False, report=None).forward.reduced_on = ("cpu", "cuda")
        _, fast_gradients = passed(network, given)
        for key, gradient in gradients.items():
            if gradient is not None and key.endswith(part):
                whole[key] += gradient.norm().item() ** 2
                ours[key] += (fast_gradients[key] - gradient).norm().item() ** 2
                usual[key] += (usual_gradients[key] - gradient).norm().item() ** 2
    # Before a norm a bias changes nothing: its gradient is rounding alone.
    keys = [key for key in whole if whole[key] > 1e-3 * max(whole.values())]
    assert len(keys) > 3
    ratio = sum(ours[key] / whole[key] for key in keys) / sum(usual[key] / whole[key] for key in keys)
    assert math.sqrt(ratio) < 1.5


# In one draw of weights a gradient of these was 3 to 75 times plain TF32's distance away. A PReLU's or a leaky ReLU's
# kink does that, where one value lies so near zero that roundings decide its sign; plain channels-last shows it too.
TF32_CASES = {
    "UNet, 5³, one group": (
        lambda: UNet(3, 1, 2, (16, 32, 64), (2, 2), kernel_size=5, num_res_units=1, norm=("group", {"num_groups": 1})),
        32,
    ),
    "PatchDiscriminator": (lambda: PatchDiscriminator(3, 64, 1, num_layers_d=3, norm="INSTANCE"), 64),
    "DynUNet, few channels": (lambda: dynamic(res_block=True, filters=[5, 20, 40]), 32),
    "AttentionUnet, few channels": (lambda: AttentionUnet(3, 1, 2, (32, 8, 8), (2, 2)), 32),
    "PlainConvUNet, a flat kernel": (lambda: nnunet(PlainConvUNet, (3, 48, 24), ((1, 3, 3), 3, 3)), 32),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", TF32_CASES)
def test_on_a_gpu_tf32_no_farther_from_float64_than_plain_tf32(name: str) -> None:
    make, side = TF32_CASES[name]
    given = inputs(name, side=side)[0].cuda()
    plain_distances, fast_distances = Counter[str](), Counter[str]()  # squared, of each parameter
    known: set[str] | None = None
    for seed in range(4):
        torch.manual_seed(seed)
        network = alive(make()).cuda()
        _, gradients = passed(copy.deepcopy(network).double(), given.double())
        norms = {key: gradient.norm().item() for key, gradient in gradients.items() if gradient is not None}
        # The weight of one channel into an instance norm only scales what is scaled back: in most draws rounding is all
        # that its gradient has, and one draw in which it has more compares one rounding with another.
        large = {key for key, norm in norms.items() if norm > 1e-2 * max(norms.values())}
        known = large if known is None else known & large
        with OPT1.on(network):
            _, plain_gradients = passed(network, given)
            _, fast_gradients = passed(accelerate(network, "tf32", graph=False, report=None), given)
        for sums, found in ((plain_distances, plain_gradients), (fast_distances, fast_gradients)):
            sums.update({key: each**2 for key, each in distances(found, gradients).items()})
    assert known is not None
    assert len(known) > 5
    plain, fast = ({key: math.sqrt(sums[key]) for key in known} for sums in (plain_distances, fast_distances))
    assert max(plain.values()) > 1e-4, "this card has no TF32"
    assert beyond(fast, plain, 2) == []


UNROUNDED = {
    "UNet, odd widths": lambda: UNet(
        3,
        1,
        17,
        channels=(3, 17),
        strides=(3,),
        num_res_units=2,
        act=("prelu", {"init": 0.1}),
        norm="batch",
        adn_ordering="NA",
    ),
    **{name: make for name, (make, _) in TF32_CASES.items() if "5³" not in name},
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", UNROUNDED)
def test_on_a_gpu_without_rounding_gradients_are_those_of_float32(name: str) -> None:
    """So that what BF16 and TF32 add is rounding. Of several draws the middle one: a kink may turn in one of them."""
    far = []
    for seed in range(5):
        torch.manual_seed(seed)
        network = alive(UNROUNDED[name]()).cuda()
        given = torch.randn(2, 1, 24, 24, 24, device="cuda")
        _, gradients = passed(copy.deepcopy(network).double(), given.double())
        with BASE.on(network):
            _, plain = passed(network, given)
            _, fast = passed(accelerate(network, "tf32", graph=False, report=None), given)
        far.append((farthest(fast, gradients), farthest(plain, gradients)))
    ours, usual = (sorted(each)[2] for each in zip(*far, strict=True))
    assert ours < 3 * max(usual, 1e-6), far


@pytest.mark.parametrize("name", NETWORKS)
def test_training_goes_the_same_way(name: str) -> None:
    losses = []
    for fast in (False, True):
        network, (x, *rest) = made(name, torch.float64), inputs(name, torch.float64)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        if fast:
            accelerate(network, report=None)
        losses.append([])
        for _ in range(3):
            optimizer.zero_grad()
            out = network(x[:1], *(r[:1] for r in rest))
            loss = sum(y.square().mean() for y in (out if isinstance(out, list) else [out]))
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][0] != losses[0][2]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_is_as_fast_and_its_own(name: str) -> None:
    network, given = accelerate(made(name), report=None), inputs(name)
    copies = [copy.deepcopy(network)]
    if not name.startswith("ResidualEncoder"):  # nnU-Net's residual blocks hold a lambda: not pickled, fast or not
        copies.append(pickle.loads(pickle.dumps(network)))
    expected = passed(network, *given)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()  # a copy that computed with these would show it
    for other in copies:
        assert sum("forward" in m.__dict__ for m in other.modules()) == sum(
            "forward" in m.__dict__ for m in network.modules()
        )
        outputs, gradients = passed(other, *given)
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected[0], strict=True))
        assert farthest(gradients, expected[1]) == 0


@pytest.mark.parametrize("name", ["DiffusionModelUNet", "UNet", "DynUNet", "ResidualEncoderUNet"])
def test_each_feature_by_itself(name: str) -> None:
    network, given = made(name, torch.float64), inputs(name, torch.float64)
    outputs, gradients = passed(network, *given)
    for features in [(), *((f,) for f in FEATURES), ("norm", "residual"), ("norm", "attention")]:
        accelerate(network, only=features, report=None)
        fast_outputs, fast_gradients = passed(network, *given)
        assert distance(fast_outputs[0], outputs[0]) < 1e-9, features
        assert farthest(fast_gradients, gradients) < 1e-9, features


def hook(layer: nn.Module) -> None:
    layer.register_forward_hook(lambda _module, _inputs, y: 1.5 * y)


def other_nonlinearity(block: nn.Module) -> None:
    block.nonlinearity = nn.Tanh()


UP = "up_blocks.0.resnets.1"  # of two tensors, which no one joins


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("where", "change"),
    [
        (f"{UP}.conv2", hook),
        (f"{UP}.conv2.conv", nn.utils.weight_norm),
        (f"{UP}.conv2.conv", nn.utils.parametrizations.weight_norm),
        (f"{UP}.skip_connection", hook),
        (UP, other_nonlinearity),
    ],
    ids=["hook", "old weight norm", "weight norm", "hook of the skip", "nonlinearity"],
)
def test_a_block_of_the_decoder_that_was_changed(where: str, change: Callable[[nn.Module], object], when: str) -> None:
    name = "DiffusionModelUNet"
    network, fast = made(name), made(name)
    change(network.get_submodule(where))
    if when == "before":
        change(fast.get_submodule(where))
    accelerate(fast, report=None)
    if when == "after":
        change(fast.get_submodule(where))
    check_near(passed(fast, *inputs(name)), passed(network, *inputs(name)), 1e-4, 1e-3)


def test_dropout_stays_dropout() -> None:
    torch.manual_seed(0)
    networks = [
        monai_unet(num_res_units=2, dropout=0.5),
        dynamic(dropout=0.5),
        diffusion(with_conditioning=True, cross_attention_dim=8, dropout_cattn=0.5),
    ]
    for network in map(alive, networks):
        given = inputs("DiffusionModelUNet, context" if network is networks[2] else "UNet")
        network.eval()
        plain = network(*given)
        accelerate(network, report=None)
        assert distance(network(*given), plain) < 1e-4
        network.train()
        assert not torch.equal(network(*given), network(*given))


def dropping(name: str) -> nn.Module:
    torch.manual_seed(0)
    return alive(
        dynamic(res_block=True, dropout=0.3) if name == "DynUNet" else monai_unet(num_res_units=2, dropout=0.3)
    )


@pytest.mark.parametrize("name", ["DynUNet", "UNet"])
def test_a_seed_drops_the_same_values_in_every_branch(name: str) -> None:
    network = dropping(name)
    expected = passed(network, *inputs(name))
    accelerate(network, report=None)
    check_near(passed(network, *inputs(name)), expected, 1e-4, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["DynUNet", "UNet"])
def test_on_a_gpu_a_seed_drops_what_it_drops_under_autocast(name: str) -> None:
    network = dropping(name).cuda()
    given = [t.cuda() for t in inputs(name, side=16)]

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        out = network(*given)
        return (out if isinstance(out, Tensor) else out[0]).float()

    with torch.autocast("cuda", torch.bfloat16):
        plain = drawn(1)
    accelerate(network, graph=False, report=None)
    assert distance(drawn(1), plain) < 0.1 < distance(drawn(2), plain)


TWO_D: dict[str, Callable[[], nn.Module]] = {
    "AttentionUnet": lambda: nets.AttentionUnet(2, 1, 2, (8, 16), (2,)),
    "AutoencoderKL": lambda: nets.AutoencoderKL(
        2, 1, 1, (1, 1), (4, 4), (False, True), latent_channels=4, norm_num_groups=4
    ),
    "BasicUNet": lambda: nets.BasicUNet(2, 1, 2, (8, 8, 8, 8, 8, 8)),
    "DiffusionModelUNet": lambda: nets.DiffusionModelUNet(
        2, 1, 1, (1, 1), (8, 8), (False, True), norm_num_groups=4, num_head_channels=4
    ),
    "DynUNet": lambda: nets.DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 8, 8], res_block=True),
    "ResNet": lambda: nets.resnet10(spatial_dims=2, n_input_channels=1, num_classes=2),
    "SegResNet": lambda: nets.SegResNet(2, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,)),
    "SegResNetDS": lambda: nets.SegResNetDS(2, 8, 1, 2, blocks_down=(1, 1), act="relu"),
    "SwinUNETR": lambda: nets.SwinUNETR(1, 2, feature_size=12, spatial_dims=2),
    "UNETR": lambda: nets.UNETR(1, 2, 32, 8, 16, 16, 4, spatial_dims=2),
    "UNet": lambda: nets.UNet(2, 1, 2, (8, 16), (2,), num_res_units=1),
    "VNet": lambda: nets.VNet(2, 1, 2),
}


@pytest.mark.parametrize("name", TWO_D)
def test_two_dimensional_networks_compute_what_they_did(name: str) -> None:
    torch.manual_seed(0)
    network = alive(TWO_D[name]()).double()
    side = 64 if name == "SwinUNETR" else 32
    x = torch.randn(2, 1, side, side, dtype=torch.float64)
    given = (x, torch.tensor([3, 7])) if name == "DiffusionModelUNet" else (x,)
    expected = passed(network, *given)
    accelerate(network, report=None)
    check_near(passed(network, *given), expected, 1e-9, 1e-9)


def test_stochastic_depth_and_squeeze_excitation_are_left_to_the_block() -> None:

    torch.manual_seed(0)
    norm = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU}
    block = BasicBlockD(nn.Conv3d, 8, 8, 3, 1, True, stochastic_depth_p=0.5, **norm)
    x = torch.randn(8, 8, 4, 4, 4)
    torch.manual_seed(1)
    plain = block(x)
    accelerate(block, report=None)
    torch.manual_seed(1)
    assert distance(block(x), plain) < 1e-5
    assert ("", "BasicBlockD") not in {(name, kind) for name, kind, _ in block.acceleration.replaced}


def test_a_bottleneck_of_one_voxel() -> None:
    network = alive(diffusion(attention=False)).double()
    x, t = torch.randn(2, 3, 4, 4, 4, dtype=torch.float64), torch.tensor([3, 70])
    plain = network(x, t)
    accelerate(network, report=None)
    assert distance(network(x, t), plain) < 1e-9


@pytest.mark.parametrize(
    ("flag", "part"), [("apply_stochastic_depth", "drop_path"), ("apply_se", "squeeze_excitation")]
)
def test_a_residual_block_s_options_switched_on_later(flag: str, part: str) -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x

    plain = NETWORKS["ResidualEncoderUNet"]().eval()
    fast = accelerate(copy.deepcopy(plain), report=None)
    for network in (plain, fast):
        for block in network.modules():
            if isinstance(block, BasicBlockD):
                setattr(block, flag, True)
                setattr(block, part, Half())
    (x,) = inputs("ResidualEncoderUNet")
    with torch.no_grad():
        assert distance(fast(x), plain(x)) < 1e-4
