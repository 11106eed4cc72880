"""How the paper's claims are measured: the rows of `rules.csv`, and the few rules that these rows name.

After Sections 3.2, 4 and 6 of ICPE '26, arXiv:2606.19365. Every judgement about one claim is in its row: what is
measured, of which launches, under which settings, against what, and the reason that its verdict is given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure import summaries
from medddpm.measure.families import family_named
from medddpm.measure.kernel_names import function_name
from medddpm.measure.schemas import Column, Schema
from medddpm.measure.tables import read_table

TENSOR_FLOOR = 1.0  # percent of active cycles: pointwise kernels keep the pipe busy for 2 to 3% without any product
TIE = 0.2  # scores that no tolerance of a measured quantity tells apart
AGAINST_SETTINGS = (summaries.BASE, "OPT2")
GEMMS = "convolution+matmul"  # an implicit GEMM is a convolution
DOMINANT, TENSOR = "dominant", "tensor"


class KernelsOfRun:
    """The kernels of one profiled run of one machine, in one view, under every setting."""

    def __init__(self, table: pd.DataFrame) -> None:
        """`table`: schema `KERNELS`, of a single view."""
        self.table = table

    @functools.cached_property
    def summary(self) -> pd.DataFrame:
        """`medddpm.measure.summaries.summary`, one row per setting."""
        return summaries.summary(self.table).droplevel("view")

    @functools.cached_property
    def shares(self) -> pd.DataFrame:
        """Each family's share of the time, one row per setting."""
        return summaries.family_shares(self.table).droplevel("view")

    def of(self, setting: str) -> pd.DataFrame:
        """The launches under a setting."""
        return self.table[self.table["config"] == setting]

    def value(self, setting: str, name: str) -> float:
        """One number of the summary."""
        return float(self.summary[name].to_dict()[setting])


def pick(table: pd.DataFrame, launches: str) -> pd.DataFrame:
    """The launches that a rule speaks of.

    Args:
        table: the launches under one setting.
        launches: empty for all; "dominant" for the convolution or GEMM kernel that takes the most time; "tensor" for
            the convolutions and GEMMs that keep the Tensor Core pipe active; else kinds of work
            (`profile.families.GROUPS`) and abbreviations of the paper's Table 2 (KN1 to KN8), joined by "+".
    """
    if not launches:
        return table
    if launches == DOMINANT:
        gemms = pick(table, GEMMS)
        return gemms[gemms["kernel"] == time_of(gemms).groupby(gemms["kernel"]).sum().idxmax()] if len(gemms) else gemms
    if launches == TENSOR:
        return pick(table[table["tensor_pct"] >= TENSOR_FLOOR], GEMMS)
    wanted = set(launches.split("+"))
    families = {name: family_named(name) for name in table["family"].unique()}
    return table[table["family"].isin([n for n, family in families.items() if wanted & {family.group, family.paper}])]


def time_of(table: pd.DataFrame) -> pd.Series[float]:
    """The time of each row's launches, ns."""
    return table["count"] * table["duration_ns"]


def time_share(table: pd.DataFrame, launches: str) -> float:
    """The share of the time that some launches take, percent."""
    return 100 * float(time_of(pick(table, launches)).sum() / time_of(table).sum())


def instruction_share(chosen: pd.DataFrame, classes: Iterable[str]) -> float:
    """The share of instructions that belong to some classes, percent; NaN if no instruction was counted."""
    mix = summaries.instruction_mix(chosen)
    return 100 * float(mix[list(classes)].sum(axis="columns", skipna=False).iloc[0]) if len(mix) else math.nan


def short_name(table: pd.DataFrame) -> str:
    """The name of a table's first kernel, without namespace, arguments and tile sizes."""
    return function_name(table["kernel"].iloc[0]).partition("_tilesize")[0] if len(table) else "none"


def _summed(chosen: pd.DataFrame, counter: str) -> float:
    return float((chosen["count"] * chosen[counter]).sum(min_count=1))


def _rank(table: pd.DataFrame, kind: str, end: str) -> float:
    """The first or the last rank of a kind of work by summed priority, from 1; NaN where it has no score.

    Kinds whose scores lie within `TIE` of each other share their ranks. GEMMs rank as convolutions.
    """
    first, *others = GEMMS.split("+")
    scores = summaries.priorities(table, by="group").sum(min_count=1)
    kinds = scores.groupby(scores.index.map(lambda group: first if group in others else group)).sum(min_count=1)
    own = float(kinds.to_dict().get(kind, math.nan))
    if math.isnan(own):
        return math.nan
    higher = (1 - TIE) * kinds > own if end == "first" else kinds >= (1 - TIE) * own
    return float(higher.sum()) + (end == "first")


