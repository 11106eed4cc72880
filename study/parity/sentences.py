"""What the notebook says of the parity runs: every sentence and table with numbers, from the records alone."""

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
from study.parity.results import Kept
from study.parity.samplers import SECONDS, named, shortfall
from study.parity.tables import (
    CONTRAST_NAMES,
    METRIC,
    NOT_MEASURED,
    REFERENCE,
    TITLES,
    drawn,
    half_the_steps,
    in_words,
    reach,
    title,
    with_most_steps,
)


def plan(kept: Kept, name: str) -> str:
    """Which runs a plan has in the record, and how far they were trained."""
    rows = kept.of(name)
    if not len(rows):
        return f"{name}: {NOT_MEASURED}"
    settings = ", ".join(setting for setting in SETTINGS if setting in set(rows["setting"]))
    present = sorted(set(rows["contrast"]), key=_place)
    contrasts = ", ".join(CONTRAST_NAMES.get(contrast, "BraTS") for contrast in present)
    runs = rows.drop_duplicates("run")
    steps = sorted(set(runs["step"]))
    wanted = {kept.meta["runs"][run].get("steps_wanted", 0) for run in runs["run"]}
    trained = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    planned = f" of {max(wanted):,}" if max(wanted) > steps[0] else ""
    how = f"{trained}{planned} steps" if steps[-1] else "a trained model evaluated"
    size = ", ".join(dict.fromkeys(runs["size"]))
    widths = ", ".join(map(str, sorted(set(runs["width"]))))
    return (
        f"{name}: {_count(len(runs), 'run')}, {settings}, {_count(runs['seed'].nunique(), 'seed')}, {contrasts}, "
        f"{size}, {widths} channels, {how}"
    )


def summary(quality: pd.DataFrame) -> pd.DataFrame:
    """Samples and the held-out volumes: a row for each metric, a column for each run; value and interval.

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
    for run, own in ordered.groupby("run", sort=False):
        found = own.drop_duplicates(METRIC).set_index(METRIC)
        column = f"{CONTRAST_NAMES.get(str(own['contrast'].iloc[0]), 'BraTS')}, step {own['step'].iloc[0]:,}"
        if quality["setting"].nunique() > 1:
            column = f"{own['setting'].iloc[0]}, {column}"
        values = {text: _interval(found.loc[name]) for name, text in names.items() if name in found.index}
        columns[column if column not in columns else str(run)] = values
    table = pd.DataFrame(columns)
    return table.reindex([text for text in names.values() if text in table.index]).fillna("")


def apart(distances: pd.DataFrame) -> str:
    """How far settings and seeds lie apart at the end, from a table of `parity.tables.apart`."""
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
    """A table of `parity.tables.apart`, its columns called as a reader calls them."""
    called = {
        "steps": "steps", "training": "training loss, all steps", "training_early": "training loss, first ten steps",
        "held_out": "held-out loss, end", "between_seeds": "held-out loss, two seeds",
    }  # fmt: skip
    return distances.rename(columns=called).round(5).astype(object).fillna("–")


def half(loss: pd.DataFrame) -> str:
    """Returns what training for half as long costs, to read the margin of the loss against."""
    found = half_the_steps(loss)
    if found is None:
        return f"half as many steps: {NOT_MEASURED}"
    return f"for comparison: after half the steps {REFERENCE}'s held-out loss is {found:.0%} higher"


def power(table: pd.DataFrame) -> str:
    """How far intervals reach with so many seeds, from a table of `parity.tables.parity`."""
    if not len(table):
        return f"how far the intervals reach: {NOT_MEASURED}"
    seeds = int(table["seeds"].min())
    return f"with {seeds} seeds the 90% interval is ±{reach(seeds):.2f} standard deviations of a pair's difference"


def tests(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `parity.tables.parity` as a reader reads it: a row for each metric, and for each setting if several.

    Returns:
        Columns reference (its mean), 90% interval (of the difference from it), margin (each in the metric's unit),
        margin / SD (of the reference's seeds), equivalent, no worse and within seeds. Empty where nothing is measured.
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
            "no worse": _said(row["no_worse"]),
            "within seeds": _said(row["as_seeds"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def wide(table: pd.DataFrame) -> str:
    """Which margins are wider than any difference between two of the reference's seeds; of a `parity.tables.parity`."""
    if not len(table):
        return f"margins and seeds: {NOT_MEASURED}"
    rows = table.drop_duplicates(METRIC)
    names = [in_words(name) for name in rows.loc[rows["wide"], METRIC].itertuples(index=False, name=None)]
    return (
        f"{len(names)} of {len(rows)} margins are wider than any difference between two seeds of the reference: "
        f"{', '.join(names) or 'none'}"
    )


