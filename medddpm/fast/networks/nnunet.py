"""The fast path's rules for nnU-Net's blocks, of the package dynamic-network-architectures.

They cover `PlainConvUNet` and `ResidualEncoderUNet`, whose other parts consist of these blocks and of plain layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from medddpm.fast.forward import Forward, Rule, hooked
from medddpm.fast.norm_chains import Chain, activations_behind_norms, joined


class ConvNormAct(Chain):
    """`ConvDropoutNormReLU`: it holds its layers twice, under their names and, in order, in `all_modules`."""

    what = "convolution block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module, features)
        layers = cast(nn.Sequential, module.all_modules)
        self.handled = (layers, *activations_behind_norms(layers))

    def steps(self) -> Iterable[nn.Module]:
        """The layers, in order, as they are now."""
        layers = cast(nn.Sequential, self.module.all_modules)
        return [layers] if hooked(layers) else list(layers)


class ResidualBlock(Forward):
    """`BasicBlockD` and `BottleneckD`: the residual and the last activation are computed in the last norm."""

    what = "residual block"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = tuple(m for name, m in module.named_children() if name in ("nonlin2", "nonlin3"))

    def fits(self) -> bool:
        """Returns whether it drops no whole samples and weights no channels: both may be switched on later."""
        return not (self.module.apply_stochastic_depth or self.module.apply_se)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C_in, D, H, W). Returns (N, C_out, …)."""
        block: Any = self.module
        *before, final = [getattr(block, n) for n in ("conv1", "conv2", "conv3") if hasattr(block, n)]
        residual = block.skip(x)
        for layer in before:
            x = layer(x)
        nonlin = getattr(block, f"nonlin{len(before) + 1}")
        return joined([final], x, residual, nonlin if isinstance(nonlin, nn.Module) else None, True)


def _conv_norm_act(module: nn.Module, features: frozenset[str]) -> Forward | None:
    return ConvNormAct(module, features) if "norm" in features and isinstance(module.conv, nn.Conv3d) else None


def _residual_block(module: nn.Module, features: frozenset[str]) -> Forward | None:
    block: Any = module
    if not features.issuperset(("norm", "residual")) or block.apply_stochastic_depth or block.apply_se:
        return None
    return ResidualBlock(module, features) if isinstance(block.conv1.conv, nn.Conv3d) else None


_BLOCKS = "dynamic_network_architectures.building_blocks"

RULES: dict[str, Rule] = {
    f"{_BLOCKS}.simple_conv_blocks.ConvDropoutNormReLU": _conv_norm_act,
    f"{_BLOCKS}.residual.BasicBlockD": _residual_block,
    f"{_BLOCKS}.residual.BottleneckD": _residual_block,
}
