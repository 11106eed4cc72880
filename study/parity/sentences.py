"""Writes the notebook's sentences and tables on the parity runs, from the records alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.quality.metrics import METRICS
from medddpm.switches import SETTINGS
from study.parity import tables
from study.parity.evaluate import PLANES
from study.parity.results import QualityRecord
from study.parity.samplers import SECONDS, named, shortfall
from study.parity.tables import (
    CONTRAST_NAMES,
    METRIC,
    NOT_MEASURED,
    REFERENCE,
    TITLES,
    half_the_steps,
    in_words,
    reach,
    sampled_runs,
    title,
    with_most_steps,
)


def plan(record: QualityRecord, name: str) -> str:
    """Describes the runs of a plan in the record, and the steps that they were trained."""
    rows = record.of(name)
    if not len(rows):
        return f"{name}: {NOT_MEASURED}"
    settings = ", ".join(setting for setting in SETTINGS if setting in set(rows["setting"]))
    present = sorted(set(rows["contrast"]), key=_place)
    contrasts = ", ".join(CONTRAST_NAMES.get(contrast, "BraTS") for contrast in present)
    runs = rows.drop_duplicates("run")
    steps = sorted(set(runs["step"]))
    planned_steps = {record.meta["runs"][run].get("steps_wanted", 0) for run in runs["run"]}
    trained = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    planned = f" of {max(planned_steps):,}" if max(planned_steps) > steps[0] else ""
    how = f"{trained}{planned} steps" if steps[-1] else "a trained model evaluated"
    size = ", ".join(dict.fromkeys(runs["size"]))
    widths = ", ".join(map(str, sorted(set(runs["width"]))))
    return (
        f"{name}: {_count(len(runs), 'run')}, {settings}, {_count(runs['seed'].nunique(), 'seed')}, {contrasts}, "
        f"{size}, {widths} channels, {how}"
    )


def summary(quality: pd.DataFrame) -> pd.DataFrame:
    """Compares samples and held-out volumes: a row for each metric, a column for each run; value and interval.

    Args:
        quality: schema `QUALITY`; each run's samples with most steps are shown.
    """
    if not len(quality):
        return pd.DataFrame()
    rows = pd.concat([with_most_steps(quality, plan) for plan in quality["plan"].unique()])
    names = {}
    for (metric, tissue), text in TITLES.items():
        names[metric, tissue] = text
        if f"{metric}_reference" in METRICS:
            names[f"{metric}_reference", tissue] = f"{text}, of held-out"
    columns = {}
    ordered = rows.sort_values("contrast", key=lambda names: names.map(_place), kind="stable")
    for run, rows_of_run in ordered.groupby("run", sort=False):
        by_metric = rows_of_run.drop_duplicates(METRIC).set_index(METRIC)
        column = (
            f"{CONTRAST_NAMES.get(str(rows_of_run['contrast'].iloc[0]), 'BraTS')}, step {rows_of_run['step'].iloc[0]:,}"
        )
        if quality["setting"].nunique() > 1:
            column = f"{rows_of_run['setting'].iloc[0]}, {column}"
        values = {text: _interval(by_metric.loc[name]) for name, text in names.items() if name in by_metric.index}
        columns[column if column not in columns else str(run)] = values
    table = pd.DataFrame(columns)
    return table.reindex([text for text in names.values() if text in table.index]).fillna("")


def apart(distances: pd.DataFrame) -> str:
    """Gives the distances of settings and seeds at the end, from a table of `parity.tables.apart`."""
    if not len(distances):
        return f"paper: {NOT_MEASURED}"
    lines = [
        f"{name}, {int(row['steps'])} steps: held-out loss {row['held_out']:.2%} from BASE's"
        for name, row in distances.iterrows()
        if name != "BASE"
    ]
    seeds = distances["between_seeds"].dropna()
    lines += [f"two seeds of {name}: {value:.2%} apart" for name, value in seeds.items()]
    return "\n".join(lines)


def losses(distances: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of `parity.tables.apart` readable."""
    called = {
        "steps": "steps", "training": "training loss, all steps", "training_early": "training loss, first ten steps",
        "held_out": "held-out loss, end", "between_seeds": "held-out loss, two seeds",
    }  # fmt: skip
    return distances.rename(columns=called).round(5).astype(object).fillna("–")


