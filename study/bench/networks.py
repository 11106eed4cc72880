"""The networks that `python -m study bench` measures: ours, and other people's as their users build them.

Weights and batches are drawn on the CPU from fixed seeds, so that every row of the bench computes the same function of
the same numbers. Convolutions that start at zero get ordinary weights: from a network that returns zero no distance is
defined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput, first_line
from medddpm.fast.graphs import nested
from medddpm.unet import UNet3D
from study.bench import others
from study.bench.others import CLASSES

SEED = 0
TIMESTEPS = 250
Sides = tuple[int, int, int]


@dataclass(frozen=True)
class Network:
    """One network and how it is trained.

    Args:
        name: its name in the record.
        title: its name in the figures.
        build: builds it for a volume's side and a base width; the published width is 64.
        batch, side: the batch and the volumes' side by default.
        image_channels: channels of its input or, for a diffusion model, of the image that is noised.
        mask_channels: channels of a diffusion model's mask; 0 for a segmentation network.
        pair: whether it registers one volume to another and takes both.
        flat: whether the first side is three quarters of the others, as in BraTS's volumes.
        clip: whether its volumes are clips: frames, a seventh of the others, come first.
        pictures: whether an output has the size of its volumes; a classifier has one number a class.
        least: the smallest side that it takes.
    """

    name: str
    title: str
    build: Callable[[int, int], nn.Module]
    batch: int = 1
    side: int = 128
    image_channels: int = 1
    mask_channels: int = 0
    pair: bool = False
    flat: bool = False
    clip: bool = False
    pictures: bool = True
    least: int = 16

    @property
    def denoises(self) -> bool:
        """True if it belongs to a diffusion model and is called with timesteps."""
        return self.mask_channels > 0

    @property
    def ours(self) -> bool:
        """True if it is this book's own."""
        return self.name.startswith("med-ddpm")

    def sides(self, side: int) -> Sides:
        """Returns the shape (D, H, W) of its volumes at `side`."""
        if self.clip:
            return (max(side // 7, 4), side, side)
        return (max(16 * (side * 3 // 64), 8) if self.flat else side, side, side)

    def size(self, side: int) -> str:
        """Returns the shape of its volumes at `side` as the record writes it: 144x192x192."""
        return "x".join(map(str, self.sides(side)))


def _ours(side: int, channels: int) -> nn.Module:
    return UNet3D(image_size=side, in_channels=3, out_channels=1, model_channels=channels)


def _ours_brats(side: int, channels: int) -> nn.Module:
    return UNet3D(image_size=side, in_channels=8, out_channels=4, model_channels=channels, num_res_blocks=2)


_all = (
    Network("med-ddpm", "Med-DDPM", _ours, mask_channels=2),
    Network("monai-diffusion", "MONAI DiffusionModelUNet", others.diffusion, mask_channels=2),
    Network(
        "monai-diffusion-attention",
        "MONAI DiffusionModelUNet, attention",
        functools.partial(others.diffusion, attention=True),
        mask_channels=2,
    ),
    Network("monai-unet", "MONAI UNet", others.unet, batch=2),
    Network("monai-dynunet", "MONAI DynUNet", others.dynunet, batch=2),
    Network("nnunet-plain", "nnU-Net PlainConvUNet", others.nnunet, batch=2),
    Network("nnunet-residual", "nnU-Net ResidualEncoderUNet", functools.partial(others.nnunet, residual=True), batch=2),
    Network(
        "nnunet-plain-deep", "nnU-Net PlainConvUNet, deep supervision", functools.partial(others.nnunet, deep=True), 2
    ),
    Network("monai-dynunet-deep", "MONAI DynUNet, deep supervision", functools.partial(others.dynunet, deep=True)),
    Network("monai-segresnet", "MONAI SegResNet", others.segresnet),
    Network("monai-unet-batch", "MONAI UNet, batch norm", others.unet_batch, side=96),
    Network("monai-autoencoder", "MONAI AutoencoderKL", others.autoencoder, side=64),
    Network("monai-unetr", "MONAI UNETR", others.unetr, side=96),
    Network("monai-swinunetr", "MONAI SwinUNETR", others.swin, side=96, least=64),
    Network("monai-mednext", "MONAI MedNeXt", others.mednext, side=96, least=32),
    Network("monai-segresnet-ds", "MONAI SegResNetDS", others.segresnet_ds, least=32),
    Network("monai-vnet", "MONAI VNet", others.vnet, side=96, least=32),
    Network("monai-attention-unet", "MONAI AttentionUnet", others.attention_unet, side=96),
    Network("monai-basic-unet", "MONAI BasicUNet", others.basic_unet, side=96, least=32),
    Network("monai-basic-unetplusplus", "MONAI BasicUNetPlusPlus", others.basic_unet_plus, side=96, least=32),
    Network("monai-dynunet-residual", "MONAI DynUNet, residual", functools.partial(others.dynunet, residual=True), 2),
    Network("monai-highresnet", "MONAI HighResNet", others.highresnet, side=96),
    Network("monai-resnet", "MONAI ResNet50", others.resnet, batch=2, side=96, pictures=False, least=32),
    Network("monai-densenet", "MONAI DenseNet121", others.densenet, batch=2, side=96, pictures=False, least=64),
    Network("monai-voxelmorph", "MONAI VoxelMorph", others.voxelmorph, side=96, pair=True, least=32),
    Network("monai-discriminator", "MONAI PatchDiscriminator", others.discriminator, pictures=False, least=32),
    Network("monai-controlnet", "MONAI ControlNet", others.controlnet, side=64, mask_channels=2),
    Network(
        "torchvision-video",
        "torchvision r3d_18",
        others.video,
        batch=8,
        side=112,
        image_channels=3,
        clip=True,
        pictures=False,
        least=32,
    ),
    Network("maisi-autoencoder", "MAISI AutoencoderKlMaisi", others.maisi_autoencoder, side=64, least=32),
    Network("maisi-diffusion", "MAISI DiffusionModelUNetMaisi", others.maisi_diffusion, side=64, mask_channels=2),
    Network("med-ddpm-brats", "Med-DDPM, BraTS", _ours_brats, side=192, image_channels=4, mask_channels=4, flat=True),
)
NETWORKS: Mapping[str, Network] = MappingProxyType({network.name: network for network in _all})
"""Every network by its name, in the order of the record."""


def build(network: Network, side: int, channels: int) -> nn.Module:
    """Builds the network on the CPU, in training mode, its weights drawn from `SEED`; no layer is left at zero.

    Raises:
        BadInput: a package is missing, or the network cannot be built at this size or width.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            made = network.build(side, channels)
        except BadInput:  # a ValueError too
            raise
        except (ValueError, RuntimeError) as error:
            problem = f"{network.name} cannot be built with {channels} at {side}: {first_line(error)}"
            raise BadInput("--channels", problem, "choose a multiple of 32, and a side that is a power of 2") from None
        for module in made.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv3d, nn.Linear)) and not module.weight.any():
                module.reset_parameters()
    return made.train()


def planned(network: Network, side: int, channels: int) -> nn.Module:
    """Builds the network without memory for its weights, for shapes and counts."""
    device = torch.device("meta")
    try:
        with device:
            return network.build(side, channels)
    except RuntimeError as error:
        if "meta tensors" not in str(error):
            raise
        return network.build(side, channels).to(device)  # SwinUNETR reads numbers out of a tensor as it is built


class Problem:
    """One fixed batch for a network, and the loss it is trained with.

    Args:
        network: the network.
        side, batch: the volumes' side in voxels, and their number.
        device: holds the batch, which is drawn on the CPU; on "meta" nothing is drawn.

    Attributes:
        inputs: the tensors of a training step, (N, C, D, H, W) in float32: image, mask, timesteps (N,) in int64 and
            noise for a diffusion model; moving and fixed volume for a registration; volume and target for any other.
    """

    def __init__(self, network: Network, side: int, batch: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(SEED + 1)
        sides = network.sides(side)

        def normal(channels: int) -> Tensor:
            shape = (batch, channels, *sides)
            if device.type == "meta":
                return torch.empty(shape, device=device)
            return torch.randn(shape, generator=generator).to(device)

        self.network = network
        self.device = device
        self.inputs: tuple[Tensor, ...]
        if network.denoises:
            image, mask = normal(network.image_channels), normal(network.mask_channels)
            t = torch.randint(TIMESTEPS, (batch,), generator=generator).to(device)
            self.schedule = GaussianDiffusion(nn.Identity(), TIMESTEPS).to(device)
            self.inputs = image.clamp_(-1, 1), (mask > 1).float(), t, normal(network.image_channels)
        else:
            self.inputs = normal(network.image_channels), normal(network.image_channels if network.pair else CLASSES)

    @property
    def always_fused(self) -> bool:
        """True of other people's networks: the fused Adam is a user's choice, not this package's."""
        return not self.network.ours

    def forward(self, model: nn.Module, *inputs: Tensor) -> Any:
        """Returns what the network returns for `forward_inputs`."""
        return model(*inputs)

    def forward_inputs(self) -> tuple[Tensor, ...]:
        """Returns the inputs of the network alone."""
        if not self.network.denoises:
            return self.inputs if self.network.pair else self.inputs[:1]
        image, mask, t, noise = self.inputs
        return torch.cat([self.schedule.add_noise(image, t, noise), mask], dim=1), t

    def loss(self, model: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss, a scalar, and the network's output.

        A diffusion model has its own, mean |ε − ε_θ|; any other network gets a mean square on every output, because
        its real loss costs little and says nothing about the network. The target is the fixed volume of a
        registration; that of an output of another shape than the target's, as of deep supervision, is zero. Of several
        outputs the first is returned.

        Args:
            model: the network under a setting.
            inputs: tensors like those of `inputs`.
        """
        if self.network.denoises:
            image, mask, t, noise = inputs
            output: Tensor = model(torch.cat([self.schedule.add_noise(image, t, noise), mask], dim=1), t)
            return (noise - output).abs().mean(), output
        outputs = list(nested.tensors(model(*inputs) if self.network.pair else model(inputs[0])))
        target = inputs[1]
        apart = [y - target if y.shape == target.shape else y for y in outputs]
        return torch.stack([a.float().square().mean() for a in apart]).sum(), outputs[0]

    @property
    def mask(self) -> Tensor:
        """The masks (N, C, D, H, W) that a diffusion model samples for."""
        return self.inputs[1]


@functools.lru_cache(maxsize=64)
def flops(network: Network, side: int, batch: int, channels: int) -> Mapping[str, float]:
    """Counts the FLOPs of a forward pass and a training step, for the network as it is written; a multiply-add is two.

    They are counted from shapes alone. The step includes its backward pass; further work of a setting does not count.
    "attention" is the part of the step's FLOPs in attention's batched products.
    """
    model, problem = planned(network, side, channels), Problem(network, side, batch, torch.device("meta"))
    with FlopCounterMode(display=False) as counter:
        loss, _ = problem.loss(model, *problem.inputs)
        forward = counter.get_total_flops()
        loss.backward()
    attention = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    step = counter.get_total_flops()
    return MappingProxyType({"forward": float(forward), "step": float(step), "attention": float(attention)})
