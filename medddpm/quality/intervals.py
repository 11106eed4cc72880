"""Bootstrap intervals over volumes, and the equivalence test of two settings.

Efron & Tibshirani 1993, An Introduction to the Bootstrap; Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657 (the two
one-sided tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from medddpm.errors import BadInput

Array = npt.NDArray[np.float64]
Statistic = Callable[..., Array]
"""A function of weights (R, n), and (R, m) for a second set: each volume's count in R resamples; gives (R,)."""

ALPHA = 0.05  # of each one-sided test of equivalence
FEWEST = 4
"""Volumes below which there is no interval: three have ten distinct resamples."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, `low` to `high`; both NaN where a set is smaller than `FEWEST`."""

    value: float
    low: float
    high: float


def bootstrap(
    statistic: Statistic,
    sizes: Sequence[int],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate:
    """Returns the statistic with every volume counted once, and its basic bootstrap interval.

    Volumes are resampled, not pairs, patches or voxels: the voxels of one volume are alike, and the n (n - 1) / 2 pairs
    of n volumes carry the information of n volumes. Counted as independent they would give far too short intervals.

    The interval is the basic one, twice the value minus the resampled quantiles. A distance that cannot be negative is
    too large on small sets, and larger still on resampled ones. The basic interval subtracts that bias, so it may lie
    below the value, which then is mostly bias.

    Args:
        statistic: see `Statistic`; draws for which it is not finite do not count.
        sizes: the number of volumes in each set; every set is resampled by itself.
        resamples: the number of draws; 0 for no interval.
        level: of the interval.
        seed: of the draws; equal for every metric, so that a row does not depend on the choice of metrics.
        bounds: the statistic's range; the interval is cut to it.
    """
    value = float(statistic(*(np.ones((1, size)) for size in sizes))[0])
    if min(sizes) < FEWEST or resamples < 1 or not np.isfinite(value):
        return Estimate(value, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    draws = [rng.multinomial(size, np.full(size, 1 / size), resamples).astype(np.float64) for size in sizes]
    values = statistic(*draws)
    low, high = np.quantile(values[np.isfinite(values)], [(1 - level) / 2, (1 + level) / 2])
    low, high = np.clip([2 * value - high, 2 * value - low], *bounds)
    return Estimate(value, float(low), float(high))


def mean_of(values: npt.ArrayLike) -> Statistic:
    """Returns the mean of one number a volume, as a `Statistic`."""
    numbers = np.asarray(values, np.float64)
    return lambda weights: weights @ numbers / weights.sum(axis=1)


def mean_of_pairs(matrix: npt.ArrayLike, distinct: bool) -> Statistic:
    """Returns the mean over pairs of volumes, as a `Statistic` of one set (`distinct`) or two.

    `distinct` omits the diagonal, the pairs of a volume with itself, also if a resample has it twice: copies would make
    a resampled set look less diverse than the set is.

    Args:
        matrix: (n, m), or (n, n) when `distinct`.
        distinct: whether rows and columns are the same volumes, or stand for the same subjects.
    """
    pairs = np.array(matrix, np.float64)
    if not distinct:
        return lambda rows, columns: ((rows @ pairs) * columns).sum(1) / (rows.sum(1) * columns.sum(1))
    np.fill_diagonal(pairs, 0)

    def mean(weights: Array) -> Array:
        count = weights.sum(axis=1) ** 2 - (weights**2).sum(axis=1)
        total = ((weights @ pairs) * weights).sum(axis=1)
        return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)

    return mean


@dataclass(frozen=True)
class Equivalence:
    """The result of the two one-sided tests of `other` against `reference`.

    Args:
        difference: mean of `other` minus mean of `reference`.
        low, high: the difference's interval of level 1 - 2 `ALPHA`; within ±margin if the two are equivalent.
        margin: the tested margin.
        p: the larger of the two tests' p-values.
        equivalent: whether p is below `ALPHA`.
        seeds: the number of runs of each setting.
    """

    difference: float
    low: float
    high: float
    margin: float
    p: float
    equivalent: bool
    seeds: int


def equivalence(reference: Sequence[float], other: Sequence[float], margin: float) -> Equivalence:
    """Tests whether two settings differ by less than `margin`: two one-sided t-tests over pairs of runs of equal seeds.

    State the margin before the other setting's runs are seen: from what matters, or from the reference alone as
    `seed_margin` does. A small p means equivalent; a large p means not shown, which is usual with few seeds: with n
    paired runs of spread s the interval reaches 1.7 s (n = 3), 1.0 s (5), 0.6 s (10) to either side.

    Args:
        reference: a number for each run (a loss, a metric's value).
        other: those numbers under the other setting; run i of both has the same seed.
        margin: in the numbers' unit, above 0.

    Raises:
        BadInput: no such margin, fewer than two runs, or runs without a partner.
    """
    first, second = np.asarray(reference, np.float64), np.asarray(other, np.float64)
    if not 0 < margin < np.inf:
        raise BadInput("margin", f"{margin} is no margin", "state how large a difference would still not matter")
    if len(first) < 2 or len(first) != len(second):
        problem = f"{len(first)} and {len(second)} runs cannot be tested"
        raise BadInput("equivalence", problem, "give at least two seeds, the same for both")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise BadInput("equivalence", "a run's number is missing or not finite", "test runs that ended well")
    difference = float(second.mean() - first.mean())
    apart = second - first
    if np.ptp(apart) <= 1e-12 * max(1e-300, np.abs(first).max(), np.abs(second).max()):  # a t-test would divide by zero
        p = float(abs(difference) >= margin)
        return Equivalence(difference, difference, difference, margin, p, p < ALPHA, len(second))
    above = stats.ttest_1samp(apart, -margin, alternative="greater")
    below = stats.ttest_1samp(apart, margin, alternative="less")
    interval = stats.ttest_1samp(apart, 0.0).confidence_interval(1 - 2 * ALPHA)
    p = float(max(above.pvalue, below.pvalue))
    low, high = float(interval.low), float(interval.high)
    return Equivalence(difference, low, high, margin, p, p < ALPHA, len(second))


def seed_margin(reference: Sequence[float]) -> float:
    """Returns a margin from the reference alone: the largest difference between two of its seeds.

    A setting that changes the result by less than another seed does loses nothing that its user could notice.

    Raises:
        BadInput: fewer than two runs, or all are equal.
    """
    values = np.asarray(reference, np.float64)
    if len(values) < 2 or not np.ptp(values) > 0:
        raise BadInput("margin", f"{len(values)} runs do not differ", "give the reference's runs from several seeds")
    return float(np.ptp(values))


def equivalence_table(
    runs: pd.DataFrame, margins: Mapping[tuple[str, str], float], reference: str = "BASE"
) -> pd.DataFrame:
    """Tests every setting against the reference, metric by metric: `equivalence` on the seeds that both have.

    Args:
        runs: columns setting, seed, metric, tissue, value: one row for each run, metric and tissue.
        margins: by metric and tissue; a metric without one is not tested.
        reference: the setting that the others are compared with.

    Returns:
        Columns setting, metric, tissue, and the fields of `Equivalence`; `between_seeds` is the largest difference
        between two seeds of the reference, to read the difference against.

    Raises:
        BadInput: a column, the reference or a metric is missing, or a run occurs twice.
    """
    columns = ["setting", "seed", "metric", "tissue", "value"]
    lacking = [column for column in columns if column not in runs.columns]
    if lacking:
        raise BadInput("runs", f"no column {', '.join(lacking)}", f"give {', '.join(columns)}")
    if runs.duplicated(columns[:4]).any():
        raise BadInput("runs", "a run's metric is there twice", "give one row for each run, metric and tissue")
    rows = []
    for (metric, tissue), margin in margins.items():
        of_metric = runs[(runs["metric"] == metric) & (runs["tissue"] == tissue)]
        table = of_metric.pivot(index="seed", columns="setting", values="value")
        if reference not in table:
            raise BadInput("runs", f"no {metric} under {reference}", "name the setting to compare the others with")
        for setting in table.columns.drop(reference):
            both = table[[reference, setting]].dropna()
            first, second = both[reference].tolist(), both[setting].tolist()
            result = equivalence(first, second, margin)
            where = {"setting": setting, "metric": metric, "tissue": tissue}
            rows.append({**where, **vars(result), "between_seeds": float(np.ptp(first))})
    return pd.DataFrame(rows)