def half(loss: pd.DataFrame) -> str:
    """Gives the loss after half the steps, for comparison with the loss's margin."""
    increase = half_the_steps(loss)
    if increase is None:
        return f"half as many steps: {NOT_MEASURED}"
    return f"for comparison: after half the steps {REFERENCE}'s held-out loss is {increase:.0%} higher"


def power(table: pd.DataFrame) -> str:
    """Gives the width of intervals by the number of seeds, from a table of `parity.tables.parity`."""
    if not len(table):
        return f"how far the intervals reach: {NOT_MEASURED}"
    seeds = int(table["seeds"].min())
    return f"with {seeds} seeds the 90% interval is ±{reach(seeds):.2f} standard deviations of a pair's difference"


def tests(table: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of `parity.tables.parity` readable: a row for each metric, and for each setting if several.

    Returns:
        Columns reference (its mean), 90% interval (of the difference from it), margin (each in the metric's unit),
        margin / SD (of the reference's seeds), equivalent, differs, no worse and within seeds. Empty if nothing is
        measured.
    """
    if not len(table):
        return pd.DataFrame()
    several = table["setting"].nunique() > 1
    rows = {}
    for row in table.to_dict("records"):
        name = title(row["metric"], row["tissue"])
        rows[f"{row['setting']}: {name}" if several else name] = {
            "reference": f"{row['reference']:.3g}",
            "90% interval": f"{row['low']:+.2g} to {row['high']:+.2g}",
            "margin": f"{row['margin']:.2g}",
            "margin / SD": f"{row['margin_in_sd']:.1f}",
            "equivalent": _said(row["equivalent"]),
            "differs": f"{_said(row['differs'])}, p = {row['p_differs']:.3f}",
            "no worse": _said(row["no_worse"]),
            "within seeds": _said(row["as_seeds"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def wide(table: pd.DataFrame) -> str:
    """Names the margins of `parity.tables.parity` that are wider than any difference between the reference's seeds."""
    if not len(table):
        return f"margins and seeds: {NOT_MEASURED}"
    rows = table.drop_duplicates(METRIC)
    names = [in_words(name) for name in rows.loc[rows["wide"], METRIC].itertuples(index=False, name=None)]
    return (
        f"{len(names)} of {len(rows)} margins are wider than any difference between two seeds of the reference: "
        f"{', '.join(names) or 'none'}"
    )


def redrawn(record: QualityRecord, reference: str = "BASE", plan: str = "redrawn") -> str:
    """Compares one model's volumes under each setting with those under the reference, a line for each setting.

    Args:
        record: of quality.
        reference: a setting.
        plan: "redrawn", or "redrawn_fp32".
    """
    table = tables.redrawn(record.quality, reference, plan)
    if not len(table):
        return f"{plan}: {NOT_MEASURED}"
    runs = {run["setting"]: run for run in sampled_runs(record.of(plan)).to_dict("records")}
    lines = []
    by_setting: dict[Any, dict[Any, float]] = table.to_dict("index")
    for setting, margins in by_setting.items():
        apart = slices_apart(record, runs[reference], runs[setting])
        farthest = max(margins, key=lambda name: abs(margins[name]))
        subjects = len(apart) // len(PLANES)
        most = f"the {in_words(farthest)} differs most, by {abs(margins[farthest]):.3f} of its margin"
        lines.append(
            f"{setting}: slices of {subjects} subjects differ from {reference}'s by {np.mean(apart):.2f} of 256 grey "
            f"levels on average, {max(apart, default=np.nan):.2f} at most; of {len(margins)} metrics "
            f"{most if abs(margins[farthest]) >= 0.0005 else 'none differs by a thousandth of its margin'}"
        )
    return "\n".join(lines)


def slices(record: QualityRecord, plan: str = "short") -> str:
    """Gives the distance of samples of one mask and noise, in grey levels, between settings and between seeds."""
    runs = sampled_runs(record.of(plan)).to_dict("records")
    between: dict[str, list[float]] = {"settings": [], "seeds": []}
    for first, second in itertools.combinations(runs, 2):
        same_seed, same_setting = first["seed"] == second["seed"], first["setting"] == second["setting"]
        if same_seed == same_setting:
            continue
        between["settings" if same_seed else "seeds"] += slices_apart(record, first, second)
    if not between["settings"] or not between["seeds"]:
        return f"samples of two settings and seeds: {NOT_MEASURED}"
    settings, seeds = (float(np.mean(between[name])) for name in ("settings", "seeds"))
    return (
        f"the same mask and noise, slices of two settings trained from one seed differ by {settings:.1f} of 256 grey "
        f"levels on average, slices of two seeds of one setting by {seeds:.1f}"
    )


def margins(table: pd.DataFrame) -> pd.DataFrame:
    """Compares samplers with all timesteps, from a table of `parity.samplers.samplers`; a row for each number of steps.

    Returns:
        Columns s per volume, metrics beyond the margin (their number), worst metric, and margins worse (by that
        metric). Empty if all timesteps were not measured.
    """
    try:
        worse = titled(shortfall(table))
    except (BadInput, KeyError):
        return pd.DataFrame()
    columns = {
        "s per volume": table[SECONDS].round(3),
        "metrics beyond the margin": (worse > 1).sum(axis="columns"),
        "worst metric": worse.idxmax(axis="columns"),
        "margins worse": worse.max(axis="columns").round(2),
    }
    return pd.DataFrame(columns).set_axis([named(row) for row in worse.index], axis="index")


def titled(table: pd.DataFrame) -> pd.DataFrame:
    """Gives a table with a column for each metric and tissue readable column names."""
    names: list[Any] = table.columns.to_list()
    return table.set_axis([title(*name) for name in names], axis="columns")


def brats(quality: pd.DataFrame) -> str:
    """Gives the quality of the model's samples of its one case, and of its mirrored mask."""
    if not len(quality):
        return f"brats: {NOT_MEASURED}"
    means = with_most_steps(quality, "brats").groupby(METRIC)["value"].mean()
    lines = []
    for names, said in (
        ([("psnr", "all"), ("ssim", "all")],
         "against the case: PSNR {0:.1f} dB, SSIM {1:.3f}, the mean of four modalities"),
        ([("dice", "brain"), ("dice", "lesion"), ("dice_reference", "lesion")],
         "Dice with the mask: brain {0:.3f}, tumour {1:.3f} (of the case itself: {2:.3f})"),
        ([("dice_mirrored", "brain"), ("dice_mirrored", "lesion")],
         "Dice with the mirrored mask: brain {0:.3f}, tumour {1:.3f}"),
    ):  # fmt: skip
        values = [float(means[name]) if name in means else float("nan") for name in names]
        lines.append(said.format(*values))
    return "\n".join(lines)


def slices_apart(record: QualityRecord, one: Mapping[Any, Any], two: Mapping[Any, Any]) -> list[float]:
    """Returns the mean absolute difference of two runs' samples, in grey levels, for every slice that both have."""
    differences: list[float] = []
    for subject in itertools.count():
        for axis in PLANES:
            at = f"{one['contrast']}/{subject}/{axis}"
            names = [f"sample/{run['run']}/{run['what']}/{at}" for run in (one, two)]
            if not all(name in record.slices for name in names):
                return differences
            first, second = (record.slices[name].astype(float) for name in names)
            differences.append(float(np.abs(first - second).mean()))
    return differences


def _interval(row: Any) -> str:
    value = f"{row['value']:.3g}" if abs(row["value"]) < 100 else f"{row['value']:.0f}"
    return value if np.isnan(row["low"]) else f"{value} [{row['low']:.3g}, {row['high']:.3g}]"


def _place(contrast: str) -> int:
    """Returns the place of a contrast in the order of the figures."""
    return list(CONTRAST_NAMES).index(contrast) if contrast in CONTRAST_NAMES else len(CONTRAST_NAMES)


def _said(holds: bool) -> str:
    return "yes" if holds else "no"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
