"""Changes of the volumes that a step trains on, drawn anew each time they are shown."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CONTROL_POINTS = 4  # of a deformation along each side; a choice: about the size of a lobe


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


def deformed(image: Tensor, mask: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bends each volume with its mask by a smooth random displacement. A CUDA graph may capture this.

    `CONTROL_POINTS`³ points of a volume move, each along each axis by a normal random number; what lies between them
    moves in proportion. Voxels are interpolated linearly in the image, which then has less of its finest detail, and
    taken from the nearest in the mask; outside a volume its border goes on.

    Args:
        image: (N, C, D, W, H).
        mask: (N, M, D, W, H).
        share: the standard deviation of a point's displacement, as a share of the volume's side.
        generator: draws the displacements, on the volumes' device.
    """
    size, device = image.shape[2:], image.device
    points = torch.randn((len(image), 3, *3 * [CONTROL_POINTS]), generator=generator, device=device)
    # A side goes from -1 to 1 in the coordinates of `grid_sample`, which begin with the last axis.
    shift = functional.interpolate(2 * share * points, size=size, mode="trilinear", align_corners=True)
    centres = [torch.linspace(1 / side - 1, 1 - 1 / side, side, device=device) for side in size]
    places = torch.stack(torch.meshgrid(*centres, indexing="ij")[::-1], dim=-1) + shift.movedim(1, -1)
    return (
        functional.grid_sample(image, places, mode="bilinear", padding_mode="border", align_corners=False),
        functional.grid_sample(mask, places, mode="nearest", padding_mode="border", align_corners=False),
    )