def redrawn(kept: Kept, reference: str = "BASE", plan: str = "redrawn") -> str:
    """How far one model's volumes under each setting lie from those under the reference, a line for each setting.

    Args:
        kept: the record.
        reference: a setting.
        plan: "redrawn", or "redrawn_fp32".
    """
    table = tables.redrawn(kept.quality, reference, plan)
    if not len(table):
        return f"{plan}: {NOT_MEASURED}"
    runs = {run["setting"]: run for run in drawn(kept.of(plan)).to_dict("records")}
    lines = []
    found: dict[Any, dict[Any, float]] = table.to_dict("index")
    for setting, margins in found.items():
        apart = slices_apart(kept, runs[reference], runs[setting])
        farthest = max(margins, key=lambda name: abs(margins[name]))
        subjects = len(apart) // len(PLANES)
        most = f"the {in_words(farthest)} differs most, by {abs(margins[farthest]):.3f} of its margin"
        lines.append(
            f"{setting}: slices of {subjects} subjects differ from {reference}'s by {np.mean(apart):.2f} of 256 grey "
            f"levels on average, {max(apart, default=np.nan):.2f} at most; of {len(margins)} metrics "
            f"{most if abs(margins[farthest]) >= 0.0005 else 'none differs by a thousandth of its margin'}"
        )
    return "\n".join(lines)


def slices(kept: Kept, plan: str = "short") -> str:
    """How far samples of one mask and noise lie apart, in grey levels, between settings and between seeds."""
    runs = drawn(kept.of(plan)).to_dict("records")
    between: dict[str, list[float]] = {"settings": [], "seeds": []}
    for one, two in itertools.combinations(runs, 2):
        same_seed, same_setting = one["seed"] == two["seed"], one["setting"] == two["setting"]
        if same_seed == same_setting:
            continue
        between["settings" if same_seed else "seeds"] += slices_apart(kept, one, two)
    if not between["settings"] or not between["seeds"]:
        return f"samples of two settings and seeds: {NOT_MEASURED}"
    settings, seeds = (float(np.mean(between[name])) for name in ("settings", "seeds"))
    return (
        f"the same mask and noise, slices of two settings trained from one seed differ by {settings:.1f} of 256 grey "
        f"levels on average, slices of two seeds of one setting by {seeds:.1f}"
    )


def margins(table: pd.DataFrame) -> pd.DataFrame:
    """Each sampler against all timesteps, from a table of `parity.samplers.samplers`; a row for each number of steps.

    Returns:
        Columns s per volume, metrics beyond the margin (how many), worst metric, and margins worse (by that metric).
        Empty where all timesteps were not measured.
    """
    try:
        worse = titled(shortfall(table))
    except (BadInput, KeyError):
        return pd.DataFrame()
    found = {
        "s per volume": table[SECONDS].round(3),
        "metrics beyond the margin": (worse > 1).sum(axis="columns"),
        "worst metric": worse.idxmax(axis="columns"),
        "margins worse": worse.max(axis="columns").round(2),
    }
    return pd.DataFrame(found).set_axis([named(row) for row in worse.index], axis="index")


def titled(table: pd.DataFrame) -> pd.DataFrame:
    """A table with a column for each metric and tissue, its columns called as a reader calls them."""
    names: list[Any] = table.columns.to_list()
    return table.set_axis([title(*name) for name in names], axis="columns")


def brats(quality: pd.DataFrame) -> str:
    """How well the model draws its one case, and whether it follows the mask when that is mirrored."""
    if not len(quality):
        return f"brats: {NOT_MEASURED}"
    found = with_most_steps(quality, "brats").groupby(METRIC)["value"].mean()
    lines = []
    for names, said in (
        ([("psnr", "all"), ("ssim", "all")],
         "against the case: PSNR {0:.1f} dB, SSIM {1:.3f}, the mean of four modalities"),
        ([("dice", "brain"), ("dice", "lesion"), ("dice_reference", "lesion")],
         "Dice with the mask: brain {0:.3f}, tumour {1:.3f} (of the case itself: {2:.3f})"),
        ([("dice_mirrored", "brain"), ("dice_mirrored", "lesion")],
         "Dice with the mirrored mask: brain {0:.3f}, tumour {1:.3f}"),
    ):  # fmt: skip
        values = [float(found[name]) if name in found else float("nan") for name in names]
        lines.append(said.format(*values))
    return "\n".join(lines)


def slices_apart(kept: Kept, one: Mapping[Any, Any], two: Mapping[Any, Any]) -> list[float]:
    """Returns the mean absolute difference of two runs' samples, in grey levels, for every slice that both have."""
    found: list[float] = []
    for subject in itertools.count():
        for axis in PLANES:
            at = f"{one['contrast']}/{subject}/{axis}"
            names = [f"sample/{run['run']}/{run['what']}/{at}" for run in (one, two)]
            if not all(name in kept.slices for name in names):
                return found
            first, second = (kept.slices[name].astype(float) for name in names)
            found.append(float(np.abs(first - second).mean()))
    return found


def _interval(row: Any) -> str:
    value = f"{row['value']:.3g}" if abs(row["value"]) < 100 else f"{row['value']:.0f}"
    return value if np.isnan(row["low"]) else f"{value} [{row['low']:.3g}, {row['high']:.3g}]"


def _place(contrast: str) -> int:
    """The place of a contrast in the order of the figures."""
    return list(CONTRAST_NAMES).index(contrast) if contrast in CONTRAST_NAMES else len(CONTRAST_NAMES)


def _said(held: bool) -> str:
    return "yes" if held else "no"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
