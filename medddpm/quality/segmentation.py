"""Recovers brain and lesion from an image alone, to compare them with its mask.

Brain: the mean of the channels is thresholded after Otsu (1979, IEEE Trans. Syst. Man Cybern. 9:62), which needs no
reference. Narrow gaps are closed (one step at 64³), all components but the largest removed, holes filled
(ventricles, whose fluid is dark). It suits skull-stripped volumes; a skull would count as brain.

Lesion: a voxel of the recovered brain belongs to it where the likelihood ratio of two normal distributions, lesion and
rest of the brain, is high enough (quadratic discriminant analysis). Their features are each channel at three scales,
because a lesion is larger than noise and than the thickness of the cortex, and the usual intensity of the place: the
mean of the reference's voxels there outside lesions, because many a lesion has the intensity of grey matter and shows
only by its place in white matter. Distributions and threshold (that of the best Dice) are learned from the reference
set and its masks alone. It is a rule, not a radiologist: a perfect sample could reach its Dice on the reference,
`dice_reference`. On the phantom at 64³ that is about 0.9 in FLAIR, 0.75 in T2, and only 0.2 in T1, where lesions look
like grey matter; there `lesion_contrast` is the better measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Volume = npt.NDArray[np.float32]
"""(C, D, H, W) in [-1, 1]."""
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float64]

ENOUGH_FOR_USUAL = 8
"""Reference volumes below which the usual intensity of a place is not known well enough to use."""

_SCALES = (0.5, 1.0, 2.0)  # voxels at 64³
_USUAL_SCALES = (1.0, 3.0)
_SHELL = 3.0  # voxels at 64³: how far around a lesion its surroundings reach


def otsu_threshold(data: npt.NDArray[np.float32]) -> float:
    """Returns the intensity in [-1, 1] between two classes of voxels of greatest variance between them (256 bins)."""
    counts, edges = np.histogram(data, 256, (-1, 1))
    below = np.cumsum(counts, dtype=np.float64)
    moment = np.cumsum(counts * (edges[1:] + edges[:-1]) / 2)
    above = below[-1] - below
    between = (moment[-1] * below / below[-1] - moment) ** 2 / np.maximum(below * above, 1)
    return float(edges[1 + int(np.argmax(between))])


def recover_brain(image: Volume) -> Mask:
    """Returns the brain (D, H, W) of a volume (C, D, H, W), by the module's rule; empty if nothing stands out."""
    data = image.mean(axis=0)
    steps = max(1, round(min(data.shape) / 64))
    # Pad with background: closing would otherwise remove brain at the edge.
    brain = np.pad(data > otsu_threshold(data), steps)
    brain = ndimage.binary_closing(brain, iterations=steps)
    parts, count = ndimage.label(brain)
    if count > 1:
        brain = parts == 1 + int(np.argmax(np.bincount(parts.ravel())[1:]))
    inside = slice(steps, -steps)
    return np.asarray(ndimage.binary_fill_holes(brain)[inside, inside, inside], bool)


@dataclass(frozen=True)
class LesionRule:
    """The lesion rule as learned by `learn_lesion`; calling it recovers a lesion.

    Args:
        means, precisions: of the two normal distributions, rest of the brain and lesion.
        offset: of the log likelihood ratio: half the difference of the log determinants.
        threshold: above which a voxel is lesion.
        usual: (U, D, H, W), the usual intensities; U may be 0.
    """

    means: tuple[Array, Array]
    precisions: tuple[Array, Array]
    offset: float
    threshold: float
    usual: npt.NDArray[np.float32]

    def __call__(self, smooth: Volume, brain: Mask) -> Mask:
        """Returns the lesion (D, H, W) of a volume, `smoothed`, within its recovered brain."""
        lesion = np.zeros(brain.shape, bool)
        if brain.any():
            lesion[brain] = self.score(_features(smooth, self.usual, brain)) > self.threshold
        return lesion

    def score(self, features: npt.NDArray[np.float32]) -> Array:
        """Returns the log likelihood ratios of features (n, f)."""
        apart = [features - mean for mean in self.means]
        rest, lesion = (((d @ p) * d).sum(axis=1) / 2 for d, p in zip(apart, self.precisions, strict=True))
        return np.asarray(rest - lesion + self.offset)


