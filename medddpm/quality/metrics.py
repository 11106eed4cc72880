"""Measures samples with MONAI's metrics: sets of volumes in, a tidy table with intervals out.

>>> held_out = VolumeSet.of(Phantom(16, (64, 64, 64), seed=1), range(16))
>>> compare(VolumeSet(samples, held_out.labels), held_out, paired=True)

No metric needs a download. `METRICS` describes each one. They are computed in `distances` (distances between sets, and
the features of the Fréchet distance), `quality.segmentation` (brain and lesion of an image) and `quality.intervals`
(bootstrap, and the equivalence test of two settings).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from medddpm.errors import BadInput
from medddpm.quality import distances as sets
from medddpm.quality.intervals import Estimate, Statistic, bootstrap, mean_of, mean_of_pairs
from medddpm.quality.segmentation import (
    LesionRule,
    Mask,
    Volume,
    learn_lesion,
    lesion_contrast,
    recover_brain,
    smoothed,
)


@dataclass(frozen=True)
class Measure:
    """The description of a metric.

    Args:
        unit: "" for none.
        better: "higher", "lower", or the metric that it should equal; "" for such a metric.
        bounds: the ends of its range.
        what: the description in words.
    """

    unit: str
    better: str
    bounds: tuple[float, float]
    what: str


METRICS: dict[str, Measure] = {
    "psnr": Measure("dB", "higher", (-np.inf, np.inf), "peak signal to noise ratio against the subject's own volume"),
    "ssim": Measure("", "higher", (-1, 1), "SSIM against the subject's own volume (MONAI's window, 11 voxels)"),
    "ms_ssim": Measure("", "higher", (0, 1), "MS-SSIM against the subject's own volume"),
    "ms_ssim_between": Measure("", "diversity_reference", (0, 1), "mean MS-SSIM of a sample and a reference volume"),
    "diversity": Measure("", "diversity_reference", (0, 1), "mean MS-SSIM of two samples; 1: all the same"),
    "diversity_reference": Measure("", "", (0, 1), "mean MS-SSIM of two reference volumes"),
    "mmd_linear": Measure("", "lower", (-np.inf, np.inf), "squared MMD a voxel, linear kernel: of the mean volumes"),
    "mmd_gaussian": Measure("", "lower", (-np.inf, np.inf), "squared MMD, Gaussian kernel: of the distributions"),
    "wasserstein": Measure("intensity", "lower", (0, 2), "between the intensities of a tissue, of a range of 2"),
    "frechet": Measure("", "lower", (0, np.inf), "Fréchet distance of multi-scale patch statistics"),
    "dice": Measure("", "higher", (0, 1), "of what is recovered from a sample with its mask"),
    "dice_reference": Measure("", "", (0, 1), "the same of reference volumes: what a perfect sample would reach"),
    "lesion_contrast": Measure("intensity", "lesion_contrast_reference", (-2, 2), "lesion minus its surroundings"),
    "lesion_contrast_reference": Measure("intensity", "", (-2, 2), "the same in reference volumes"),
}
"""Every metric, in the table's order. Its intervals are cut to its `bounds`."""

MOST_REFERENCES = 4
"""References whose lesion rule stays in memory; the usual intensities of one take 16 MB at 128³."""


@dataclass(frozen=True)
class Tissues:
    """The names of a mask's labels, 0 included, and the labels that are lesion; all but 0 are brain."""

    names: Mapping[int, str]
    lesions: tuple[int, ...]


HEAD_TISSUES = Tissues({0: "background", 1: "brain", 2: "lesion"}, (2,))
BRATS_TISSUES = Tissues({0: "background", 1: "necrosis", 2: "oedema", 3: "enhancing", 4: "brain"}, (1, 2, 3))


