"""The fast path's rules for MONAI's blocks: those of its `UNet`, `BasicUNet`, `DynUNet`,
`DiffusionModelUNet` and `VoxelMorph`.

Written against MONAI 1.5 and 1.6. A stand-in computes what its block's own `forward` does, neighbours in one kernel.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.attention import CrossAttention, SelfAttention, WindowAttention, rows, volume
from medddpm.fast.forward import Forward, Rule, autocast_dtype
from medddpm.fast.kernels.add import add
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.layers import IDLE, Convolution, idle, stand_in
from medddpm.fast.norm_chains import Chain, Norm, activations_behind_norms, joined, known, run, summed


class Layers(Chain):
    """`Convolution` and `ADN`: sequences of a convolution, a norm, a dropout and an activation in any order."""

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module, features)
        if not self.handled:
            self.what = ""  # nothing is computed together: not worth a line in the report


class DynUNetBlock(Forward):
    """`UnetBasicBlock` and `UnetResBlock`: the second has a residual before its last activation."""

    what = "convolution block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.sums = "residual" in features
        self.handled = activations_behind_norms(cast(nn.Module, module.norm1), cast(nn.Module, module.lrelu))

    def compute(self, inp: Tensor) -> Tensor:
        """inp: (N, C_in, D, H, W). Returns (N, C_out, …)."""
        block: Any = self.module
        h = run([block.conv1, block.norm1, block.lrelu], inp)
        if type(block).__name__ == "UnetBasicBlock":
            return run([block.conv2, block.norm2, block.lrelu], h)
        beside = [getattr(block, name) for name in ("conv3", "norm3") if hasattr(block, name)]
        last = [block.conv2, block.norm2]
        if beside and not all(idle(m) for m in block.conv2.modules() if type(m) in IDLE):
            h = last.pop(0)(h)  # it drops values before the residual does: a seed drops the same
        residual = run(beside, inp) if beside else inp
        return joined(last, h, residual, block.lrelu, self.sums)


class DynUNet(Forward):
    """`DynUNet`: in training it leaves the outputs of its heads in a list of its own, which keeps their memory.

    Here the list is as it was when the call ends: a network whose attributes change is replayed from no CUDA graph.
    """

    def compute(self, x: Tensor) -> Any:
        """x: (N, C_in, D, H, W). Returns (N, C_out, …), with deep supervision in training (N, heads + 1, C_out, …)."""
        network: Any = self.module
        heads = list(network.heads)
        try:
            return self.original(x)
        finally:
            network.heads[:] = heads


class ResidualUnit(Forward):
    """`ResidualUnit`: the sum behind the last layer takes that layer's bias, where it is a convolution."""

    what = "residual block"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C_in, D, H, W). Returns (N, C_out, …)."""
        unit: Any = self.module
        return joined([unit.conv], x, unit.residual(x), None, True)


class ResnetBlock(Forward):
    """`DiffusionUNetResnetBlock`: the timestep in the second norm, the 1³ convolution of the skip in the sum."""

    what = "residual block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.sums = "residual" in features
        self.handled = (cast(nn.Module, module.nonlinearity),)

    def compute(self, x: Tensor, emb: Tensor, other: Tensor | None = None) -> Tensor:
        """x: (N, C, D, H, W), with the channels of `other` behind its own where that is given; emb: (N, E)."""
        block: Any = self.module
        norm = stand_in(block.norm1, Norm)
        resampled = block.upsample is not None or block.downsample is not None
        apart = self.sums and not resampled and pointwise(block.skip_connection) and alone(block.conv2)
        if other is not None and not apart:
            x, other = torch.cat([x, other], dim=1), None
        if norm is None or not norm.takes(x, other) or known(block.nonlinearity, 1).get("activation") != "silu":
            return self.original(x if other is None else torch.cat([x, other], dim=1), emb)
        h, x, other = norm.and_inputs(x, other, block.nonlinearity)
        if block.upsample is not None:
            x, h = block.upsample(x), block.upsample(h)
        elif block.downsample is not None:
            x, h = block.downsample(x), block.downsample(h)
        shift = block.time_emb_proj(block.nonlinearity(emb))
        h = run([block.conv1, block.norm2, block.nonlinearity], h, shift=shift)
        if not self.sums:
            return block.skip_connection(x) + block.conv2(h)
        return with_skip(block.conv2, h, block.skip_connection, x, other)


class Warp(Forward):
    """`Warp`: its grid is computed on the device, in float32 at least.

    MONAI makes the grid of voxel coordinates on the host at each call, for its test whether the grid that it keeps fits
    compares the dimension of the coordinates too; and it keeps the grid in an attribute, which no CUDA graph replays.
    In BF16 coordinates from 128 on would be those of whole voxels.
    """

    what = "warp"

    def fits(self) -> bool:
        """Returns whether PyTorch's `grid_sample` samples, at a grid without jitter."""
        layer = self.module
        return not layer.jitter and isinstance(layer._interp_mode, str) and isinstance(layer._padding_mode, str)

    def compute(self, image: Tensor, ddf: Tensor) -> Tensor:
        """image: (N, C, …) in two or three dimensions; ddf: displacements in voxels, (N, 2 or 3, …)."""
        sides = image.shape[2:]
        if len(sides) not in (2, 3) or ddf.shape != (len(image), len(sides), *sides):
            return self.original(image, ddf)  # which says so
        dtype = torch.promote_types(ddf.dtype, torch.float32)
        if image.dtype != dtype and autocast_dtype(image.device.type) is None:
            return self.original(image, ddf)
        places = []
        for axis, side in enumerate(sides):
            line = torch.arange(side, device=ddf.device, dtype=dtype)
            place = line.reshape(-1, *[1] * (len(sides) - 1 - axis)) + ddf[:, axis].to(dtype)
            places.append(place * 2 / max(side - 1, 1) - 1)
        layer = self.module
        return functional.grid_sample(
            image, torch.stack(places[::-1], dim=-1), layer._interp_mode, layer._padding_mode, align_corners=True
        )


