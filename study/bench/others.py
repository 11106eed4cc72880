"""Other people's networks, each as its users build it: MONAI's, nnU-Net's and torchvision's.

Every function takes the volume's side and a base width, of which the published width is 64. Segmentation networks have
`CLASSES` outputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.fast.known import register

CLASSES = 3  # of a segmentation
NETS = "monai.networks.nets"
MAISI = "monai.apps.generation.maisi.networks"


def diffusion(_side: int, channels: int, attention: bool = False) -> nn.Module:
    """Builds a latent diffusion model's network, on volumes, with or without attention on its two coarsest levels."""
    return class_of(NETS, "DiffusionModelUNet")(
        spatial_dims=3,
        in_channels=3,
        out_channels=1,
        channels=tuple(channels * m for m in (1, 1, 2, 3, 4)),
        num_res_blocks=1,
        attention_levels=(False, False, False, attention, attention),
        num_head_channels=channels,
    )


def unet(side: int, channels: int) -> nn.Module:
    """Builds MONAI's U-Net with its defaults: residual units, instance norm, PReLU."""
    widths = widths_of(side, channels)
    return class_of(NETS, "UNet")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        channels=widths,
        strides=[2] * (len(widths) - 1),
        num_res_units=2,
    )


def dynunet(side: int, channels: int, deep: bool = False, residual: bool = False) -> nn.Module:
    """Builds nnU-Net's plan by MONAI; with a loss on the coarser levels too, or without; of residual blocks, or not."""
    widths = widths_of(side, channels)
    strides = [1] + [2] * (len(widths) - 1)
    return class_of(NETS, "DynUNet")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        kernel_size=[3] * len(widths),
        strides=strides,
        upsample_kernel_size=strides[1:],
        filters=widths,
        deep_supervision=deep,
        deep_supr_num=max(1, len(widths) - 3),
        res_block=residual,
    )


def nnunet(side: int, channels: int, residual: bool = False, deep: bool = False) -> nn.Module:
    """Builds nnU-Net's plan for a patch of 128³: instance norm, leaky ReLU, convolutions with a bias."""
    widths = widths_of(side, channels)
    stages = len(widths)
    kind = "ResidualEncoderUNet" if residual else "PlainConvUNet"
    encoder = {"n_blocks_per_stage": (1, 3, 4, 6, 6, 6)[:stages]} if residual else {"n_conv_per_stage": (2,) * stages}
    return class_of("dynamic_network_architectures.architectures.unet", kind)(
        input_channels=1,
        n_stages=stages,
        features_per_stage=widths,
        conv_op=nn.Conv3d,
        kernel_sizes=3,
        strides=[1] + [2] * (stages - 1),
        **encoder,
        num_classes=CLASSES,
        n_conv_per_stage_decoder=(1 if residual else 2,) * (stages - 1),
        conv_bias=True,
        norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=nn.LeakyReLU,
        nonlin_kwargs={"inplace": True},
        deep_supervision=deep,
    )


