"""MONAI's attention blocks with PyTorch's scaled-dot-product attention, which does not write the attention matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.forward import Forward
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.kernels.operators import traced
from medddpm.fast.layers import idle

ROW = 8  # numbers: PyTorch's attention reads biases whose strides are multiples of it as they are


def rows(x: Tensor) -> Tensor:
    """Views (N, C, D, H, W) as (N, D·H·W, C); a copy if the memory is not channels-last."""
    return channels_last(x).permute(0, 2, 3, 4, 1).reshape(x.shape[0], -1, x.shape[1])


def volume(h: Tensor, like: Tensor) -> Tensor:
    """Views (N, D·H·W, C) as (N, C, D, H, W) with the sides of `like`."""
    return h.reshape(h.shape[0], *like.shape[2:], h.shape[2]).permute(0, 4, 1, 2, 3)


class _Attention(Forward):
    what = "attention"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = tuple(m for m in module.children() if type(m).__name__ == "Rearrange")


class SelfAttention(_Attention):
    """`SABlock`."""

    def compute(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """x: (N, L, C). Returns (N, L, C)."""
        block: Any = self.module
        if attn_mask is not None or not _plain(block):
            return self.original(x, attn_mask)
        if block.use_combined_linear:
            q, k, v = block.qkv(x).chunk(3, dim=-1)
        else:
            q, k, v = block.to_q(x), block.to_k(x), block.to_v(x)
        h = _attention(q, k, v, block)
        return block.drop_output(block.out_proj(h) if block.include_fc else h)


class CrossAttention(_Attention):
    """`CrossAttentionBlock`."""

    def compute(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """x: (N, L, C); context: (N, M, E), by default x. Returns (N, L, C)."""
        block: Any = self.module
        if not _plain(block):
            return self.original(x, context)
        source = x if context is None else context
        h = _attention(block.to_q(x), block.to_k(source), block.to_v(source), block)
        return block.drop_output(block.out_proj(h))


class WindowAttention(Forward):
    """SwinUNETR's `WindowAttention` (Liu et al. 2021, arXiv:2103.14030), in training too.

    MONAI writes the scores, the scores with their bias and the softmax in float32, each larger than all else in the
    network. Here the biases are written once, in the products' dtype; where windows are shifted, for every window.
    """

    what = "window attention"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.handled = (self.module.softmax,) if self.fits() else ()

    def fits(self) -> bool:
        """Returns whether weights are still the softmax of the scores of each row."""
        softmax = self.module.softmax
        return type(softmax) is nn.Softmax and softmax.dim == -1

    def compute(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: (B·W, L, C), W windows of L voxels for each of B samples; mask: (W, L, L), added. Returns x's shape."""
        block: Any = self.module
        if not idle(block.attn_drop):
            return self.original(x, mask)
        count, length, channels = x.shape
        heads = block.num_heads
        q, k, v = block.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        index = block.relative_position_index[:length, :length].reshape(-1)
        bias = block.relative_position_bias_table[index].to(q.dtype).reshape(1, length, length, heads)
        bias = bias.permute(0, 3, 1, 2).contiguous()
        if mask is not None:  # windows and heads as one dimension: samples share the sum
            sums = bias + mask.to(q.dtype).unsqueeze(1) if traced() else _Sums.apply(bias, mask)  # type: ignore[no-untyped-call]
            bias = sums.flatten(0, 1).unsqueeze(0)
            q, k, v = (a.reshape(count // len(mask), -1, length, a.shape[-1]) for a in (q, k, v))
        h = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=block.scale)
        h = h.reshape(count, heads, length, -1).transpose(1, 2).reshape(count, length, channels)
        return block.proj_drop(block.proj(h))


class _Sums(torch.autograd.Function):
    """A bias for each window: (1, H, L, L) of all and the mask (W, L, L) of each, summed (W, H, L, L).

    Rows lie at multiples of 16 bytes, or PyTorch's attention first copies the sums, the largest tensor of the network,
    into such rows, and their gradient back; and no cast of the mask is written.
    """

    @staticmethod
    def forward(ctx: Any, bias: Tensor, mask: Tensor) -> Tensor:
        _, heads, length, _ = bias.shape
        sums = bias.new_empty((len(mask), heads, length, length + -length % ROW))[..., :length]
        return torch.add(bias, mask.unsqueeze(1), out=sums)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        of_mask = gradients[0].sum(1) if ctx.needs_input_grad[1] else None
        return gradients[0].sum(0, keepdim=True), of_mask


def _plain(block: Any) -> bool:
    """Returns whether the block computes softmax(q·kᵀ·scale)·v and nothing else.

    Where the block uses PyTorch's function itself, that drops weights in evaluation too.
    """
    special = block.causal or block.save_attn or block.rel_positional_embedding is not None
    drops = block.dropout_rate > 0 if block.use_flash_attention else not idle(block.drop_weights)
    return not special and not drops and block.attention_dtype is None


def _attention(q: Tensor, k: Tensor, v: Tensor, block: Any) -> Tensor:
    q, k, v = (a.unflatten(-1, (block.num_heads, -1)).transpose(1, 2) for a in (q, k, v))
    h = functional.scaled_dot_product_attention(q, k, v, scale=block.scale)
    return h.transpose(1, 2).flatten(2)