def with_skip(final: nn.Module, h: Tensor, skip: nn.Module, x: Tensor, other: Tensor | None = None) -> Tensor:
    """Computes `final(h) + skip([x, other])`, the end of a residual block.

    Args:
        final: MONAI's `Convolution`, or any chain of layers.
        h: its input.
        skip: nn.Identity, or another chain; a 1³ convolution is computed within the sum.
        x: (N, C, D, H, W).
        other: (N, C_other, D, H, W), its channels behind those of x; only where `pointwise` knows the skip, and `alone`
            the final convolution.
    """
    beside, conv = pointwise(skip), alone(final)
    if beside is None or conv is None:
        return joined([final], h, skip(x), None, True)
    h = conv.product(h)
    bias, more = conv.bias.parameter, beside.bias.parameter
    bias = more if bias is None else bias if more is None else bias + more
    other = None if other is None else other.to(h.dtype)
    return add(h, channels_last(x.to(h.dtype)), other, weight=beside.weight.of(h).flatten(1), bias=bias)


def pointwise(layer: nn.Module) -> Convolution | None:
    """Returns the stand-in of the convolution in MONAI's `Convolution` if that is a 1³ convolution and nothing else."""
    conv = alone(layer)
    return conv if conv is not None and conv.pointwise else None


def alone(layer: nn.Module) -> Convolution | None:
    """Returns the stand-in of the convolution in MONAI's `Convolution` if there is nothing else in it."""
    if stand_in(layer, Chain) is None or len(layer._modules) != 1:
        return None
    return stand_in(getattr(layer, "conv", None), Convolution)


