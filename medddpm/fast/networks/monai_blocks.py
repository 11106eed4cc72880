"""The fast path's rules for more of MONAI's blocks: SegResNet's, ResNet's, VNet's, and AutoencoderKL's, MAISI's too.

Written against MONAI 1.6. In most of them a norm and its activation come before the convolution.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from medddpm.fast.forward import Forward, Rule
from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.kernels.upsample import upsample
from medddpm.fast.layers import idle, in_tuples, stand_in
from medddpm.fast.networks.monai import with_skip
from medddpm.fast.norm_chains import Chain, Norm, activations_behind_norms, is_known, joined, known, run

SILU = nn.SiLU()  # where a block calls the function, a chain needs a layer
INDEXED = 2**31  # elements: a tensor of so many is beyond 32-bit indices, and most convolution kernels have no other


def is_one(layer: nn.Module, x: Tensor) -> bool:
    """Returns whether MAISI's convolution of x, split along one side and joined again, is that of x as a whole.

    The splits overlap by three voxels, or four, more than a kernel of 3³ reaches. What does not divide into them is
    cut off at the end of the side, and the joining assumes even sizes.
    """
    split: Any = layer
    conv = getattr(split.conv, "conv", None)
    if split.print_info or x.dim() != 5 or type(conv) is not nn.Conv3d or not in_tuples(conv):
        return False
    if set(conv.dilation) != {1} or conv.padding_mode != "zeros":  # others pad a split by its own values
        return False
    if x.numel() // x.shape[1] * max(conv.in_channels, conv.out_channels) >= INDEXED:
        return False
    if split.num_splits <= 1:
        return True
    side = x.shape[2 + split.dim_split]
    size, rest = divmod(side, split.num_splits)
    options = (set(conv.kernel_size), set(conv.stride), set(conv.padding))
    if options in (({3}, {1}, {1}), ({1}, {1}, {0})):
        return rest == 0 and size >= 4
    return options == ({3}, {2}, {0}) and rest == 1 and size % 2 == 0 and size >= 4


class PreNormBlock(Forward):
    """norm1, activation, conv1, norm2, activation, conv2, and the residual: `ResBlock` of SegResNet."""

    what = "residual block"
    activations: ClassVar[tuple[str, ...]] = ("act",)  # the first and the last of them are those of the two norms

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.sums = "residual" in features
        acts = [cast(nn.Module, getattr(module, name)) for name in self.activations]
        if all(is_known(act) for act in acts):
            self.handled = tuple(acts)

    def convolution(self, layer: nn.Module, x: Tensor) -> nn.Module:
        """The layer that computes what this one, a convolution in the block, does of volumes such as x."""
        return layer

    def shortcut(self) -> nn.Module | None:
        """Returns what the input goes through on its way to the sum; None if it is added as it is."""
        return getattr(self.module, "nin_shortcut", None)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C_in, D, H, W). Returns (N, C_out, D, H, W)."""
        block: Any = self.module
        acts = [getattr(block, name) for name in self.activations] or [SILU]
        norm = stand_in(block.norm1, Norm)
        if norm is None or not norm.takes(x) or not known(acts[0], norm.channels):
            return self.original(x)
        h, x, _ = norm.and_inputs(x, activation=acts[0])
        first, second = self.convolution(block.conv1, x), self.convolution(block.conv2, x)
        h = run([first, block.norm2, acts[-1]], h)
        skip = self.shortcut()
        if not self.sums:
            return (x if skip is None else skip(x)) + run([second], h)
        if skip is None or idle(skip):
            return cast(Tensor, joined([second], h, x, None, True))
        return with_skip(second, h, self.convolution(skip, x), x)


class SegResBlock(PreNormBlock):
    """`SegResBlock` of SegResNetDS."""

    activations = ("act1", "act2")


class AutoencoderBlock(PreNormBlock):
    """`AEKLResBlock`; its shortcut is a 1³ convolution where the channels change."""

    activations = ()


