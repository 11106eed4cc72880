"""MONAI's networks whose blocks need volumes of their own size, or arithmetic of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.more_networks import maisi_autoencoder
from helpers.networks import alive, check_near, distance, passed, volume
from monai.apps.generation.maisi.networks.autoencoderkl_maisi import (
    MaisiConvolution,
    MaisiGroupNorm3D,
)
from monai.networks.blocks import Warp
from monai.networks.nets import BasicUNet, ResNet, VNet, VoxelMorph, VoxelMorphUNet
from monai.networks.nets.swin_unetr import SwinTransformer, WindowAttention
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.known import unknown_in
from medddpm.fast.patch import accelerate


def kinds(model: nn.Module) -> set[str]:
    return {kind for _, kind, _ in model.acceleration.replaced}


def left(model: nn.Module) -> set[str]:
    return {kind for _, kind in model.acceleration.left}


@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param("VNet", True, marks=pytest.mark.long),
        pytest.param("VNet, PReLU", False, marks=pytest.mark.long),
        ("ResNet", True),
        ("ResNet", False),
        ("ResNet, bottlenecks", True),
    ],
)
def test_networks_of_batch_norms(name: str, training: bool) -> None:
    torch.manual_seed(0)
    if name.startswith("VNet"):
        act: Any = "prelu" if "PReLU" in name else ("elu", {"inplace": True, "alpha": 0.7})
        network = VNet(3, 1, 2, act=act, dropout_prob_down=None, dropout_prob_up=(None, 0.0))
    else:
        block = "bottleneck" if "bottle" in name else "basic"
        network = ResNet(block, (1, 1, 1, 1), (8, 16, 16, 32), n_input_channels=1, num_classes=3, conv1_t_size=3)
    for layer in network.modules():
        if isinstance(layer, nn.Dropout3d):
            layer.p = 0.0  # some of VNet's cannot be set
    network = alive(network).double().train(training)
    fast = accelerate(copy.deepcopy(network), report=None)
    assert kinds(fast) & {"LUConv", "ResNetBlock", "ResNetBottleneck"}
    assert "BatchNorm3d" in kinds(fast) - left(fast)
    x = volume(3, 1, 16, 16, 16, dtype=torch.float64)
    check_near(passed(fast, x), passed(network, x), 1e-9, 1e-7)
    for key, buffer in network.named_buffers():
        assert torch.allclose(fast.get_buffer(key), buffer, rtol=1e-7, atol=1e-9), key


@pytest.mark.parametrize(("side", "padded"), [(32, 0), (36, 1), (47, 4)])
@pytest.mark.parametrize("upsample", ["deconv", "nontrainable"])
@pytest.mark.long
def test_basic_unet_pads_where_voxels_are_missing_only(
    side: int, padded: int, upsample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = alive(BasicUNet(3, 1, 2, features=(8, 8, 16, 16, 16, 8), upsample=upsample)).double()
    fast = accelerate(copy.deepcopy(network), report=None)
    x, pad, borders = volume(1, 1, 32, side, 32, dtype=torch.float64), functional.pad, list[Any]()

    def noted(x: Tensor, sizes: Any, mode: str = "constant", value: float | None = None) -> Tensor:
        borders.extend([sizes] if mode == "replicate" else [])
        return pad(x, sizes, mode, value)

    monkeypatch.setattr(functional, "pad", noted)
    expected = passed(network, x)
    assert len(borders) == 4, "as MONAI has it"
    borders.clear()
    found = passed(fast, x)
    assert len(borders) == padded
    check_near(found, expected, 1e-9, 1e-7)


@pytest.mark.parametrize("changes", [{}, {"num_splits": 1}, {"dim_split": 2}, {"use_convtranspose": True}], ids=str)
@pytest.mark.long
def test_maisi_s_autoencoder(changes: dict[str, Any]) -> None:
    """In float32: its norms know no other dtype."""
    torch.manual_seed(0)
    network = alive(maisi_autoencoder(**changes))
    fast = accelerate(copy.deepcopy(network), report=None)
    assert kinds(fast) >= {"MaisiGroupNorm3D", "MaisiResBlock", "MaisiConvolution", "MaisiEncoder", "AEKLResBlock"}
    assert not left(fast)
    for shape in ((16, 16, 16), (24, 16, 20)):
        x = volume(1, 1, *shape)
        expected = passed(network, x)
        check_near(passed(fast, x), expected, 1e-4, 1e-3)
    fast.forward.reduced_on = ("cpu",)
    assert distance(fast(x), expected[0][0]) < 5e-2


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("splits", [2, 3])
def test_a_convolution_in_splits_is_one_where_it_is_the_same(stride: int, kernel: int, splits: int) -> None:
    """Of every size, also those whose remainder MAISI drops."""
    torch.manual_seed(0)
    padding = 0 if stride == 2 else kernel // 2
    layer = MaisiConvolution(
        3, 4, 5, splits, 1, False, False, strides=stride, kernel_size=kernel, padding=padding, conv_only=True
    ).double()
    fast = accelerate(copy.deepcopy(layer), report=None)
    whole = 0
    for side in range(14, 32):
        x = volume(1, 4, 8, side, 9, dtype=torch.float64)
        a, b = layer(x), fast(x)
        assert a.shape == b.shape
        assert distance(b, a) < 1e-12
        whole += fast.forward.inner.whole(x)
    assert (whole > 2) == ((stride, kernel) in {(1, 1), (1, 3), (2, 3)})


def test_maisi_s_norm_in_half_precision_stays_so() -> None:
    norm = MaisiGroupNorm3D(2, 4, norm_float16=True, save_mem=False)
    x = volume(2, 4, 3, 3, 3)
    plain = norm(x)
    fast = accelerate(nn.Sequential(norm), report=None)
    assert fast[0](x).dtype == plain.dtype == torch.float16
    assert torch.equal(fast[0](x), plain)
    assert fast[0](x.bfloat16()).dtype == torch.bfloat16


def swin(**changes: Any) -> nn.Module:
    """The transformer of SwinUNETR, with windows of three voxels a side."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"in_chans": 1, "embed_dim": 12, "num_heads": (1, 2, 2, 4), "depths": (2, 2, 2, 2)}
    return alive(SwinTransformer(window_size=(3, 3, 3), patch_size=(2, 2, 2), **options, **changes))


