"""The paper's 198 claims beside our numbers: which are reproduced, which differ, and which are open.

One policy, set before any comparison. A measured quantity reproduces the paper's if it lies within the tolerance of its
rule, 20% either way: between the paper's cards and ours lie another memory system, three years of PyTorch and cuDNN,
and clocks that nobody fixed. Two runs on one card differ by far less, and each reason says by how much. What is counted
or named (settings, versions, kernels, ranks) must be equal. The paper's qualifiers count: "more than" and the like
bound from below, "only" from above, a range "73-80" at both ends; the tolerance widens each bound. A ratio to BASE must
also lie on the paper's side of 1: 1.07 says *more*, and 0.95 does not reproduce that, close as it is. A zero of the
paper is met below `FLOOR`, half a unit (of percentage points): a third of the smallest share that the paper tells from
zero, 1.4%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.claims.paper import Claim, as_range, claims_of
from medddpm.study.records.schemas import CLAIMS

STATUSES = CLAIMS.columns["status"].allowed
SETTLED_AND_OPEN = (*STATUSES, "open")
FLOOR = 0.5
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


def accepted(claim: Claim, tolerance: float) -> tuple[float, float] | None:
    """The smallest and the largest number that reproduce the paper's value; None if that is no number."""
    numbers = as_range(claim.value)
    if numbers is None:
        return None
    low, high = (n - s * tolerance * abs(n) for n, s in zip(numbers, (1, -1), strict=True))
    if tolerance and numbers == (0.0, 0.0):
        low, high = -FLOOR, FLOOR
    if tolerance and claim.rule.uses_base and claim.rule.form == "ratio":
        low = max(low, 1.0) if numbers[0] > 1 else low
        high = min(high, 1.0) if numbers[1] < 1 else high
    if claim.qualifier in AT_LEAST:
        high = math.inf
    if claim.qualifier in AT_MOST:
        low = -math.inf
    return low, high


def status_of(claim: Claim, finding: Finding) -> str:
    """`reproduced`, `differs` or `not_measurable`: numbers by the policy above, anything else as text."""
    ours = finding.our_value
    if ours is None:
        return "not_measurable"
    bounds, found = accepted(claim, finding.tolerance), as_range(ours)
    if bounds is None or found is None:
        return "reproduced" if ours == claim.value else "differs"
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
            tolerance = None if found.our_value is None else found.tolerance
            status = status_of(claim, found)
            rows.append((claim.id, claim.value, found.our_value, found.view, tolerance, status, found.reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def overview(paper: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """How far the book is: one row per section or table of the paper, its claims counted by status, and their sum.

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
    """Where the paper makes each of its claims: the figure or table, else the section."""
    return paper["figure"].fillna(("section " + paper["section"]).replace("section abstract", "abstract"))


def at_tolerances(paper: pd.DataFrame, claims: pd.DataFrame, tolerances: tuple[float, ...]) -> pd.DataFrame:
    """The verdicts under other tolerances: one row per tolerance, the measured claims counted by status.

    Args:
        paper: schema `PAPER`.
        claims: schema `CLAIMS`; claims that ask for equality, or have no value of ours, are left out.
        tolerances: relative.
    """
    measured = claims[claims["tolerance"] > 0].set_index("id")["our_value"].to_dict()
    judged = [claim for claim in claims_of(paper) if claim.id in measured]
    counts = {}
    for tolerance in tolerances:
        verdicts = [status_of(claim, Finding("", "", measured[claim.id], tolerance)) for claim in judged]
        counts[f"{tolerance:.0%}"] = {status: verdicts.count(status) for status in ("reproduced", "differs")}
    return pd.DataFrame(counts).T.rename_axis("tolerance")