class Items(Protocol):
    """A data set such as `Phantom` or `VolumeFolder`: item i is (image, mask), a mask channel a label of its layout."""

    layout: Any

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Image (C, D, W, H) and mask (M, D, W, H), positive on its label."""


@dataclass(frozen=True)
class VolumeSet:
    """Volumes and their masks; for samples, the masks that they were sampled for.

    Args:
        images: (N, C, D, H, W) floating, in [-1, 1]; clamped to it, as samples are when they are written.
        labels: (N, D, H, W) whole numbers, 0 background; None leaves out the metrics that need masks.
        name: for messages.

    Raises:
        BadInput: the shape or the range of intensities is wrong, or a voxel is not finite.
    """

    images: Tensor
    labels: Tensor | None = None
    name: str = field(default="volumes", kw_only=True)

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        shape = tuple(images.shape)
        if images.dim() != 5 or 0 in shape or not images.is_floating_point():
            problem = f"images of shape {shape} and type {images.dtype}"
            raise BadInput(self.name, problem, "give floating volumes (N, C, D, H, W), at least one")
        sets.ms_ssim_scales(shape[2:])
        if not torch.isfinite(images).all():
            raise BadInput(self.name, "some voxels are not finite", "look at the training that gave them")
        if float((images.abs() > 2).float().mean()) > 0.05:  # a bad sampler's few outliers are to be measured
            raise BadInput(self.name, f"intensities reach {float(images.abs().max()):.4g}", "bring them to [-1, 1]")
        if labels is not None and (tuple(labels.shape) != (shape[0], *shape[2:]) or labels.is_floating_point()):
            problem = f"labels of shape {tuple(labels.shape)} and type {labels.dtype} for images of shape {shape}"
            raise BadInput(self.name, problem, "give whole-number labels (N, D, H, W)")
        object.__setattr__(self, "images", images.detach().float().clamp(-1, 1))
        object.__setattr__(self, "labels", None if labels is None else labels.to(images.device))

    @classmethod
    def of(cls, items: Items, indices: Iterable[int]) -> VolumeSet:
        """Reads items of a data set, and makes labels of their mask channels."""
        pairs = [items[index] for index in indices]
        if not pairs:
            raise BadInput("volumes", "no item was asked for", "give at least one index")
        values = torch.tensor(items.layout.labels, dtype=torch.uint8)
        labels = [((mask > 0) * values[:, None, None, None]).amax(dim=0) for _, mask in pairs]
        return cls(torch.stack([image for image, _ in pairs]), torch.stack(labels))

    def __len__(self) -> int:
        return len(self.images)

    @functools.cached_property
    def alike(self) -> list[npt.NDArray[np.float64]]:
        """MS-SSIM of every two volumes, (N, N) for each channel; measured once, since many sets have one reference."""
        return [sets.ms_ssim_pairs(self.images[:, i : i + 1]) for i in range(self.images.shape[1])]


def compare(
    samples: VolumeSet,
    reference: VolumeSet,
    *,
    paired: bool = False,
    metrics: Collection[str] | None = None,
    channels: Sequence[str] | None = None,
    tissues: Tissues = HEAD_TISSUES,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Compares samples with a reference set of real (or phantom) volumes.

    Args:
        samples: any number of volumes.
        reference: volumes of the same channels and size, and on the same device; any number.
        paired: sample i was sampled for the mask of reference volume i, which is its truth. Pairs are resampled
            together, and do not count in averages over pairs between the sets.
        metrics: keys of `METRICS`; None for all. MS-SSIM over pairs takes longest: at 128³ let it run on a GPU.
        channels: their names; None for "0", "1" …
        tissues: the meaning of the labels.
        resamples: bootstrap draws; 0 for no intervals.
        level: of the intervals.
        seed: of the draws.

    Returns:
        Columns metric, channel, tissue ("all" if the metric is of no tissue), value, low, high (`bootstrap`; NaN for
        fewer than four volumes), n (volumes of the measured set). Rows that cannot be computed are absent: one volume
        has no diversity, a set without masks no tissues, unpaired samples no truth.

    Raises:
        BadInput: the sets do not fit together, or a metric or channel name is not known.
    """
    names = _checked(samples, reference, paired, metrics, channels)
    chosen = set(METRICS if metrics is None else metrics)
    sizes = (len(samples),) if paired else (len(samples), len(reference))
    rows: list[dict[str, object]] = []

    def add(metric: str, channel: str, tissue: str, statistic: Statistic, volumes: Sequence[int]) -> None:
        if metric in chosen:
            bounds = METRICS[metric].bounds
            estimate = bootstrap(statistic, volumes, resamples=resamples, level=level, seed=seed, bounds=bounds)
            where = {"metric": metric, "channel": channel, "tissue": tissue}
            rows.append({**where, **vars(estimate), "n": volumes[0]})

    def add_means(table: pd.DataFrame) -> None:
        for keys, part in table.dropna().groupby(["metric", "channel", "tissue"], sort=False):
            metric, channel, tissue = map(str, keys if isinstance(keys, tuple) else (keys,))
            add(metric, channel, tissue, mean_of(part["value"].to_numpy()), (len(part),))

    if paired and chosen & {"psnr", "ssim", "ms_ssim"}:
        add_means(against_truth(samples, reference, names, chosen))
    for index, channel in enumerate(names):
        first, second = samples.images[:, index : index + 1], reference.images[:, index : index + 1]
        for metric, statistic, volumes in _over_pairs(samples, reference, index, paired, chosen):
            add(metric, channel, "all", statistic, volumes)
        if samples.labels is not None and reference.labels is not None and "wasserstein" in chosen:
            for label, tissue in tissues.names.items():
                sample_counts = sets.histograms(first[:, 0], samples.labels, label)
                reference_counts = sets.histograms(second[:, 0], reference.labels, label)
                if sample_counts.any() and reference_counts.any():
                    statistic = sets.wasserstein(sample_counts, reference_counts, paired)
                    add("wasserstein", channel, tissue, statistic, sizes)
    if "frechet" in chosen:
        sample_cells, cells = (sets.patch_features(volumes.images) for volumes in (samples, reference))
        add("frechet", "all", "all", sets.frechet(sample_cells, cells, paired), sizes)
    if any(metric.startswith(("dice", "lesion_contrast")) for metric in chosen):
        add_means(agreement(samples, reference, names, tissues))
    table = pd.DataFrame(rows, columns=["metric", "channel", "tissue", *Estimate.__annotations__, "n"])
    return table.sort_values("metric", key=lambda c: c.map(list(METRICS).index), kind="stable", ignore_index=True)