def smoothed(image: Volume) -> Volume:
    """Returns every channel of a volume at every scale, (f, D, H, W)."""
    unit = min(image.shape[1:]) / 64
    return np.stack([ndimage.gaussian_filter(channel, scale * unit) for channel in image for scale in _SCALES])


def learn_lesion(
    images: Sequence[Volume], smooth: Sequence[Volume], brains: Sequence[Mask], lesions: Sequence[Mask]
) -> LesionRule | None:
    """Learns the lesion rule of a reference set; None if it has too few voxels of lesion or of the rest.

    Args:
        images: (C, D, H, W) each.
        smooth: the images, `smoothed`.
        brains: the masks' brains, lesions included, (D, H, W) each.
        lesions: (D, H, W) each.
    """
    usual = _usual(images, lesions)
    classes: tuple[list[npt.NDArray[np.float32]], ...] = ([], [])
    for volume, brain, lesion in zip(smooth, brains, lesions, strict=True):
        for features, where in zip(classes, (brain & ~lesion, lesion), strict=True):
            features.append(_features(volume, usual, where))
    rest, lesion_features = (np.concatenate(features) for features in classes)
    width = rest.shape[1]
    if min(len(rest), len(lesion_features)) <= 2 * width:
        return None
    # The smallest deviation that counts, 0.003 of intensity, keeps a covariance from being singular.
    covariances = [np.atleast_2d(np.cov(features.T)) + 1e-5 * np.eye(width) for features in (rest, lesion_features)]
    logs = [float(np.linalg.slogdet(covariance)[1]) for covariance in covariances]
    rule = LesionRule(
        means=(rest.mean(axis=0, dtype=np.float64), lesion_features.mean(axis=0, dtype=np.float64)),
        precisions=(_inverse(covariances[0]), _inverse(covariances[1])),
        offset=(logs[0] - logs[1]) / 2,
        threshold=0.0,
        usual=usual,
    )
    threshold = _best_threshold(rule.score(lesion_features), rule.score(rest))
    return LesionRule(rule.means, rule.precisions, rule.offset, threshold, usual)


def lesion_contrast(image: Volume, brain: Mask, lesion: Mask) -> Array:
    """Returns the mean intensity of a mask's lesion minus that of the brain right around it, (C,); NaN without either.

    It shows whether the lesion's place has a contrast of the right sign and strength, even if no rule on intensities
    can find the lesion's border.
    """
    reach = _SHELL * min(brain.shape) / 64
    shell = (ndimage.distance_transform_edt(~lesion) <= max(reach, 1.5)) & brain & ~lesion if lesion.any() else lesion
    if not shell.any():
        return np.full(len(image), np.nan)
    return np.asarray(image[:, lesion].mean(axis=1, dtype=np.float64) - image[:, shell].mean(axis=1, dtype=np.float64))


def _features(smooth: Volume, usual: npt.NDArray[np.float32], where: Mask) -> npt.NDArray[np.float32]:
    """Returns the features (n, f) of the voxels of a mask: every channel at every scale, and the usual intensities."""
    return np.concatenate([smooth[:, where], usual[:, where]]).T


def _usual(images: Sequence[Volume], lesions: Sequence[Mask]) -> npt.NDArray[np.float32]:
    shape = images[0].shape[1:]
    if len(images) < ENOUGH_FOR_USUAL:
        return np.empty((0, *shape), np.float32)
    unit = min(shape) / 64
    count = np.sum([~lesion for lesion in lesions], axis=0, dtype=np.float32)
    total = np.asarray(sum(image * ~lesion for image, lesion in zip(images, lesions, strict=True)), np.float32)
    usual = []
    for channel in total:
        for scale in _USUAL_SCALES:
            # Weighted by the number of volumes without a lesion there; where all have one, neighbours fill the place.
            weight = ndimage.gaussian_filter(count, scale * unit)
            usual.append(ndimage.gaussian_filter(channel, scale * unit) / np.maximum(weight, 1e-3))
    return np.stack(usual).astype(np.float32)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _best_threshold(lesion: Array, rest: Array) -> float:
    """Returns the threshold on scores whose Dice, pooled over voxels, is best."""
    scores = np.concatenate([lesion, rest])
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(order < len(lesion))
    dice = 2 * hits / (np.arange(1, len(scores) + 1) + len(lesion))
    best = int(np.argmax(dice))
    following = scores[order[min(best + 1, len(scores) - 1)]]
    return float((scores[order[best]] + following) / 2)
