"""Compares settings and seeds in the parity records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from medddpm.quality.intervals import equivalence_table, seed_margin
from medddpm.quality.metrics import METRICS
from medddpm.switches import SETTINGS
from study.parity.results import QualityRecord, read

REFERENCE = "OPT1"  # FAST is compared with it: of the paper's own steps the one that costs only TF32's rounding
NOT_MEASURED = "not measured"
DIFFERS = 0.05  # the level of a two-sided t test of one metric by itself, as is customary: a choice
EARLY = 10  # steps in which two settings have had no time to part
Metric = tuple[str, str]
"""A metric and its tissue, or "all": the two columns `METRIC` of `QUALITY`."""
METRIC = ["metric", "tissue"]
METRIC_NAMES = {
    "held_out_loss": "held-out loss",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "ms_ssim_between": "MS-SSIM to held-out",
    "diversity": "MS-SSIM between samples",
    "wasserstein": "Wasserstein",
    "frechet": "Fréchet distance",
    "dice": "Dice",
    "lesion_contrast": "lesion contrast",
}
CONTRAST_NAMES = {"t1": "T1", "t2": "T2", "flair": "FLAIR", "t1ce": "T1ce"}


@dataclass(frozen=True)
class Margin:
    """The largest difference that would not matter, stated before any run was made.

    Args:
        value: in the metric's unit, or as a share of the reference's mean.
        relative: whether it is a share.
        why: the reason, in a reader's terms.
    """

    value: float
    relative: bool
    why: str

    def of(self, reference: float) -> float:
        """Returns the margin in the metric's unit."""
        return self.value * abs(reference) if self.relative else self.value


MARGINS: dict[Metric, Margin] = {
    ("held_out_loss", "all"): Margin(0.05, True, "a twentieth of the loss"),
    ("psnr", "all"): Margin(0.5, False, "half a decibel: 6% of the error's amplitude"),
    ("ssim", "all"): Margin(0.02, False, "two hundredths of a scale that ends at 1"),
    ("ms_ssim_between", "all"): Margin(0.02, False, "two hundredths of a scale that ends at 1"),
    ("diversity", "all"): Margin(0.02, False, "two hundredths of a scale that ends at 1"),
    ("wasserstein", "brain"): Margin(0.02, False, "1% of the range of intensity: two or three of 256 grey levels"),
    ("wasserstein", "lesion"): Margin(0.04, False, "five of 256 grey levels; a lesion is small"),
    ("frechet", "all"): Margin(0.25, True, "a quarter of the distance itself, which small sets know no better"),
    ("dice", "brain"): Margin(0.01, False, "a hundredth: a voxel's width in places of the border"),
    ("dice", "lesion"): Margin(0.05, False, "a twentieth: two raters of one tumour differ by more (Menze et al. 2015)"),
    ("lesion_contrast", "lesion"): Margin(0.05, False, "six of 256 grey levels between a lesion and its surroundings"),
}
"""The tested metrics. The other margin, `seed_margin`, is the largest difference between the reference's seeds."""


def title(metric: str, tissue: str, between: str = ", ") -> str:
    """Names a metric and its tissue, unless the metric's name has the tissue already, for a reader."""
    name = METRIC_NAMES[metric]
    return name if tissue == "all" or tissue in name else f"{name}{between}{tissue}"


TITLES = {name: title(*name) for name in MARGINS}


def recorded(root: Path, gpu: str) -> QualityRecord:
    """Reads a machine's tables in the repository at `root`, by its folder's name; empty if nothing is measured yet."""
    return read(root / "figures" / "records" / gpu) or QualityRecord()


def with_most_steps(quality: pd.DataFrame, plan: str) -> pd.DataFrame:
    """Returns a plan's rows of the samples with most steps of each run, and those that belong to no sampler.

    Args:
        quality: schema `QUALITY`.
        plan: of `parity.plans.PLANS`.
    """
    rows = quality[quality["plan"] == plan]
    most = rows.groupby("run")["sampler_steps"].transform("max")
    return rows[(rows["sampler_steps"] == most) | (rows["sampler_steps"] == 0)]


