from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from monai.metrics.fid import FIDMetric
from monai.metrics.mmd import MMDMetric
from scipy import ndimage, stats

from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.quality import distances as sets
from medddpm.quality import metrics as metrics_module
from medddpm.quality.intervals import bootstrap, equivalence, equivalence_table, mean_of, mean_of_pairs, seed_margin
from medddpm.quality.metrics import BRATS_TISSUES, METRICS, VolumeSet, agreement, compare
from medddpm.quality.segmentation import learn_lesion, otsu_threshold, recover_brain

SIZE = (32, 32, 32)


def phantoms(count: int, contrast: str = "t2", seed: int = 0) -> VolumeSet:
    return VolumeSet.of(Phantom(count, SIZE, contrast, seed), range(count))


@pytest.fixture(scope="module")
def reference() -> VolumeSet:
    return phantoms(6)


@pytest.fixture(scope="module")
def others() -> VolumeSet:
    return phantoms(6, seed=1)


@pytest.fixture(scope="module")
def flair() -> tuple[VolumeSet, VolumeSet]:
    return phantoms(8, "flair", seed=1), phantoms(12, "flair")


def value(table: pd.DataFrame, metric: str, tissue: str = "all", channel: str | None = None) -> float:
    rows = table[(table["metric"] == metric) & (table["tissue"] == tissue)]
    rows = rows if channel is None else rows[rows["channel"] == channel]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def noisy(volumes: VolumeSet, deviation: float) -> VolumeSet:
    noise = torch.randn(volumes.images.shape, generator=torch.Generator().manual_seed(0))
    return VolumeSet(volumes.images + deviation * noise, volumes.labels)


def blurred(volumes: VolumeSet, deviation: float) -> VolumeSet:
    blurred = ndimage.gaussian_filter(volumes.images.numpy(), (0, 0, deviation, deviation, deviation))
    return VolumeSet(torch.from_numpy(blurred), volumes.labels)


# Known answers


def test_a_set_against_itself(reference: VolumeSet) -> None:
    metrics = ["psnr", "ssim", "ms_ssim", "mmd_linear", "mmd_gaussian", "wasserstein", "frechet"]
    table = compare(reference, reference, paired=True, metrics=metrics, resamples=20)
    extremes = table.groupby("metric")["value"].agg(["min", "max"])
    assert extremes.loc["psnr", "min"] == math.inf
    for metric in ("ssim", "ms_ssim"):
        assert extremes.loc[metric].tolist() == pytest.approx([1, 1], abs=1e-6)
    for metric in ("mmd_linear", "mmd_gaussian", "wasserstein", "frechet"):
        assert extremes.loc[metric].tolist() == pytest.approx([0, 0], abs=1e-9), metric
    assert set(table[table["metric"] == "wasserstein"]["tissue"]) == {"background", "brain", "lesion"}


def test_a_known_shift_of_intensity(reference: VolumeSet) -> None:
    dim = VolumeSet((reference.images * 0.8).clamp(-0.8, 0.8), reference.labels)
    brighter = VolumeSet(dim.images + 0.1, reference.labels)
    table = compare(brighter, dim, paired=True, metrics=["psnr", "wasserstein", "mmd_linear"], resamples=0)
    assert value(table, "psnr") == pytest.approx(20 * math.log10(2 / 0.1), abs=1e-3)
    for tissue in ("background", "brain", "lesion"):
        assert value(table, "wasserstein", tissue) == pytest.approx(0.1, abs=2e-3)
    assert value(table, "mmd_linear") == pytest.approx(0.01, rel=1e-3)


def test_wasserstein_is_scipys_on_the_voxels(reference: VolumeSet, others: VolumeSet) -> None:
    table = compare(others, reference, metrics=["wasserstein"], resamples=0)
    assert reference.labels is not None
    assert others.labels is not None
    for label, tissue in ((1, "brain"), (2, "lesion")):
        voxels = [s.images[:, 0][s.labels == label].double().numpy() for s in (others, reference)]
        assert value(table, "wasserstein", tissue) == pytest.approx(stats.wasserstein_distance(*voxels), abs=1e-3)


