"""The 3-D U-Net of Med-DDPM (Dorjsembe et al. 2024, doi:10.1109/JBHI.2024.3385504), with the published names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")
GROUPS = 32  # of every group norm, as published


def timestep_embedding(t: Tensor, dim: int, max_period: float = 1000.0) -> Tensor:
    """Returns `[cos(t·f), sin(t·f)]`, `f_k = max_period^(-k / (dim/2))`; the published period is 1000, not 10 000.

    Args:
        t: (N,) timesteps, integer or float.
        dim: even length of the embedding.

    Returns:
        (N, dim) float32.
    """
    half = dim // 2
    exponent = torch.arange(half, dtype=torch.float32, device=t.device) / half
    angle = t.float()[:, None] * torch.exp(-math.log(max_period) * exponent)
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class GroupNorm32(nn.GroupNorm):
    """Group norm whose statistics are taken in float32 whatever the input's dtype; eps 1e-5."""

    def __init__(self, channels: int, groups: int = GROUPS) -> None:
        super().__init__(groups, channels, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W) or (N, C, L). Returns the same shape and dtype."""
        return super().forward(x.float()).to(x.dtype)


def zeroed(layer: nn.Conv3d | nn.Conv1d) -> nn.Conv3d | nn.Conv1d:
    """Sets weight and bias of `layer` to zero, so that each residual branch, and the output, starts at zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ResBlock(nn.Module):
    """norm → SiLU → conv → + timestep → norm → SiLU → conv, plus a skip, which is a 1³ conv if the width changes."""

    def __init__(self, in_channels: int, emb_channels: int, out_channels: int, groups: int = GROUPS) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            GroupNorm32(in_channels, groups),
            nn.SiLU(),
            nn.Conv3d(in_channels, out_channels, 3, padding=1),
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb_channels, out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm32(out_channels, groups),
            nn.SiLU(),
            nn.Dropout(0.0),  # holds the place that gives the convolution its published name, out_layers.3
            zeroed(nn.Conv3d(out_channels, out_channels, 3, padding=1)),
        )
        self.skip_connection = nn.Identity() if in_channels == out_channels else nn.Conv3d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """x: (N, C_in, D, H, W); emb: (N, E). Returns (N, C_out, D, H, W)."""
        h = self.in_layers(x)
        h = h + self.emb_layers(emb)[:, :, None, None, None]
        h = self.out_layers(h)
        return self.skip_connection(x) + h


class AttentionBlock(nn.Module):
    """One head of self-attention over all voxels: softmax(qᵀk/√C), added to its input."""

    def __init__(self, channels: int, groups: int = GROUPS) -> None:
        super().__init__()
        self.norm = GroupNorm32(channels, groups)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = zeroed(nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns the same shape."""
        n, c, *space = x.shape
        x = x.reshape(n, c, -1)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=1)
        scale = c**-0.25  # on both factors: their product then stays in range in half precision too
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)
        weight = torch.softmax(weight.float(), dim=-1).to(v.dtype)
        h = torch.einsum("bts,bcs->bct", weight, v)
        return (x + self.proj_out(h)).reshape(n, c, *space)


class Downsample(nn.Module):
    """Halves each spatial size: conv 3³, stride 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.op = nn.Conv3d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, D/2, H/2, W/2)."""
        return self.op(x)


class Upsample(nn.Module):
    """Doubles each spatial size: trilinear, corners not aligned, then conv 3³."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, 2D, 2H, 2W)."""
        return self.conv(functional.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False))


class Stage(nn.Sequential):
    """One entry of `input_blocks` or `output_blocks`; passes the embedding to the blocks that take it."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:  # type: ignore[override]
        """x: (N, C, D, H, W); emb: (N, E)."""
        for layer in self:
            x = layer(x, emb) if isinstance(layer, ResBlock) else called(layer, layer, x)
        return x


RECOMPUTED = ("none", "attention", "1", "2", "3", "4", "5", "all")
"""The choices of activations that the backward pass computes again: see `UNet3D.recompute`."""


def called(module: nn.Module, function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)`; of a module that `UNet3D.recompute` chose, the backward pass finds only the arguments.

    Activation checkpointing (Chen et al. 2016, arXiv:1604.06174).
    """
    if torch.is_grad_enabled() and getattr(module, "recomputed", False):
        # Nothing in the network draws at random; reading the generators' states would break a CUDA graph's capture.
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)


