"""The paper's 204 claims beside our numbers: which are reproduced, which differ, and which are open.

One policy for all. A measured quantity reproduces the paper's if it lies within 20% of it either way, or 5% where the
paper says "nearly identical" or "flat": between the paper's runs and ours lie three years of PyTorch and cuDNN, and
other clocks (ncu locks the SMs to their base clock unless told not to; the paper names no such option, and our runs
leave the clocks alone). Two runs on one card differ by far less, and each reason says by how much. What is counted or
named (settings, versions, kernels, ranks) must be equal; a rank that is shared reproduces each that it spans. The
paper's qualifiers count: "more than" and the like bound from below, strictly; "only" from above, a range "73-80" at
both ends, and the tolerance widens these bounds. A ratio to another setting must also lie on the paper's side of 1:
1.07 says *more*, and neither 0.95 nor 1 reproduces that, close as they are. A zero of the paper is met below `FLOOR`,
half a unit (of percentage points): a third of the smallest share that the paper tells from zero, 1.4%. What a data
sheet or a driver settles is *checked against source* where it agrees. Our own settings and versions, and the names of
kernels that we launched, are no measurements: where they agree they are the *same setting or name*, which counts as
reproduced nowhere. A number of another card than the paper's is a *proxy*: it stands beside, and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from medddpm.errors import BadInput
from study.claims.paper import KERNEL_NAME, MEASURED, REPEATS, Claim, as_range, claims_of, kind_of
from study.records.schemas import CLAIMS

STATUSES = CLAIMS.columns["status"].allowed
SETTLED_AND_OPEN = (*STATUSES, "open")
FLOOR = 0.5
TOLERANCE = 0.2
NARROW = {"nearly identical": 0.05, "flat": 0.05}  # by the paper's qualifier
AT_LEAST = ("more than", "over", "exceeds")
AT_MOST = ("only",)
CHECKED = ("card", "source")  # views
CHOSEN = ("configuration", "software")  # views whose values are our own choice
DECIDED = ("reproduced", "differs")


@dataclass(frozen=True)
class Finding:
    """Our value for a claim, and the reason for the verdict.

    Args:
        view: the value's origin: window, step, configuration, software, card or source.
        reason: the value's origin in words; for a difference, also its explanation.
        our_value: as text, a range as "low-high", or None if nothing can be measured.
        tolerance: the largest relative difference that still reproduces the paper's number; 0 is equality.
        card: the card whose records give our value.
        other_card: another card that was measured, which decides nothing.
        other_value: the value on that card.
    """

    view: str
    reason: str
    our_value: str | None = None
    tolerance: float = 0.0
    card: str | None = None
    other_card: str | None = None
    other_value: str | None = None


def accepted(claim: Claim, tolerance: float) -> tuple[float, float] | None:
    """Returns the smallest and the largest number that reproduce the paper's value; None if that is no number."""
    numbers = as_range(claim.value)
    if numbers is None:
        return None
    low, high = (n - s * tolerance * abs(n) for n, s in zip(numbers, (1, -1), strict=True))
    if tolerance and numbers == (0.0, 0.0):
        low, high = -FLOOR, FLOOR
    if tolerance and claim.unit == "x":  # a ratio
        low = max(low, math.nextafter(1.0, math.inf)) if numbers[0] > 1 else low
        high = min(high, math.nextafter(1.0, -math.inf)) if numbers[1] < 1 else high
    if claim.qualifier in AT_LEAST:
        low, high = math.nextafter(numbers[0], math.inf), math.inf
    if claim.qualifier in AT_MOST:
        low = -math.inf
    return low, high


def tolerance_of(claim: Claim) -> float:
    """Returns the tolerance of a measured number; a rank must be equal."""
    return 0.0 if _is_rank(claim) else NARROW.get(claim.qualifier, TOLERANCE)


def _is_rank(claim: Claim) -> bool:
    return claim.metric.startswith("rank ")