def test_linear_mmd_is_monais_a_voxel(reference: VolumeSet, others: VolumeSet) -> None:
    mmd = value(compare(others, reference, metrics=["mmd_linear"], resamples=0), "mmd_linear")
    monai = MMDMetric(y_mapping=lambda x: x / math.sqrt(math.prod(SIZE)))
    assert mmd == pytest.approx(float(monai(reference.images.double(), others.images.double())), abs=1e-9)


def test_frechet_is_monais_on_the_same_features(reference: VolumeSet, others: VolumeSet) -> None:
    features, reference_features = (sets.patch_features(s.images).flatten(0, 1) for s in (others, reference))
    scale = reference_features.std(0).clamp(min=1e-3)
    distance = value(compare(others, reference, metrics=["frechet"], resamples=0), "frechet")
    assert distance > 0.001
    assert distance == pytest.approx(float(FIDMetric()(features / scale, reference_features / scale)), rel=1e-5)


def test_the_cells_of_a_ramp_by_hand() -> None:
    ramp = ((torch.arange(64) + 0.5) / 64).expand(1, 1, 64, 64, 64)
    cells = sets.patch_features(ramp).reshape(8, 8, 8, 10)
    middle = cells[3, 4, 5]
    assert middle[0].item() == pytest.approx(5.5 / 8)  # mean
    assert middle[1].item() == pytest.approx(math.sqrt((64 - 1) / 12) / 64)  # deviation of 8 equidistant values
    assert middle[2].item() == pytest.approx(5.5 / 8)  # around
    assert middle[3:6].abs().max().item() < 1e-6  # a ramp has no detail
    assert middle[6:9].tolist() == pytest.approx([-1 / 8, 1 / 8, 3 / 8])  # place
    assert middle[9].item() == pytest.approx(math.sqrt(11) / 8)


# Known degradations


@pytest.mark.long
def test_more_noise_is_worse(reference: VolumeSet) -> None:
    metrics = ["psnr", "ssim", "ms_ssim", "frechet", "mmd_gaussian", "wasserstein"]
    levels = (0.02, 0.05, 0.1, 0.2, 0.5)
    tables = [compare(noisy(reference, x), reference, paired=True, metrics=metrics, resamples=0) for x in levels]
    for metric in metrics:
        tissue = "brain" if metric == "wasserstein" else "all"
        values = [value(table, metric, tissue) for table in tables]
        assert values == sorted(values, reverse=METRICS[metric].better == "higher"), metric
        assert len(set(values)) == len(levels)


def test_frechet_grows_with_blur_dimming_and_displacement(reference: VolumeSet, others: VolumeSet) -> None:
    def distance(images: torch.Tensor) -> float:
        return value(compare(VolumeSet(images), reference, metrics=["frechet"], resamples=0), "frechet")

    same = distance(others.images)
    worse = {
        "blur": [distance(blurred(others, x).images) for x in (0.6, 1, 1.5, 2.5)],
        "dimming": [distance((others.images + 1) * x - 1) for x in (0.9, 0.8, 0.6)],
        "displacement": [distance(torch.roll(others.images, x, -1)) for x in (2, 4, 8)],
    }
    for name, values in worse.items():
        assert [same, *values] == sorted([same, *values]), name
        assert values[-1] > 3 * same, name


def test_copies_have_no_diversity(reference: VolumeSet, others: VolumeSet) -> None:
    copies = VolumeSet(others.images[:1].repeat(4, 1, 1, 1, 1))
    table = compare(copies, reference, metrics=["diversity", "diversity_reference"], resamples=50)
    assert value(table, "diversity") == pytest.approx(1, abs=1e-6)
    assert value(table, "diversity_reference") < 0.9
    interval = table.set_index("metric").loc["diversity", ["low", "high"]].tolist()
    assert interval == pytest.approx([1, 1], abs=1e-6)