def parity(quality: pd.DataFrame, reference: str = REFERENCE, plan: str = "short") -> pd.DataFrame:
    """Compares each setting with the reference, metric by metric, over the seeds whose runs of both reached the end.

    A run gives one number for each metric: the mean over the same held-out subjects, drawn with the same noise, so that
    both cancel in the difference of two settings and only the training's part remains. It is tested over the seeds.

    Args:
        quality: schema `QUALITY`.
        reference: the setting that the others are compared with.
        plan: of the runs.

    Returns:
        Columns of `quality.intervals.equivalence_table` (difference, its 90% interval low to high, margin, p,
        equivalent, seeds, between_seeds), reference (its mean), no_worse (of the two one-sided tests the one against a
        loss: the interval of how much worse it is ends within the margin), as_seeds (equivalent within the reference's
        largest difference between two seeds), why (of the margin), seeds_sd (the standard deviation of the reference's
        seeds, in the metric's unit), margin_in_sd (margin divided by it; NaN if the seeds do not differ), wide
        (whether the margin is larger than any difference between two seeds, so that it says less than the seeds do),
        pairs_above (in how many pairs the setting's value is the larger), p_differs (of a paired t test, two-sided) and
        differs (whether this is below `DIFFERS`; equivalent settings may differ too, by less than the margin).
        Empty if fewer than two seeds have both.
    """
    runs = with_most_steps(quality, plan)
    runs = runs[runs["step"] == runs["step"].max()]
    present = runs[runs["setting"] == reference]
    means = present.groupby(METRIC)["value"].mean()
    tables = []
    for setting in [name for name in SETTINGS if name != reference and name in set(runs["setting"])]:
        pair = runs[runs["setting"].isin((reference, setting))][["setting", "seed", *METRIC, "value"]]
        seeds = set(present["seed"]) & set(runs[runs["setting"] == setting]["seed"])
        pair = pair[pair["seed"].isin(seeds)]
        if len(seeds) < 2:
            continue
        margins = {name: margin.of(float(means[name])) for name, margin in MARGINS.items() if name in means}
        stated = equivalence_table(pair, margins, reference)
        values = present[present["seed"].isin(seeds)].groupby(METRIC)["value"]
        spread = {
            name: seed_margin(samples.tolist()) for name, samples in values if name in margins and np.ptp(samples) > 0
        }
        within_seeds = (
            equivalence_table(pair, spread, reference).set_index(METRIC)["equivalent"].to_dict() if spread else {}
        )
        wide = pair.pivot(index=["setting", "seed"], columns=METRIC, values="value")
        worse = pd.DataFrame({name: badness(wide, name) for name in margins}).rename_axis(columns=METRIC)
        most = equivalence_table(worse.melt(ignore_index=False).reset_index(), margins, reference)["high"]
        no_worse = most.to_numpy() < stated["margin"].to_numpy()
        as_seeds = [within_seeds.get(name, False) for name in _names(stated)]
        deviation = np.array([float(values.get_group(name).std()) for name in _names(stated)])
        stated = stated.assign(no_worse=no_worse, as_seeds=as_seeds, seeds_sd=deviation)
        stated["margin_in_sd"] = stated["margin"] / stated["seeds_sd"].where(deviation > 0)
        stated["wide"] = stated["margin"] > stated["between_seeds"]
        apart = {name: (wide.loc[setting, name] - wide.loc[reference, name]) for name in _names(stated)}
        stated["pairs_above"] = [int((apart[name] > 0).sum()) for name in _names(stated)]
        stated["p_differs"] = [_chance(apart[name]) for name in _names(stated)]
        tables.append(stated.assign(differs=stated["p_differs"] < DIFFERS))
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True)
    names = _names(table)
    return table.assign(reference=[float(means[name]) for name in names], why=[MARGINS[name].why for name in names])


def _chance(differences: pd.Series[float]) -> float:
    """Returns the p value of a two-sided t test of no mean difference; 1 if no pair differs, 0 if all by as much."""
    if np.ptp(differences) == 0:
        return float(differences.iloc[0] == 0)
    return float(stats.ttest_1samp(differences, 0).pvalue)


def _names(table: pd.DataFrame) -> list[Metric]:
    return list(table[METRIC].itertuples(index=False, name=None))


