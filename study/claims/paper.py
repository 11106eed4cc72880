"""The paper's own numbers (ICPE '26, arXiv:2606.19365): its claims one by one, and as tables to draw."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.tables import read_table
from study.records.schemas import PAPER

PAPER_CARDS = ("V100", "A100", "H100")  # oldest first
PAPER_SETTINGS = ("BASE", "OPT1", "OPT2", "OPT12")
MEASURED, KERNEL_NAME = "measured number", "kernel name"
_OTHERS = {  # what the claims of Table 1, Section 3 and Table 2 are about, by their numbers
    "property of a card": range(8, 50),
    "our setting": range(50, 57),
    "our version": range(57, 62),
    KERNEL_NAME: range(62, 70),
}
REPEATS = {  # claims that say again what an earlier one says; the two count once
    "P088": "P083",
    "P090": "P085",
    "P132": "P003",
    "P133": "P004",
    "P200": "P118",
}


@dataclass(frozen=True)
class Claim:
    """One row of the paper's table (schema `PAPER`), empty where that has nothing; value may be a range "low-high"."""

    id: str
    value: str
    qualifier: str
    gpu: str
    metric: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Stated:
    """The paper's values of one metric, a row a card, as `low` and `high`, which are equal for a single number.

    Args:
        low, high: tables of one shape; NaN if the paper gives nothing. For "more than" a number high is infinite, for
            "up to" a number low is. "About" a number is that number.
    """

    low: pd.DataFrame
    high: pd.DataFrame


def paper_claims(root: Path) -> pd.DataFrame:
    """Reads the paper's numbers, one row per claim (schema `PAPER`), P001 to P204."""
    return read_table(root / "figures" / "records" / "paper" / "paper_reported.csv", PAPER)


def claims_of(paper: pd.DataFrame) -> list[Claim]:
    """Returns the rows of the paper's table (schema `PAPER`), in its order.

    Raises:
        BadInput: one of them is none of the paper's claims.
    """
    for identity in paper["id"]:
        kind_of(identity)
    columns = [paper[name].fillna("") for name in ("id", "value", "qualifier", "gpu", "metric", "unit")]
    return [Claim(*row) for row in zip(*columns, strict=True)]


def kind_of(identity: str) -> str:
    """Returns the subject of one of the paper's claims: a `MEASURED` number, or one of `_OTHERS`.

    Raises:
        BadInput: the paper has no claim of that id.
    """
    number = int(identity[1:]) if re.fullmatch(r"P\d{3}", identity) else 0
    if number not in range(1, 205):
        raise BadInput("claims", f"there is no claim {identity!r}", "use the ids of the paper's table, P001 to P204")
    return next((kind for kind, numbers in _OTHERS.items() if number in numbers), MEASURED)


def as_range(text: str) -> tuple[float, float] | None:
    """Returns "0.39" as (0.39, 0.39), "73-80" as (73.0, 80.0); None if the text is no number."""
    number = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
    match = re.fullmatch(rf"({number})(?:-({number}))?", text.strip())
    return (float(match[1]), float(match[2] or match[1])) if match else None


def paper_values(paper: pd.DataFrame, figure: str, metric: str, subjects: Collection[str] | None = None) -> Stated:
    """Returns the paper's values of one metric in one figure.

    Args:
        paper: schema `PAPER`.
        figure: as "Fig 10".
        metric: as "Tensor Core utilization"; a ratio's ", relative to BASE" may be left out.
        subjects: as ["average over kernels"]; any by default.

    Returns:
        one row per card of `PAPER_CARDS`, one column per setting of `PAPER_SETTINGS`.

    Raises:
        BadInput: a row of the table speaks of another card or setting.
    """
    table = pd.DataFrame(np.nan, index=pd.Index(PAPER_CARDS, name="gpu"), columns=list(PAPER_SETTINGS))
    low, high = table, table.copy()
    chosen = (paper["figure"] == figure) & paper["metric"].isin([metric, f"{metric}, relative to BASE"])
    if subjects is not None:
        chosen &= paper["subject"].isin(list(subjects))
    for row in paper[chosen].itertuples():
        cards = list(PAPER_CARDS) if row.gpu == "all" else str(row.gpu).split(";")
        settings = list(PAPER_SETTINGS) if row.config == "all" else str(row.config).split(";")
        if odd := {*cards, *settings} - {*PAPER_CARDS, *PAPER_SETTINGS}:
            problem = f"claim {row.id} speaks of {', '.join(map(repr, sorted(odd)))}, no card or setting of the paper's"
            raise BadInput("claims", problem, f"use {', '.join((*PAPER_CARDS, *PAPER_SETTINGS))}, or all")
        low.loc[cards, settings], high.loc[cards, settings] = _bounds(str(row.value), str(row.qualifier))
    if metric in _RATIOS or f"{metric}, relative to BASE" in set(paper.loc[chosen, "metric"]):
        for bound in (low, high):
            bound.loc[bound.notna().any(axis="columns"), "BASE"] = 1.0
    return Stated(low, high)


_RATIOS = ("all stall classes",)  # ratios to BASE that the paper's table does not call so
_AT_LEAST, _AT_MOST = ("more than", "over", "exceeds"), ("up to", "up to about")


def _bounds(text: str, qualifier: str) -> tuple[float, float]:
    low, high = as_range(text) or (np.nan, np.nan)
    return (-np.inf if qualifier in _AT_MOST else low), (np.inf if qualifier in _AT_LEAST else high)
