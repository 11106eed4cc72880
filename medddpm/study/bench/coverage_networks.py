"""The networks whose coverage by `accelerate` is recorded: MONAI's and nnU-Net's, at sizes they are trained at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.study.bench.networks import SEED, imported, nnunet

_NETS = "monai.networks.nets"
_MAISI = "monai.apps.generation.maisi.networks"
Build = Callable[[int, Callable[[int], int]], nn.Module]
"""Builds a network for a volume's side; the second argument scales a width."""


@dataclass(frozen=True)
class Subject:
    """One network, and what it is given.

    Args:
        name: its name in the record and on the command line.
        title: its name in a table.
        build: see `Build`.
        side: of the volumes, in voxels, all three.
        batch: volumes in a step.
        channels: of the input.
        steps: whether it takes timesteps as well.
        more: further arguments by name, each of one value a sample: its shape behind the batch.
    """

    name: str
    title: str
    build: Build
    side: int = 96
    batch: int = 1
    channels: int = 1
    steps: bool = False
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def made(self, side: int, width: int) -> nn.Module:
        """The network on the CPU, in training mode; widths are multiplied by `width` / 64.

        Raises:
            BadInput: a package is missing, or the network cannot be built at this size or width.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            try:
                return self.build(side, lambda channels: max(8, channels * width // 64 // 8 * 8)).train()
            except BadInput:
                raise
            except (ImportError, ValueError, TypeError, RuntimeError) as error:
                problem = f"{self.name} cannot be built: {str(error).splitlines()[0]}"
                raise BadInput("--coverage", problem, "install MONAI 1.6, or leave it out") from None

    def inputs(self, side: int, device: torch.device) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """A batch: what the network's forward takes by place and by name."""
        generator = torch.Generator().manual_seed(SEED + 1)
        x = torch.randn(self.batch, self.channels, side, side, side, generator=generator)
        steps = (torch.randint(1000, (self.batch,), generator=generator),) if self.steps else ()
        named = {name: torch.rand(self.batch, *shape, generator=generator) for name, shape in self.more.items()}
        return tuple(a.to(device) for a in (x, *steps)), {name: a.to(device) for name, a in named.items()}


def _monai(name: str, module: str = _NETS) -> Callable[..., nn.Module]:
    return imported(module, name)


def _levels(side: int, most: int) -> int:
    """How many levels a network of strides 2 has at this side: four voxels at the last, and `most` at most."""
    return max(2, min(most, side.bit_length() - 2))


def _unet(norm: str) -> Build:
    def build(side: int, wide: Callable[[int], int]) -> nn.Module:
        widths = [wide(16 * 2**level) for level in range(_levels(side, 5))]
        return _monai("UNet")(3, 1, 3, widths, [2] * (len(widths) - 1), num_res_units=2, norm=norm)

    return build


def _dynunet(side: int, wide: Callable[[int], int]) -> nn.Module:
    count = _levels(side, 6)
    strides = [1] + [2] * (count - 1)
    filters = [min(wide(32) * 2**level, wide(320)) for level in range(count)]
    return _monai("DynUNet")(
        3, 1, 3, [3] * count, strides, strides[1:], filters=filters, res_block=True, deep_supervision=True,
        deep_supr_num=min(3, count - 2) or 1,
    )  # fmt: skip


def _attention_unet(side: int, wide: Callable[[int], int]) -> nn.Module:
    widths = [wide(16 * 2**level) for level in range(_levels(side, 5))]
    return _monai("AttentionUnet")(3, 1, 3, widths, [2] * (len(widths) - 1))


def _autoencoder(_side: int, wide: Callable[[int], int]) -> nn.Module:
    return _monai("AutoencoderKL")(
        spatial_dims=3, in_channels=1, out_channels=1, num_res_blocks=(2, 2, 2), latent_channels=4,
        channels=(wide(32), wide(64), wide(128)), attention_levels=(False, False, False), norm_num_groups=8,
        with_encoder_nonlocal_attn=False, with_decoder_nonlocal_attn=False,
    )  # fmt: skip


def _maisi_autoencoder(_side: int, wide: Callable[[int], int]) -> nn.Module:
    return _monai("AutoencoderKlMaisi", f"{_MAISI}.autoencoderkl_maisi")(
        spatial_dims=3, in_channels=1, out_channels=1, latent_channels=4, num_channels=(wide(64), wide(128), wide(256)),
        num_res_blocks=(2, 2, 2), norm_num_groups=8, norm_eps=1e-6, attention_levels=(False, False, False),
        use_checkpointing=False, use_convtranspose=False, norm_float16=False, num_splits=4, dim_split=1,
    )  # fmt: skip


