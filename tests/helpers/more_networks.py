"""Small versions of networks of which `accelerate` knows single layers only: MONAI's others, and MAISI's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monai.apps.generation.maisi.networks.autoencoderkl_maisi import AutoencoderKlMaisi
from monai.apps.generation.maisi.networks.diffusion_model_unet_maisi import DiffusionModelUNetMaisi
from monai.networks.nets import (
    UNETR,
    VQVAE,
    AutoEncoder,
    BasicUNet,
    DenseNet,
    FlexibleUNet,
    HighResNet,
    PatchDiscriminator,
    RegUNet,
    ResNet,
    SegResNetVAE,
    SwinUNETR,
    ViTAutoEnc,
    VNet,
)
from torch import nn


def maisi_diffusion() -> nn.Module:
    return DiffusionModelUNetMaisi(
        spatial_dims=3, in_channels=3, out_channels=1, num_channels=(8, 16, 16), num_res_blocks=1,
        attention_levels=(False, False, True), num_head_channels=8, norm_num_groups=4, use_flash_attention=False,
    )  # fmt: skip


def maisi_autoencoder(**changes: Any) -> nn.Module:
    """Without what samples the latent: a reconstruction."""
    options: dict[str, Any] = {"num_splits": 2, "norm_float16": False, "print_info": False, "save_mem": True} | changes
    network = AutoencoderKlMaisi(
        spatial_dims=3, in_channels=1, out_channels=1, num_res_blocks=(1, 1), num_channels=(8, 16), norm_num_groups=4,
        attention_levels=(False, True), latent_channels=4, with_encoder_nonlocal_attn=True, **options,
    )  # fmt: skip
    return nn.Sequential(network.encoder, network.quant_conv_mu, network.post_quant_conv, network.decoder)


def segresnet_vae() -> nn.Module:
    return SegResNetVAE(
        (16, 16, 16), spatial_dims=3, init_filters=8, in_channels=1, out_channels=2, blocks_down=(1, 1), blocks_up=(1,),
        vae_estimate_std=False,
    )  # fmt: skip


def swin() -> nn.Module:
    return SwinUNETR(
        1, 2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2), window_size=2, norm_name="batch"
    )


def vqvae() -> nn.Module:
    return VQVAE(
        3, 1, 1, channels=(8, 8), num_res_layers=1, num_res_channels=(8, 8), num_embeddings=8, embedding_dim=4,
        downsample_parameters=((2, 4, 1, 1),) * 2, upsample_parameters=((2, 4, 1, 1, 0),) * 2, ddp_sync=False,
    )  # fmt: skip


MORE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "VNet": (lambda: VNet(3, 1, 2), 16),
    "BasicUNet": (lambda: BasicUNet(3, 1, 2, features=(8, 8, 16, 16, 16, 8)), 32),
    "UNETR": (lambda: UNETR(1, 2, (16, 16, 16), feature_size=4, hidden_size=16, mlp_dim=32, num_heads=2), 16),
    "SwinUNETR": (swin, 32),
    "ResNet": (lambda: ResNet("basic", [1, 1, 1, 1], [8, 8, 16, 16], n_input_channels=1, num_classes=2), 16),
    "DenseNet": (lambda: DenseNet(3, 1, 2, init_features=8, growth_rate=4, block_config=(2, 2)), 16),
    "HighResNet": (lambda: HighResNet(3, 1, 2), 8),
    "FlexibleUNet": (
        lambda: FlexibleUNet(1, 2, "resnet10", spatial_dims=3, decoder_channels=(16, 8, 8, 8, 8)),
        32,
    ),
    "RegUNet": (lambda: RegUNet(3, 1, 4, 2, out_channels=2), 16),
    "SegResNetVAE": (segresnet_vae, 16),
    "AutoEncoder": (lambda: AutoEncoder(3, 1, 1, (8, 16), (2, 2)), 16),
    "VQVAE": (vqvae, 8),
    "ViTAutoEnc": (
        lambda: ViTAutoEnc(1, (16, 16, 16), (4, 4, 4), hidden_size=16, mlp_dim=32, num_layers=2, num_heads=2),
        16,
    ),
    "PatchDiscriminator": (lambda: PatchDiscriminator(3, 8, 1, num_layers_d=2, norm="INSTANCE"), 16),
    "AutoencoderKlMaisi": (maisi_autoencoder, 16),
    "DiffusionModelUNetMaisi": (maisi_diffusion, 8),
}
"""Each with the side of the volumes that it takes."""

SINGLE = ("AutoencoderKlMaisi", "VQVAE")  # which compute in float32 alone
HEAVY = ("VNet", "BasicUNet", "SwinUNETR", "FlexibleUNet")  # seconds a pass
