"""Norm with activation, residual sum and trilinear ×2 for channels-last 3-D tensors, each beside its definition.

Group norm: Wu and He 2018, doi:10.1007/978-3-030-01261-8_1. A function takes its Triton kernels (`fused_norm`,
`fused_add`, `fused_resample`) where they apply: Triton there, a CUDA tensor of BF16, FP16 or FP32 whose memory is
channels-last. Anything else goes through the definition in plain PyTorch, so every input has an answer and a CPU needs
no Triton. The kernels neither wait for the device nor use atomics: they can be captured in a CUDA graph and give the
same bits each time. They have first derivatives only; the definitions have all.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

if importlib.util.find_spec("triton") is not None:
    from medddpm import fused_add, fused_edges, fused_norm, fused_resample

    TRITON = True
else:
    TRITON = False
try:  # Gluon is part of Triton from 3.6 on
    from medddpm import fused_conv
except Exception:  # an experiment of its makers: a later one may lack what an earlier one had, in any way
    GLUON = False
else:
    GLUON = True

Activation = Literal["none", "silu", "leaky_relu", "prelu"]
ACTIVATIONS: tuple[Activation, ...] = ("none", "silu", "leaky_relu", "prelu")  # numbered as `fused_norm` numbers them
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FEW = 8  # channels, at most, that are few beside twice as many or more
OLDEST = (8, 0)  # compute capability; BF16 arithmetic begins there


@functools.cache
def serves(device: torch.device) -> bool:
    """Whether the kernels run on `device`: Triton, and a card that has BF16 arithmetic (or Triton's interpreter)."""
    if not TRITON:
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= OLDEST
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels serve these tensors: 5-D, of one dtype and device, channels-last in memory, not empty."""
    first = tensors[0]
    return serves(first.device) and all(
        x.dim() == 5
        and x.numel() > 0
        and x.dtype == first.dtype
        and x.dtype in DTYPES
        and x.device == first.device
        and x.is_contiguous(memory_format=torch.channels_last_3d)
        for x in tensors
    )


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
    slope: float = 0.01,
) -> Tensor:
    """`activation(norm([x, other] + shift) · weight + bias + residual)`, statistics and arithmetic in float32.

    The kernels read `x` twice and write once; backward reads `x` and the gradient twice and writes once: 3 and 5 times
    the tensor's bytes. With `other`, the norm of `torch.cat([x, other], 1)` without that tensor: making it would read
    and write all its bytes once more, and keep them for backward.

    Args:
        x: (N, C, D, H, W).
        groups: any number that divides the channels, C or C + C_other.
        weight: (C,) factor after the norm; none is 1.
        bias: (C,) added after the norm; none is 0.
        other: (N, C_other, D, H, W), its channels behind those of `x`.
        shift: (N, C) or (C,), added before the norm: a convolution's bias, a residual block's timestep.
        residual: of the result's shape, added before the activation.
        slopes: (1,) or (C,), PReLU's below zero.
        eps: added to the variance.
        activation: what follows the norm.
        slope: leaky ReLU's below zero.

    Returns:
        (N, C, D, H, W), or C + C_other channels; of x's dtype.

    Raises:
        ValueError: where `groups` does not divide the channels, or the activation is unknown.
    """
    arguments = (x, groups, weight, bias, other, shift, residual, slopes, eps, activation, slope)
    return _norm(*arguments, False)[0]


def kept_group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`group_norm`, and its inputs handed back for whatever else reads them, a residual sum say.

    Use these and not the ones handed in: their gradient is then added within the norm's backward sweep, one reading
    of a tensor instead of two readings and a writing.

    Returns:
        the norm, x, other.
    """
    y, x, *rest = _norm(x, groups, weight, bias, other, shift, None, None, eps, activation, 0.01, True)
    return y, x, rest[0] if rest else None


def _norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None,
    shift: Tensor | None,
    residual: Tensor | None,
    slopes: Tensor | None,
    eps: float,
    activation: Activation,
    slope: float,
    keep: bool,
) -> tuple[Tensor, ...]:
    channels = x.shape[1] + (0 if other is None else other.shape[1])
    if groups < 1 or channels % groups:
        raise ValueError(f"{groups} groups do not divide {channels} channels")
    if activation not in ACTIVATIONS or (activation == "prelu") != (slopes is not None):
        raise ValueError(
            f"activation is {activation!r}: it must be one of {', '.join(ACTIVATIONS)}, and prelu comes with slopes"
        )
    volumes = [a for a in (x, other, residual) if a is not None]
    # The kernels know no broadcasting: whatever is not of its plain shape is the definition's to take or refuse.
    plain = (
        _alike(*volumes)
        and (residual is None or residual.shape[1] == channels)
        and all(a is None or a.shape == (channels,) for a in (weight, bias))
        and (shift is None or shift.shape in ((channels,), (x.shape[0], channels)))
    )
    if plain and takes(*volumes):
        if slopes is not None:
            slopes = slopes.expand(channels)
        weight, bias, shift, slopes = (None if a is None else a.contiguous() for a in (weight, bias, shift, slopes))
        act = ACTIVATIONS.index(activation)
        arguments = (x, other, weight, bias, shift, residual, slopes, groups, eps, act, slope, keep)
        result = fused_norm.Norm.apply(*arguments)  # type: ignore[no-untyped-call]
        return result if keep else (result,)
    y = group_norm_definition(
        x, groups, weight, bias, other=other, shift=shift, residual=residual, slopes=slopes, eps=eps,
        activation=activation, slope=slope,
    )  # fmt: skip
    return (y, x) if other is None else (y, x, other)


