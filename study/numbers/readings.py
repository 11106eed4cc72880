"""Counts the paper's numbers that other readings of the paper would reproduce, by the H100's records.

Each count is a text as "30 of 55", for one view: `window` or `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.profile import summaries
from study.claims import findings, verdicts
from study.claims.by_figure import PROFILED
from study.claims.case import Case
from study.claims.kernels import DOMINANT, KernelsOfRun, Runs
from study.claims.numbers import Number
from study.claims.paper import Claim, claims_of, paper_claims
from study.words import listed

CARD = "H100"
"""The one card of the paper's that was measured."""

_ON_THE_A100 = ("P001", "P002")  # by the end of the abstract's sentence
_LARGEST, _RANGES = ("P007",), ("P103", "P104", "P199")  # numbers of several cards together
_UNDECIDED = ("P007", "P199")
_FROM_OTHERS = ("P201",)  # follows from other numbers of the paper
_REPRODUCED, _DIFFERS = "reproduced", "differs"


@cache
def _paper(root: Path) -> pd.DataFrame:
    return paper_claims(root)


@cache
def _claims(root: Path) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims_of(_paper(root))}


@cache
def _every_run(root: Path) -> Runs:
    return findings.every_run(root)


def _runs(root: Path) -> Runs:
    return {key: tables for key, tables in _every_run(root).items() if key[0] == CARD}


def _judge(root: Path, runs: Runs, view: str) -> pd.DataFrame:
    """Returns the counted numbers of a view, by claim, with their verdicts by some runs."""
    paper = _paper(root)
    return verdicts.measured(verdicts.settle(paper, findings.findings(paper, runs, view))).set_index("id")


@cache
def _judged(root: Path, view: str) -> pd.DataFrame:
    return _judge(root, _runs(root), view)


def _count(status: pd.Series[str]) -> str:
    return f"{(status == _REPRODUCED).sum()} of {len(status)}"


def _read_as(case: Case) -> tuple[float, str]:
    """Returns our number of a claim in another reading than its own, and the verdict."""
    finding = PROFILED[case.claim.id](case)
    return float(str(finding.our_value)), verdicts.status_of(case.claim, finding)


def _with(root: Path, view: str, changes: Mapping[str, str], without: tuple[str, ...] = ()) -> str:
    """Returns the count with other verdicts in place of, or beside, some of a view's."""
    status = _judged(root, view)["status"].drop(index=list(without))
    return _count(pd.concat([status.drop(index=list(changes), errors="ignore"), pd.Series(changes, dtype=object)]))


def as_judged(root: Path, view: str) -> str:
    """Returns the count that the other readings are compared with."""
    return _count(_judged(root, view)["status"])


# how launches are averaged


def averaged_otherwise(root: Path, view: str) -> str:
    """Returns the count with the window's launches weighted by time, or with the step's counted alike."""
    tables = [run.table for run in _runs(root)[CARD, view]]
    if view == "window":
        otherwise = [KernelsOfRun(table.assign(view=summaries.BY_TIME)) for table in tables]
    else:
        each = [table.loc[table.index.repeat(table["count"])] for table in tables]
        otherwise = [KernelsOfRun(table.assign(count=1, view="window")) for table in each]
    return _count(_judge(root, {**_runs(root), (CARD, view): otherwise}, view)["status"])


# who decides for several cards


class _OneCard(Case):
    """A claim that one card decides, even where the paper sums up several cards in one number."""

    def judge_together(self, number: Number, *how: Any, **named: Any) -> verdicts.Finding:
        return self.judge(number)


@cache
def _alone(root: Path, view: str) -> dict[str, tuple[float, str]]:
    """Returns our number and the verdict on each claim of several cards, if the H100 alone decided."""
    claims = _claims(root)
    return {name: _read_as(_OneCard(claims[name], _runs(root), view)) for name in (*_LARGEST, *_RANGES)}


def alone(root: Path, view: str, claim: str, places: str) -> str:
    """Returns our number of a claim of several cards if the H100 alone decided: "5.14"."""
    return f"{_alone(root, view)[claim][0]:.{places}f}"


def limits(root: Path, claim: str) -> str:
    """Returns within what our number of a claim reproduces it: "4–6"."""
    low, high = _accepted(root, claim)
    return f"{low:.3g}–{high:.3g}"


def decided_alone(root: Path, view: str) -> str:
    """Returns the count if the H100 alone decided all claims of several cards."""
    return _with(root, view, {name: _alone(root, view)[name][1] for name in _UNDECIDED})


def without_several_in_one(root: Path, view: str) -> str:
    """Returns the count without the claims that sum up several cards in one number."""
    decided = [name for name in (*_LARGEST, *_RANGES) if name not in _UNDECIDED]
    return _with(root, view, {}, tuple(decided))


def of_all_cards(root: Path, view: str) -> str:
    """Returns the count if the abstract's hundredfold were of every card and the H100 alone decided it."""
    claims = [replace(_claims(root)[name], gpu=CARD) for name in _ON_THE_A100]
    return _with(root, view, {claim.id: _read_as(Case(claim, _runs(root), view))[1] for claim in claims})


def of_one_card(root: Path, view: str) -> str:
    """Returns the count without any claim about more than one card."""
    status = _judged(root, view)["status"]
    return _count(status[[_claims(root)[str(name)].gpu == CARD for name in status.index]])


