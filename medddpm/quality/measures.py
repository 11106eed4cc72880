"""The numbers of a single brain volume by which a reader would tell a brain from a grey mass.

The tissues are a segmenter's (`medddpm.quality.tissues`), which may draw a brain from memory where there is none. So
beside their volumes and surfaces stand numbers that a flat volume cannot have, however it is segmented: `contrast`,
`explained` and `texture` are differences of intensity. Textures are measured inside the brain alone: the step at its
border dominates the spectrum of a whole volume, and every model has that one from the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from medddpm.errors import BadInput
from medddpm.quality import distances
from medddpm.quality.tissues import (
    BACKGROUND,
    CSF,
    GREY,
    OEDEMA,
    TISSUES,
    TUMOUR,
    VENTRICLES,
    WHITE,
    Segmentation,
    tissue_dice,
)

SHELLS = 8
LESION = 2
"""The label of a mask's lesion; the rest of the brain has 1."""

LESION_ML = (10.0, 40.0)
"""The borders of three sizes of lesion, ml: a choice."""

HEALTHY = (CSF, VENTRICLES, GREY, WHITE)
MATTER = torch.tensor([GREY, WHITE])


class Number(NamedTuple):
    """A number of a volume.

    Args:
        volume: its place in the set.
        metric: of `MEASURES`.
        channel: the image channel; "all" where the number is none's.
        tissue: the tissue, pair of tissues, shell or size of lesion; "all" where it is none's.
        value: in the metric's unit; NaN where the volume lacks the tissue.
    """

    volume: int
    metric: str
    channel: str
    tissue: str
    value: float


@dataclass(frozen=True)
class Measured:
    """Volumes, what they were sampled for, and what the segmenter sees in them.

    Args:
        images: (N, C, D, W, H) in [-1, 1].
        masks: (N, D, W, H): 0 background, 1 brain, 2 lesion.
        seen: of `medddpm.quality.tissues.segment`.
        voxel: edge in mm; voxels are cubes.
        truth: (N, D, W, H) of `TISSUES`: the anatomy that each mask belongs to; None if it is not known.
    """

    images: Tensor
    masks: Tensor
    seen: Segmentation
    voxel: float
    truth: Tensor | None = None

    def __post_init__(self) -> None:
        shape = (len(self.images), *self.images.shape[2:])
        parts = {"masks": self.masks, "tissues": self.seen.labels, "truth": self.truth}
        for name, part in parts.items():
            if part is not None and tuple(part.shape) != shape:
                problem = f"{name} of shape {tuple(part.shape)} for images of shape {tuple(self.images.shape)}"
                raise BadInput("volumes", problem, "give each volume its own, (N, D, W, H)")


MEASURES = {
    "volume": "ml of a tissue",
    "surface": "mm²/mm³: area over volume of the white matter with oedema, and of the brain without outer fluid",
    "connected": "share of a tissue in its largest part: a brain has its ventricles in one, a texture in many",
    "dice": "of a tissue with the anatomy that the mask belongs to; of the lesion with the mask, by its size",
    "confidence": "the segmenter's mean probability for the class that it chose",
    "contrast": "difference of two tissues' means over the deviation within them",
    "edges": "step of intensity from grey to white matter over that within them: a mottled mass has no edges",
    "explained": "share of the healthy brain's variance that the tissues' means explain",
    "brightness": "mean intensity of the healthy brain",
    "texture": "dB: power a voxel inside the brain in eighths of the Nyquist frequency",
    "background": "root mean square distance from -1 outside the brain, of a range of 2",
}
"""What is measured, and its unit. Without a unit the number has none."""

PAIRS = ((WHITE, GREY), (GREY, VENTRICLES), (GREY, CSF))