@pytest.mark.parametrize("batch", [1, 2])
def test_swin_unetr_s_windows(batch: int) -> None:
    """Windows that are shifted and such that are not, smaller ones where the volume is, and voxels to fill them up."""
    network = swin().double()
    fast = accelerate(copy.deepcopy(network), report=None)
    assert {"WindowAttention", "LayerNorm"} <= kinds(fast)
    assert left(fast) == {"GELU"}
    x = volume(batch, 1, 16, 16, 32, dtype=torch.float64)
    check_near(passed(fast, x), passed(network, x), 1e-9, 1e-7)


def test_swin_unetr_in_bf16_no_farther_than_autocast() -> None:
    network, x = swin(), volume(2, 1, 32, 32, 32)
    outputs, gradients = passed(network, x)
    fast = accelerate(copy.deepcopy(network), report=None)
    fast.forward.reduced_on = ("cpu",)
    fast_outputs, fast_gradients = passed(fast, x)
    with torch.autocast("cpu", torch.bfloat16):
        usual_outputs, usual_gradients = passed(network, x)
    for quick, usual, right in zip(fast_outputs, usual_outputs, outputs, strict=True):
        assert distance(quick, right) < 1.2 * distance(usual.float(), right)
    for kind in ("norm1.weight", "norm1.bias", "relative_position_bias_table", "qkv.weight"):
        total, usual, quick = (
            torch.cat([g.flatten() for key, g in sorted(found.items()) if key.endswith(kind)])
            for found in (gradients, usual_gradients, fast_gradients)
        )
        assert distance(quick, total) < 1.5 * distance(usual, total), kind


@pytest.mark.parametrize("softmax", [nn.Softmin(dim=-1), nn.Softmax(dim=-2)], ids=["softmin", "of columns"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_other_weights_of_attention_are_left_to_the_block(when: str, softmax: nn.Module) -> None:
    def changed(network: nn.Module) -> nn.Module:
        for module in network.modules():
            if isinstance(module, WindowAttention):
                module.softmax = softmax
        return network

    network, x = changed(swin()), volume(1, 1, 16, 16, 32)
    fast = swin()
    fast = accelerate(changed(fast) if when == "before" else fast, report=None)
    assert distance(changed(fast)(x)[-1], network(x)[-1]) < 1e-4
    if when == "before":
        assert "WindowAttention" not in kinds(fast)


def test_dropped_attention_is_left_to_the_block() -> None:
    network = swin(attn_drop_rate=0.5)
    fast, x = accelerate(copy.deepcopy(network), report=None), volume(1, 1, 16, 16, 32)
    assert not torch.equal(fast(x)[-1], fast(x)[-1])
    assert distance(fast.eval()(x)[-1], network.eval()(x)[-1]) < 1e-4


@pytest.mark.parametrize("half", [False, True])
def test_a_registration_is_the_same_and_leaves_no_grid_in_its_warps(half: bool) -> None:
    torch.manual_seed(0)
    backbone = VoxelMorphUNet(3, 2, 8, channels=(8, 8, 8, 8), final_conv_channels=(8, 8))
    network = alive(VoxelMorph(backbone=backbone, integration_steps=3, half_res=half)).double()
    fast = accelerate(copy.deepcopy(network), report=None)
    assert unknown_in(network) == ""
    assert "Warp" in kinds(fast) - left(fast)
    moving, fixed = (100 * volume(1, 1, 16, 8, 16, dtype=torch.float64) + k for k in (0, 1))
    assert float(network(moving, fixed)[1].detach().abs().max()) > 0.1, "something moves"
    outputs, gradients = passed(fast, moving, fixed)
    check_near((outputs, gradients), passed(network, moving, fixed), 1e-12, 1e-9)
    warps = [module for module in fast.modules() if isinstance(module, Warp)]
    assert all(warp.ref_grid is None for warp in warps), "no graph could be replayed"


def test_a_warp_that_draws_its_grid_or_is_given_another_shape_is_monais() -> None:
    assert "Warp" in left(accelerate(nn.Sequential(Warp(jitter=True)), report=None))
    warp = accelerate(Warp(), report=None)
    with pytest.raises(ValueError, match="DDF shape must be"):
        warp(volume(1, 1, 8, 8, 8), volume(1, 3, 8, 8, 4))
