"""Whether a sample shows what its mask asked for: brain and lesion recovered from the image alone.

Brain: the mean of the channels thresholded after Otsu (1979, IEEE Trans. Syst. Man Cybern. 9:62), which needs no
reference; narrow gaps closed (one step at 64³), the largest component kept, holes (ventricles, where fluid is dark)
filled. It suits skull-stripped volumes; a skull would be taken for brain.

Lesion: a voxel of the recovered brain belongs to it where the likelihood ratio of two normal distributions, lesion and
rest of the brain, is high enough (quadratic discriminant analysis). They are over each channel at three scales, because
a lesion is larger than noise and than the cortex is thick, and over what is usual in that place, the mean of the
reference's voxels there outside lesions, because many a lesion has the intensity of grey matter and shows by standing
where white matter should be. Distributions and threshold (the one of best Dice) are learned from the reference set and
its masks alone. It is a rule, not a radiologist: what it reaches on the reference, `dice_reference`, is what a
perfect sample could reach. On the phantom at 64³ that is about 0.9 in FLAIR, 0.75 in T2, and only 0.2 in T1, where
lesions look like grey matter; there `lesion_contrast` says more.
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
    """The intensity in [-1, 1] that parts voxels into two classes of greatest variance between them (256 bins)."""
    counts, edges = np.histogram(data, 256, (-1, 1))
    below = np.cumsum(counts, dtype=np.float64)
    moment = np.cumsum(counts * (edges[1:] + edges[:-1]) / 2)
    above = below[-1] - below
    between = (moment[-1] * below / below[-1] - moment) ** 2 / np.maximum(below * above, 1)
    return float(edges[1 + int(np.argmax(between))])


def recover_brain(image: Volume) -> Mask:
    """The brain (D, H, W) of a volume (C, D, H, W), by the module's rule; empty where nothing stands out."""
    data = image.mean(axis=0)
    steps = max(1, round(min(data.shape) / 64))
    # Beyond the edge there is nothing; closing would otherwise eat what reaches it.
    found = np.pad(data > otsu_threshold(data), steps)
    found = ndimage.binary_closing(found, iterations=steps)
    parts, count = ndimage.label(found)
    if count > 1:
        found = parts == 1 + int(np.argmax(np.bincount(parts.ravel())[1:]))
    inside = slice(steps, -steps)
    return np.asarray(ndimage.binary_fill_holes(found)[inside, inside, inside], bool)


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
        """The lesion (D, H, W) of a volume, `smoothed`, within its recovered brain."""
        found = np.zeros(brain.shape, bool)
        if brain.any():
            found[brain] = self.score(_features(smooth, self.usual, brain)) > self.threshold
        return found

    def score(self, features: npt.NDArray[np.float32]) -> Array:
        """Log likelihood ratio of (n, f)."""
        apart = [features - mean for mean in self.means]
        rest, lesion = (((d @ p) * d).sum(axis=1) / 2 for d, p in zip(apart, self.precisions, strict=True))
        return np.asarray(rest - lesion + self.offset)


def smoothed(image: Volume) -> Volume:
    """Every channel of a volume at every scale, (f, D, H, W)."""
    unit = min(image.shape[1:]) / 64
    return np.stack([ndimage.gaussian_filter(channel, scale * unit) for channel in image for scale in _SCALES])


def learn_lesion(
    images: Sequence[Volume], smooth: Sequence[Volume], brains: Sequence[Mask], lesions: Sequence[Mask]
) -> LesionRule | None:
    """The lesion rule of a reference set, or None where it has no lesion (or nothing else) to learn from.

    Args:
        images: (C, D, H, W) each.
        smooth: the images, `smoothed`.
        brains: the masks' brains, lesions included, (D, H, W) each.
        lesions: (D, H, W) each.
    """
    usual = _usual(images, lesions)
    classes: tuple[list[npt.NDArray[np.float32]], ...] = ([], [])
    for volume, brain, lesion in zip(smooth, brains, lesions, strict=True):
        for found, where in zip(classes, (brain & ~lesion, lesion), strict=True):
            found.append(_features(volume, usual, where))
    rest, lesion_features = (np.concatenate(found) for found in classes)
    width = rest.shape[1]
    if min(len(rest), len(lesion_features)) <= 2 * width:
        return None
    # The smallest deviation that counts, 0.003 of intensity, keeps a covariance from being singular.
    covariances = [np.atleast_2d(np.cov(found.T)) + 1e-5 * np.eye(width) for found in (rest, lesion_features)]
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
    """Mean intensity in a mask's lesion less that of the brain right around it, (C,); NaN without either.

    It asks whether something of the right sign and strength stands where the mask has the lesion, also where no rule
    on intensities can find its border.
    """
    reach = _SHELL * min(brain.shape) / 64
    shell = (ndimage.distance_transform_edt(~lesion) <= max(reach, 1.5)) & brain & ~lesion if lesion.any() else lesion
    if not shell.any():
        return np.full(len(image), np.nan)
    return np.asarray(image[:, lesion].mean(axis=1, dtype=np.float64) - image[:, shell].mean(axis=1, dtype=np.float64))


def _features(smooth: Volume, usual: npt.NDArray[np.float32], where: Mask) -> npt.NDArray[np.float32]:
    """The features (n, f) of the voxels of a mask: every channel at every scale, and the usual intensities."""
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
            # Weighed by how many volumes are whole there, a place with a lesion in every one is filled from around it.
            weight = ndimage.gaussian_filter(count, scale * unit)
            usual.append(ndimage.gaussian_filter(channel, scale * unit) / np.maximum(weight, 1e-3))
    return np.stack(usual).astype(np.float32)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _best_threshold(lesion: Array, rest: Array) -> float:
    """The threshold on scores whose Dice, pooled over voxels, is best."""
    scores = np.concatenate([lesion, rest])
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(order < len(lesion))
    dice = 2 * hits / (np.arange(1, len(scores) + 1) + len(lesion))
    best = int(np.argmax(dice))
    following = scores[order[min(best + 1, len(scores) - 1)]]
    return float((scores[order[best]] + following) / 2)
