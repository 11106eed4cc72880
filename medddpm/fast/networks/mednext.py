"""The fast path's rules for MONAI's MedNeXt (Roy et al. 2023, arXiv:2303.09975).

Its depthwise convolution has kernels of its own (`kernels.depthwise`); the norm behind it takes that one's bias, and
the sum that ends the block takes the last one's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.forward import Forward, Rule
from medddpm.fast.norm_chains import joined, run


class MedNeXtBlock(Forward):
    """`MedNeXtBlock`."""

    what = "MedNeXt block"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C_out, …)."""
        return self.block(x, x if self.module.do_res else None)

    def block(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The block's layers of x, and the residual (N, C_out, …) added to them."""
        block: Any = self.module
        h = run([block.conv1, block.norm, block.conv2, block.act], x)
        if block.global_resp_norm:
            h = responding(h, block.global_resp_gamma, block.global_resp_beta)
        if residual is None:
            return block.conv3(h)
        return joined([block.conv3], h, residual, None, True)


class MedNeXtDownBlock(MedNeXtBlock):
    """`MedNeXtDownBlock`: stride 2."""

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C_out, …)."""
        return self.block(x, self.module.res_conv(x) if self.module.resample_do_res else None)


class MedNeXtUpBlock(MedNeXtDownBlock):
    """`MedNeXtUpBlock`: transposed, stride 2, and a voxel of zeros in front of every side."""

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C_out, 2D, 2H, 2W): the zeros are put before the sum, not its two parts."""
        return functional.pad(super().compute(x), (1, 0) * 3)


def responding(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Global response norm (Woo et al. 2023, arXiv:2301.00808): `gamma · (x · n) + beta + x`.

    One factor for each channel and sample, and so one sweep that writes x's dtype, not three in float32.

    Args:
        x: (N, C, D, H, W).
        gamma, beta: (1, C, 1, 1, 1).
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):  # it would copy x in float32
        norm = torch.linalg.vector_norm(x, dim=(2, 3, 4), keepdim=True, dtype=wide)
        factor = 1 + gamma * (norm / (norm.mean(dim=1, keepdim=True) + 1e-6))
        return torch.addcmul(beta.to(x.dtype), x, factor.to(x.dtype))


def _volumes(kind: type[MedNeXtBlock]) -> Rule:
    def rule(module: nn.Module, features: frozenset[str]) -> Forward | None:
        fits = features.issuperset(("norm", "residual")) and isinstance(module.conv1, nn.Conv3d | nn.ConvTranspose3d)
        return kind(module, features) if fits else None

    return rule


_PATH = "monai.networks.blocks.mednext_block"

RULES: dict[str, Rule] = {
    f"{_PATH}.MedNeXtBlock": _volumes(MedNeXtBlock),
    f"{_PATH}.MedNeXtDownBlock": _volumes(MedNeXtDownBlock),
    f"{_PATH}.MedNeXtUpBlock": _volumes(MedNeXtUpBlock),
}