def against_truth(
    samples: VolumeSet,
    truth: VolumeSet,
    channels: Sequence[str],
    metrics: Collection[str] = ("psnr", "ssim", "ms_ssim"),
) -> pd.DataFrame:
    """Returns PSNR, SSIM and MS-SSIM of sample i against truth i: columns metric, channel, tissue, volume, value."""
    from monai.metrics.regression import PSNRMetric, SSIMMetric

    window = min(11, min(samples.images.shape[2:]))
    measures: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "psnr": PSNRMetric(max_val=sets.DATA_RANGE, reduction="none"),
        "ssim": SSIMMetric(spatial_dims=3, data_range=sets.DATA_RANGE, win_size=window, reduction="none"),
        "ms_ssim": sets.ms_ssim,
    }
    rows = []
    for metric, measure in measures.items():
        for index, channel in enumerate(channels if metric in metrics else ()):
            for volume in range(len(samples)):
                pair = (s.images[volume : volume + 1, index : index + 1] for s in (samples, truth))
                with sets.float32_convolutions():
                    rows.append((metric, channel, "all", volume, float(measure(*pair))))
    return pd.DataFrame(rows, columns=["metric", "channel", "tissue", "volume", "value"])


def agreement(
    samples: VolumeSet, reference: VolumeSet, channels: Sequence[str], tissues: Tissues = HEAD_TISSUES
) -> pd.DataFrame:
    """Measures, volume by volume, how well samples and reference volumes show the contents of their masks.

    A sample's lesions are recovered by a rule learned from the reference; a reference volume's by a rule learned from
    the other three quarters of the set, or from all of it if it has fewer than four volumes. Without a lesion the
    lesion's numbers are NaN.

    Returns:
        Columns metric (`dice`, `lesion_contrast` and the same with `_reference`), channel, tissue, volume, value.
    """
    if samples.labels is None or reference.labels is None:
        return pd.DataFrame(columns=["metric", "channel", "tissue", "volume", "value"])
    rule, reference_rows = _agreement_of_reference(reference, channels, tissues)
    rows = [(f"{metric}_reference", *rest) for metric, *rest in reference_rows]
    for i, (brain, lesion) in enumerate(zip(*_masks(samples.labels, tissues), strict=True)):
        image = samples.images[i].cpu().numpy()
        rows += _agreement_of(i, image, smoothed(image), brain, lesion, rule, channels)
    return pd.DataFrame(rows, columns=["metric", "channel", "tissue", "volume", "value"])


_Row = tuple[str, str, str, int, float]  # metric, channel, tissue, volume, value
_learned: dict[bytes, tuple[LesionRule | None, list[_Row]]] = {}  # by the reference's content