def _alike(*volumes: Tensor) -> bool:
    """Whether these are as many samples of the same sides."""
    return len({(a.shape[0], *a.shape[2:]) for a in volumes}) == 1


def group_norm_definition(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
    slope: float = 0.01,
) -> Tensor:
    """What `group_norm` computes, in PyTorch's own functions: in float64 for a float64 `x`, else in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    h = (x if other is None else torch.cat([x, other], dim=1)).to(wide)
    if shift is not None:
        h = h + _over_voxels(shift, wide)
    # Not functional.group_norm: it refuses a group of a single value, which a volume of 1³ may have.
    grouped = h.reshape(h.shape[0], groups, -1)
    grouped = grouped - grouped.mean(dim=2, keepdim=True)
    variance = (grouped * grouped).mean(dim=2, keepdim=True)
    h = (grouped * torch.rsqrt(variance + eps)).reshape(h.shape)
    if weight is not None:
        h = h * _over_voxels(weight, wide)
    if bias is not None:
        h = h + _over_voxels(bias, wide)
    if residual is not None:
        h = h + residual.to(wide)
    if activation == "silu":
        h = functional.silu(h)
    elif activation == "leaky_relu":
        h = functional.leaky_relu(h, slope)
    elif slopes is not None:
        h = functional.prelu(h, slopes.to(wide))
    return h.to(x.dtype)


def _over_voxels(a: Tensor, dtype: torch.dtype) -> Tensor:
    """(C,) or (N, C) as what broadcasts over (N, C, D, H, W)."""
    return a.to(dtype).reshape(-1, a.shape[-1], 1, 1, 1)


def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    slopes: Tensor | None = None,
    eps: float = 1e-5,
    activation: Activation = "leaky_relu",
    slope: float = 0.01,
) -> Tensor:
    """`activation(instance norm)`, each channel of each sample by its own statistics: `group_norm`, a group a channel.

    Ulyanov et al. 2016, arXiv:1607.08022. Arguments, result and bytes moved are `group_norm`'s. A shift changes
    nothing here but that it gets its gradient, zero.
    """
    return group_norm(
        x, x.shape[1], weight, bias, shift=shift, residual=residual, slopes=slopes, eps=eps, activation=activation,
        slope=slope,
    )  # fmt: skip


def add(
    h: Tensor,
    x: Tensor,
    other: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A residual block's sum: `h + bias + x`, or `h + bias + weight · [x, other]`, the skip a convolution of 1³.

    The kernels read every volume once and write once: 3 times a tensor's bytes for the plain sum. Float32 products
    round to TF32 there.

    Args:
        h: (N, C, D, H, W).
        x: (N, C, D, H, W), or of C_x channels where there is a weight.
        other: (N, C_other, D, H, W), its channels behind those of `x`; only with a weight.
        weight: (C, C_x + C_other), of h's dtype.
        bias: (C,).

    Returns:
        (N, C, D, H, W), of h's dtype.
    """
    volumes = (h, x) if other is None else (h, x, other)
    c, inside = h.shape[1], sum(a.shape[1] for a in volumes[1:])
    if weight is None:
        plain = x.shape == h.shape and other is None
    else:  # 16 is the least the matrix units take
        plain = weight.shape == (c, inside) and weight.dtype == h.dtype and min(a.shape[1] for a in volumes) >= 16
    if plain and _alike(*volumes) and (bias is None or bias.shape == (c,)) and takes(*volumes):
        bias = None if bias is None else bias.contiguous()
        return fused_add.Add.apply(h, x, other, weight, bias)  # type: ignore[no-untyped-call]
    return add_definition(h, x, other, weight=weight, bias=bias)