# what one card can refute


def refuted(root: Path, view: str) -> str:
    """Returns the count if one card can refute a range of all cards."""
    return _with(root, view, {name: _DIFFERS for name in _RANGES if _alone(root, view)[name][1] == _DIFFERS})


# which kernels are dominant


class _DominantKernel(Case):
    """A claim whose number is measured of the dominant kernel alone."""

    def judge(self, number: Number, **how: Any) -> verdicts.Finding:
        return super().judge(replace(number, launches=DOMINANT), **how)


@cache
def _dominant(root: Path, view: str) -> dict[str, tuple[float, str]]:
    """Returns our number and the verdict on each claim of dominant kernels, of the dominant one alone."""
    paper, claims = _paper(root), _claims(root)
    named = paper.loc[paper["subject"] == "dominant kernels", "id"]
    return {name: _read_as(_DominantKernel(claims[name], _runs(root), view)) for name in named}


def dominant_kernel(root: Path, view: str, claim: str, places: str) -> str:
    """Returns our number of a claim of dominant kernels, of the dominant one alone: "31.2"."""
    return f"{_dominant(root, view)[claim][0]:.{places}f}"


def by_the_dominant_kernel(root: Path, view: str) -> str:
    """Returns the count with the dominant kernel alone."""
    return _with(root, view, {name: status for name, (_, status) in _dominant(root, view).items()})


# 20% of what


@cache
def _of_the_change(root: Path, view: str) -> dict[str, str]:
    """Returns the verdicts on ratios with the tolerance as a share of the change, the ratio less 1."""
    changes = {}
    for name, ours in _judged(root, view)["our_value"].items():
        claim = _claims(root)[str(name)]
        finding = verdicts.Finding(view, "so", ours, verdicts.tolerance_of(claim))
        if status := verdicts.status_by_the_change(claim, finding):
            changes[claim.id] = status
    return changes


def of_the_change(root: Path, view: str) -> str:
    """Returns the count with that tolerance."""
    return _with(root, view, _of_the_change(root, view))


def changed_by_that(root: Path, view: str, verdict: str) -> str:
    """Returns the claims whose verdict that tolerance changes to another: "P102, P182 and P183"."""
    status = _judged(root, view)["status"]
    return listed([name for name, new in _of_the_change(root, view).items() if new == verdict != status[name]])


def least_accepted(root: Path, claim: str) -> str:
    """Returns the smallest number that reproduces a claim: "0.76"."""
    return f"{_accepted(root, claim)[0]:.2f}"


# what follows from other numbers


def without_derived(root: Path, view: str) -> str:
    """Returns the count without the claims that follow from other numbers of the paper."""
    return _with(root, view, {}, _FROM_OTHERS)


# which card decides


@cache
def _by_the_other_card(root: Path, view: str) -> pd.Series[str]:
    by_claim = findings.findings(_paper(root), _every_run(root), view)
    theirs = {str(name): by_claim[str(name)] for name in _judged(root, view).index}
    theirs = {name: replace(finding, our_value=finding.other_value) for name, finding in theirs.items()}
    return pd.Series({name: verdicts.status_of(_claims(root)[name], finding) for name, finding in theirs.items()})


def by_the_other_card(root: Path, view: str) -> str:
    """Returns the count with the H200's numbers in place of the H100's."""
    return _count(_by_the_other_card(root, view))


def changed_by_the_other_card(root: Path, view: str, verdict: str) -> str:
    """Returns the claims whose verdict the H200's numbers change to another: "P128 and P129"."""
    status = _by_the_other_card(root, view)
    return listed([str(name) for name in status.index[(status != _judged(root, view)["status"]) & (status == verdict)]])


# which run counts


@cache
def _by_one_run(root: Path, view: str) -> dict[str, float]:
    """Returns the numbers of the claims whose verdict a single run would change, by claim."""
    judged = _judged(root, view)
    numbers: dict[str, float] = {}
    for run in _runs(root)[CARD, view]:
        alone = _judge(root, {**_runs(root), (CARD, view): [run]}, view)
        other = alone["status"] != judged["status"].reindex(alone.index)
        numbers |= {str(name): float(alone["our_value"][name]) for name in alone.index[other]}
    return numbers


def by_one_run(root: Path, view: str, claim: str) -> str:
    """Returns the number of the one run that would change a claim's verdict: "69.8"."""
    return f"{_by_one_run(root, view)[claim]:.1f}"


def mean_of_runs(root: Path, view: str, claim: str) -> str:
    """Returns the mean of all runs, which decides: "67.3"."""
    return f"{float(_judged(root, view)['our_value'][claim]):.1f}"


def beyond_limit(root: Path, view: str, claim: str) -> str:
    """Returns by how much this mean lies beyond what reproduces the claim: "0.04"."""
    return f"{float(_judged(root, view)['our_value'][claim]) - _accepted(root, claim)[1]:.2f}"


def _accepted(root: Path, claim: str) -> tuple[float, float]:
    """Returns the smallest and the largest number that reproduce a claim."""
    stated = _claims(root)[claim]
    accepted = verdicts.accepted(stated, verdicts.tolerance_of(stated))
    if accepted is None:
        raise ValueError(f"{claim} states no number")
    return accepted
