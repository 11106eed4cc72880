"""Distances between sets of volumes: MS-SSIM over pairs, MMD, Wasserstein over intensities, Fréchet over patches.

Each has two parts: a measurement on volumes (tensors, on their device), and a `Statistic` of the volumes' counts, so
that intervals resample volumes without measuring again.

The Fréchet distance needs features. Those of a network trained on ImageNet or on scans would have to be downloaded and
say little about a phantom; those of a network with random weights (Naeem et al. 2020, ICML) need none, but mean
nothing that a reader could name, and rest on a random generator staying what it is. Here a feature is a multi-scale
patch statistic: each volume is cut into 8 × 8 × 8 cells, and a cell gives, for each channel, its mean, its deviation,
the mean of its neighbourhood, and the strength of detail at three scales (bands of a Laplacian pyramid, Burt & Adelson
1983); and its place and distance from the centre, so that the right texture in the wrong place counts. There are no
weights and no draws: averages of voxels, the same on every machine to rounding. Cells are pooled over the set, so that
covariances are known from a few volumes, where one vector a volume would need hundreds (Chong & Forsyth 2020, CVPR, on
the bias of small sets). The price: copies of one volume have nearly its cells, so lost diversity hardly shows; that is
what mean pairwise MS-SSIM is for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor
from torch.nn import functional as F

from medddpm.errors import BadInput
from medddpm.quality.intervals import Array, Statistic, mean_of_pairs

SMALLEST = 16
"""Edge in voxels below which a volume is refused: MS-SSIM needs two scales of seven voxels."""

DATA_RANGE = 2.0
"""The width of the range of intensities, from -1 to 1."""

BINS = 2000
"""Bins of intensity, 0.001 wide, which is the error of a Wasserstein distance."""

CELLS = 8
BANDS = 3

_WINDOW = 7
_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # Wang, Simoncelli & Bovik 2003, finest scale first


def ms_ssim_scales(size: Sequence[int]) -> int:
    """Returns the number of MS-SSIM's five scales that fit a volume: 5 at 128³, 4 at 64³, 3 at 32³, 2 at 16³.

    The window must fit the coarsest scale. It is a Gaussian of deviation 1.5 on 7 voxels at every size: MONAI's default
    of 11 voxels does not fit the fifth scale of 128³. MONAI checks (scales - 1)² instead of 2^(scales - 1); both
    conditions are applied.

    Raises:
        BadInput: an edge is shorter than `SMALLEST`.
    """
    edge = min(size)
    if edge < SMALLEST:
        shape = " × ".join(map(str, size))
        raise BadInput("volumes", f"{shape} is too small to compare", f"give edges of {SMALLEST} voxels or more")
    fits = [n for n in range(2, 6) if edge // 2 ** (n - 1) >= _WINDOW and edge // (n - 1) ** 2 >= _WINDOW]
    return max(fits)


@contextlib.contextmanager
def float32_convolutions() -> Iterator[None]:
    """Switches off TF32 in cuDNN, its default: SSIM is made of small differences of large averages."""
    convolution = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolution.fp32_precision
    convolution.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolution.fp32_precision = before


def ms_ssim(first: Tensor, second: Tensor) -> Tensor:
    """Returns MONAI's MS-SSIM of volumes i of both, (N, 1, D, H, W) in [-1, 1] to (N,), with as many scales as fit.

    The published weights of the scales are normalised to sum to 1. Values at different sizes are not comparable.
    """
    from monai.metrics.regression import MultiScaleSSIMMetric

    weights = _WEIGHTS[: ms_ssim_scales(first.shape[2:])]
    metric = MultiScaleSSIMMetric(
        spatial_dims=3,
        data_range=DATA_RANGE,
        kernel_size=_WINDOW,
        kernel_sigma=1.5,
        weights=[weight / sum(weights) for weight in weights],
        reduction="none",
    )
    with float32_convolutions():
        return torch.as_tensor(metric(first, second))[:, 0]


def ms_ssim_pairs(first: Tensor, second: Tensor | None = None) -> Array:
    """Returns MS-SSIM of every volume of one set with every volume of the other, or of the first, (n, m)."""
    within = second is None
    other = first if second is None else second
    values = np.ones((len(first), len(other)))
    batch = max(1, 2**21 // math.prod(first.shape[2:]))
    for row in range(len(first)):
        for start in range(row + 1 if within else 0, len(other), batch):
            columns = other[start : start + batch]
            row_values = ms_ssim(columns, first[row : row + 1].expand_as(columns)).double().cpu().numpy()
            values[row, start : start + batch] = row_values
            if within:
                values[start : start + batch, row] = row_values
    return values


def gram(first: Tensor, second: Tensor) -> Array:
    """Returns mean products of voxels, (n, m), of (n, 1, D, H, W) and (m, 1, D, H, W); summed in float64."""
    one, two = first.flatten(1), second.flatten(1)
    total = torch.zeros(len(one), len(two), dtype=torch.float64, device=one.device)
    for start in range(0, one.shape[1], 2**18):
        total += one[:, start : start + 2**18].double() @ two[:, start : start + 2**18].double().T
    return np.asarray(total.cpu().numpy() / one.shape[1])


def grams(first: Tensor, second: Tensor) -> tuple[Array, Array, Array]:
    """Returns the products of `gram` within one set, within the other and between them, for `mmd`.

    They are of differences from the second's mean: a linear kernel's MMD does not change when one volume is subtracted
    from all, and then rounds far less.
    """
    centre = second.mean(dim=0, keepdim=True)
    one, two = first - centre, second - centre
    return gram(one, one), gram(two, two), gram(one, two)


def mmd(within: Array, within_reference: Array, between: Array, paired: bool) -> Statistic:
    """Returns the unbiased squared maximum mean discrepancy (Gretton et al. 2012, J. Mach. Learn. Res. 13:723).

    For two sets from one distribution it is 0 on average, so it may be negative. MONAI's `MMDMetric` is this with
    products of voxels as the kernel, for sets of one size, each volume counted once; tests compare the two.

    Args:
        within: (n, n) kernel of samples.
        within_reference: (m, m).
        between: (n, m).
        paired: sample i belongs to reference i, and they are resampled together. Such pairs are not independent and do
            not count, so identical sets give 0.
    """
    of_samples, of_reference = mean_of_pairs(within, True), mean_of_pairs(within_reference, True)
    across = mean_of_pairs(between, paired)
    if paired:
        return lambda weights: of_samples(weights) + of_reference(weights) - 2 * across(weights)
    return lambda rows, columns: of_samples(rows) + of_reference(columns) - 2 * across(rows, columns)


def gaussian_kernels(within: Array, within_reference: Array, between: Array) -> tuple[Array, Array, Array]:
    """Returns exp(-d² / s²) from mean products of voxels; s² is the median d² between two reference volumes.

    A linear kernel sees the mean volume alone; this one every difference between the distributions.
    """
    norms, reference_norms = np.diag(within), np.diag(within_reference)
    squared = [
        np.maximum(rows[:, None] + columns - 2 * products, 0)
        for rows, columns, products in (
            (norms, norms, within),
            (reference_norms, reference_norms, within_reference),
            (norms, reference_norms, between),
        )
    ]
    width = max(float(np.median(squared[1][np.triu_indices(len(reference_norms), 1)])), 1e-12)
    one, two, three = (np.exp(-distance / width) for distance in squared)
    return one, two, three


def histograms(images: Tensor, labels: Tensor, label: int) -> Array:
    """Counts the voxels of one label in each bin of intensity, (N, BINS); images (N, D, H, W) in [-1, 1]."""
    bins = ((images.float() + 1) * (BINS / DATA_RANGE)).long().clamp(0, BINS - 1)
    where = labels == label
    counts = [torch.bincount(bins[i][where[i]], minlength=BINS) for i in range(len(images))]
    return np.asarray(torch.stack(counts).double().cpu().numpy())


def wasserstein(samples: Array, reference: Array, paired: bool) -> Statistic:
    """Returns SciPy's 1-Wasserstein distance between pooled intensities, from `histograms`; in units of intensity."""
    centres = (np.arange(BINS) + 0.5) * (DATA_RANGE / BINS) - 1

    def distances(rows: Array, columns: Array) -> Array:
        pooled = zip(rows @ samples, columns @ reference, strict=True)
        values = [wasserstein_distance(centres, centres, a, b) if a.any() and b.any() else np.nan for a, b in pooled]
        return np.array(values, np.float64)

    return (lambda weights: distances(weights, weights)) if paired else distances