def _agreement_of_reference(
    reference: VolumeSet, channels: Sequence[str], tissues: Tissues
) -> tuple[LesionRule | None, list[_Row]]:
    """Returns a reference's lesion rule and rows, from a cache: many sets are compared with one reference."""
    assert reference.labels is not None
    images = reference.images.cpu().numpy()
    key = hashlib.sha256(repr((images.shape, list(channels), tissues)).encode())
    for part in (images, reference.labels.cpu().numpy()):
        key.update(part.tobytes())
    if (cached := _learned.get(key.digest())) is not None:
        return cached
    smooth = [smoothed(image) for image in images]
    brains, lesions = _masks(reference.labels, tissues)
    folds = 4 if len(images) >= 4 else 1

    def learned(left_out: int | None) -> LesionRule | None:
        indices = [i for i in range(len(images)) if folds == 1 or i % folds != left_out]
        chosen: Any = [[part[i] for i in indices] for part in (images, smooth, brains, lesions)]
        return learn_lesion(*chosen)

    rules = [learned(fold) for fold in range(folds)]
    rows: list[_Row] = []
    for i, (image, brain, lesion) in enumerate(zip(images, brains, lesions, strict=True)):
        rows += _agreement_of(i, image, smooth[i], brain, lesion, rules[i % folds], channels)
    if len(_learned) >= MOST_REFERENCES:
        del _learned[next(iter(_learned))]
    _learned[key.digest()] = rule_and_rows = (learned(None), rows)
    return rule_and_rows


def _agreement_of(
    volume: int,
    image: Volume,
    smooth: Volume,
    brain: Mask,
    lesion: Mask,
    rule: LesionRule | None,
    channels: Sequence[str],
) -> Iterator[_Row]:
    """Yields the rows of one volume and its mask."""
    recovered = recover_brain(image)
    yield "dice", "all", "brain", volume, _dice(recovered, brain)
    if rule is not None:
        yield "dice", "all", "lesion", volume, _dice(rule(smooth, recovered), lesion)
    for channel, contrast in zip(channels, lesion_contrast(image, brain, lesion), strict=True):
        yield "lesion_contrast", channel, "lesion", volume, float(contrast)


def _over_pairs(
    samples: VolumeSet, reference: VolumeSet, channel: int, paired: bool, metrics: Collection[str]
) -> Iterator[tuple[str, Statistic, Sequence[int]]]:
    """Yields the metrics that average over pairs of volumes of one channel, if the sets are large enough."""
    first, second = (volumes.images[:, channel : channel + 1] for volumes in (samples, reference))
    n, m = len(first), len(second)
    sizes = (n,) if paired else (n, m)
    if "ms_ssim_between" in metrics and (not paired or n > 1):
        yield "ms_ssim_between", mean_of_pairs(sets.ms_ssim_pairs(first, second), paired), sizes
    for metric, volumes in (("diversity", samples), ("diversity_reference", reference)):
        if metric in metrics and len(volumes) > 1:
            yield metric, mean_of_pairs(volumes.alike[channel], True), (len(volumes),)
    if min(n, m) > 1 and {"mmd_linear", "mmd_gaussian"} & set(metrics):
        products = sets.grams(first, second)
        yield "mmd_linear", sets.mmd(*products, paired), sizes
        yield "mmd_gaussian", sets.mmd(*sets.gaussian_kernels(*products), paired), sizes


def _masks(labels: Tensor, tissues: Tissues) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns brain and lesion, (N, D, H, W)."""
    array = labels.cpu().numpy()
    return array > 0, np.isin(array, tissues.lesions)


def _dice(recovered: npt.NDArray[np.bool_], mask: npt.NDArray[np.bool_]) -> float:
    """Returns MONAI's Dice; NaN for an empty mask."""
    from monai.metrics.meandice import compute_dice

    one, two = (torch.from_numpy(array)[None, None].float() for array in (recovered, mask))
    return float(compute_dice(one, two))


def _checked(
    samples: VolumeSet,
    reference: VolumeSet,
    paired: bool,
    metrics: Collection[str] | None,
    channels: Sequence[str] | None,
) -> list[str]:
    """Checks that the sets fit together, and returns the channels' names."""
    shape, reference_shape = tuple(samples.images.shape), tuple(reference.images.shape)
    if shape[1:] != reference_shape[1:]:
        raise BadInput(
            "samples", f"shape {shape}, and {reference_shape} in the reference", "compare equal channels and sizes"
        )
    if samples.images.device != reference.images.device:
        raise BadInput("samples", "on another device than the reference", "move one of the two")
    if paired and shape[0] != reference_shape[0]:
        raise BadInput(
            "samples", f"{shape[0]} for {reference_shape[0]} truths", "give a truth a sample, or leave out paired"
        )
    if metrics is not None and (unknown := set(metrics) - set(METRICS)):
        raise BadInput("metrics", f"no {', '.join(sorted(unknown))}", f"choose of {', '.join(METRICS)}")
    if channels is not None and len(channels) != shape[1]:
        raise BadInput("channels", f"{len(channels)} names for {shape[1]}", "name every channel once")
    return [str(index) for index in range(shape[1])] if channels is None else list(channels)
