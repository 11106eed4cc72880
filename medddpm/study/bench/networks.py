"""The networks that `medddpm bench` measures: ours, and other people's as their users build them.

Weights and batches are drawn on the CPU from fixed seeds, so that every row of the bench computes the same function of
the same numbers. Convolutions that start at zero get ordinary weights: no distance is defined from a network that
returns zero.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.unet import UNet3D

SEED = 0
TIMESTEPS = 250
CLASSES = 3  # of a segmentation
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
        flat: whether the first side is three quarters of the others, as in BraTS's volumes.
    """

    name: str
    title: str
    build: Callable[[int, int], nn.Module]
    batch: int = 1
    side: int = 128
    image_channels: int = 1
    mask_channels: int = 0
    flat: bool = False

    @property
    def denoises(self) -> bool:
        """Whether it belongs to a diffusion model and is called with timesteps."""
        return self.mask_channels > 0

    @property
    def ours(self) -> bool:
        """Whether it is this book's own."""
        return self.name.startswith("med-ddpm")

    def sides(self, side: int) -> Sides:
        """The shape (D, H, W) of its volumes at `side`."""
        return (max(16 * (side * 3 // 64), 8) if self.flat else side, side, side)

    def size(self, side: int) -> str:
        """The shape of its volumes at `side` as the record writes it: 144x192x192."""
        return "x".join(map(str, self.sides(side)))


def _ours(side: int, channels: int) -> nn.Module:
    return UNet3D(image_size=side, in_channels=3, out_channels=1, model_channels=channels)


def _ours_brats(side: int, channels: int) -> nn.Module:
    return UNet3D(image_size=side, in_channels=8, out_channels=4, model_channels=channels, num_res_blocks=2)


def _monai_diffusion(_side: int, channels: int, attention: bool = False) -> nn.Module:
    return imported("monai.networks.nets", "DiffusionModelUNet")(
        spatial_dims=3,
        in_channels=3,
        out_channels=1,
        channels=tuple(channels * m for m in (1, 1, 2, 3, 4)),
        num_res_blocks=1,
        attention_levels=(False, False, False, attention, attention),
        num_head_channels=channels,
    )


def _monai_unet(side: int, channels: int) -> nn.Module:
    widths = _widths(side, channels)
    return imported("monai.networks.nets", "UNet")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        channels=widths,
        strides=[2] * (len(widths) - 1),
        num_res_units=2,
    )


def _monai_dynunet(side: int, channels: int) -> nn.Module:
    widths = _widths(side, channels)
    strides = [1] + [2] * (len(widths) - 1)
    return imported("monai.networks.nets", "DynUNet")(
        spatial_dims=3,
        in_channels=1,
        out_channels=CLASSES,
        kernel_size=[3] * len(widths),
        strides=strides,
        upsample_kernel_size=strides[1:],
        filters=widths,
    )


def nnunet(side: int, channels: int, residual: bool = False) -> nn.Module:
    """nnU-Net's plan for a patch of 128³: instance norm, leaky ReLU, convolutions with a bias.

    Args:
        side: of the volume; six stages at 128.
        channels: twice the first stage's width; the last has up to ten times that.
        residual: whether it is `ResidualEncoderUNet`, in place of `PlainConvUNet`.
    """
    widths = _widths(side, channels)
    stages = len(widths)
    kind = "ResidualEncoderUNet" if residual else "PlainConvUNet"
    encoder = {"n_blocks_per_stage": (1, 3, 4, 6, 6, 6)[:stages]} if residual else {"n_conv_per_stage": (2,) * stages}
    return imported("dynamic_network_architectures.architectures.unet", kind)(
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
        deep_supervision=False,
    )


def _widths(side: int, channels: int) -> list[int]:
    """nnU-Net's widths: 32 to 320 for a base of 64, in stages down to 4 voxels a side; six stages at 128³."""
    stages = max(2, min(6, side.bit_length() - 2))
    return [min(channels // 2 * 2**level, 5 * channels) for level in range(stages)]


def imported(module: str, name: str) -> Callable[..., nn.Module]:
    """A class or function of another package.

    Raises:
        BadInput: the package is not installed.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        package = str(error.name).partition(".")[0].replace("_", "-")
        remedy = f"pip install --no-deps {package} einops"  # nnU-Net's asks for packages that would change torch
        raise BadInput("--network", f"{name} needs the package {package}", remedy) from None


_all = (
    Network("med-ddpm", "Med-DDPM", _ours, mask_channels=2),
    Network("monai-diffusion", "MONAI DiffusionModelUNet", _monai_diffusion, mask_channels=2),
    Network(
        "monai-diffusion-attention",
        "MONAI DiffusionModelUNet, attention",
        functools.partial(_monai_diffusion, attention=True),
        mask_channels=2,
    ),
    Network("monai-unet", "MONAI UNet", _monai_unet, batch=2),
    Network("monai-dynunet", "MONAI DynUNet", _monai_dynunet, batch=2),
    Network("nnunet-plain", "nnU-Net PlainConvUNet", nnunet, batch=2),
    Network("nnunet-residual", "nnU-Net ResidualEncoderUNet", functools.partial(nnunet, residual=True), batch=2),
    Network("med-ddpm-brats", "Med-DDPM, BraTS", _ours_brats, side=192, image_channels=4, mask_channels=4, flat=True),
)
NETWORKS: Mapping[str, Network] = MappingProxyType({network.name: network for network in _all})
"""Every network by its name, in the order of the record."""


def build(network: Network, side: int, channels: int) -> nn.Module:
    """The network on the CPU, in training mode, its weights drawn from `SEED`; no layer is left at zero.

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
            problem = f"{network.name} cannot be built with {channels} at {side}: {str(error).splitlines()[0]}"
            raise BadInput("--channels", problem, "choose a multiple of 32, and a side that is a power of 2") from None
        for module in made.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv3d, nn.Linear)) and not module.weight.any():
                module.reset_parameters()
    return made.train()


class Problem:
    """One fixed batch for a network, and the loss it is trained with.

    Args:
        network: the network.
        side, batch: the volumes' side in voxels, and their number.
        device: where the batch goes; it is drawn on the CPU, except on "meta", where nothing is drawn.

    Attributes:
        inputs: the tensors of a training step, (N, C, D, H, W) in float32: image, mask, timesteps (N,) in int64 and
            noise for a diffusion model; volume and target for a segmentation network.
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
            self.inputs = normal(network.image_channels), normal(CLASSES)

    def forward_inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the network alone."""
        if not self.network.denoises:
            return self.inputs[:1]
        image, mask, t, noise = self.inputs
        return torch.cat([self.schedule.add_noise(image, t, noise), mask], dim=1), t

    def loss(self, model: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, a scalar, and the network's output.

        A diffusion model has its own, mean |ε − ε_θ|; a segmentation network gets a mean square, because its real loss
        costs little and says nothing about the network.

        Args:
            model: the network under a setting.
            inputs: tensors like those of `inputs`.
        """
        if self.network.denoises:
            image, mask, t, noise = inputs
            output: Tensor = model(torch.cat([self.schedule.add_noise(image, t, noise), mask], dim=1), t)
            return (noise - output).abs().mean(), output
        output = model(inputs[0])
        return (output - inputs[1]).square().mean(), output

    @property
    def mask(self) -> Tensor:
        """The masks (N, C, D, H, W) that a diffusion model samples for."""
        return self.inputs[1]


@functools.lru_cache(maxsize=64)
def flops(network: Network, side: int, batch: int, channels: int) -> Mapping[str, float]:
    """FLOPs of a forward pass and of a training step, for the network as it is written; a multiply-add counts two.

    They are counted from shapes alone. The step includes its backward pass; anything that a setting computes beyond
    that does not count.
    """
    device = torch.device("meta")
    with device:
        model = network.build(side, channels)
    problem = Problem(network, side, batch, device)
    with FlopCounterMode(display=False) as counter:
        loss, _ = problem.loss(model, *problem.inputs)
        forward = counter.get_total_flops()
        loss.backward()
    return MappingProxyType({"forward": float(forward), "step": float(counter.get_total_flops())})