def segresnet(_side: int, channels: int) -> nn.Module:
    """Builds the residual U-Net of Myronenko (2018, arXiv:1810.11654), with 32 filters."""
    return class_of(NETS, "SegResNet")(init_filters=channels // 2, in_channels=1, out_channels=CLASSES)


def autoencoder(_side: int, channels: int) -> nn.Module:
    """Builds a latent diffusion model's autoencoder, as MONAI's tutorials train one, without attention.

    It decodes the mean of its code, not a draw from it: every setting then computes the same function.
    """
    made = class_of(NETS, "AutoencoderKL")(
        spatial_dims=3,
        channels=[channels, 2 * channels, 4 * channels],
        num_res_blocks=2,
        attention_levels=[False] * 3,
        latent_channels=3,
        with_encoder_nonlocal_attn=False,
        with_decoder_nonlocal_attn=False,
        out_channels=CLASSES,
    )
    made.__dict__["sampling"] = _mean
    return made


@register
def _mean(mean: Tensor, _deviation: Tensor) -> Tensor:
    return mean


def unetr(side: int, channels: int) -> nn.Module:
    """Builds a vision transformer's encoder (ViT-B) with a convolutional decoder."""
    sizes: dict[str, Any] = {"hidden_size": 12 * channels, "mlp_dim": 48 * channels, "feature_size": channels // 4}
    return class_of(NETS, "UNETR")(in_channels=1, out_channels=CLASSES, img_size=side, **sizes)


def swin(_side: int, channels: int) -> nn.Module:
    """Builds SwinUNETR, with the 48 features of its pretrained models."""
    return class_of(NETS, "SwinUNETR")(in_channels=1, out_channels=CLASSES, feature_size=3 * channels // 4)


def unet_batch(side: int, channels: int) -> nn.Module:
    """Builds MONAI's U-Net with batch norm and PReLU, in its tutorials' widths of 16 to 256."""
    stages = min(5, side.bit_length() - 2)
    widths = [channels // 4 * 2**level for level in range(stages)]
    return class_of(NETS, "UNet")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        channels=widths,
        strides=[2] * (stages - 1),
        num_res_units=2,
        norm="batch",
    )


def mednext(_side: int, channels: int) -> nn.Module:
    """Builds MedNeXt, depthwise 7³ convolutions in blocks like ConvNeXt's, with 32 filters."""
    return class_of(NETS, "MedNeXt")(init_filters=channels // 2, in_channels=1, out_channels=CLASSES)


def segresnet_ds(_side: int, channels: int) -> nn.Module:
    """Builds SegResNet as MONAI's Auto3DSeg trains it."""
    return class_of(NETS, "SegResNetDS")(init_filters=channels // 2, in_channels=1, out_channels=CLASSES)


def vnet(_side: int, _channels: int) -> nn.Module:
    """Builds V-Net (Milletari et al. 2016, arXiv:1606.04797), whose widths are fixed, without dropout."""
    made = class_of(NETS, "VNet")(in_channels=1, out_channels=CLASSES)
    for module in made.modules():
        if isinstance(module, nn.Dropout3d):
            module.p = 0.0
    return made


def attention_unet(side: int, channels: int) -> nn.Module:
    """Builds Attention U-Net (Oktay et al. 2018, arXiv:1804.03999)."""
    stages = min(5, side.bit_length() - 2)
    widths = [channels // 4 * 2**level for level in range(stages)]
    return class_of(NETS, "AttentionUnet")(
        spatial_dims=3, in_channels=1, out_channels=CLASSES, channels=widths, strides=[2] * (stages - 1)
    )


def basic_unet(_side: int, channels: int) -> nn.Module:
    """Builds the U-Net of Falk et al. (2019) in MONAI's default widths."""
    widths = [channels // 2 * m for m in (1, 1, 2, 4, 8, 1)]
    return class_of(NETS, "BasicUNet")(spatial_dims=3, in_channels=1, out_channels=CLASSES, features=widths)


def basic_unet_plus(_side: int, channels: int) -> nn.Module:
    """Builds U-Net++ (Zhou et al. 2018, arXiv:1807.10165) in MONAI's default widths."""
    widths = [channels // 2 * m for m in (1, 1, 2, 4, 8, 1)]
    return class_of(NETS, "BasicUNetPlusPlus")(spatial_dims=3, in_channels=1, out_channels=CLASSES, features=widths)


def highresnet(_side: int, channels: int) -> nn.Module:
    """Builds HighRes3DNet (Li et al. 2017, arXiv:1707.01992), dilated convolutions at full resolution throughout."""
    layers = [
        {"name": "conv_0", "n_features": channels // 4, "kernel_size": 3},
        *(
            {"name": f"res_{place}", "n_features": channels // 4 * 2**place, "kernels": (3, 3), "repeat": 3}
            for place in range(3)
        ),
        {"name": "conv_1", "n_features": channels * 5 // 4, "kernel_size": 1},
        {"name": "conv_2", "kernel_size": 1},
    ]
    return class_of(NETS, "HighResNet")(spatial_dims=3, in_channels=1, out_channels=CLASSES, layer_params=layers)


def resnet(_side: int, channels: int) -> nn.Module:
    """Builds a ResNet50 of volumes, which classifies (Hara et al. 2018, arXiv:1711.09577)."""
    widths = [channels * 2**level for level in range(4)]
    return class_of(NETS, "ResNet")(
        "bottleneck", [3, 4, 6, 3], widths, spatial_dims=3, n_input_channels=1, num_classes=CLASSES
    )


def densenet(_side: int, channels: int) -> nn.Module:
    """Builds a DenseNet121 of volumes, which classifies (Huang et al. 2017, arXiv:1608.06993)."""
    return class_of(NETS, "DenseNet121")(
        spatial_dims=3, in_channels=1, out_channels=CLASSES, init_features=channels, growth_rate=channels // 2
    )


def voxelmorph(_side: int, channels: int) -> nn.Module:
    """Builds VoxelMorph (Balakrishnan et al. 2019, arXiv:1809.05231), which registers by a diffeomorphism."""
    wide, last = channels // 2, channels // 4
    backbone = class_of(NETS, "VoxelMorphUNet")(
        spatial_dims=3,
        in_channels=2,
        unet_out_channels=wide,
        channels=(last, wide, wide, wide, wide, wide),
        final_conv_channels=(last, last),
    )
    return class_of(NETS, "VoxelMorph")(backbone=backbone, integration_steps=7, half_res=True)


def discriminator(_side: int, channels: int) -> nn.Module:
    """Builds the critic of patches that an autoencoder is trained against (Isola et al. 2017, arXiv:1611.07004)."""
    return class_of(NETS, "PatchDiscriminator")(
        spatial_dims=3, channels=channels, in_channels=1, out_channels=1, num_layers_d=3
    )


def controlnet(_side: int, channels: int) -> nn.Module:
    """Builds a ControlNet (Zhang et al. 2023, arXiv:2302.05543) before the diffusion network that it guides."""
    known = {
        "spatial_dims": 3,
        "in_channels": 1,
        "channels": tuple(channels * m for m in (1, 2, 3)),
        "num_res_blocks": 1,
        "attention_levels": (False, False, True),
        "num_head_channels": channels,
    }
    network = class_of(NETS, "DiffusionModelUNet")(out_channels=1, **known)
    control = class_of(NETS, "ControlNet")(
        conditioning_embedding_in_channels=2, conditioning_embedding_num_channels=(channels // 4,), **known
    )
    return Guided(network, control)


@register
class Guided(nn.Module):
    """A frozen diffusion network and the ControlNet that is trained beside it, as one network.

    Args:
        network: MONAI's DiffusionModelUNet.
        control: MONAI's ControlNet.
    """

    def __init__(self, network: nn.Module, control: nn.Module) -> None:
        super().__init__()
        self.network, self.control = network.requires_grad_(False), control

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x: (N, 1 + M, D, H, W), image and condition; t: (N,). Returns (N, 1, D, H, W)."""
        image, condition = x[:, :1], x[:, 1:]
        down, middle = self.control(x=image, timesteps=t, controlnet_cond=condition)
        noise: Tensor = self.network(
            x=image,
            timesteps=t,
            down_block_additional_residuals=tuple(down),
            mid_block_additional_residual=middle,
        )
        return noise


def video(_side: int, _channels: int) -> nn.Module:
    """Builds torchvision's ResNet of clips (Tran et al. 2018, arXiv:1711.11248), whose widths are fixed."""
    return class_of("torchvision.models.video", "r3d_18")(num_classes=CLASSES)


def maisi_autoencoder(_side: int, channels: int) -> nn.Module:
    """Builds MAISI's autoencoder, which splits its convolutions; it decodes the mean of its code."""
    made = class_of(f"{MAISI}.autoencoderkl_maisi", "AutoencoderKlMaisi")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        latent_channels=4,
        num_channels=[channels, 2 * channels, 4 * channels],
        num_res_blocks=[2, 2, 2],
        attention_levels=[False] * 3,
        with_encoder_nonlocal_attn=False,
        with_decoder_nonlocal_attn=False,
        use_checkpointing=False,
        use_convtranspose=False,
        norm_float16=False,
        num_splits=2,
        dim_split=1,
    )
    made.__dict__["sampling"] = _mean
    return made


def maisi_diffusion(_side: int, channels: int) -> nn.Module:
    """Builds MAISI's diffusion network, with attention on its coarsest level."""
    return class_of(f"{MAISI}.diffusion_model_unet_maisi", "DiffusionModelUNetMaisi")(
        spatial_dims=3,
        in_channels=3,
        out_channels=1,
        num_channels=[channels, 2 * channels, 4 * channels],
        attention_levels=[False, False, True],
        num_res_blocks=2,
        num_head_channels=channels,
    )


def widths_of(side: int, channels: int) -> list[int]:
    """Returns nnU-Net's widths: 32 to 320 for a base of 64, in stages down to 4 voxels a side; six stages at 128³."""
    stages = max(2, min(6, side.bit_length() - 2))
    return [min(channels // 2 * 2**level, 5 * channels) for level in range(stages)]


def class_of(module: str, name: str) -> Callable[..., nn.Module]:
    """Imports a class by its module's name, so that a package is imported only when it is measured.

    Raises:
        BadInput: the package is missing.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        package = str(error.name).partition(".")[0].replace("_", "-")
        remedy = f"pip install --no-deps {package} einops"  # nnU-Net's asks for packages that would change torch
        raise BadInput("--network", f"{name} needs the package {package}", remedy) from None
