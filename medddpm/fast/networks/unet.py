"""The fast path's rules for our own network (`unet`): a stand-in for each kind of block.

Volumes are channels-last throughout. Convolutions omit their bias, which goes with the timestep into the shift of the
next norm, or into the residual sum. The decoder never concatenates: its blocks take the two tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.forward import Forward, Rule, Weight, hooked
from medddpm.fast.kernels.add import add
from medddpm.fast.kernels.conv3d import conv3d
from medddpm.fast.kernels.layout import over_voxels
from medddpm.fast.kernels.norm import NormArguments, group_norm, group_norm_and_inputs
from medddpm.fast.kernels.upsample import upsample
from medddpm.fast.layers import Convolution, idle, stand_in


def _unet() -> Any:
    """Returns the module `medddpm.unet`: it is imported, as a rule has met one of its classes."""
    return sys.modules["medddpm.unet"]


class Carried(NamedTuple):
    """A volume on its way through the network, and a bias that its next reader must add.

    Args:
        x: (N, C, D, H, W).
        owed: (C,), still to be added to every voxel.
    """

    x: Tensor
    owed: Tensor | None = None

    def whole(self) -> Tensor:
        """Returns the volume with the bias added."""
        return self.x if self.owed is None else self.x + over_voxels(self.owed, self.x.dtype)


def _owed(volume: Carried, other: Carried | None) -> Tensor | None:
    """Returns what is owed to the channels of both volumes together."""
    both = [volume] if other is None else [volume, other]
    if all(each.owed is None for each in both):
        return None
    return torch.cat([each.x.new_zeros(each.x.shape[1]) if each.owed is None else each.owed for each in both])


def _norm(x: Tensor, layer: nn.GroupNorm, **beside: Any) -> NormArguments:
    return NormArguments(x, layer.num_groups, layer.weight, layer.bias, eps=layer.eps, **beside)


def _is(layers: Any, *kinds: type[nn.Module]) -> bool:
    """Returns whether this is a sequence of layers of these kinds, as the network makes it."""
    return type(layers) is nn.Sequential and tuple(map(type, layers._modules.values())) == kinds


def _norms(layer: nn.Module) -> bool:
    parameters = layer._parameters
    return type(layer) is _unet().GroupNorm32 and parameters.get("weight") is not None is not parameters.get("bias")


def _convolves(layer: Any, of: Weight, side: int) -> bool:
    """Returns whether `layer` is the convolution with the weight `of` and the network's options: side³, same size."""
    if layer is not of.module or not (type(layer) is nn.Conv3d or type(layer) is nn.Conv1d) or layer.bias is None:
        return False
    dims = len(layer.kernel_size)
    options = (layer.kernel_size, layer.padding, layer.stride, layer.dilation, layer.groups, layer.padding_mode)
    return options == ((side,) * dims, (side // 2,) * dims, (1,) * dims, (1,) * dims, 1, "zeros")


class ResBlockForward(Forward):
    """Norm and SiLU at once, the timestep in the second norm, the skip's 1³ convolution within the sum."""

    what = "residual block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.carries, self.hopper = "residual" in features, "hopper" in features
        self.first, self.second = Weight(self.module.in_layers[2]), Weight(self.module.out_layers[3])
        self.skip, self.projection = Weight(self.module.skip_connection), Weight(self.module.emb_layers[1])
        layers = (*self.module.in_layers, *self.module.out_layers, self.module.skip_connection)
        layers = tuple(layer for layer in layers if type(layer) is not nn.Dropout)  # which may begin to drop
        self.handled = (self.module.in_layers, self.module.out_layers, *layers, *self.module.emb_layers.modules())

    @staticmethod
    def made_of(block: Any) -> bool:
        """Returns whether it has the layers that the network makes."""
        return (
            _is(block.in_layers, _unet().GroupNorm32, nn.SiLU, nn.Conv3d)
            and _is(block.out_layers, _unet().GroupNorm32, nn.SiLU, nn.Dropout, nn.Conv3d)
            and _is(block.emb_layers, nn.SiLU, nn.Linear)
        )

    def fits(self) -> bool:
        """Returns whether it has the layers that the network makes, with their options."""
        block = self.module
        if not self.made_of(block):
            return False
        before, after, embed, skip = block.in_layers, block.out_layers, block.emb_layers, block.skip_connection
        return (
            _norms(before[0])
            and _norms(after[0])
            and idle(after[2])
            and embed[1] is self.projection.module
            and embed[1].bias is not None
            and _convolves(before[2], self.first, 3)
            and _convolves(after[3], self.second, 3)
            and skip is self.skip.module
            and (type(skip) is nn.Identity or _convolves(skip, self.skip, 1))
        )

    def compute(self, x: Tensor, emb: Tensor) -> Tensor:
        """x: (N, C, D, H, W); emb: (N, E)."""
        linear = self.module.emb_layers[1]
        h = functional.silu(emb)
        shift = functional.linear(h, self.projection.of(h)) + (linear.bias + self.module.in_layers[2].bias)
        return self.carry(Carried(x), shift).x if self.carries else self._plain(x, shift)

    def carry(self, volume: Carried, shift: Tensor, other: Carried | None = None, owes: bool = False) -> Carried:
        """Computes the block of the channels of `volume` and, behind them, those of `other`.

        Args:
            volume, other: the input; what is owed to them goes into the first norm's shift and into the sum.
            shift: (N, C), the timestep's projection and the first convolution's bias.
            owes: whether the sum's bias is left to the next reader. The gradient of a norm's shift costs no sweep.
        """
        block, x = self.module, volume.x
        before, after = block.in_layers, block.out_layers
        beside = None if other is None else other.x
        owed = _owed(volume, other)
        h, x, beside = group_norm_and_inputs(_norm(x, before[0], other=beside, shift=owed))
        h = conv3d(h, self.first.of(h), None, 1, 1, self.hopper)
        h = group_norm(_norm(h, after[0], shift=shift))
        h = conv3d(h, self.second.of(h), None, 1, 1, self.hopper)
        if self.skip.parameter is None:
            weight, beside = None, None
            bias = after[3].bias if owed is None else after[3].bias + owed
        else:
            weight = self.skip.of(x).flatten(1)
            bias = after[3].bias + block.skip_connection.bias
            if owed is not None:
                bias = bias + functional.linear(owed.to(weight.dtype), weight)
        if owes:
            return Carried(add(h, x, beside, weight=weight), bias)
        return Carried(add(h, x, beside, weight=weight, bias=bias))

    def _plain(self, x: Tensor, shift: Tensor) -> Tensor:
        block = self.module
        before, after = block.in_layers, block.out_layers
        h = group_norm(_norm(x, before[0]))
        h = functional.conv3d(h, self.first.of(h), padding=1)
        h = group_norm(_norm(h, after[0], shift=shift))
        h = functional.conv3d(h, self.second.of(h), after[3].bias.to(h.dtype), padding=1)
        if self.skip.parameter is not None:
            x = functional.conv3d(x, self.skip.of(x), block.skip_connection.bias.to(x.dtype))
        return x + h


class AttentionForward(Forward):
    """Scaled-dot-product attention over voxels as rows, as channels-last memory already holds them."""

    what = "attention"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.flash = "attention" in features
        self.qkv, self.out = Weight(self.module.qkv), Weight(self.module.proj_out)
        self.handled = (self.module.norm, self.module.qkv, self.module.proj_out)

    def fits(self) -> bool:
        """Returns whether its layers are those that the network makes, with their options."""
        block = self.module
        return _norms(block.norm) and _convolves(block.qkv, self.qkv, 1) and _convolves(block.proj_out, self.out, 1)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns the same shape."""
        block = self.module
        h, x, _ = group_norm_and_inputs(_norm(x, block.norm, activation="none"))
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
        return add(h, x, bias=block.proj_out.bias)


class UpsampleForward(Forward):
    """The trilinear kernels, whose backward gathers instead of scattering."""

    what = "upsampling"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.conv, self.hopper = Weight(self.module.conv), "hopper" in features
        self.handled = (self.module.conv,)

    def fits(self) -> bool:
        """Returns whether its convolution is the one that the network makes, with its options."""
        return _convolves(self.module.conv, self.conv, 3)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, 2D, 2H, 2W)."""
        return conv3d(upsample(x), self.conv.of(x), self.module.conv.bias, 1, 1, self.hopper)

    def carry(self, x: Tensor) -> Carried:
        """Computes the same with the convolution's bias still owed."""
        return Carried(conv3d(upsample(x), self.conv.of(x), None, 1, 1, self.hopper), self.module.conv.bias)


class UNetForward(Forward):
    """The network: its first and last convolution, all blocks' timestep projections at once, and the decoder's pairs.

    A block without a stand-in of its own gets the plain tensor.
    """

    what = "3-D U-Net"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        net = self.module
        self.carries, self.few_channels = "residual" in features, "few_channels" in features
        self.first, self.last = Weight(net.input_blocks[0][0]), Weight(net.out[2])
        self.blocks: tuple[Any, ...] = tuple(m for m in net.modules() if type(m) is _unet().ResBlock)
        stages = (*net.input_blocks, net.middle_block, *net.output_blocks)
        self.handled = (*stages, net.input_blocks[0][0], net.out, *net.out)

    @staticmethod
    def made_of(net: Any) -> bool:
        """Returns whether it has the stages and the head that the network makes."""
        stages = (*net.input_blocks, net.middle_block, *net.output_blocks)
        made = all(type(stage) is _unet().Stage for stage in stages) and len(stages[0]) == 1
        return made and _is(net.out, _unet().GroupNorm32, nn.SiLU, nn.Conv3d)

    def fits(self) -> bool:
        """Returns whether the module has the network's stages, first layer and head, with their options."""
        net = self.module
        return (
            self.made_of(net)
            and _convolves(net.input_blocks[0][0], self.first, 3)
            and _norms(net.out[0])
            and _convolves(net.out[2], self.last, 3)
        )

    def compute(self, x: Tensor, t: Tensor) -> Tensor:
        """Arguments and result as in `UNet3D.forward`."""
        net = self.module
        if not net.takes(x):
            return self.original(x, t)  # which says why not
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        emb = net.time_embed(_unet().timestep_embedding(t, net.model_channels).to(x.dtype))
        carried = self.carries and any(stand_in(block, ResBlockForward) for block in self.blocks)
        shifts = self._shifts(emb, dtype) if carried else {}

        x = x.to(dtype)
        convolve = conv3d if self.few_channels else functional.conv3d
        volume = Carried(convolve(x, self.first.of(x), net.input_blocks[0][0].bias.to(dtype), 1, 1))
        skips = [volume]
        for stage in net.input_blocks[1:]:
            volume = _unet().called(stage, self._through, stage, volume, emb, shifts)
            skips.append(volume)
        volume = _unet().called(net.middle_block, self._through, net.middle_block, volume, emb, shifts)
        for stage in net.output_blocks:
            last = stage is net.output_blocks[-1]  # behind it comes a norm, and nothing else
            volume = _unet().called(stage, self._through, stage, volume, emb, shifts, skips.pop(), last)
        norm, head = net.out[0], net.out[2]
        x = group_norm(_norm(volume.x, norm, shift=volume.owed))
        return convolve(x, self.last.of(x), head.bias.to(dtype), 1, 1)

    def _shifts(self, emb: Tensor, dtype: torch.dtype) -> dict[nn.Module, Tensor]:
        """Returns what each block adds to every voxel before its second norm, by one product for all blocks."""
        stand_ins = {block: stand_in(block, ResBlockForward) for block in self.blocks}
        blocks = {block: forward for block, forward in stand_ins.items() if forward is not None}
        h = functional.silu(emb.to(dtype))
        weight = torch.cat([forward.projection.of(h) for forward in blocks.values()])
        biases = [block.emb_layers[1].bias for block in blocks]
        bias = torch.cat(biases) + torch.cat([block.in_layers[2].bias for block in blocks])
        together = functional.linear(h, weight) + bias
        return dict(zip(blocks, together.split([len(b) for b in biases], dim=1), strict=True))

    def _through(
        self,
        stage: Any,
        volume: Carried,
        emb: Tensor,
        shifts: dict[nn.Module, Tensor],
        skip: Carried | None = None,
        owes: bool = False,
    ) -> Carried:
        """Runs one stage; in the decoder with its skip. `owes`: whether a block at its end may leave a bias owed."""
        for layer in stage:
            block, up = stand_in(layer, ResBlockForward), stand_in(layer, UpsampleForward)
            if block is not None and self.carries:
                volume = block.carry(volume, shifts[layer], skip, owes and layer is stage[-1])
                skip = None
                continue
            x = volume.whole() if skip is None else torch.cat([volume.whole(), skip.whole()], dim=1)
            skip = None
            down = stand_in(layer.op, Convolution) if type(layer) is _unet().Downsample and not hooked(layer) else None
            if up is not None and self.carries:
                volume = up.carry(x)
            elif down is not None and self.carries:
                volume = Carried(down.product(x), layer.op.bias)
            else:
                unet = _unet()
                volume = Carried(layer(x, emb) if isinstance(layer, unet.ResBlock) else unet.called(layer, layer, x))
        return volume


def _where(feature: str, rule: Rule, made_of: Callable[[Any], bool] = lambda module: True) -> Rule:
    """The rule, where its feature is on and the module has the layers that it looks for."""
    return lambda module, features: rule(module, features) if feature in features and made_of(module) else None


RULES: dict[str, Rule] = {
    "medddpm.unet.UNet3D": _where("norm", UNetForward, UNetForward.made_of),
    "medddpm.unet.ResBlock": _where("norm", ResBlockForward, ResBlockForward.made_of),
    "medddpm.unet.AttentionBlock": _where("norm", AttentionForward),
    "medddpm.unet.Upsample": _where("upsample", UpsampleForward),
}
