"""Copies of convolution weights into the other memory order: on a GPU, several in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medddpm.fast.kernels import dispatch

if dispatch.TRITON:
    from medddpm.fast.kernels import relayout_triton


def copy_into(sources: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    """Copies each tensor into the one beside it, cast to that one's dtype.

    Those of equal strides go in few launches, and so do those of which one is contiguous and the other channels-last.
    PyTorch copies the latter one by one, and reads or writes their memory in steps.

    Args:
        sources: any tensors.
        copies: of the same shapes.
    """
    alike: list[tuple[Tensor, Tensor]] = []
    turned: list[tuple[Tensor, Tensor]] = []
    for x, y in zip(sources, copies, strict=True):
        if x.stride() == y.stride():
            alike.append((x, y))
        elif takes(x, y):
            turned.append((x, y))
        else:
            y.copy_(x)
    if alike:
        torch._foreach_copy_([y for _, y in alike], [x for x, _ in alike])
    if turned:
        relayout_triton.relay([x for x, _ in turned], [y for _, y in turned])


def takes(source: Tensor, copy: Tensor) -> bool:
    """Returns whether the kernel serves these two: 5-D, not empty, one contiguous and the other channels-last."""
    if not (dispatch.serves(source.device) and source.device == copy.device):
        return False
    if source.dim() != 5 or source.numel() == 0 or not {source.dtype, copy.dtype} <= {*dispatch.DTYPES}:
        return False
    orders = [[x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last_3d)] for x in (source, copy)]
    return orders in ([[True, False], [False, True]], [[False, True], [True, False]])
