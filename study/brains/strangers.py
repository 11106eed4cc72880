"""How well a stranger's anatomy fits a mask: what a sample's tissues must at least agree with its mask's.

A mask of brain and lesion says where the brain is, and not how its gyri run. So no sample can have the Dice that a
segmenter reaches on the subject itself, and a sample that has learned heads should fit better than another head that is
merely scaled into the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from medddpm.quality.measures import HEALTHY, Number
from medddpm.quality.tissues import BACKGROUND, OEDEMA, TISSUES, TUMOUR, tissue_dice


def strangers_dice(tissues: Tensor) -> list[Number]:
    """Returns, for each head, the Dice of the best fitting other head with its anatomy, by tissue.

    Each other head is scaled and moved along the axes so that the boxes about both brains agree, by the nearest voxel;
    the best fitting has the largest overlap of brains. Where either has tumour or oedema, nothing is compared.

    Args:
        tissues: (N, D, W, H) of `TISSUES`, N at least 2.
    """
    boxes = [_box(volume != BACKGROUND) for volume in tissues]
    rows = []
    for i, head in enumerate(tissues):
        others = [_moved(tissues[j], boxes[j], boxes[i]) for j in range(len(tissues)) if j != i]
        brain = head != BACKGROUND
        overlap = [_overlap(other != BACKGROUND, brain) for other in others]
        best = others[max(range(len(others)), key=overlap.__getitem__)]
        ill = torch.isin(head, torch.tensor([OEDEMA, TUMOUR])) | torch.isin(best, torch.tensor([OEDEMA, TUMOUR]))
        one, two = (torch.where(ill, BACKGROUND, part)[None] for part in (best, head))
        dice = tissue_dice(one, two)[0]
        rows += [Number(i, "dice", "all", TISSUES[tissue], float(dice[tissue])) for tissue in HEALTHY]
    return rows


_Box = tuple[slice, slice, slice]


def _box(brain: Tensor) -> _Box:
    places = brain.nonzero()
    low, high = places.amin(0).tolist(), places.amax(0).tolist()
    first, second, third = (slice(a, b + 1) for a, b in zip(low, high, strict=True))
    return first, second, third


def _moved(other: Tensor, box: _Box, to: _Box) -> Tensor:
    shape = tuple(edge.stop - edge.start for edge in to)
    moved = torch.zeros_like(other)
    moved[to] = F.interpolate(other[box][None, None].float(), shape, mode="nearest-exact")[0, 0].to(other.dtype)
    return moved


def _overlap(one: Tensor, two: Tensor) -> float:
    both = float((one & two).sum())
    return both / float((one | two).sum())
