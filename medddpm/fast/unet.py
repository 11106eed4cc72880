"""The fast path's rules for our own network (`unet`): what stands in for the forward of each of its blocks.

Volumes are channels-last throughout. Convolutions run without their bias: it goes, with the timestep, into the shift of
the norm that follows, or into the residual sum. The decoder never concatenates: its blocks take the two tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm import kernels
from medddpm.fast.forward import Forward, Rule, Weight, hooked
from medddpm.fast.layers import Convolution, stand_in
from medddpm.unet import Downsample, ResBlock, timestep_embedding


class Carried(NamedTuple):
    """A volume on its way through the network, and what its next reader is to add to it.

    Args:
        x: (N, C, D, H, W).
        owed: (C,), what is still to be added to every voxel.
    """

    x: Tensor
    owed: Tensor | None = None

    def whole(self) -> Tensor:
        """The volume with nothing owed to it any more."""
        return self.x if self.owed is None else self.x + self.owed.to(self.x.dtype)[:, None, None, None]


def _owed(volume: Carried, other: Carried | None) -> Tensor | None:
    """What is owed to the channels of both together."""
    both = [volume] if other is None else [volume, other]
    if all(each.owed is None for each in both):
        return None
    return torch.cat([each.x.new_zeros(each.x.shape[1]) if each.owed is None else each.owed for each in both])


class ResBlockForward(Forward):
    """norm and SiLU at once, the timestep in the second norm, the skip's 1³ convolution within the sum."""

    what = "residual block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.carries, self.many = "residual" in features, "convolution" in features
        self.first, self.second = Weight(self.module.in_layers[2]), Weight(self.module.out_layers[3])
        self.skip, self.projection = Weight(self.module.skip_connection), Weight(self.module.emb_layers[1])
        layers = (*self.module.in_layers, *self.module.out_layers, self.module.skip_connection)
        self.handled = (self.module.in_layers, self.module.out_layers, *layers, *self.module.emb_layers.modules())

    def compute(self, x: Tensor, emb: Tensor) -> Tensor:
        """x: (N, C, D, H, W); emb: (N, E)."""
        linear = self.module.emb_layers[1]
        h = functional.silu(emb)
        shift = functional.linear(h, self.projection.of(h)) + (linear.bias + self.module.in_layers[2].bias)
        return self.carry(Carried(x), shift).x if self.carries else self._plain(x, shift)

    def carry(self, volume: Carried, shift: Tensor, other: Carried | None = None) -> Carried:
        """The block, its input the channels of `volume` and behind them those of `other`.

        Args:
            volume, other: what is owed to them goes into the first norm's shift and into the sum.
            shift: (N, C), the timestep's and the first convolution's bias.
        """
        block, x = self.module, volume.x
        before, after = block.in_layers, block.out_layers
        beside = None if other is None else other.x
        owed = _owed(volume, other)
        h, x, beside = kernels.kept_group_norm(
            x, before[0].num_groups, before[0].weight, before[0].bias, other=beside, shift=owed
        )
        h = kernels.conv3d(h, self.first.of(h), None, 1, 1, self.many)
        h = kernels.group_norm(h, after[0].num_groups, after[0].weight, after[0].bias, shift=shift)
        h = kernels.conv3d(h, self.second.of(h), None, 1, 1, self.many)
        if self.skip.parameter is None:
            y = kernels.add(h, x, bias=after[3].bias if owed is None else after[3].bias + owed)
        else:
            weight = self.skip.of(x).flatten(1)
            bias = after[3].bias + block.skip_connection.bias
            if owed is not None:
                bias = bias + functional.linear(owed.to(weight.dtype), weight)
            y = kernels.add(h, x, beside, weight=weight, bias=bias)
        return Carried(y)

    def _plain(self, x: Tensor, shift: Tensor) -> Tensor:
        block = self.module
        before, after = block.in_layers, block.out_layers
        h = kernels.group_norm(x, before[0].num_groups, before[0].weight, before[0].bias)
        h = functional.conv3d(h, self.first.of(h), padding=1)
        h = kernels.group_norm(h, after[0].num_groups, after[0].weight, after[0].bias, shift=shift)
        h = functional.conv3d(h, self.second.of(h), after[3].bias.to(h.dtype), padding=1)
        if self.skip.parameter is not None:
            x = functional.conv3d(x, self.skip.of(x), block.skip_connection.bias.to(x.dtype))
        return x + h


