"""A small diffusion U-Net of ConvNeXt blocks (Liu et al. 2022) for images of 3×32×32, of the report's operators.

The report names its operators and CIFAR-10, and no width, depth or number of steps. Widths of 64 are *derived*: at
32×32 a block of 64 channels has 36.9 million multiply-adds, and its Table V gives a CPU 32.5 ms for one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-6  # of ConvNeXt's layer norms
KERNEL = 7  # side of a block's depthwise convolution
EXPANSION = 4  # hidden channels of a block divided by its own


class ConvNeXtBlock(nn.Module):
    """x + project(gelu(expand(norm(depthwise(x) + shift)))): the block of Liu et al. 2022 with a shift by the timestep.

    Args:
        channels: C.
        time_channels: width of the embedded timestep.
    """

    def __init__(self, channels: int, time_channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, KERNEL, padding=KERNEL // 2, groups=channels)
        self.shift = nn.Linear(time_channels, channels)
        self.norm = nn.LayerNorm(channels, EPSILON)
        self.expand = nn.Linear(channels, EXPANSION * channels)
        self.project = nn.Linear(EXPANSION * channels, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Computes the block: x (N, C, H, W), time (N, time_channels) to (N, C, H, W)."""
        return self.body(x, self.shift(time))

    def body(self, x: Tensor, shift: Tensor) -> Tensor:
        """Computes the part that the fused kernels compute: x (N, C, H, W) and shift (N, C) to (N, C, H, W)."""
        inner = (self.depthwise(x) + shift[:, :, None, None]).permute(0, 2, 3, 1)
        inner = self.project(functional.gelu(self.expand(self.norm(inner))))
        return x + inner.permute(0, 3, 1, 2)


class ConvNeXtUNet(nn.Module):
    """ε_θ(x_t, t) of 2-D images.

    Args:
        channels: of an image.
        widths: channels of each level; the side of the image is halved between levels.
    """

    def __init__(self, channels: int = 3, widths: Sequence[int] = (64, 128, 128)) -> None:
        super().__init__()
        self.out_channels = channels
        time = 4 * widths[0]
        self.embed, self.mix = nn.Linear(widths[0], time), nn.Linear(time, time)
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.encoder = nn.ModuleList(ConvNeXtBlock(width, time) for width in widths[:-1])
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(wide, next_, 3, stride=2, padding=1) for wide, next_ in pairs)
        self.middle = ConvNeXtBlock(widths[-1], time)
        self.up = nn.ModuleList(nn.Conv2d(wide + next_, wide, 3, padding=1) for wide, next_ in reversed(pairs))
        self.decoder = nn.ModuleList(ConvNeXtBlock(width, time) for width in reversed(widths[:-1]))
        self.norm = nn.LayerNorm(widths[0], EPSILON)
        self.head = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predicts the noise in x (N, C, H, W), whose sides halve evenly at each level, at t (N,)."""
        time = self.embed(embedded(t, self.embed.in_features).to(x.dtype))
        time = self.mix(time * torch.sigmoid(time))
        x = self.stem(x)
        skips = []
        for block, down in zip(self.encoder, self.down, strict=True):
            x = block(x, time)
            skips.append(x)
            x = down(x)
        x = self.middle(x, time)
        for up, block in zip(self.up, self.decoder, strict=True):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(up(torch.cat([x, skips.pop()], dim=1)), time)
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(functional.relu(x))


def embedded(t: Tensor, channels: int) -> Tensor:
    """Returns the sines and cosines of a timestep (Vaswani et al. 2017): t (N,) to (N, channels) float32."""
    half = channels // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=t.device))
    angles = t.float()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class AtDepthOne(nn.Module):
    """A 2-D network as `medddpm.diffusion` calls one: images are volumes (N, C, 1, H, W), and there is no mask.

    Args:
        network: of 2-D images.
    """

    def __init__(self, network: ConvNeXtUNet) -> None:
        super().__init__()
        self.network = network
        self.out_channels = network.out_channels

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predicts the noise in x (N, C, 1, H, W) at t (N,)."""
        noise: Tensor = self.network(x[:, :, 0], t)
        return noise[:, :, None]