def add_definition(
    h: Tensor,
    x: Tensor,
    other: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """What `add` computes, in PyTorch's own functions."""
    skip = x if other is None else torch.cat([x, other], dim=1)
    if weight is not None:
        skip = functional.conv3d(skip, weight[:, :, None, None, None])
    h = h + skip
    return h if bias is None else h + _over_voxels(bias, h.dtype)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    many: bool = True,
) -> Tensor:
    """`torch.nn.functional.conv3d`, but where cuDNN wastes the matrix units: 3³ at stride 1 and padding 1, and 1³.

    3³ with up to 8 channels on one side and 16 or more on the other has kernels of its own (`fused_edges`; float32
    products round to TF32 there), and on a Hopper GPU so has 3³ of 32 channels or more in BF16 or FP16 (`fused_conv`),
    where the volume fills the card. 1³ at stride 1 is a matrix product. Everything else is PyTorch's.

    Args:
        x: (N, C_in, D, H, W), of the weight's dtype, or wider than BF16 or FP16: then it is taken in the weight's.
        weight: (C_out, C_in, *kernel).
        bias: (C_out,), any float dtype.
        stride, padding: as PyTorch's; no dilation, no groups.
        many: whether many channels may have kernels of their own too.

    Returns:
        (N, C_out, …), of the weight's dtype.
    """
    if weight.dtype in (torch.bfloat16, torch.float16):
        x = x.to(weight.dtype)
    out, inside, *kernel = weight.shape
    plain = stride in (1, (1, 1, 1)) and x.shape[1] == inside
    if plain and kernel == [1, 1, 1] and padding in (0, (0, 0, 0)) and takes(x):
        rows = x.permute(0, 2, 3, 4, 1)
        y = functional.linear(rows, weight.reshape(out, inside), None if bias is None else bias.to(x.dtype))
        return y.permute(0, 4, 1, 2, 3)
    if plain and few_channels(weight, stride, padding) and x.dtype == weight.dtype:
        bias = None if bias is None else bias.contiguous()
        if inside <= FEW and _is_volume(x):
            return fused_edges.FewIn.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        if out <= FEW and takes(x):
            return fused_edges.FewOut.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    if many and GLUON and plain and padding in (1, (1, 1, 1)) and takes(x) and fused_conv.takes(x, weight):
        return fused_conv.Conv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return functional.conv3d(x, weight, None if bias is None else bias.to(x.dtype), stride, padding)


def few_channels(weight: Tensor, stride: int | tuple[int, ...], padding: int | tuple[int, ...]) -> bool:
    """Whether `conv3d` has kernels of its own for a weight (C_out, C_in, *kernel): a few channels beside many."""
    few, many = sorted(weight.shape[:2])
    plain = weight.shape[2:] == (3, 3, 3) and stride in (1, (1, 1, 1)) and padding in (1, (1, 1, 1))
    return plain and few <= FEW and many >= 2 * FEW


def _is_volume(x: Tensor) -> bool:
    """Whether the kernels serve `x` in any memory order: they copy it first."""
    return serves(x.device) and x.dim() == 5 and x.numel() > 0 and x.dtype in DTYPES


def upsample(x: Tensor) -> Tensor:
    """Doubles each spatial side: trilinear, corners not aligned. (N, C, D, H, W) to (N, C, 2D, 2H, 2W), same dtype.

    Forward reads the small tensor and writes the large one, backward the other way: 9 times the small one's bytes.
    """
    # A grid's second and third axes end at 65535.
    if takes(x) and max(x.shape[0], x.shape[2] + 1) < 65536:
        return fused_resample.Upsample.apply(x)  # type: ignore[no-untyped-call]
    return upsample_definition(x)


def upsample_definition(x: Tensor) -> Tensor:
    """What `upsample` computes, in PyTorch's own function."""
    return functional.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
