"""The paper's 198 numbers beside ours (ICPE '26, arXiv:2606.19365): what is reproduced, what differs, what is open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.records import CLAIMS, PAPER, read

STATUSES = CLAIMS.columns["status"].allowed
SETTLED_AND_OPEN = (*STATUSES, "open")


@dataclass(frozen=True)
class Finding:
    """What was found about one claim.

    Args:
        view: where our value comes from: window, step, configuration, software or card.
        reason: one sentence; for a difference, what explains it.
        our_value: as text, or None where nothing can be measured.
        tolerance: the largest relative difference that still reproduces the paper's number; 0 is equality.
    """

    view: str
    reason: str
    our_value: str | None = None
    tolerance: float = 0.0


def paper_claims(root: Path) -> pd.DataFrame:
    """The numbers the paper states, one row a claim (schema `PAPER`), P001 to P198."""
    return read(root / "figures" / "records" / "paper" / "paper_reported.csv", PAPER)


def status_of(paper_value: str, finding: Finding) -> str:
    """`reproduced`, `differs` or `not_measurable`; numbers are compared within the tolerance, anything else as text."""
    ours = finding.our_value
    if ours is None:
        return "not_measurable"
    try:
        paper, found = float(paper_value), float(ours)
    except ValueError:
        return "reproduced" if ours == paper_value else "differs"
    return "reproduced" if abs(found - paper) <= finding.tolerance * abs(paper) else "differs"


def settle(paper: pd.DataFrame, findings: Mapping[str, Finding]) -> pd.DataFrame:
    """The settled claims (schema `CLAIMS`) in the paper's order: `paper`'s rows joined with the findings by id.

    Raises:
        BadInput: a finding is about a claim that the paper does not make.
    """
    unknown = sorted(set(findings) - set(paper["id"]))
    if unknown:
        raise BadInput("claims", f"the paper's table has no {', '.join(unknown)}", "give findings by the ids it has")
    rows = []
    for identity, stated in zip(paper["id"], paper["value"], strict=True):
        if found := findings.get(identity):
            tolerance = None if found.our_value is None else found.tolerance
            verdict = status_of(stated, found)
            rows.append((identity, stated, found.our_value, found.view, tolerance, verdict, found.reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def overview(paper: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """How far the book is: one row a section or table of the paper, its claims counted by status, and their sum.

    Columns: the three statuses, `open` for what no finding settles yet, and `claims`; the last row is `all`.
    """
    verdicts = dict(zip(claims["id"], claims["status"], strict=True))
    status = paper["id"].map(lambda identity: verdicts.get(identity, "open"))
    place = paper["figure"].fillna(("section " + paper["section"]).replace("section abstract", "abstract"))
    counts = pd.crosstab(place, status).reindex(index=place.unique(), columns=list(SETTLED_AND_OPEN), fill_value=0)
    counts.loc["all"] = counts.sum()
    counts["claims"] = counts.sum(axis="columns")
    return counts.rename_axis(index=None, columns=None)


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """The profiled run's settings (section 3.2) against the values our code defaults to.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    ids = {"batch size": "P051", "input size": "P052", "depth size": "P053", "channels": "P054"}
    reason = "the default of this package's own training and network"
    return {ids[name]: Finding("configuration", reason, str(value)) for name, value in values.items()}


def software(versions: Mapping[str, str]) -> dict[str, Finding]:
    """The paper's software (section 3.1) against the versions this book runs on.

    Args:
        versions: any of "PyTorch", "Python", "Nsight Compute", "CUDA Toolkit" and "cuDNN".
    """
    ids = {"PyTorch": "P057", "Python": "P058", "Nsight Compute": "P059", "CUDA Toolkit": "P060", "cuDNN": "P061"}
    reason = "the book is kept on a current release; kernels chosen by another one may differ from the paper's"
    return {ids[name]: Finding("software", reason, version) for name, version in versions.items()}


def pinned_versions(root: Path) -> dict[str, str]:
    """The versions the repository at `root` pins for everybody: "PyTorch" from the lock, "Python" from environment.yml.

    Raises:
        BadInput: a file is missing or pins no such thing.
    """
    return {
        "PyTorch": _pinned(root / "requirements.lock", r"^torch==(\S+)$"),
        "Python": _pinned(root / "environment.yml", r"^\s*- python=([\d.]+)$"),
    }


def cards(paper: pd.DataFrame) -> dict[str, Finding]:
    """Table 1: properties its makers state of the paper's three cards, which no run of this book can measure."""
    table = paper[(paper["figure"] == "Table 1") & (paper["subject"] == "GPU")]
    return {
        identity: Finding(
            "card", f"a property from the maker's data sheet of the {gpu}; none of these cards is measured here"
        )
        for identity, gpu in zip(table["id"], table["gpu"], strict=True)
    }


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return found.group(1)