def reach(seeds: int) -> float:
    """Returns half the width of the 90% interval of the mean of `seeds` pairs, in deviations of a pair's difference."""
    return float(stats.t.ppf(0.95, seeds - 1)) / math.sqrt(seeds)


def in_words(name: Metric) -> str:
    """Returns a metric's title without a comma, for a sentence."""
    return title(*name, between=" of the ")


def verdict(table: pd.DataFrame) -> str:
    """Summarizes a table of `parity` in a sentence for each setting."""
    if not len(table):
        return f"parity: {NOT_MEASURED}"
    sentences = []
    for setting, rows in table.groupby("setting", sort=False):
        shown, no_worse, as_seeds = (int(rows[name].sum()) for name in ("equivalent", "no_worse", "as_seeds"))
        open_ = [in_words(name) for name in _names(rows[~rows["equivalent"] & ~rows["differs"]])]
        apart = [
            f"{in_words((row['metric'], row['tissue']))} (p = {row['p_differs']:.3f}, "
            f"{'equivalent too' if row['equivalent'] else 'not equivalent'})"
            for row in rows[rows["differs"]].to_dict("records")
        ]
        others = f" (not shown for {', '.join(open_)})" if open_ else ""
        differing = f"; by a paired t test different on {', '.join(apart)}" if apart else ""
        sentences.append(
            f"{setting}, {int(rows['seeds'].min())} seeds: equivalent within the stated margin on {shown} of "
            f"{len(rows)} metrics{others}{differing}; no more than a margin worse on {no_worse} of {len(rows)}; within "
            f"the largest difference between two seeds of the reference on {as_seeds} of {len(rows)}"
        )
    return "\n".join(sentences)


def apart(loss: pd.DataFrame, plan: str = "paper") -> pd.DataFrame:
    """Returns the distance of each setting's losses from BASE's of the same seed, and of two seeds from each other.

    Args:
        loss: schema `LOSS`.
        plan: of the runs.

    Returns:
        By setting: steps (both have), training (mean relative difference of the training loss at the same step, where
        volume, timestep and noise are the same), training_early (over the first `EARLY` steps alone), held_out
        (relative difference at the last step that both were watched at) and between_seeds (the mean relative difference
        of two seeds there; NaN if there is one). Empty without BASE.
    """
    rows = loss[loss["plan"] == plan]
    if "BASE" not in set(rows["setting"]):
        return pd.DataFrame()
    seed = int(rows[rows["setting"] == "BASE"]["seed"].min())
    by_setting = {}
    for setting in [name for name in SETTINGS if name in set(rows["setting"])]:
        one, two = (
            {part: _curve(rows, name, seed, part) for part in ("training", "held-out")} for name in ("BASE", setting)
        )
        both = pd.concat([one["training"], two["training"]], axis=1, join="inner").to_numpy()
        watched = pd.concat([one["held-out"], two["held-out"]], axis=1, join="inner")
        if not len(both) or not len(watched):
            continue
        relative = np.abs(both[:, 1] - both[:, 0]) / both[:, 0]
        first, second = watched.iloc[-1]
        by_setting[setting] = {
            "steps": int(two["training"].index.intersection(one["training"].index).max()),
            "training": float(relative.mean()),
            "training_early": float(relative[:EARLY].mean()),
            "held_out": float(abs(second - first) / first),
            "between_seeds": _between_seeds(rows, setting, int(watched.index[-1])),
        }
    return pd.DataFrame.from_dict(by_setting, orient="index")


def _curve(rows: pd.DataFrame, setting: str, seed: int, part: str) -> pd.Series[float]:
    chosen = rows[(rows["setting"] == setting) & (rows["seed"] == seed) & (rows["part"] == part)]
    return chosen.set_index("step")["loss"].sort_index()


def _between_seeds(rows: pd.DataFrame, setting: str, step: int) -> float:
    at = rows[(rows["setting"] == setting) & (rows["part"] == "held-out") & (rows["step"] == step)]["loss"].to_numpy()
    pairs = [abs(a - b) for place, a in enumerate(at) for b in at[:place]]
    return float(np.mean(pairs) / at.mean()) if pairs else float("nan")


