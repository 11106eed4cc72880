"""Small versions of the networks that `accelerate` takes, and what compares two passes through one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet, ResidualEncoderUNet
from dynamic_network_architectures.building_blocks.residual import BottleneckD
from monai.networks.nets import (
    AttentionUnet,
    AutoencoderKL,
    DiffusionModelUNet,
    DynUNet,
    MedNeXt,
    SegResNet,
    SegResNetDS,
    UNet,
)
from torch import Tensor, nn

from medddpm.fast.graphs import nested


def diffusion(attention: bool = True, **changes: Any) -> nn.Module:
    levels = (False, attention, attention)
    return DiffusionModelUNet(
        spatial_dims=3, in_channels=3, out_channels=1, channels=(16, 16, 32), attention_levels=levels,
        num_res_blocks=1, num_head_channels=8, norm_num_groups=8, **changes,
    )  # fmt: skip


def dynamic(**changes: Any) -> nn.Module:
    return DynUNet(
        spatial_dims=3, in_channels=1, out_channels=2, kernel_size=[3, 3, 3], strides=[1, 2, 2],
        upsample_kernel_size=[2, 2], **{"filters": [8, 16, 32]} | changes,
    )  # fmt: skip


def nnunet(kind: type[nn.Module], widths: Any = (8, 16, 32), kernels: Any = 3, **changes: Any) -> nn.Module:
    return kind(
        1, 3, widths, nn.Conv3d, kernels, (1, 2, 2), 2, 3, 2, conv_bias=True, norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"eps": 1e-5, "affine": True}, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True}, **changes,
    )  # fmt: skip


def monai_unet(**changes: Any) -> nn.Module:
    return UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), **changes)


def autoencoder(**changes: Any) -> nn.Module:
    """Without what samples the latent: a reconstruction."""
    network = AutoencoderKL(
        spatial_dims=3, in_channels=1, out_channels=1, num_res_blocks=(1, 1), channels=(8, 16),
        attention_levels=(False, True), latent_channels=4, norm_num_groups=4, **changes,
    )  # fmt: skip
    return nn.Sequential(network.encoder, network.quant_conv_mu, network.post_quant_conv, network.decoder)


def mednext(**changes: Any) -> nn.Module:
    options: dict[str, Any] = {"kernel_size": 3, "use_residual_connection": False} | changes
    return MedNeXt(
        spatial_dims=3, init_filters=8, in_channels=1, out_channels=2, encoder_expansion_ratio=2,
        decoder_expansion_ratio=2, bottleneck_expansion_ratio=2, blocks_down=(1, 1), blocks_bottleneck=1,
        blocks_up=(1, 1), **options,
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "DiffusionModelUNet": diffusion,
    "DiffusionModelUNet, no attention": lambda: diffusion(attention=False),
    "DiffusionModelUNet, residual resampling": lambda: diffusion(attention=False, resblock_updown=True),
    "DiffusionModelUNet, context": lambda: diffusion(with_conditioning=True, cross_attention_dim=8),
    "UNet": lambda: monai_unet(num_res_units=2),
    "UNet, plain": lambda: monai_unet(act="RELU", norm=("group", {"num_groups": 2})),
    "UNet, batch norm": lambda: monai_unet(num_res_units=2, norm="BATCH"),
    "DynUNet": lambda: dynamic(res_block=True),
    "DynUNet, deep supervision": lambda: dynamic(deep_supervision=True),
    "SegResNet": lambda: SegResNet(3, 8, 1, 2, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    "SegResNetDS": lambda: SegResNetDS(3, 8, 1, 2, blocks_down=(1, 1, 1), dsdepth=2),
    "AutoencoderKL": lambda: autoencoder(),
    "AttentionUnet": lambda: AttentionUnet(3, 1, 2, (8, 16, 32), (2, 2)),
    "MedNeXt, residual resampling": lambda: mednext(use_residual_connection=True),
    "MedNeXt, response norm": lambda: mednext(global_resp_norm=True, kernel_size=5),
    "PlainConvUNet": lambda: nnunet(PlainConvUNet),
    "ResidualEncoderUNet": lambda: nnunet(ResidualEncoderUNet),
    "ResidualEncoderUNet, bottlenecks, deep supervision": lambda: nnunet(
        ResidualEncoderUNet, block=BottleneckD, bottleneck_channels=8, deep_supervision=True
    ),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The network of that name, every layer of it at work."""
    torch.manual_seed(0)
    return alive(NETWORKS[name]().to(dtype))


def alive(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)  # what starts at zero would hide what is before it
    return network


def inputs(name: str, dtype: torch.dtype = torch.float32, side: int = 8) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    diffuses = name.startswith("Diffusion")
    x = torch.randn(2, 3 if diffuses else 1, side, side, side, generator=generator, dtype=dtype)
    steps = (x, torch.tensor([3, 700])) if diffuses else (x,)
    return (*steps, torch.randn(2, 4, 8, generator=generator, dtype=dtype)) if "context" in name else steps


Passed = tuple[list[Tensor], dict[str, Tensor | None]]


def passed(network: nn.Module, *args: Tensor) -> Passed:
    """Outputs of a forward pass, and the gradients of a sum of them under fixed weights, by name."""
    network.zero_grad(set_to_none=True)
    torch.manual_seed(4)  # dropout is the same in every pass
    outputs = list(nested.tensors(network(*args)))
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for y in outputs]
    torch.autograd.backward([(y * w).sum() for y, w in zip(outputs, weights, strict=True)])
    gradients = {name: p.grad for name, p in network.named_parameters()}
    return [y.detach() for y in outputs], gradients


def distance(a: Tensor, b: Tensor) -> float:
    """Of a from b, relative to b."""
    return ((a - b).norm() / b.norm()).item()


def distances(
    gradients: dict[str, Tensor | None], others: dict[str, Tensor | None], part: float = 1e-3
) -> dict[str, float]:
    """Each gradient's distance from its other, relative to that or to a part of the largest of all.

    A bias before an instance norm has the gradient zero, of which rounding leaves something.
    """
    assert {n for n, g in gradients.items() if g is None} == {n for n, g in others.items() if g is None}
    pairs = {n: (g, o) for n, g in gradients.items() if g is not None and (o := others[n]) is not None}
    least = part * max(o.norm().item() for _, o in pairs.values())
    return {n: (g - o).norm().item() / max(o.norm().item(), least) for n, (g, o) in pairs.items()}


def farthest(gradients: dict[str, Tensor | None], others: dict[str, Tensor | None]) -> float:
    """The largest of their `distances`."""
    return max(distances(gradients, others).values())


def check_near(found: Passed, expected: Passed, outputs: float, gradients: float) -> None:
    """What `passed` found of a network is no farther than this from what it found of another."""
    away = [distance(a, b) for a, b in zip(found[0], expected[0], strict=True)]
    assert all(each < outputs for each in away), away
    far = farthest(found[1], expected[1])
    assert far < gradients, far


def beyond(found: dict[str, float], usual: dict[str, float], times: float) -> list[str]:
    """The parameters that are farther than so many times the one that is usually the farthest; the worst first."""
    allowed = times * max(usual.values())
    names = sorted((name for name in found if not found[name] < allowed), key=lambda name: -found[name])
    return [f"{name}: {found[name]:.3g}, usually {usual[name]:.3g}, allowed {allowed:.3g}" for name in names]


def block(channels: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(3, channels, 3, padding=1),
        nn.GroupNorm(4, channels),
        nn.SiLU(),
        nn.Conv3d(channels, 2, 3, padding=1),
    )


def volume(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