def patch_features(images: Tensor) -> Tensor:
    """Returns the features of every cell (see the module), (N, 512, 6 C + 4) float64 of (N, C, D, H, W)."""
    ms_ssim_scales(images.shape[2:])
    features = [_cells(images[i : i + 1].float()) for i in range(len(images))]
    return torch.cat(features)


def _cells(image: Tensor) -> Tensor:
    mean = F.adaptive_avg_pool3d(image, CELLS)
    around = F.avg_pool3d(F.pad(mean, (1,) * 6, mode="replicate"), 3, stride=1)
    square = F.adaptive_avg_pool3d((image - F.interpolate(mean, image.shape[2:], mode="nearest")) ** 2, CELLS)
    features = [mean, square.sqrt(), around]
    level = image
    for _ in range(BANDS):
        coarser = F.avg_pool3d(level, 2, ceil_mode=True)
        detail = level - F.interpolate(coarser, level.shape[2:], mode="trilinear", align_corners=False)
        features.append(F.adaptive_avg_pool3d(detail**2, CELLS).sqrt())
        level = coarser
    axis = (torch.arange(CELLS, device=image.device, dtype=image.dtype) + 0.5) * (2 / CELLS) - 1
    place = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))[None]
    features += [place, place.square().sum(1, keepdim=True).sqrt()]
    return torch.cat(features, dim=1).flatten(2).transpose(1, 2).double()