def test_mmd_sees_lost_spread_where_the_mean_volume_is_kept(reference: VolumeSet) -> None:
    mean = reference.images.mean(dim=0, keepdim=True)
    narrow = VolumeSet(mean + 0.1 * (reference.images - mean))
    table = compare(narrow, reference, metrics=["mmd_linear", "mmd_gaussian"], resamples=0)
    assert value(table, "mmd_linear") < 0  # unbiased: the mean volumes are the same
    assert value(table, "mmd_gaussian") > 0.03


# Agreement with the mask


def test_a_phantom_agrees_with_its_own_mask(flair: tuple[VolumeSet, VolumeSet]) -> None:
    samples, reference = flair
    table = compare(samples, reference, metrics=["dice", "dice_reference", "lesion_contrast"], resamples=50)
    assert value(table, "dice", "brain") > 0.98
    assert value(table, "dice", "lesion") > 0.75
    assert value(table, "dice_reference", "lesion") > 0.75
    assert value(table, "lesion_contrast", "lesion") > 0.3  # oedema is bright in FLAIR


def test_a_phantom_does_not_agree_with_anothers_mask(flair: tuple[VolumeSet, VolumeSet]) -> None:
    samples, reference = flair
    assert samples.labels is not None
    swapped = VolumeSet(samples.images, samples.labels.roll(1, 0))
    table = compare(swapped, reference, metrics=["dice", "lesion_contrast"], resamples=0)
    assert value(table, "dice", "lesion") < 0.2
    assert abs(value(table, "lesion_contrast", "lesion")) < 0.2


def test_a_mask_without_lesion_counts_for_the_brain_alone(flair: tuple[VolumeSet, VolumeSet]) -> None:
    samples, reference = flair
    assert samples.labels is not None
    labels = samples.labels.clone()
    labels[0] = labels[0].clamp(max=1)
    table = compare(VolumeSet(samples.images, labels), reference, metrics=["dice"], resamples=0)
    assert table.set_index("tissue")["n"].to_dict() == {"brain": 8, "lesion": 7}


def test_a_reference_without_lesions_teaches_none(reference: VolumeSet) -> None:
    assert reference.labels is not None
    healthy = VolumeSet(reference.images, reference.labels.clamp(max=1))
    table = compare(healthy, healthy, metrics=["dice", "lesion_contrast"], resamples=0)
    assert table["tissue"].tolist() == ["brain"]


