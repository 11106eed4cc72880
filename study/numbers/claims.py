"""The verdicts on the paper's numbers, counted and one by one, of claims.csv and claims_step.csv."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.measure.tables import read_table
from study.claims import findings, verdicts
from study.claims.kernels import KN3
from study.claims.paper import paper_claims
from study.claims.takeaways import shares_of
from study.records.schemas import CLAIMS

_TABLES = {"window": "claims", "step": "claims_step"}


@cache
def _claims(root: Path, view: str) -> pd.DataFrame:
    return read_table(root / "figures" / "records" / f"{_TABLES[view]}.csv", CLAIMS)


def stated(root: Path) -> str:
    """Returns how many numbers and names the paper states: "204"."""
    return str(len(paper_claims(root)))


def measured(root: Path, view: str) -> str:
    """Returns how many of them were measured in the window or the step, each counted once: "55"."""
    return str(len(verdicts.measured(_claims(root, view))))


def reproduced(root: Path, view: str) -> str:
    """Returns how many of the measured ones are reproduced: "30"."""
    return str((verdicts.measured(_claims(root, view))["status"] == "reproduced").sum())


def judged(root: Path, view: str) -> str:
    """Returns how many rows the table of a view has, settings and names included: "204"."""
    return str(len(_claims(root, view)))


def of_status(root: Path, view: str, status: str) -> str:
    """Returns how many of these rows have a status: "44"."""
    return str((_claims(root, view)["status"] == status).sum())


def not_measurable(root: Path) -> str:
    """Returns how many of the paper's numbers and names nothing here can measure: "89"."""
    return of_status(root, "window", "not_measurable")


def moments(root: Path, instructions: str) -> str:
    """Returns the share of a class in the instructions of the row-wise moments of the newest step of BASE: "3.6"."""
    share = shares_of(findings.every_run(root)["H100", "step"][-1], KN3)[instructions]
    return f"{share:.1f}"


def ours(root: Path, view: str, claim: str, places: str) -> str:
    """Returns our number of a claim: "7.56"."""
    return f"{float(_of(root, view, claim, 'our_value')):.{places}f}"


def papers(root: Path, view: str, claim: str) -> str:
    """Returns the paper's number of a claim: "10.53"."""
    return _of(root, view, claim, "paper_value")


def verdict(root: Path, view: str, claim: str) -> str:
    """Returns the verdict on a claim: "differs"."""
    return _of(root, view, claim, "status")


def _of(root: Path, view: str, claim: str, column: str) -> str:
    return str(_claims(root, view).set_index("id")[column][claim])