class MaisiBlock(AutoencoderBlock):
    """`MaisiResBlock`: not in splits, and without emptying the GPU's cache between its layers."""

    def convolution(self, layer: nn.Module, x: Tensor) -> nn.Module:
        """The convolution within MAISI's own, where that computes the same of the whole volume."""
        split = stand_in(layer, MaisiConvolution)  # None if the user has changed it, or put another in its place
        return cast(nn.Module, layer.conv) if split is not None and split.whole(x) else layer

    def shortcut(self) -> nn.Module | None:
        """As in its forward, which calls the shortcut only where the channels change."""
        block: Any = self.module
        return block.nin_shortcut if block.in_channels != block.out_channels else None


class MaisiNorm(Norm):
    """`MaisiGroupNorm3D`: nn.GroupNorm, one group after another to save memory."""

    def fits(self) -> bool:
        """Returns whether the layer is not to print what it does."""
        return not self.module.print_info

    def takes(self, x: object, other: Tensor | None = None) -> bool:
        """Also, that a result in half precision is not asked for, or that the input is in reduced precision as well."""
        half = self.module.norm_float16 and not (isinstance(x, Tensor) and x.dtype in dispatch.REDUCED)
        return not half and super().takes(x, other)


class MaisiConvolution(Forward):
    """`MaisiConvolution`: of the whole volume where that is the same, not of overlapping splits one after another."""

    what = "convolution in one"

    def whole(self, x: Tensor) -> bool:
        """Returns whether x (N, C_in, D, H, W) need not be split."""
        return is_one(self.module, x)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C_in, D, H, W). Returns (N, C_out, …)."""
        return self.module.conv(x) if self.whole(x) else self.original(x)


class MaisiUpsample(Forward):
    """`MaisiUpsample`: trilinear, to twice the side, and a convolution."""

    what = "upsampling"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, 2D, 2H, 2W)."""
        if self.module.use_convtranspose or x.dim() != 5:
            return self.original(x)
        return self.module.conv(upsample(channels_last(x)))


class Blocks(Chain):
    """`MaisiEncoder` and `MaisiDecoder`: their blocks in order, without emptying the GPU's cache between them."""

    what = "blocks in order"

    def steps(self) -> Iterable[nn.Module]:
        """The blocks, as they are now."""
        return list(cast(nn.ModuleList, self.module.blocks))


class VNetDown(Forward):
    """VNet's `DownTransition`."""

    what = "transition"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = activations_behind_norms(cast(nn.Module, module.bn1), cast(nn.Module, module.act_function1))

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, 2C, D/2, H/2, W/2)."""
        level: Any = self.module
        down = run([level.down_conv, level.bn1, level.act_function1], x)
        h = level.ops(down if level.dropout is None else level.dropout(down))
        return cast(Tensor, level.act_function2(h + down))


class VNetUp(VNetDown):
    """VNet's `UpTransition`."""

    def compute(self, x: Tensor, skipx: Tensor) -> Tensor:  # type: ignore[override]
        """x: (N, C, D, H, W); skipx: (N, C_out/2, 2D, 2H, 2W), the encoder's. Returns (N, C_out, 2D, 2H, 2W)."""
        level: Any = self.module
        h = x if level.dropout is None else level.dropout(x)
        skipped = level.dropout2(skipx)
        h = run([level.up_conv, level.bn1, level.act_function1], h)
        both = torch.cat((h, skipped), 1)
        return cast(Tensor, level.act_function2(level.ops(both) + both))


class VNetInput(Forward):
    """VNet's `InputTransition`: the sum and its activation within the norm."""

    what = "transition"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        act = cast(nn.Module, module.act_function)
        self.handled = (act,) if is_known(act) else ()

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C_out, D, H, W)."""
        level: Any = self.module
        repeated = x.repeat([1, level.out_channels // level.in_channels, 1, 1, 1])
        return cast(Tensor, joined([level.conv_block], x, repeated, level.act_function, True))


class NormThenAct(Chain):
    """VNet's `LUConv` and `OutputTransition`: a convolution, a norm and an activation, in this order."""

    what = "convolution block"
    layers: ClassVar[tuple[str, ...]] = ("conv_block", "act_function")

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module, features)
        act = cast(nn.Module, getattr(module, self.layers[1]))
        self.handled = (act,) if is_known(act) else ()

    def steps(self) -> Iterable[nn.Module]:
        """The layers, in order, as they are now."""
        return [getattr(self.module, name) for name in self.layers]


