"""Changes of the volumes that a step trains on, drawn anew each time they are shown."""

from __future__ import annotations

import torch
from torch import Tensor


def flipped(image: Tensor, mask: Tensor, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mirrors about half of the volumes, each with its mask. A CUDA graph may capture this.

    Args:
        image: (N, C, D, W, H).
        mask: (N, M, D, W, H).
        dim: the dimension that is reversed; `Layout.left_right` for a mirror image of a head.
        generator: draws which volumes, on their device.
    """
    mirrored = torch.rand(image.shape[:1], generator=generator, device=image.device) < 0.5
    mirrored = mirrored.view(-1, 1, 1, 1, 1)
    return torch.where(mirrored, image.flip(dim), image), torch.where(mirrored, mask.flip(dim), mask)