def measure(volumes: Measured, channels: tuple[str, ...]) -> list[Number]:
    """Returns the numbers of volumes, as `MEASURES` has them.

    Args:
        volumes: the volumes.
        channels: their image channels' names.
    """
    rows: list[Number] = []
    dice = None if volumes.truth is None else tissue_dice(volumes.seen.labels, volumes.truth)
    # Of the lesion only the mask tells, and what the segmenter calls otherwise does not count.
    marked = torch.where(volumes.masks == LESION, TUMOUR, BACKGROUND)
    lesions = tissue_dice(volumes.seen.labels, marked)[:, TUMOUR]
    for i, labels in enumerate(volumes.seen.labels):
        rows += [Number(i, *row) for row in _of_tissues(labels, volumes.voxel)]
        rows.append(Number(i, "confidence", "all", "all", float(volumes.seen.confidence[i])))
        if dice is not None:
            rows += [Number(i, "dice", "all", TISSUES[t], float(dice[i, t])) for t in HEALTHY]
        ml = float((volumes.masks[i] == LESION).sum()) * volumes.voxel**3 / 1000
        if ml:
            rows.append(Number(i, "dice", "all", lesion_size(ml), float(lesions[i])))
        for channel, image in zip(channels, volumes.images[i], strict=True):
            rows += [
                Number(i, metric, channel, tissue, value)
                for metric, tissue, value in _of_image(image.float().cpu(), volumes.masks[i].cpu(), labels)
            ]
    return rows


def lesion_size(ml: float) -> str:
    """Returns the name of a lesion's size."""
    small, large = LESION_ML
    if ml < small:
        return f"tumour below {small:g} ml"
    return f"tumour from {large:g} ml" if ml >= large else f"tumour, {small:g} to {large:g} ml"


def _of_tissues(labels: Tensor, voxel: float) -> Iterator[tuple[str, str, str, float]]:
    for tissue, name in enumerate(TISSUES):
        if tissue != BACKGROUND:
            yield "volume", "all", name, float((labels == tissue).sum()) * voxel**3 / 1000
    for name, tissues in {"white": (WHITE, OEDEMA), "brain": (VENTRICLES, GREY, WHITE, OEDEMA, TUMOUR)}.items():
        yield "surface", "all", name, surface_to_volume(torch.isin(labels, torch.tensor(tissues)), voxel)
    for tissue in (CSF, VENTRICLES):
        yield "connected", "all", TISSUES[tissue], largest_share(labels == tissue)


def largest_share(body: Tensor) -> float:
    """Returns the share of a body (D, W, H) bool in its largest part, connected by faces; NaN if it is empty."""
    from scipy import ndimage

    parts, _ = ndimage.label(body.cpu().numpy())
    sizes = np.bincount(parts.ravel())[1:]
    return float(sizes.max() / sizes.sum()) if len(sizes) else math.nan


def surface_to_volume(body: Tensor, voxel: float) -> float:
    """Returns area over volume of a body (D, W, H) bool, in mm²/mm³; NaN if it is empty.

    The area is MONAI's, of the triangles of marching cubes between voxel centres (`monai.metrics.utils.get_mask_edges`
    with a spacing). At voxels of some millimetres narrow sulci are closed, so it is compared at one size only.

    Args:
        body: is padded with a voxel of background.
        voxel: edge, mm.
    """
    from monai.metrics.utils import get_mask_edges

    if not body.any():
        return math.nan
    padded = F.pad(body.cpu().float(), (1,) * 6).bool()
    areas = get_mask_edges(padded, padded, crop=False, spacing=(voxel,) * 3)[2]
    return float(areas.sum()) / (float(body.sum()) * voxel**3)


def _of_image(image: Tensor, mask: Tensor, labels: Tensor) -> Iterator[tuple[str, str, float]]:
    values = {tissue: image[labels == tissue].double() for tissue in HEALTHY}
    for one, two in PAIRS:
        yield "contrast", f"{TISSUES[one]} - {TISSUES[two]}", _effect(values[one], values[two])
    yield "edges", f"{TISSUES[WHITE]} - {TISSUES[GREY]}", _edges(image, labels)
    yield "explained", "all", _explained(list(values.values()))
    healthy = mask == 1
    yield "brightness", "all", float(image[healthy].mean()) if healthy.any() else math.nan
    for shell, decibel in enumerate(texture(image, mask > 0)):
        yield "texture", f"shell {shell + 1}", float(decibel)
    # Two voxels off, a sampler's soft border does not count.
    outside = F.max_pool3d((mask > 0)[None].float(), 5, 1, 2)[0] == 0
    level = (image[outside].double() + 1).square().mean().sqrt()
    yield "background", "all", float(level) if outside.any() else math.nan