def _diffusion(wide: Callable[[int], int]) -> dict[str, Any]:
    return {
        "spatial_dims": 3, "num_res_blocks": 2, "attention_levels": (False, False, True), "norm_num_groups": 8,
        "num_head_channels": wide(64),
    }  # fmt: skip


def _diffusion_model(_side: int, wide: Callable[[int], int]) -> nn.Module:
    channels = (wide(64), wide(128), wide(256))
    return _monai("DiffusionModelUNet")(in_channels=1, out_channels=1, channels=channels, **_diffusion(wide))


def _maisi_diffusion(_side: int, wide: Callable[[int], int]) -> nn.Module:
    return _monai("DiffusionModelUNetMaisi", f"{_MAISI}.diffusion_model_unet_maisi")(
        in_channels=4, out_channels=4, num_channels=(wide(64), wide(128), wide(256)), include_spacing_input=True,
        include_top_region_index_input=True, include_bottom_region_index_input=True, **_diffusion(wide),
    )  # fmt: skip


def _mednext(_side: int, wide: Callable[[int], int]) -> nn.Module:
    return _monai("MedNeXt")(
        spatial_dims=3, init_filters=wide(32), in_channels=1, out_channels=3, encoder_expansion_ratio=2,
        decoder_expansion_ratio=2, bottleneck_expansion_ratio=2, kernel_size=3, deep_supervision=True,
        use_residual_connection=True,
    )  # fmt: skip


def _nn_unet(residual: bool) -> Build:
    return lambda side, wide: nnunet(side, 2 * wide(32), residual)


_all = (
    Subject("unet", "MONAI UNet", _unet("BATCH"), batch=2),
    Subject("unet-instance", "MONAI UNet, instance norm", _unet("INSTANCE"), batch=2),
    Subject("dynunet", "MONAI DynUNet", _dynunet, side=128),
    Subject("segresnet", "MONAI SegResNet", lambda _, w: _monai("SegResNet")(3, w(32), 1, 3), side=128),
    Subject("segresnet-ds", "MONAI SegResNetDS", lambda _, w: _monai("SegResNetDS")(3, w(32), 1, 3), side=128),
    Subject(
        "unetr", "MONAI UNETR",
        lambda s, w: _monai("UNETR")(1, 3, (s,) * 3, w(16), hidden_size=12 * w(64), mlp_dim=48 * w(64)),
    ),
    Subject(
        "swin-unetr", "MONAI SwinUNETR",
        lambda _, w: _monai("SwinUNETR")(1, 3, feature_size=max(12, w(48) // 12 * 12)),
    ),
    Subject("vnet", "MONAI VNet", lambda _, w: _monai("VNet")(3, 1, 3)),
    Subject("attention-unet", "MONAI AttentionUnet", _attention_unet),
    Subject("basic-unet", "MONAI BasicUNet", lambda _, w: _monai("BasicUNet")(3, 1, 3)),
    Subject("mednext", "MONAI MedNeXt", _mednext, side=128),
    Subject("autoencoder", "MONAI AutoencoderKL", _autoencoder, side=64),
    Subject("maisi-autoencoder", "MAISI AutoencoderKlMaisi", _maisi_autoencoder, side=64),
    Subject("diffusion", "MONAI DiffusionModelUNet", _diffusion_model, side=64, steps=True),
    Subject(
        "maisi-diffusion", "MAISI DiffusionModelUNetMaisi", _maisi_diffusion, side=64, channels=4, steps=True,
        more={"top_region_index_tensor": (4,), "bottom_region_index_tensor": (4,), "spacing_tensor": (3,)},
    ),
    Subject(
        "patch-discriminator", "MONAI PatchDiscriminator", lambda _, w: _monai("PatchDiscriminator")(3, w(64), 1, 1), 64
    ),
    Subject(
        "resnet", "MONAI ResNet-50", lambda _, w: _monai("resnet50")(spatial_dims=3, n_input_channels=1, num_classes=3)
    ),
    Subject("densenet", "MONAI DenseNet-121", lambda _, w: _monai("DenseNet121")(3, 1, 3)),
    Subject("nnunet-plain", "nnU-Net PlainConvUNet", _nn_unet(residual=False), side=128, batch=2),
    Subject("nnunet-residual", "nnU-Net ResidualEncoderUNet", _nn_unet(residual=True), side=128, batch=2),
)  # fmt: skip
SUBJECTS: Mapping[str, Subject] = MappingProxyType({subject.name: subject for subject in _all})
"""Every network by its name, in the order of the record."""