def frechet(samples: Tensor, reference: Tensor, paired: bool) -> Statistic:
    """Returns the Fréchet distance of normal distributions fitted to pooled features, as in the inception distance.

    |m₁ - m₂|² + tr(S₁ + S₂ - 2 (S₁ S₂)^½), as MONAI's `FIDMetric` has it; this one takes many resamples at once, and
    tests compare the two. Features are first divided by their deviation over the reference, so that their units do not
    matter; the distance has no unit, and is relative to that reference.

    Args:
        samples: (n, cells, features) of `patch_features`.
        reference: (m, cells, features).
        paired: sample i belongs to reference i, and they are resampled together.
    """
    flat = reference.flatten(0, 1)
    centre, scale = flat.mean(0), flat.std(0).clamp(min=1e-3)
    (sums, squares), (sums_reference, squares_reference) = (
        _moments((features - centre) / scale) for features in (samples, reference)
    )
    cells = samples.shape[1]

    def distances(rows: Array, columns: Array) -> Array:
        values = [
            _frechet(_normal(one, sums, squares, cells), _normal(two, sums_reference, squares_reference, cells))
            for one, two in zip(rows, columns, strict=True)
        ]
        return np.array(values)

    return (lambda weights: distances(weights, weights)) if paired else distances


def _moments(features: Tensor) -> tuple[Array, Array]:
    """Returns each volume's sums (n, f) and sums of products (n, f, f), which suffice for pooling."""
    array = features.cpu().numpy()
    return array.sum(axis=1), np.einsum("nci,ncj->nij", array, array, optimize=True)


def _normal(weights: Array, sums: Array, squares: Array, cells: int) -> tuple[Array, Array]:
    count = weights.sum() * cells
    mean = weights @ sums / count
    covariance = (np.tensordot(weights, squares, axes=1) - count * np.outer(mean, mean)) / (count - 1)
    return mean, covariance


def _frechet(first: tuple[Array, Array], second: tuple[Array, Array]) -> float:
    # tr (S1 S2)^½ is the sum of the roots of the eigenvalues of S1^½ S2 S1^½, which is symmetric: nothing imaginary,
    # and no failure where a covariance is singular.
    values, vectors = np.linalg.eigh(first[1])
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    shared = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ second[1] @ root), 0)).sum()
    apart = first[0] - second[0]
    return float(max(0.0, apart @ apart + np.trace(first[1]) + np.trace(second[1]) - 2 * shared))
