"""The paper's own numbers (ICPE '26, arXiv:2606.19365), its claims one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