def status_of(claim: Claim, finding: Finding) -> str:
    """Returns the claim's status (schema `CLAIMS`): numbers by the policy above, anything else as text."""
    ours = finding.our_value
    if ours is None:
        return "proxy" if finding.other_value else "not_measurable"
    if not _agrees(claim, ours, finding.tolerance):
        return "differs"
    if finding.view in CHOSEN or claim.metric == KERNEL_NAME:
        return "same_setting_or_name"
    return "checked_against_source" if finding.view in CHECKED else "reproduced"


def status_by_the_change(claim: Claim, finding: Finding) -> str | None:
    """Returns the status with the tolerance as a share of the change that a ratio states, the ratio less 1.

    None for what is no ratio to another setting, has another tolerance than `TOLERANCE`, or was not measured.
    """
    if claim.unit != "x" or "reduction" in claim.metric or tolerance_of(claim) != TOLERANCE or not finding.our_value:
        return None
    change = replace(claim, value=_less_one(claim.value), unit="")
    return status_of(change, replace(finding, our_value=_less_one(finding.our_value)))


def _less_one(text: str) -> str:
    """Returns a ratio, or a range of ratios, as the change that it states."""
    return "-".join(f"{number - 1:.9f}" for number in dict.fromkeys(as_range(text) or ()))


def _agrees(claim: Claim, ours: str, tolerance: float) -> bool:
    bounds, value = accepted(claim, tolerance), as_range(ours)
    if bounds is None or value is None:
        return ours == claim.value
    if _is_rank(claim):
        return value[0] <= bounds[0] and bounds[1] <= value[1]
    return bounds[0] <= value[0] and value[1] <= bounds[1]


