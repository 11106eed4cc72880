"""3-D convolution of every channel by itself, and its transpose, beside PyTorch's functions, which define them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from medddpm.fast.kernels import dispatch

if dispatch.TRITON:
    from medddpm.fast.kernels.depthwise import volume_triton

Triple = tuple[int, int, int]
ROWS = 2**31  # voxels of a batch, beyond which the kernels' row numbers do not reach


def depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    output_padding: Triple | None = None,
) -> Tensor:
    """Computes `torch.nn.functional.conv3d`, or `conv_transpose3d`, with a group for each channel.

    PyTorch's own kernels know the contiguous layout only, and cuDNN's are made for wide groups. These read a volume
    once from memory, and its neighbours from the caches; they write once. Products and sums are in float32.

    Args:
        x: (N, C, D, H, W).
        weight: (C, 1, *kernel), of x's dtype.
        bias: (C,), any float dtype.
        stride: of the convolution, or of the one that is transposed.
        padding: zeros on both sides.
        output_padding: what `conv_transpose3d` adds to the sides; None computes `conv3d`.

    Returns:
        (N, C, …), of x's dtype.
    """
    if _served(x, weight, bias):
        steps = zip(x.shape[2:], weight.shape[2:], stride, padding, output_padding or (0, 0, 0), strict=True)
        if output_padding is None:
            sides = tuple((i + 2 * p - k) // s + 1 for i, k, s, p, _ in steps)
        else:
            sides = tuple((i - 1) * s - 2 * p + k + more if more < s else 0 for i, k, s, p, more in steps)
        if min(sides) > 0:  # PyTorch refuses the others
            bias = None if bias is None else bias.contiguous()
            return volume_triton.Depthwise.apply(x, weight, bias, stride, padding, output_padding is not None, sides)
    return depthwise_definition(x, weight, bias, stride, padding, output_padding)


def depthwise_definition(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    output_padding: Triple | None = None,
) -> Tensor:
    """Computes `depthwise` by PyTorch's own functions."""
    c = weight.shape[0]
    bias = None if bias is None else bias.to(x.dtype)
    if output_padding is None:
        return functional.conv3d(x, weight, bias, stride, padding, groups=c)
    return functional.conv_transpose3d(x, weight, bias, stride, padding, output_padding, groups=c)


def _served(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Returns whether the kernels take these tensors; what they do not is computed, or refused, by PyTorch."""
    c = weight.shape[0]
    fits = x.dim() == 5 and weight.dim() == 5 and weight.shape[1] == 1 and x.shape[1] == c and weight.dtype == x.dtype
    fits = fits and (bias is None or bias.shape == (c,))
    return fits and x.numel() // c < ROWS // 64 and dispatch.takes(x)