class UNet3D(nn.Module):
    """ε_θ(x_t ⊕ mask, t): the published network.

    Args:
        image_size: side of the volume the network is configured for; it sets the default widths and which levels have
            attention. Any volume whose sides are multiples of `stride` may be passed in.
        in_channels: noisy image channels plus mask channels.
        out_channels: image channels.
        model_channels: base width, a multiple of `norm_groups`.
        num_res_blocks: residual blocks in each level of the encoder; the decoder has one more.
        channel_mult: width of each level divided by the base; default (1, 2, 3, 4) up to 64, (1, 1, 2, 3, 4) above.
        attention_rates: downsampling rates at which each block is followed by attention; default `image_size // 16`,
            which no level has for 192. The middle always has attention.
        norm_groups: groups of every group norm; published: 32. If a group is a single channel (32 of 32), a norm
            removes a volume's brightness, and the network can hardly learn it.

    Raises:
        ValueError: if the groups do not divide the width.
    """

    def __init__(
        self,
        image_size: int = 128,
        in_channels: int = 3,
        out_channels: int = 1,
        model_channels: int = 64,
        num_res_blocks: int = 1,
        channel_mult: Sequence[int] | None = None,
        attention_rates: Sequence[int] | None = None,
        norm_groups: int = GROUPS,
    ) -> None:
        super().__init__()
        if model_channels % norm_groups:
            raise ValueError(
                f"model_channels is {model_channels}: it must be a multiple of {norm_groups}, the norm's groups"
            )
        if channel_mult is None:
            channel_mult = (1, 2, 3, 4) if image_size <= 64 else (1, 1, 2, 3, 4)
        if attention_rates is None:
            attention_rates = (image_size // 16,)
        self.image_size = image_size
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.model_channels = model_channels
        self.num_res_blocks = num_res_blocks
        self.channel_mult = tuple(channel_mult)
        self.attention_rates = tuple(attention_rates)
        self.norm_groups = norm_groups
        widths = [model_channels * m for m in self.channel_mult]
        emb_channels = 4 * model_channels

        self.time_embed = nn.Sequential(
            nn.Linear(model_channels, emb_channels),
            nn.SiLU(),
            nn.Linear(emb_channels, emb_channels),
        )

        self.input_blocks = nn.ModuleList([Stage(nn.Conv3d(in_channels, model_channels, 3, padding=1))])
        skips = [model_channels]  # width of each encoder output, for the decoder to take back in reverse
        channels = model_channels
        for level, width in enumerate(widths):
            for _ in range(num_res_blocks):
                stage = Stage(ResBlock(channels, emb_channels, width, norm_groups))
                if 2**level in self.attention_rates:
                    stage.append(AttentionBlock(width, norm_groups))
                self.input_blocks.append(stage)
                skips.append(width)
                channels = width
            if level < len(widths) - 1:
                self.input_blocks.append(Stage(Downsample(channels)))
                skips.append(channels)

        self.middle_block = Stage(
            ResBlock(channels, emb_channels, channels, norm_groups),
            AttentionBlock(channels, norm_groups),
            ResBlock(channels, emb_channels, channels, norm_groups),
        )

        self.output_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for block in range(num_res_blocks + 1):
                stage = Stage(ResBlock(channels + skips.pop(), emb_channels, width, norm_groups))
                if 2**level in self.attention_rates:
                    stage.append(AttentionBlock(width, norm_groups))
                if level > 0 and block == num_res_blocks:
                    stage.append(Upsample(width))
                self.output_blocks.append(stage)
                channels = width

        self.out = nn.Sequential(
            GroupNorm32(channels, norm_groups),
            nn.SiLU(),
            zeroed(nn.Conv3d(channels, out_channels, 3, padding=1)),
        )

    @property
    def stride(self) -> int:
        """Every side of a volume must be a multiple of this: the encoder halves it `levels - 1` times."""
        return 2 ** (len(self.channel_mult) - 1)

    @property
    def config(self) -> dict[str, int | list[int]]:
        """The constructor's arguments as plain numbers, from which a checkpoint builds the network again."""
        return {
            "image_size": self.image_size,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "model_channels": self.model_channels,
            "num_res_blocks": self.num_res_blocks,
            "channel_mult": list(self.channel_mult),
            "attention_rates": list(self.attention_rates),
            "norm_groups": self.norm_groups,
        }

    def recompute(self, activations: str) -> None:
        """Chooses activations that the backward pass computes again instead of storing; results do not change.

        Args:
            activations: "none"; "attention": those inside attention; "1", "2", …: those inside the blocks of that many
                finest levels; "all": those inside every block.

        Raises:
            ValueError: `activations` is none of `RECOMPUTED`.
        """
        if activations not in RECOMPUTED:
            raise ValueError(f"recompute is {activations!r}: it must be one of {', '.join(RECOMPUTED)}")
        levels = int(activations) if activations.isdecimal() else len(self.channel_mult) if activations == "all" else 0
        down: list[Any] = list(self.input_blocks)
        up: list[Any] = list(self.output_blocks)
        level, of_down = 0, []
        for stage in down:
            of_down.append(level)
            level += isinstance(stage[0], Downsample)
        of_up = [level - place // (self.num_res_blocks + 1) for place in range(len(up))]
        for stage, stage_level in zip(down + up, of_down + of_up, strict=True):
            stage.recomputed = isinstance(stage[0], ResBlock) and stage_level < levels
        middle: Any = self.middle_block
        middle.recomputed = activations == "all"
        for module in self.modules():
            if isinstance(module, AttentionBlock):
                attention: Any = module
                attention.recomputed = activations == "attention"

    def takes(self, x: Tensor) -> bool:
        """Returns whether `x` is (N, in_channels, D, H, W) with sides that are multiples of `stride`."""
        return x.dim() == 5 and x.shape[1] == self.in_channels and not any(side % self.stride for side in x.shape[2:])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predicts the noise in `x`.

        Args:
            x: (N, in_channels, D, H, W), the noisy image followed by the mask's channels.
            t: (N,) timesteps.

        Returns:
            (N, out_channels, D, H, W), of x's dtype.

        Raises:
            ValueError: if the network does not take this shape.
        """
        if not self.takes(x):
            raise ValueError(
                f"x is {tuple(x.shape)}: this network takes (N, {self.in_channels}, D, H, W), channels of the noisy "
                f"image and the mask together, with D, H and W multiples of {self.stride}"
            )
        emb = self.time_embed(timestep_embedding(t, self.model_channels).to(x.dtype))

        skips = []
        for stage in self.input_blocks:
            x = called(stage, stage, x, emb)
            skips.append(x)

        x = called(self.middle_block, self.middle_block, x, emb)

        for stage in self.output_blocks:
            x = called(stage, stage, torch.cat([x, skips.pop()], dim=1), emb)
        return self.out(x)


def config_from_tensors(tensors: Mapping[str, Tensor]) -> dict[str, int | list[int]]:
    """Reads `UNet3D.config` from a published state dict, whose shapes tell the widths, the levels and the attention.

    They do not tell the image size. It is set to the published one that puts attention where these tensors have it (192
    if no level has any), which changes nothing in the network built.

    Raises:
        KeyError: if a name that the network always has is missing.
    """
    base, in_channels = tensors["input_blocks.0.0.weight"].shape[:2]
    mult: list[int] = []
    rates: list[int] = []
    blocks = 0
    index = 1
    while any(name.startswith(f"input_blocks.{index}.0.") for name in tensors):
        if f"input_blocks.{index}.0.op.weight" in tensors:
            blocks = 0
        else:
            width = tensors[f"input_blocks.{index}.0.out_layers.3.weight"].shape[0]
            if blocks == 0:
                mult.append(width // base)
            blocks += 1
            rate = 2 ** (len(mult) - 1)
            if f"input_blocks.{index}.1.qkv.weight" in tensors and rate not in rates:
                rates.append(rate)
        index += 1
    return {
        "image_size": 16 * rates[0] if rates else 192,
        "in_channels": in_channels,
        "out_channels": tensors["out.2.weight"].shape[0],
        "model_channels": base,
        "num_res_blocks": blocks,
        "channel_mult": mult,
        "attention_rates": rates,
    }