class VNetOutput(NormThenAct):
    """VNet's `OutputTransition`."""

    layers = ("conv_block", "act_function1", "conv2")


class ResNetBlock(Forward):
    """`ResNetBlock` and `ResNetBottleneck`: the residual and the last activation within the last norm."""

    what = "residual block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        act = cast(nn.Module, module.act)
        self.handled = (act,) if is_known(act) else ()

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C_out, …)."""
        block: Any = self.module
        residual = x if block.downsample is None else block.downsample(x)
        h = run([block.conv1, block.bn1, block.act], x)
        if not hasattr(block, "conv3"):
            return cast(Tensor, joined([block.conv2, block.bn2], h, residual, block.act, True))
        h = run([block.conv2, block.bn2, block.act], h)
        return cast(Tensor, joined([block.conv3, block.bn3], h, residual, block.act, True))


class AttentionGate(Forward):
    """`AttentionBlock` of AttentionUnet: the sum and its ReLU within the second norm."""

    what = "attention gate"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = (cast(nn.Module, module.relu),) if known(cast(nn.Module, module.relu), 1) else ()

    def compute(self, g: Tensor, x: Tensor) -> Tensor:
        """g, x: (N, C, D, H, W), from below and from the encoder. Returns x, weighted."""
        gate: Any = self.module
        return x * gate.psi(joined([gate.W_x], x, gate.W_g(g), gate.relu, True))


def _when(kind: type[Forward], volumes: str = "") -> Rule:
    """Returns the rule that gives `kind` where the features are on.

    `volumes` names a layer, or the number of dimensions, that tells 3-D from 2-D.
    """

    def rule(module: nn.Module, features: frozenset[str]) -> Forward | None:
        if not features.issuperset(("norm", "residual")):
            return None
        tells = getattr(module, volumes) if volumes else 3
        if tells != 3 and not isinstance(tells, nn.Conv3d | nn.ConvTranspose3d):
            return None
        return cast(Any, kind)(module, features)

    return rule


_MAISI = "monai.apps.generation.maisi.networks.autoencoderkl_maisi"
_NETS = "monai.networks.nets"

RULES: dict[str, Rule] = {
    f"{_MAISI}.MaisiConvolution": _when(MaisiConvolution),
    f"{_MAISI}.MaisiDecoder": _when(Blocks),
    f"{_MAISI}.MaisiEncoder": _when(Blocks),
    f"{_MAISI}.MaisiGroupNorm3D": _when(MaisiNorm),
    f"{_MAISI}.MaisiResBlock": _when(MaisiBlock),
    f"{_MAISI}.MaisiUpsample": _when(MaisiUpsample),
    "monai.networks.blocks.segresnet_block.ResBlock": _when(PreNormBlock),
    f"{_NETS}.attentionunet.AttentionBlock": _when(AttentionGate),
    f"{_NETS}.autoencoderkl.AEKLResBlock": _when(AutoencoderBlock),
    f"{_NETS}.resnet.ResNetBlock": _when(ResNetBlock, "conv1"),
    f"{_NETS}.resnet.ResNetBottleneck": _when(ResNetBlock, "conv1"),
    f"{_NETS}.segresnet_ds.SegResBlock": _when(SegResBlock),
    f"{_NETS}.vnet.DownTransition": _when(VNetDown, "down_conv"),
    f"{_NETS}.vnet.InputTransition": _when(VNetInput, "spatial_dims"),
    f"{_NETS}.vnet.LUConv": _when(NormThenAct),
    f"{_NETS}.vnet.OutputTransition": _when(VNetOutput, "conv2"),
    f"{_NETS}.vnet.UpTransition": _when(VNetUp, "up_conv"),
}