class DownBlock(Forward):
    """`AttnDownBlock`, `CrossAttnDownBlock`: the same steps, but the layout survives an attention."""

    what = "level with attention"

    def compute(
        self, hidden_states: Tensor, temb: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """hidden_states: (N, C, D, H, W); temb: (N, E); context: (N, L, E'). Returns the last and every output."""
        level: Any = self.module
        outputs = []
        for resnet, attention in zip(level.resnets, level.attentions, strict=False):
            hidden_states = _attended(attention, resnet(hidden_states, temb), context)
            outputs.append(hidden_states)
        if level.downsampler is not None:
            hidden_states = level.downsampler(hidden_states, temb)
            outputs.append(hidden_states)
        return hidden_states, outputs


class MiddleBlock(Forward):
    """`AttnMidBlock`, `CrossAttnMidBlock`."""

    what = "level with attention"

    def compute(self, hidden_states: Tensor, temb: Tensor, context: Tensor | None = None) -> Tensor:
        """Arguments as in `DownBlock`. Returns the output."""
        level: Any = self.module
        h = level.resnet_1(hidden_states, temb)
        return level.resnet_2(_attended(level.attention, h, context), temb)


class UpBlock(Forward):
    """`UpBlock`, `AttnUpBlock`, `CrossAttnUpBlock`: residual blocks get the two tensors without concatenation."""

    what = "level of the decoder"

    def compute(
        self, hidden_states: Tensor, res_hidden_states_list: list[Tensor], temb: Tensor, context: Tensor | None = None
    ) -> Tensor:
        """Arguments as in `DownBlock`, and the encoder's outputs at this level, of which the last is used first."""
        level: Any = self.module
        h, skips = hidden_states, list(res_hidden_states_list)
        attentions = getattr(level, "attentions", None) or [None] * len(level.resnets)
        for resnet, attention in zip(level.resnets, attentions, strict=False):
            skip = skips.pop()
            block = stand_in(resnet, ResnetBlock)
            h = resnet(torch.cat([h, skip], dim=1), temb) if block is None else block(h, temb, skip)
            if attention is not None:
                h = _attended(attention, h, context)
        return h if level.upsampler is None else level.upsampler(h, temb)


def _attended(attention: nn.Module, h: Tensor, context: Tensor | None) -> Tensor:
    if type(attention).__name__ == "SpatialTransformer":
        return attention(h, context=context)
    return attention(h)


class UpCat(Forward):
    """`UpCat` of `BasicUNet`: it replicates a border of no voxels too, which copies the map into contiguous memory."""

    def compute(self, x: Tensor, x_e: Tensor | None) -> Tensor:
        """x: (N, C_in, D, H, W); x_e: (N, C, …) of twice the size, or one voxel more where it is odd; or None."""
        block: Any = self.module
        up = block.upsample(x)
        if x_e is None:
            return block.convs(up)
        missing = [int(there != here) for there, here in zip(x_e.shape[2:], up.shape[2:], strict=True)]
        if block.is_pad and any(missing):
            up = functional.pad(up, [voxels for more in reversed(missing) for voxels in (0, more)], "replicate")
        return block.convs(torch.cat([x_e, up], dim=1))


class SpatialAttention(Forward):
    """`SpatialAttentionBlock`: channels-last memory already holds voxels as rows."""

    what = "attention"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns the same shape."""
        block: Any = self.module
        norm = stand_in(block.norm, Norm)
        if norm is None or not norm.takes(x):
            return self.original(x)
        h, x, _ = norm.and_inputs(x)
        return summed(volume(block.attn(rows(h)), x), x)


class Transformer(Forward):
    """`SpatialTransformer`: between two 1³ convolutions, transformer blocks over the voxels."""

    what = "attention"

    def compute(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """x: (N, C, D, H, W); context: (N, L, E). Returns x's shape."""
        block: Any = self.module
        norm = stand_in(block.norm, Norm)
        if norm is None or not norm.takes(x):
            return self.original(x, context)
        h, x, _ = norm.and_inputs(x)
        h = rows(block.proj_in(h))
        for layer in block.transformer_blocks:
            h = layer(h, context=context)
        return joined([block.proj_out], volume(h, x), x, None, True)


def _when(kind: type[Forward], *needed: str) -> Rule:
    """Returns the rule that gives `kind` if these features are on and the block works on volumes."""

    def rule(module: nn.Module, features: frozenset[str]) -> Forward | None:
        block: Any = module
        first = block.resnets[0] if hasattr(block, "resnets") else getattr(block, "resnet_1", block)
        if not features.issuperset(needed) or getattr(first, "spatial_dims", 3) != 3:
            return None
        return cast(Any, kind)(module, features)

    return rule


RULES: dict[str, Rule] = {
    "monai.networks.blocks.acti_norm.ADN": _when(Layers, "norm"),
    "monai.networks.blocks.convolutions.Convolution": _when(Layers, "norm"),
    "monai.networks.blocks.convolutions.ResidualUnit": _when(ResidualUnit, "norm", "residual"),
    "monai.networks.blocks.crossattention.CrossAttentionBlock": _when(CrossAttention, "attention"),
    "monai.networks.blocks.dynunet_block.UnetBasicBlock": _when(DynUNetBlock, "norm"),
    "monai.networks.blocks.dynunet_block.UnetResBlock": _when(DynUNetBlock, "norm"),
    "monai.networks.blocks.selfattention.SABlock": _when(SelfAttention, "attention"),
    "monai.networks.blocks.spatialattention.SpatialAttentionBlock": _when(SpatialAttention, "norm"),
    "monai.networks.blocks.warp.Warp": _when(Warp, "upsample"),
    "monai.networks.nets.basic_unet.UpCat": _when(UpCat),
    "monai.networks.nets.diffusion_model_unet.AttnDownBlock": _when(DownBlock),
    "monai.networks.nets.diffusion_model_unet.AttnMidBlock": _when(MiddleBlock),
    "monai.networks.nets.diffusion_model_unet.AttnUpBlock": _when(UpBlock),
    "monai.networks.nets.diffusion_model_unet.CrossAttnDownBlock": _when(DownBlock),
    "monai.networks.nets.diffusion_model_unet.CrossAttnMidBlock": _when(MiddleBlock),
    "monai.networks.nets.diffusion_model_unet.CrossAttnUpBlock": _when(UpBlock),
    "monai.networks.nets.diffusion_model_unet.DiffusionUNetResnetBlock": _when(ResnetBlock, "norm"),
    "monai.networks.nets.diffusion_model_unet.SpatialTransformer": _when(Transformer, "norm"),
    "monai.networks.nets.diffusion_model_unet.UpBlock": _when(UpBlock),
    "monai.networks.nets.dynunet.DynUNet": _when(DynUNet),
    "monai.networks.nets.swin_unetr.WindowAttention": _when(WindowAttention, "attention"),
}
