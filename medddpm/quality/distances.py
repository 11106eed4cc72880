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

_WINDOW, _SIGMA = 7, 1.5
_C1, _C2 = (0.01 * DATA_RANGE) ** 2, (0.03 * DATA_RANGE) ** 2  # Wang et al. 2004, IEEE Trans. Image Process. 13:600
_VOXELS = 2**21  # of pairs at once
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
def float32_products() -> Iterator[None]:
    """Switches off TF32 in cuDNN, its default, and in matrix products: SSIM is small differences of large averages."""
    operators = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [operator.fp32_precision for operator in operators]
    for operator in operators:
        operator.fp32_precision = "ieee"
    try:
        yield
    finally:
        for operator, precision in zip(operators, before, strict=True):
            operator.fp32_precision = precision


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
        kernel_sigma=_SIGMA,
        weights=[weight / sum(weights) for weight in weights],
        reduction="none",
    )
    with float32_products():
        return torch.as_tensor(metric(first, second))[:, 0]


def ms_ssim_pairs(first: Tensor, second: Tensor | None = None) -> Array:
    """Returns MS-SSIM of every volume of one set with every volume of the other, or of the first, (n, m).

    MONAI averages both volumes and their squares anew for each pair, by a window of 7 × 7 × 7 weights. Here each volume
    is averaged once, and the window is taken as what it is, the product of a window along each axis: sixty times as
    fast on a CPU. Values are those of `ms_ssim` to 1e-5, MONAI's rounding in sums of 343 float32 products.

    Args:
        first: (n, 1, D, H, W) in [-1, 1].
        second: (m, 1, D, H, W), on the same device; None for the first, whose diagonal is then 1.
    """
    volumes = [part[:, 0].float() for part in (first, first if second is None else second)]
    weights = _WEIGHTS[: ms_ssim_scales(first.shape[2:])]
    values = torch.ones(len(volumes[0]), len(volumes[1]), device=first.device)
    with float32_products():
        for scale, weight in enumerate(weights):
            level = _similarity(volumes[0], volumes[1], second is None, coarsest=scale == len(weights) - 1)
            values *= level.relu() ** (weight / sum(weights))
            volumes = [F.avg_pool3d(part, 2) for part in volumes]
    if second is None:
        values.fill_diagonal_(1)
    return np.asarray(values.double().cpu().numpy())


def _similarity(first: Tensor, second: Tensor, within: bool, coarsest: bool) -> Tensor:
    """Returns the mean contrast similarity of every two volumes at one scale, and SSIM at the coarsest; (n, m).

    Wang, Simoncelli & Bovik 2003, Asilomar Conf. Signals Syst. Comput.:1398.

    Args:
        first: (n, D, H, W).
        second: (m, D, H, W).
        within: both are one set, and only one of (i, j) and (j, i) is computed.
        coarsest: this is the coarsest scale.
    """
    windows = [_window(edge, first.device) for edge in first.shape[1:]]
    means, variances = _moments_of(first, windows)
    other_means, other_variances = (means, variances) if within else _moments_of(second, windows)
    values = torch.ones(len(first), len(second), device=first.device)
    batch = max(1, _VOXELS // first[0].numel())
    for row in range(len(first)):
        for start in range(row + 1 if within else 0, len(second), batch):
            columns = slice(start, start + batch)
            mean, other_mean = means[row], other_means[columns]
            product = mean * other_mean
            covariance = _averaged(first[row] * second[columns], windows) - product
            similarity = (2 * covariance + _C2) / (variances[row] + other_variances[columns] + _C2)
            if coarsest:
                similarity *= (2 * product + _C1) / (mean.square() + other_mean.square() + _C1)
            values[row, columns] = similarity.flatten(1).mean(1)
            if within:
                values[columns, row] = values[row, columns]
    return values


def _moments_of(volumes: Tensor, windows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the windowed means and variances of volumes (N, D, H, W)."""
    means = torch.stack([_averaged(volume, windows) for volume in volumes])
    squares = torch.stack([_averaged(volume.square(), windows) for volume in volumes])
    return means, squares - means.square()


def _averaged(volumes: Tensor, windows: Sequence[Tensor]) -> Tensor:
    """Returns the windowed averages of volumes (…, D, H, W), without those whose window would reach outside."""
    first, second, third = windows
    rows = second @ (volumes @ third.T)
    return (first @ rows.flatten(-2)).unflatten(-1, rows.shape[-2:])


def _window(edge: int, device: torch.device) -> Tensor:
    """Returns the matrix that averages along an axis by a Gaussian window, (edge - `_WINDOW` + 1, edge)."""
    distance = torch.arange(_WINDOW) - _WINDOW // 2
    weights = torch.exp(-(distance / _SIGMA).square() / 2)
    matrix = torch.zeros(edge - _WINDOW + 1, edge)
    for place, weight in enumerate((weights / weights.sum()).tolist()):
        matrix.diagonal(place).fill_(weight)
    return matrix.to(device)


def gram(first: Tensor, second: Tensor) -> Array:
    """Returns mean products of voxels, (n, m), of (n, 1, D, H, W) and (m, 1, D, H, W); summed in float64."""
    one, two = first.flatten(1), second.flatten(1)
    total = torch.zeros(len(one), len(two), dtype=torch.float64, device=one.device)
    for start in range(0, one.shape[1], 2**18):
        total += one[:, start : start + 2**18].double() @ two[:, start : start + 2**18].double().T
    return np.asarray(total.cpu().numpy() / one.shape[1])


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