def settle(paper: pd.DataFrame, findings: Mapping[str, Finding]) -> pd.DataFrame:
    """Returns the settled claims (schema `CLAIMS`) in the paper's order: its rows joined with the findings by id.

    Raises:
        BadInput: a finding is about a claim that the paper does not make.
    """
    unknown = sorted(set(findings) - set(paper["id"]))
    if unknown:
        raise BadInput("claims", f"the paper's table has no {', '.join(unknown)}", "give findings by the ids it has")
    rows = []
    for claim in claims_of(paper):
        if finding := findings.get(claim.id):
            tolerance = None if finding.our_value is None else finding.tolerance
            status = status_of(claim, finding)
            cards = (finding.card, finding.other_card, finding.other_value)
            rows.append(
                (claim.id, claim.value, finding.our_value, finding.view, *cards, tolerance, status, finding.reason)
            )
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def overview(paper: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """Counts the claims by status, a row for each section or table of the paper, and their sum.

    Columns: the statuses, `open` for claims that no finding settles yet, and `claims`; the last row is `all`.
    """
    verdicts = dict(zip(claims["id"], claims["status"], strict=True))
    status = paper["id"].map(lambda identity: verdicts.get(identity, "open"))
    place = places(paper)
    counts = pd.crosstab(place, status).reindex(index=place.unique(), columns=list(SETTLED_AND_OPEN), fill_value=0)
    counts.loc["all"] = counts.sum()
    counts["claims"] = counts.sum(axis="columns")
    return counts.rename_axis(index=None, columns=None)


def measured(claims: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `claims` in the headline: measured numbers, each once however often it is stated."""
    counts = (claims["id"].map(kind_of) == MEASURED) & ~claims["id"].isin(list(REPEATS))
    return claims[counts & claims["status"].isin(DECIDED)]


def tally(claims: pd.DataFrame) -> pd.DataFrame:
    """Counts the claims, each once however often stated: a row for each kind and deciding card, a column a status."""
    table = claims.assign(kind=claims["id"].map(kind_of), card=claims["card"].fillna("–"))
    table = table[~table["id"].isin(list(REPEATS))]
    counts = pd.crosstab([table["kind"], table["card"]], table["status"]).rename_axis(columns=None)
    return counts.reindex(columns=list(STATUSES), fill_value=0)


def two_views(paper: pd.DataFrame, window: pd.DataFrame, step: pd.DataFrame, card: str) -> pd.DataFrame:
    """Judges the measured numbers of one card in both views, as if the paper spoke of that card.

    It shows how the two views differ, which any card can show. On a card that the paper does not have, it is no verdict
    on the paper.

    Args:
        paper: schema `PAPER`.
        window, step: schema `CLAIMS`, settled in each view.
        card: as in their columns `card` and `other_card`.

    Returns:
        a row for each number that the card has in both views, once however often stated: id, paper_value, tolerance,
        our_value and status in the window, our_value_step and status_step.
    """
    claims = {c.id: c for c in claims_of(paper) if kind_of(c.id) == MEASURED and c.id not in REPEATS}
    of_views = [_of_card(table, card) for table in (window, step)]
    rows = []
    for identity in (name for name in claims if all(name in values for values in of_views)):
        claim = claims[identity]
        values = [by_claim[identity] for by_claim in of_views]
        tolerance = tolerance_of(claim)
        judged = [status_of(claim, Finding("", "", value, tolerance)) for value in values]
        rows.append((identity, claim.value, tolerance, values[0], judged[0], values[1], judged[1]))
    columns = ["id", "paper_value", "tolerance", "our_value", "status", "our_value_step", "status_step"]
    return pd.DataFrame(rows, columns=columns)


def _of_card(claims: pd.DataFrame, card: str) -> dict[str, str]:
    """Returns a card's numbers by claim, deciding ones and others."""
    deciding = claims[claims["card"] == card].set_index("id")["our_value"]
    beside = claims[claims["other_card"] == card].set_index("id")["other_value"]
    return {str(name): str(value) for name, value in pd.concat([deciding, beside]).dropna().items()}


def headline(claims: pd.DataFrame) -> str:
    """Returns a sentence on how many of the measured numbers are reproduced, each counted once however often stated.

    Raises:
        BadInput: a measured number's row names no card, or a row is of no claim.
    """
    table = measured(claims)
    if table.empty:
        return "None of the paper's numbers was measured on a card that it speaks of."
    if (nameless := table.loc[table["card"].isna(), "id"]).any():
        problem = f"{', '.join(nameless)}: measured, but on no card"
        raise BadInput("claims", problem, "name the card whose records decide in the column card")
    reproduced, cards = (table["status"] == "reproduced").sum(), " and the ".join(dict.fromkeys(table["card"]))
    open_ = (claims["status"] == "not_measurable").sum()
    return (
        f"{len(table)} of the paper's numbers were measured on the {cards}; {reproduced} are reproduced. "
        f"Of the {len(claims)} rows {open_} are not measurable here."
    )


def places(paper: pd.DataFrame) -> pd.Series[str]:
    """Returns the place of each of the paper's claims: the figure or table, else the section."""
    return paper["figure"].fillna(("section " + paper["section"]).replace("section abstract", "abstract"))


def at_tolerances(paper: pd.DataFrame, claims: pd.DataFrame, tolerances: tuple[float, ...]) -> pd.DataFrame:
    """Counts the measured claims by status under other tolerances, a row for each.

    Args:
        paper: schema `PAPER`.
        claims: schema `CLAIMS`; claims that require equality, or were not `measured`, do not count.
        tolerances: relative.
    """
    table = measured(claims)
    ours = table[table["tolerance"] > 0].set_index("id")["our_value"].to_dict()
    judged = [claim for claim in claims_of(paper) if claim.id in ours]
    counts = {}
    for tolerance in tolerances:
        verdicts = [status_of(claim, Finding("", "", ours[claim.id], tolerance)) for claim in judged]
        counts[f"{tolerance:.0%}"] = {status: verdicts.count(status) for status in ("reproduced", "differs")}
    return pd.DataFrame(counts).T.rename_axis("tolerance")
