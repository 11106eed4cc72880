"""The paper's own numbers (ICPE '26, arXiv:2606.19365): its claims one by one, and as tables to draw."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.study.claims.rules import Rule, by_id
from medddpm.study.records.schemas import PAPER
from medddpm.study.records.tables import read_table

PAPER_CARDS = ("V100", "A100", "H100")  # oldest first
PAPER_SETTINGS = ("BASE", "OPT1", "OPT2", "OPT12")


@dataclass(frozen=True)
class Claim:
    """One row of the paper's table (schema `PAPER`) and the rule that measures it; value may be a range "low-high"."""

    id: str
    value: str
    qualifier: str
    gpu: str
    rule: Rule


def paper_claims(root: Path) -> pd.DataFrame:
    """The paper's numbers, one row per claim (schema `PAPER`), P001 to P204."""
    return read_table(root / "figures" / "records" / "paper" / "paper_reported.csv", PAPER)


def claims_of(paper: pd.DataFrame) -> list[Claim]:
    """The rows of the paper's table (schema `PAPER`), in its order."""
    columns = [paper[name] for name in ("id", "value", "qualifier", "gpu")]
    return [
        Claim(name, value, qualifier, gpu, by_id()[name]) for name, value, qualifier, gpu in zip(*columns, strict=True)
    ]


def as_range(text: str) -> tuple[float, float] | None:
    """ "0.39" as (0.39, 0.39), "73-80" as (73.0, 80.0); None if the text is no number."""
    number = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
    found = re.fullmatch(rf"({number})(?:-({number}))?", text.strip())
    return (float(found[1]), float(found[2] or found[1])) if found else None


def paper_values(paper: pd.DataFrame, figure: str, metric: str, subject: str | None = None) -> pd.DataFrame:
    """The paper's values of one metric in one figure.

    Args:
        paper: schema `PAPER`.
        figure: as "Fig 10".
        metric: as "Tensor Core utilization"; a ratio's ", relative to BASE" may be left out.
        subject: as "average over kernels"; any by default.

    Returns:
        one row per card of `PAPER_CARDS`, one column per setting of `PAPER_SETTINGS`; NaN where the paper gives no
        value. A range becomes its middle; "about" or "more than" a number becomes that number.
    """
    table = pd.DataFrame(np.nan, index=pd.Index(PAPER_CARDS, name="gpu"), columns=list(PAPER_SETTINGS))
    chosen = (paper["figure"] == figure) & paper["metric"].isin([metric, f"{metric}, relative to BASE"])
    if subject is not None:
        chosen &= paper["subject"] == subject
    for row in paper[chosen].itertuples():
        cards = PAPER_CARDS if row.gpu == "all" else str(row.gpu).split(";")
        settings = PAPER_SETTINGS if row.config == "all" else str(row.config).split(";")
        for card in cards:
            table.loc[card, settings] = _middle(str(row.value))
    if metric in _RATIOS or f"{metric}, relative to BASE" in set(paper.loc[chosen, "metric"]):
        table.loc[table.notna().any(axis="columns"), "BASE"] = 1.0
    return table


def paper_shares(paper: pd.DataFrame, figure: str, gpu: str, setting: str) -> dict[str, float]:
    """The shares (0 to 1) of instruction classes or kernels that a figure gives for one card and setting.

    Args:
        paper: schema `PAPER`.
        figure: as in its column.
        gpu: as "H100".
        setting: as in the column `config`.

    Returns:
        by instruction class, as "FP", or by kernel, as "sm80_xmma_fprop_implicit_gemm".
    """
    rows = paper[(paper["figure"] == figure) & (paper["unit"] == "%") & (paper["config"] == setting)]
    of_card = rows["gpu"].map(lambda names: names == "all" or gpu in names.split(";"))
    found = {}
    for row in rows[of_card & rows["metric"].str.contains("share of")].itertuples():
        what = str(row.metric).partition(" share of ")[0]
        found[str(row.subject) if what == "share of kernel time" else what] = _middle(str(row.value)) / 100
    return found


_RATIOS = ("all stall classes",)  # ratios to BASE that the paper's table does not call so


def _middle(text: str) -> float:
    low, high = as_range(text) or (np.nan, np.nan)
    return (low + high) / 2
