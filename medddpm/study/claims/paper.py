"""The paper's 198 numbers beside ours (ICPE '26, arXiv:2606.19365): what is reproduced, what differs, what is open.

One policy, stated before any comparison. A measured quantity reproduces the paper's within `TOLERANCE`, 20% of it
either way: between the paper's cards and ours lie another memory system, three years of PyTorch and cuDNN, and clocks
that nobody fixed; two runs on one card differ by far less, and each reason gives by how much. What is counted or named
(settings, versions, kernels, ranks) must be equal. How firmly the paper speaks is kept: "more than" and its like bound
from below, "only" from above, a range "73-80" at both ends; each bound is widened by the tolerance. A ratio to BASE
must also lie on the paper's side of 1: 1.07 says *more*, and 0.95 does not reproduce that, near as it is. A paper's
zero is met below `FLOOR`, half a unit (of percentage points): a third of the smallest share that the paper tells from
zero, 1.4%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.records.schemas import CLAIMS, PAPER
from medddpm.study.records.tables import read_table

STATUSES = CLAIMS.columns["status"].allowed
SETTLED_AND_OPEN = (*STATUSES, "open")
TOLERANCE = 0.20
FLOOR = 0.5
STAND_IN = {"H100": "H200"}  # a card of the paper, and which is measured in its place
AT_LEAST = ("more than", "over", "exceeds")
AT_MOST = ("only",)


@dataclass(frozen=True)
class Finding:
    """What was found about one claim.

    Args:
        view: where our value comes from: window, step, configuration, software or card.
        reason: one sentence; for a difference, what explains it.
        our_value: as text, a range as "low-high", or None where nothing can be measured.
        tolerance: the largest relative difference that still reproduces the paper's number; 0 is equality.
    """

    view: str
    reason: str
    our_value: str | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class Claim:
    """One row of the paper's table, schema `PAPER`, which says what each field is; value may be a range "low-high"."""

    id: str
    value: str
    qualifier: str = "="
    metric: str = ""
    subject: str = ""
    gpu: str = ""
    config: str = ""


def paper_claims(root: Path) -> pd.DataFrame:
    """The numbers the paper states, one row a claim (schema `PAPER`), P001 to P198."""
    return read_table(root / "figures" / "records" / "paper" / "paper_reported.csv", PAPER)


def claims_of(paper: pd.DataFrame) -> list[Claim]:
    """The rows of the paper's table (schema `PAPER`), in its order."""
    fields = ["id", "value", "qualifier", "metric", "subject", "gpu", "config"]
    return [Claim(*map(str, row)) for row in paper[fields].fillna("").itertuples(index=False)]


def accepted(stated: Claim, tolerance: float) -> tuple[float, float] | None:
    """The smallest and the largest number that reproduce what is stated; None where that is no number."""
    numbers = as_range(stated.value)
    if numbers is None:
        return None
    low, high = (n - s * tolerance * abs(n) for n, s in zip(numbers, (1, -1), strict=True))
    if tolerance and numbers == (0.0, 0.0):
        low, high = -FLOOR, FLOOR
    if tolerance and stated.metric.endswith("relative to BASE"):
        low = max(low, 1.0) if numbers[0] > 1 else low
        high = min(high, 1.0) if numbers[1] < 1 else high
    if stated.qualifier in AT_LEAST:
        high = math.inf
    if stated.qualifier in AT_MOST:
        low = -math.inf
    return low, high


def status_of(stated: Claim, finding: Finding) -> str:
    """`reproduced`, `differs` or `not_measurable`: numbers by the policy above, anything else as text."""
    ours = finding.our_value
    if ours is None:
        return "not_measurable"
    bounds, found = accepted(stated, finding.tolerance), as_range(ours)
    if bounds is None or found is None:
        return "reproduced" if ours == stated.value else "differs"
    return "reproduced" if bounds[0] <= found[0] and found[1] <= bounds[1] else "differs"