def half_the_steps(loss: pd.DataFrame, plan: str = "short", setting: str = REFERENCE) -> float | None:
    """Returns the relative excess of the held-out loss at half the steps over that at the end, the mean over seeds."""
    rows = loss[(loss["plan"] == plan) & (loss["setting"] == setting) & (loss["part"] == "held-out")]
    increases = []
    for _, curve in rows.groupby("seed"):
        curve = curve.sort_values("step")
        earlier = curve[curve["step"] <= curve["step"].max() / 2]
        if len(earlier):
            increases.append(float(earlier["loss"].iloc[-1] / curve["loss"].iloc[-1] - 1))
    return float(np.mean(increases)) if increases else None


_KNOWN = ["plan", "setting", "size"]  # of a run, in every row
_SPAN = 80  # steps whose mean loss is compared with those before; the mean of fewer varies with the timesteps drawn
_BEFORE = 10  # such means, whose median a mean is compared with; a run without so many is left out


def leaps(loss: pd.DataFrame) -> pd.DataFrame:
    """Finds the largest jump back of each run's training loss, by run: plan, setting, size, step, times.

    Args:
        loss: schema `LOSS`.

    Returns:
        `times` is the largest ratio of the mean of `_SPAN` steps to the median of the `_BEFORE` means before it, `step`
        the last of its steps.
    """
    rows = loss[loss["part"] == "training"].sort_values("step", kind="stable")
    by_run = {}
    for (run, *known), curve in rows.groupby(["run", *_KNOWN], sort=False):
        together = np.arange(len(curve)) // max(1, round(_SPAN / curve["steps"].iloc[0]))
        means = curve.groupby(together).agg({"step": "last", "loss": "mean"})
        times = (means["loss"] / means["loss"].rolling(_BEFORE).median().shift()).dropna()
        if len(times):
            most = int(times.to_numpy().argmax())
            step = int(means["step"].iloc[_BEFORE + most])
            by_run[run] = {**dict(zip(_KNOWN, known, strict=True)), "step": step, "times": float(times.iloc[most])}
    return pd.DataFrame.from_dict(by_run, orient="index")


def redrawn(quality: pd.DataFrame, reference: str = "BASE", plan: str = "redrawn") -> pd.DataFrame:
    """Returns the distance in margins of one model's samples under each setting from the reference, by metric.

    Args:
        quality: schema `QUALITY`.
        reference: a setting.
        plan: "redrawn", or "redrawn_fp32".

    Returns:
        Positive where the metric's value is the larger. Empty without the reference.
    """
    rows = with_most_steps(quality, plan)
    if reference not in set(rows["setting"]):
        return pd.DataFrame()
    values = rows.pivot(index="setting", columns=METRIC, values="value")
    names = [name for name in MARGINS if name in values]
    reference_values = values.loc[reference].to_dict()
    apart = {name: (values[name] - reference_values[name]) / MARGINS[name].of(reference_values[name]) for name in names}
    return pd.DataFrame(apart).loc[[name for name in SETTINGS if name in values.index and name != reference]]


def badness(table: pd.DataFrame, name: Metric) -> pd.Series[float]:
    """Returns a number for each row of a table by a metric: larger is worse."""
    metric, tissue = name
    how = better(metric)
    if how in ("higher", "lower"):
        return -table[name] if how == "higher" else table[name]
    return (table[name] - table[how, tissue]).abs()


def better(metric: str) -> str:
    """Returns the better direction of a metric: "higher", "lower", or the name of the metric to be near to."""
    return "lower" if metric == "held_out_loss" else METRICS[metric].better


def sampled_runs(quality: pd.DataFrame) -> pd.DataFrame:
    """Lists the runs that were sampled: run, setting, contrast, seed, and for slices' names subjects and what."""
    rows = quality[quality["sampler_steps"] > 0].sort_values("sampler_steps").drop_duplicates("run", keep="last")
    rows = rows.sort_values("run")
    sample_names = [f"{sampler}-{steps}" for sampler, steps in zip(rows["sampler"], rows["sampler_steps"], strict=True)]
    return rows.assign(what=sample_names, subjects=rows["contrast"] + "-" + rows["size"])