def _effect(one: Tensor, two: Tensor) -> float:
    """Returns Cohen's d (1988): the difference of means over the root mean variance."""
    if min(len(one), len(two)) < 2:
        return math.nan
    spread = ((one.var() + two.var()) / 2).sqrt().clamp(min=1e-6)
    return float((one.mean() - two.mean()) / spread)


def _edges(image: Tensor, labels: Tensor) -> float:
    """Returns the mean step between neighbours of which one is grey and one white matter, over that within either."""
    image, matter = image.double(), torch.isin(labels, MATTER)
    across, within = [], []
    for axis, edge in enumerate(labels.shape):
        both = matter.narrow(axis, 0, edge - 1) & matter.narrow(axis, 1, edge - 1)
        alike = labels.narrow(axis, 0, edge - 1) == labels.narrow(axis, 1, edge - 1)
        steps = image.diff(dim=axis).abs()
        across.append(steps[both & ~alike])
        within.append(steps[both & alike])
    return float(torch.cat(across).mean() / torch.cat(within).mean().clamp(min=1e-6))


def _explained(parts: list[Tensor]) -> float:
    """Returns the correlation ratio η² (Pearson 1905): variance between the parts over all variance; NaN if none."""
    pooled = torch.cat(parts)
    if len(pooled) < 2 or float(pooled.var()) < 1e-12:
        return math.nan if len(pooled) < 2 else 0.0
    between = sum(len(part) * float(part.mean() - pooled.mean()) ** 2 for part in parts if len(part))
    return between / float((pooled - pooled.mean()).square().sum())


def texture(image: Tensor, brain: Tensor) -> Tensor:
    """Returns the power a voxel inside the brain in shells of frequency, in dB, (SHELLS,) float64.

    Noise of deviation s has 20 log10(s) in every shell. The window is the brain without its outer voxels, its border
    softened; the mean in it is taken off first.

    Args:
        image: (D, W, H).
        brain: (D, W, H) bool.
    """
    kernel = 2 * max(1, round(min(image.shape) / 32)) + 1
    inner = 1 - F.max_pool3d(1 - brain[None].float(), kernel, 1, kernel // 2)
    window = F.avg_pool3d(inner, kernel, 1, kernel // 2)[0].double()
    energy = window.square().sum().clamp(min=1e-12)
    level = (image.double() * window).sum() / window.sum().clamp(min=1e-12)
    power = torch.fft.fftn((image.double() - level) * window).abs().square() / energy
    axes = [2 * torch.fft.fftfreq(edge) for edge in image.shape]
    radius = torch.stack(torch.meshgrid(*axes, indexing="ij")).square().sum(0).sqrt()
    shells = (radius * SHELLS).long().flatten()
    total = torch.zeros(SHELLS + SHELLS, dtype=torch.float64).index_add_(0, shells, power.flatten())[:SHELLS]
    count = torch.bincount(shells, minlength=SHELLS)[:SHELLS].clamp(min=1)
    return 10 * torch.log10(total / count + 1e-12)


def nearest(samples: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the training subject that each sample is most like: its index (n,), and their correlation (n,) float64.

    Correlated are the differences from the training's mean volume: any two brains are alike in what all have. A copy
    has 1.

    Args:
        samples: (n, C, D, W, H).
        trained: (m, C, D, W, H), m at least 2, on the same device.
    """
    centre = trained.mean(dim=0, keepdim=True)
    one, two = samples - centre, trained - centre
    # A subject at a time: thousands of them take gigabytes twice over in float64.
    powers = [torch.stack([each.double().square().mean() for each in part]) for part in (one, two)]
    norms = [power.sqrt().clamp(min=1e-12).cpu() for power in powers]
    products = torch.from_numpy(distances.gram(one, two))
    best = (products / norms[0][:, None] / norms[1]).max(dim=1)
    return best.indices, best.values