def test_a_lesion_rule_is_learned_once_for_a_reference_and_anew_for_another(
    flair: tuple[VolumeSet, VolumeSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, reference = flair
    assert reference.labels is not None
    learned: list[int] = []

    def counted(images: list, *rest: list) -> object:
        learned.append(len(images))
        return learn_lesion(images, *rest)

    monkeypatch.setattr(metrics_module, "learn_lesion", counted)
    monkeypatch.setattr(metrics_module, "_learned", {})
    first = agreement(samples, reference, ["flair"])
    assert learned == [9, 9, 9, 9, 12], "four times three quarters of the set, and all of it"
    copied = VolumeSet(reference.images.clone(), reference.labels.clone())
    pd.testing.assert_frame_equal(agreement(samples, copied, ["flair"]), first, check_exact=True)
    assert len(learned) == 5
    other = VolumeSet(reference.images.flip(-1), reference.labels.flip(-1))
    assert not agreement(samples, other, ["flair"])["value"].equals(first["value"])
    agreement(samples, VolumeSet(reference.images, reference.labels.roll(1, 0)), ["flair"])
    assert len(learned) == 15


def test_noise_has_no_brain_to_recover(reference: VolumeSet) -> None:
    noise = torch.rand(reference.images.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    table = agreement(VolumeSet(noise, reference.labels), reference, ["t2"])
    dice = table[(table["metric"] == "dice") & (table["tissue"] == "brain")]["value"]
    assert dice.max() < 0.6


def test_the_brain_is_the_largest_thing_with_its_holes_filled() -> None:
    axis = np.arange(24) - 11.5
    radius = np.sqrt(sum(x**2 for x in np.meshgrid(axis, axis, axis, indexing="ij")))
    image = np.where((radius < 8) & (radius > 3), 0.5, -1).astype(np.float32)
    image[1:3, 1:3, 1:3] = 0.5
    np.testing.assert_array_equal(recover_brain(image[None]), radius < 8)


def test_otsu_parts_two_intensities() -> None:
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal(-0.6, 0.05, 3000), rng.normal(0.4, 0.05, 1000)]).astype(np.float32)
    assert -0.45 < otsu_threshold(data) < 0.25


# MS-SSIM on small volumes


def test_ms_ssim_has_as_many_scales_as_fit() -> None:
    assert [sets.ms_ssim_scales((edge,) * 3) for edge in (16, 32, 64, 128, 192)] == [2, 3, 4, 5, 5]
    assert sets.ms_ssim_scales((128, 128, 20)) == 2


@pytest.mark.parametrize("edge", [16, 23, 28, 32, 63, 64])
def test_every_size_that_is_not_refused_is_measured(edge: int) -> None:
    volume = torch.rand(1, 1, 16, 16, edge) if edge < 64 else torch.rand(1, 1, 64, 64, 64)
    assert float(sets.ms_ssim(volume, volume)) == pytest.approx(1)


def test_pairs_of_a_set_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = torch.rand(3, 1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    reference, metrics = VolumeSet(volumes), ["diversity", "diversity_reference"]
    first = compare(VolumeSet(volumes[:2]), reference, metrics=metrics, resamples=0)
    measured: list[int] = []
    pairs = sets.ms_ssim_pairs
    monkeypatch.setattr(sets, "ms_ssim_pairs", lambda one, two=None: measured.append(len(one)) or pairs(one, two))
    again = compare(VolumeSet(volumes[:2]), reference, metrics=metrics, resamples=0)
    assert measured == [2]
    pd.testing.assert_frame_equal(again, first)


def test_measuring_leaves_the_precision_of_convolutions_alone() -> None:
    convolution = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolution.fp32_precision
    with sets.float32_convolutions():
        assert convolution.fp32_precision == "ieee"
    assert convolution.fp32_precision == before


# Intervals


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_of_a_mean_cover_it(level: float) -> None:
    rng = np.random.default_rng(0)
    estimates = [bootstrap(mean_of(rng.normal(3, 1, 25)), (25,), level=level, resamples=300) for _ in range(300)]
    covered = np.mean([estimate.low <= 3 <= estimate.high for estimate in estimates])
    assert level - 0.07 < covered < level + 0.05


def test_intervals_of_a_mean_of_pairs_cover_it() -> None:
    # The mean distance of two standard normal numbers is 2 / √π.
    rng = np.random.default_rng(0)
    covered, independent = [], []
    for _ in range(200):
        numbers = rng.normal(size=25)
        pairs = np.abs(numbers[:, None] - numbers)
        estimate = bootstrap(mean_of_pairs(pairs, True), (25,), resamples=300)
        covered.append(estimate.low <= 2 / math.sqrt(math.pi) <= estimate.high)
        half = 1.96 * pairs[np.triu_indices(25, 1)].std() / math.sqrt(300)
        independent.append(abs(estimate.value - 2 / math.sqrt(math.pi)) <= half)
    assert 0.86 < np.mean(covered) < 0.99
    assert np.mean(independent) < 0.75  # pairs taken for independent: why volumes are resampled


def test_intervals_of_distances_between_like_sets_reach_down_to_nothing(
    reference: VolumeSet, others: VolumeSet
) -> None:
    table = compare(others, reference, metrics=["mmd_linear", "mmd_gaussian", "frechet"], resamples=300)
    assert (table["low"] <= 0).all()
    assert (table["high"] > 0).all()
    assert (compare(blurred(others, 2.5), reference, metrics=["frechet"], resamples=300)["low"] > 0).all()


def test_weights_are_repetitions(reference: VolumeSet, others: VolumeSet) -> None:
    """A resample measured by weights is the set with volumes repeated, measured anew."""
    weights, columns = np.array([[2.0, 0, 1, 0, 0, 1]]), np.array([[1.0, 1, 0, 0, 3, 0]])
    rows, repeated = (np.repeat(np.arange(6), w[0].astype(int)) for w in (weights, columns))
    features = [sets.patch_features(s.images) for s in (others, reference)]
    direct = sets.frechet(features[0][rows], features[1], False)(np.ones((1, 4)), columns)
    assert sets.frechet(*features, False)(weights, columns) == pytest.approx(direct, rel=1e-9)
    assert reference.labels is not None
    assert others.labels is not None
    bins = [sets.histograms(s.images[:, 0], s.labels, 1) for s in (others, reference)]
    direct = sets.wasserstein(bins[0][rows], bins[1][repeated], False)(np.ones((1, 4)), np.ones((1, 5)))
    assert sets.wasserstein(*bins, False)(weights, columns) == pytest.approx(direct)
    pairs = np.random.default_rng(0).random((6, 6))
    pairs += pairs.T
    distinct = [pairs[i, j] for a, i in enumerate(rows) for b, j in enumerate(rows) if a != b and i != j]
    assert mean_of_pairs(pairs, True)(weights) == pytest.approx(np.mean(distinct))
    across = pairs[np.ix_(rows, repeated)].mean()
    assert mean_of_pairs(pairs, False)(weights, columns) == pytest.approx(across)


def test_a_seed_gives_the_same_table_and_another_another(reference: VolumeSet, others: VolumeSet) -> None:
    metrics = ["wasserstein", "frechet", "mmd_gaussian", "dice"]
    one, two = (compare(others, reference, metrics=metrics, resamples=40, seed=3) for _ in range(2))
    pd.testing.assert_frame_equal(one, two)
    alone = compare(others, reference, metrics=["frechet"], resamples=40, seed=3)
    pd.testing.assert_frame_equal(alone, one[one["metric"] == "frechet"].reset_index(drop=True))
    three = compare(others, reference, metrics=metrics, resamples=40, seed=4)
    assert one["value"].tolist() == three["value"].tolist()
    assert (one["low"] != three["low"]).any()


# The table


def test_the_table_is_tidy_and_complete(reference: VolumeSet) -> None:
    table = compare(noisy(reference, 0.05), reference, paired=True, channels=["t2"], resamples=30)
    assert list(table.columns) == ["metric", "channel", "tissue", "value", "low", "high", "n"]
    assert list(dict.fromkeys(table["metric"])) == list(METRICS)
    assert not table.duplicated(["metric", "channel", "tissue"]).any()
    assert np.isfinite(table[["value", "low", "high"]].to_numpy()).all()
    assert (table["low"] <= table["high"]).all()
    assert set(table["n"]) == {6}
    assert set(table["channel"]) == {"t2", "all"}


def test_one_case_with_four_channels_gives_what_one_case_can(reference: VolumeSet) -> None:
    """As the model overfitted to one BraTS case is measured: pairs and intervals need more volumes."""
    assert reference.labels is not None
    labels = torch.where(reference.labels[:1] == 1, 4, reference.labels[:1])  # 2: oedema, 4: brain
    case = VolumeSet(
        reference.images[:1].repeat(1, 4, 1, 1, 1) * torch.tensor([1, 0.9, 0.8, 0.7]).view(4, 1, 1, 1), labels
    )
    names = ["t1", "t1ce", "t2", "flair"]
    table = compare(noisy(case, 0.02), case, paired=True, channels=names, tissues=BRATS_TISSUES, resamples=30)
    expected = {"psnr", "ssim", "ms_ssim", "wasserstein", "frechet", "dice", "lesion_contrast"}
    assert set(table["metric"].str.removesuffix("_reference")) == expected
    assert table[["low", "high"]].isna().all(axis=None)
    assert set(table[table["metric"] == "wasserstein"]["tissue"]) == {"background", "oedema", "brain"}
    assert value(table, "dice", "brain") > 0.98
    assert [value(table, "psnr", channel=name) > 25 for name in names] == [True] * 4


def test_sets_without_masks_and_of_any_shape_and_number() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = (VolumeSet(torch.rand(n, 1, 16, 20, 31, generator=generator)) for n in (4, 5))
    table = compare(one, two, resamples=10)
    expected = ["ms_ssim_between", "diversity", "diversity_reference", "mmd_linear", "mmd_gaussian", "frechet"]
    assert table["metric"].tolist() == expected
    assert table["n"].tolist() == [4, 4, 5, 4, 4, 4]


def test_a_set_from_a_data_set_has_its_labels_again() -> None:
    data = Phantom(2, SIZE, "t2")
    volumes = VolumeSet.of(data, [1])
    assert volumes.labels is not None
    np.testing.assert_array_equal(volumes.labels[0].numpy().transpose(2, 1, 0), np.asarray(data.reference(1).dataobj))
    torch.testing.assert_close(volumes.images[0], data[1][0])


# Equivalence


def test_equivalence_by_hand() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / √3.
    result = equivalence([1, 2, 3], [1.1, 2.2, 3.3], margin=0.5)
    assert result.difference == pytest.approx(0.2)
    reach = stats.t.ppf(0.95, 2) * 0.1 / math.sqrt(3)
    assert (result.low, result.high) == pytest.approx((0.2 - reach, 0.2 + reach))
    assert result.p == pytest.approx(stats.t.sf(0.3 / (0.1 / math.sqrt(3)), 2))
    assert result.equivalent == (result.high < 0.5) == True  # noqa: E712
    assert not equivalence([1, 2, 3], [1.1, 2.2, 3.3], margin=0.25).equivalent


def test_equivalence_is_that_of_statsmodels() -> None:
    from statsmodels.stats import weightstats

    rng = np.random.default_rng(0)
    for seeds in (2, 3, 6, 12):
        first, second, margin = rng.normal(size=seeds), rng.normal(0.2, 1, seeds), rng.uniform(0.2, 2)
        result = equivalence(first.tolist(), second.tolist(), margin)
        p, _, _ = weightstats.ttost_paired(second, first, -margin, margin)
        assert result.p == pytest.approx(p, rel=1e-9)
        interval = weightstats.DescrStatsW(second - first).tconfint_mean(alpha=0.1)
        assert (result.low, result.high) == pytest.approx(interval, rel=1e-9)


def test_the_test_and_the_interval_say_the_same() -> None:
    rng = np.random.default_rng(0)
    results = [equivalence(rng.normal(size=5), rng.normal(0.3, 1, 5), 1.5) for _ in range(120)]
    assert [f.equivalent for f in results] == [-f.margin < f.low and f.high < f.margin for f in results]
    assert 0 < sum(f.equivalent for f in results) < 120


@pytest.mark.long
def test_a_difference_of_the_margin_is_seldom_called_equivalent() -> None:
    rng = np.random.default_rng(0)
    equivalent = [equivalence(rng.normal(size=8), rng.normal(2, 1, 8), 2.0).equivalent for _ in range(400)]
    assert np.mean(equivalent) < 0.09  # 0.05, and chance
    same = [equivalence(rng.normal(size=8), rng.normal(size=8), 2.0).equivalent for _ in range(100)]
    assert np.mean(same) > 0.8


def test_runs_that_do_not_differ_at_all() -> None:
    assert equivalence([0.5, 0.7], [0.5, 0.7], margin=0.01).equivalent
    assert equivalence([0.5, 0.7], [0.6, 0.8], margin=0.2).equivalent
    assert not equivalence([0.5, 0.7], [0.6, 0.8], margin=0.05).equivalent


def test_the_margin_from_seeds_and_the_table() -> None:
    base, fast = [0.30, 0.36, 0.33], [0.301, 0.362, 0.329]
    runs = pd.DataFrame(
        [(setting, seed, *LOSS, number) for setting, numbers in (("BASE", base), ("FAST", fast), ("BAD", [0.5] * 3))
         for seed, number in enumerate(numbers)],
        columns=["setting", "seed", "metric", "tissue", "value"],
    )  # fmt: skip
    assert seed_margin(base) == pytest.approx(0.06)
    table = equivalence_table(runs.sample(frac=1, random_state=0), {LOSS: seed_margin(base)}).set_index("setting")
    assert table["equivalent"].to_dict() == {"FAST": True, "BAD": False}
    assert table.loc["FAST", "difference"] == pytest.approx(0.002 / 3)
    assert table.loc["FAST", "between_seeds"] == pytest.approx(0.06)
    assert table.loc["FAST", "seeds"] == 3


# Bad input


GOOD = torch.zeros(2, 1, 16, 16, 16)
NOT_FINITE = GOOD.clone()
NOT_FINITE[0, 0, 0, 0, 0] = math.nan
LOSS = ("loss", "all")
RUNS = pd.DataFrame({"setting": "BASE", "seed": 0, "metric": "loss", "tissue": "all", "value": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: VolumeSet(torch.zeros(2, 16, 16, 16)), "(N, C, D, H, W)"),
        (lambda: VolumeSet(GOOD.long()), "(N, C, D, H, W)"),
        (lambda: VolumeSet(GOOD[:0]), "at least one"),
        (lambda: VolumeSet(torch.zeros(1, 1, 16, 16, 15)), "16 × 16 × 15 is too small"),
        (lambda: VolumeSet(NOT_FINITE), "not finite"),
        (lambda: VolumeSet(GOOD + 255), "reach 255"),
        (lambda: VolumeSet(GOOD, torch.zeros(2, 1, 16, 16, 16, dtype=torch.long)), "labels of shape"),
        (lambda: VolumeSet(GOOD, GOOD[:, 0]), "whole-number labels"),
        (lambda: VolumeSet.of(Phantom(1, (16, 16, 16)), []), "no item"),
        (lambda: compare(VolumeSet(GOOD), VolumeSet(torch.zeros(2, 2, 16, 16, 16))), "equal channels and sizes"),
        (lambda: compare(VolumeSet(GOOD[:1]), VolumeSet(GOOD), paired=True), "1 for 2 truths"),
        (lambda: compare(VolumeSet(GOOD), VolumeSet(GOOD), metrics=["fid"]), "no fid"),
        (lambda: compare(VolumeSet(GOOD), VolumeSet(GOOD), channels=["a", "b"]), "2 names for 1"),
        (lambda: equivalence([1, 2], [1, 2], 0), "no margin"),
        (lambda: equivalence([1], [1], 1), "at least two seeds"),
        (lambda: equivalence([1, 2, 3], [1, 2], 1), "at least two seeds"),
        (lambda: equivalence([1, math.nan], [1, 2], 1), "not finite"),
        (lambda: seed_margin([1, 1]), "do not differ"),
        (lambda: equivalence_table(RUNS, {LOSS: 1}), "there twice"),
        (lambda: equivalence_table(RUNS[:1], {LOSS: 1}, "OPT1"), "no loss under OPT1"),
        (lambda: equivalence_table(RUNS.drop(columns="seed"), {LOSS: 1}), "no column seed"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(call, says: str) -> None:
    with pytest.raises(BadInput) as error:
        call()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