def settle(paper: pd.DataFrame, findings: Mapping[str, Finding]) -> pd.DataFrame:
    """The settled claims (schema `CLAIMS`) in the paper's order: `paper`'s rows joined with the findings by id.

    Raises:
        BadInput: a finding is about a claim that the paper does not make.
    """
    unknown = sorted(set(findings) - set(paper["id"]))
    if unknown:
        raise BadInput("claims", f"the paper's table has no {', '.join(unknown)}", "give findings by the ids it has")
    rows = []
    for claim in claims_of(paper):
        if found := findings.get(claim.id):
            verdict = status_of(claim, found)
            tolerance = None if found.our_value is None else found.tolerance
            rows.append((claim.id, claim.value, found.our_value, found.view, tolerance, verdict, found.reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def overview(paper: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """How far the book is: one row a section or table of the paper, its claims counted by status, and their sum.

    Columns: the three statuses, `open` for what no finding settles yet, and `claims`; the last row is `all`.
    """
    verdicts = dict(zip(claims["id"], claims["status"], strict=True))
    status = paper["id"].map(lambda identity: verdicts.get(identity, "open"))
    place = places(paper)
    counts = pd.crosstab(place, status).reindex(index=place.unique(), columns=list(SETTLED_AND_OPEN), fill_value=0)
    counts.loc["all"] = counts.sum()
    counts["claims"] = counts.sum(axis="columns")
    return counts.rename_axis(index=None, columns=None)


def places(paper: pd.DataFrame) -> pd.Series[str]:
    """Where the paper states each of its claims: the figure or table, else the section."""
    return paper["figure"].fillna(("section " + paper["section"]).replace("section abstract", "abstract"))


def at_tolerances(paper: pd.DataFrame, claims: pd.DataFrame, tolerances: tuple[float, ...]) -> pd.DataFrame:
    """What the verdicts would be under other tolerances: a row each, the claims measured counted by status.

    Args:
        paper: schema `PAPER`.
        claims: schema `CLAIMS`; those that ask for equality, and those without a value of ours, are left out.
        tolerances: relative.
    """
    measured = claims[claims["tolerance"] > 0].set_index("id")["our_value"].to_dict()
    stated = [claim for claim in claims_of(paper) if claim.id in measured]
    counts = {}
    for tolerance in tolerances:
        verdicts = [status_of(claim, Finding("", "", measured[claim.id], tolerance)) for claim in stated]
        counts[f"{tolerance:.0%}"] = {status: verdicts.count(status) for status in ("reproduced", "differs")}
    return pd.DataFrame(counts).T.rename_axis("tolerance")


def as_range(text: str) -> tuple[float, float] | None:
    """ "0.39" as (0.39, 0.39), "73-80" as (73.0, 80.0); None for what is no number."""
    number = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
    found = re.fullmatch(rf"({number})(?:-({number}))?", text.strip())
    return (float(found[1]), float(found[2] or found[1])) if found else None


PAPER_CARDS = ("V100", "A100", "H100")  # the paper's, by age
PAPER_SETTINGS = ("BASE", "OPT1", "OPT2", "OPT12")


def paper_values(paper: pd.DataFrame, figure: str, metric: str, subject: str | None = None) -> pd.DataFrame:
    """What the paper says of one metric in one figure.

    Args:
        paper: schema `schemas.PAPER`.
        figure: as "Fig 10".
        metric: as "Tensor Core utilization"; a ratio's ", relative to BASE" may be left out.
        subject: as "average over kernels"; default any.

    Returns:
        a row a card of `PAPER_CARDS`, a column a setting of `PAPER_SETTINGS`; NaN where the paper states nothing. Of a
        range the middle; what is called "about" or "more than" a number is that number.
    """
    table = pd.DataFrame(np.nan, index=pd.Index(PAPER_CARDS, name="gpu"), columns=list(PAPER_SETTINGS))
    chosen = (paper["figure"] == figure) & paper["metric"].isin([metric, f"{metric}, relative to BASE"])
    if subject is not None:
        chosen &= paper["subject"] == subject
    for row in paper[chosen].itertuples():
        cards = PAPER_CARDS if row.gpu == "all" else str(row.gpu).split(";")
        settings = PAPER_SETTINGS if row.config == "all" else str(row.config).split(";")
        for card in cards:
            table.loc[card, settings] = _number(str(row.value))
    if metric in _RATIOS or f"{metric}, relative to BASE" in set(paper.loc[chosen, "metric"]):
        table.loc[table.notna().any(axis="columns"), "BASE"] = 1.0
    return table


def paper_shares(paper: pd.DataFrame, figure: str, gpu: str, config: str) -> dict[str, float]:
    """The shares (0 to 1) of instruction classes or kernels that a figure states for one card and setting, by metric.

    Args:
        paper: schema `schemas.PAPER`.
        figure, gpu, config: as in its columns.

    Returns:
        by what the share is of: an instruction class as "FP", or a kernel as "sm80_xmma_fprop_implicit_gemm".
    """
    rows = paper[(paper["figure"] == figure) & (paper["unit"] == "%")]
    of_card = rows["gpu"].map(lambda names: names == "all" or gpu in names.split(";"))
    rows = rows[of_card & (rows["config"] == config) & rows["metric"].str.contains("share of")]
    found = {}
    for row in rows.itertuples():
        what = str(row.metric).partition(" share of ")[0]
        found[str(row.subject) if what == "share of kernel time" else what] = _number(str(row.value)) / 100
    return found


_RATIOS = ("all stall classes",)


def _number(text: str) -> float:
    low, dash, high = text.partition("-")
    return (float(low) + float(high)) / 2 if dash and low else float(text)