# What is measured, by the rule's name: of a run's kernels under one setting, some launches, and the column `of`.
Measure = Callable[[KernelsOfRun, str, str, str], Any]
MEASURES: Mapping[str, Measure] = {
    "summary": lambda run, setting, _, column: run.value(setting, column),
    "time_share": lambda run, setting, launches, _: time_share(run.of(setting), launches),
    "instruction_share": lambda run, setting, launches, classes: instruction_share(
        pick(run.of(setting), launches), classes.split("+")
    ),
    "cycles": lambda run, setting, launches, _: _summed(pick(run.of(setting), launches), "cycles_active"),
    "ipc": lambda run, setting, launches, _: (
        _summed(pick(run.of(setting), launches), "instructions")
        / _summed(pick(run.of(setting), launches), "cycles_active")
    ),
    "family_shares": lambda run, setting, *_: run.shares.loc[setting].to_numpy(),
    "rank": lambda run, setting, launches, end: _rank(run.of(setting), launches.partition("+")[0], end),
}
FORMS: Mapping[str, Callable[[Any, Any], float]] = {  # of a value and what it is held against
    "ratio": lambda value, base: value / base,
    "reduction": lambda value, base: 1 / (value / base),
    "increase": lambda value, base: 100 * (value / base - 1),
    "largest change": lambda value, base: 100 * float(abs(value - base).max()),
}
NAMES = (*MEASURES, "kernel_name", "no_counter", "card", "configuration", "window", "software")
HERE = Path(__file__).parent
RULES = Schema(
    {
        "id": Column("str", "number of the claim, P001 to P204"),
        "same_as": Column("str", "the claim that says the same elsewhere; the two count once", nullable=True),
        "rule": Column("str", "what is measured", allowed=NAMES),
        "of": Column(
            "str", "columns to measure (semicolons divide them, + adds them up) or the property's name", nullable=True
        ),
        "launches": Column("str", "which launches, as `pick` takes them", nullable=True),
        "settings": Column("str", "settings, divided by semicolons", nullable=True),
        "take": Column(
            "str",
            "which number where there are several; empty for all",
            nullable=True,
            allowed=("largest", "largest of cards", "all cards"),
        ),
        "against": Column("str", "setting or card that is divided by", nullable=True, allowed=("BASE", "OPT2", "V100")),
        "form": Column("str", "how it is held against that", nullable=True, allowed=tuple(FORMS)),
        "tolerance": Column("float64", "largest relative difference that reproduces"),
        "reason": Column("str", "template of the verdict's reason", nullable=True),
        "missing": Column("str", "template of the reason where a record lacks the number", nullable=True),
        "differs": Column("str", "templates of what explains a difference, divided by semicolons", nullable=True),
    }
)
CARDS = Schema(
    {
        "gpu": Column("str", "card, those preferred first where a claim speaks of several"),
        "stands_in_for": Column("str", "card of the paper that it is measured in place of", nullable=True),
        "bandwidth_gbps": Column("float64", "of its memory, as its maker states it", "GB/s"),
        "source": Column("str", "who states the bandwidth"),
        "absent": Column("str", "why nothing is measured where its folder is missing", nullable=True),
    }
)
SOURCES = Schema(
    {
        "id": Column("str", "number of the claim"),
        "value": Column("str", "as the document states it"),
        "document": Column("str", "who states it"),
        "place": Column("str", "where in the document"),
        "read_at": Column(
            "str", "the page that was read, or a stored copy of it: the document's own, or one that repeats it"
        ),
        "note": Column("str", "what else it says", nullable=True),
    }
)


@dataclass(frozen=True)
class Rule:
    """One row of `rules.csv`, whose schema `RULES` says what each field is."""

    id: str
    same_as: str
    rule: str
    of: tuple[str, ...] = ("",)
    launches: str = ""
    settings: tuple[str, ...] = ("",)
    take: str = ""
    against: str = ""
    form: str = ""
    tolerance: float = 0.0
    reason: str = ""
    missing: str = ""
    differs: str = ""

    @property
    def base(self) -> str:
        """The setting that the number is held against; empty for none or another card."""
        return self.against if self.against in AGAINST_SETTINGS else ""


@functools.cache
def by_id() -> Mapping[str, Rule]:
    """The rule of every claim, by id."""
    table = read_table(HERE / "rules.csv", RULES).fillna("")
    for name in ("of", "settings"):
        table[name] = table[name].map(lambda text: tuple(text.split(";")))
    return {row[0]: Rule(*row) for row in zip(*(table[name] for name in RULES.columns), strict=True)}


def rule_of(identity: str) -> Rule:
    """The rule of one claim.

    Raises:
        BadInput: there is none of that id.
    """
    if identity not in by_id():
        raise BadInput("claims", f"there is no claim {identity!r}", "use the ids of rules.csv, P001 to P204")
    return by_id()[identity]


@functools.cache
def cards() -> pd.DataFrame:
    """The cards whose records settle claims (schema `CARDS`), by name."""
    return read_table(HERE / "cards.csv", CARDS).set_index("gpu")


@functools.cache
def sources() -> Mapping[str, Mapping[str, str]]:
    """What documents say of the claims that no profile can settle (rows of the schema `SOURCES`), by id."""
    rows = read_table(HERE / "sources.csv", SOURCES).fillna("").to_dict("records")
    return {row["id"]: {str(name): str(text) for name, text in row.items()} for row in rows}


def numbers(rule: Rule, run: KernelsOfRun, settings: tuple[str, ...] = ()) -> list[float]:
    """What a rule measures in one run: a number per setting and column.

    Args:
        rule: one that `MEASURES` has. What is held against another card is given as it is.
        run: where to measure.
        settings: those to look at; by default all of the rule's.

    Returns:
        in the claim's unit; empty where the run lacks a setting or a counter.
    """
    settings = settings or rule.settings
    if not {*settings, *filter(None, [rule.base])} <= set(run.table["config"]):
        return []
    measure = functools.partial(MEASURES[rule.rule], run)
    values = [measure(setting, rule.launches, column) for setting in settings for column in rule.of]
    if rule.base:
        bases = [measure(rule.base, rule.launches, column) for column in rule.of] * len(settings)
        values = [FORMS[rule.form](value, base) for value, base in zip(values, bases, strict=True)]
    if rule.take:
        values = [max(values)]
    return values if all(math.isfinite(value) for value in values) else []


def over_runs(rule: Rule, runs: Iterable[KernelsOfRun]) -> list[list[float]]:
    """`numbers` of every run that has them."""
    return [values for run in runs if (values := numbers(rule, run))]