class AttentionForward(Forward):
    """Voxels as rows, which channels-last memory has them as, and scaled-dot-product attention over them."""

    what = "attention"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.flash = "attention" in features
        self.qkv, self.out = Weight(self.module.qkv), Weight(self.module.proj_out)
        self.handled = (self.module.norm, self.module.qkv, self.module.proj_out)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns the same shape."""
        block = self.module
        h, x, _ = kernels.kept_group_norm(
            x, block.norm.num_groups, block.norm.weight, block.norm.bias, activation="none"
        )
        n, c = x.shape[:2]
        rows = h.permute(0, 2, 3, 4, 1).reshape(n, 1, -1, c)  # one head
        qkv = functional.linear(rows, self.qkv.of(rows).flatten(1), block.qkv.bias.to(rows.dtype))
        q, k, v = qkv.chunk(3, dim=-1)
        if self.flash:
            h = functional.scaled_dot_product_attention(q, k, v)
        else:
            scale = c**-0.25
            weight = torch.softmax(((q * scale) @ (k * scale).mT).float(), dim=-1)
            h = weight.to(v.dtype) @ v
        h = functional.linear(h, self.out.of(h).flatten(1))
        h = h.reshape(n, *x.shape[2:], c).permute(0, 4, 1, 2, 3)
        return kernels.add(h, x, bias=block.proj_out.bias)


class UpsampleForward(Forward):
    """The trilinear kernels, with their gathered backward."""

    what = "upsampling"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.conv, self.many = Weight(self.module.conv), "convolution" in features
        self.handled = (self.module.conv,)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, 2D, 2H, 2W)."""
        return kernels.conv3d(kernels.upsample(x), self.conv.of(x), self.module.conv.bias, 1, 1, self.many)

    def carry(self, x: Tensor) -> Carried:
        """The same, the convolution's bias still owed."""
        return Carried(
            kernels.conv3d(kernels.upsample(x), self.conv.of(x), None, 1, 1, self.many), self.module.conv.bias
        )


class UNetForward(Forward):
    """The network: its first and last convolution, every timestep's projection at once, and the decoder's pairs.

    A block without a stand-in of its own gets the plain tensor.
    """

    what = "3-D U-Net"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        net = self.module
        self.carries, self.edges = "residual" in features, "edges" in features
        self.first, self.last = Weight(net.input_blocks[0][0]), Weight(net.out[2])
        self.blocks: tuple[Any, ...] = tuple(m for m in net.modules() if type(m) is ResBlock)
        self.handled = (net.input_blocks[0][0], net.out, *net.out)

    def compute(self, x: Tensor, t: Tensor) -> Tensor:
        """As `UNet3D.forward`."""
        net = self.module
        if not net.takes(x):
            return self.original(x, t)  # which says why not
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        emb = net.time_embed(timestep_embedding(t, net.model_channels).to(x.dtype))
        carried = self.carries and any(stand_in(block, ResBlockForward) for block in self.blocks)
        shifts = self._shifts(emb, dtype) if carried else {}

        x = x.to(dtype)
        convolve = kernels.conv3d if self.edges else functional.conv3d
        volume = Carried(convolve(x, self.first.of(x), net.input_blocks[0][0].bias.to(dtype), 1, 1))
        skips = [volume]
        for stage in net.input_blocks[1:]:
            volume = self._through(stage, volume, emb, shifts)
            skips.append(volume)
        volume = self._through(net.middle_block, volume, emb, shifts)
        for stage in net.output_blocks:
            volume = self._through(stage, volume, emb, shifts, skips.pop())
        norm, head = net.out[0], net.out[2]
        x = kernels.group_norm(volume.x, norm.num_groups, norm.weight, norm.bias, shift=volume.owed)
        return convolve(x, self.last.of(x), head.bias.to(dtype), 1, 1)

    def _shifts(self, emb: Tensor, dtype: torch.dtype) -> dict[nn.Module, Tensor]:
        """What each block adds to every voxel before its second norm: one product for the timesteps of all."""
        blocks = {block: forward for block in self.blocks if (forward := stand_in(block, ResBlockForward)) is not None}
        h = functional.silu(emb.to(dtype))
        weight = torch.cat([forward.projection.of(h) for forward in blocks.values()])
        biases = [block.emb_layers[1].bias for block in blocks]
        bias = torch.cat(biases) + torch.cat([block.in_layers[2].bias for block in blocks])
        together = functional.linear(h, weight) + bias
        return dict(zip(blocks, together.split([len(b) for b in biases], dim=1), strict=True))

    def _through(
        self, stage: Any, volume: Carried, emb: Tensor, shifts: dict[nn.Module, Tensor], skip: Carried | None = None
    ) -> Carried:
        """One stage; in the decoder with its skip."""
        for layer in stage:
            block, up = stand_in(layer, ResBlockForward), stand_in(layer, UpsampleForward)
            if block is not None and self.carries:
                volume = block.carry(volume, shifts[layer], skip)
                skip = None
                continue
            x = volume.whole() if skip is None else torch.cat([volume.whole(), skip.whole()], dim=1)
            skip = None
            down = stand_in(layer.op, Convolution) if type(layer) is Downsample and not hooked(layer) else None
            if up is not None and self.carries:
                volume = up.carry(x)
            elif down is not None and self.carries:
                volume = Carried(down.product(x), layer.op.bias)
            else:
                volume = Carried(layer(x, emb) if isinstance(layer, ResBlock) else layer(x))
        return volume


def _where(feature: str, rule: type[ResBlockForward | AttentionForward | UpsampleForward | UNetForward]) -> Rule:
    def asked(module: nn.Module, features: frozenset[str]) -> Forward | None:
        return rule(module, features) if feature in features else None

    return asked


RULES: dict[str, Rule] = {
    "medddpm.unet.UNet3D": _where("norm", UNetForward),
    "medddpm.unet.ResBlock": _where("norm", ResBlockForward),
    "medddpm.unet.AttentionBlock": _where("norm", AttentionForward),
    "medddpm.unet.Upsample": _where("upsample", UpsampleForward),
}
