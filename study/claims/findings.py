"""Judges the paper's claims (ICPE '26, arXiv:2606.19365) by the profiles: a finding for each claim, with its reason.

The primary comparison is with the paper's view, the window; the same functions judge a whole step. A
number is the mean of the runs. A claim about a card is settled by that card's folder under figures/records and by no
other; one about each of several cards, by the first of `cards.csv` that has records. Another card's number stands
beside as a second one: the H200's beside the H100's (the same Hopper SMs, more and faster memory). It decides nothing.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from study.claims.by_figure import PROFILED
from study.claims.case import Case
from study.claims.kernels import KernelsOfRun, Runs
from study.claims.paper import PAPER_SETTINGS, claims_of
from study.claims.verdicts import Finding
from study.profile.tables import kernels, records


def every_run(root: Path) -> dict[tuple[str, str], list[KernelsOfRun]]:
    """Returns the kernels of every run by card and part (see `profile.tables.Record`); empty if there is none.

    Only under the paper's settings: a run under another, as FAST, neither confirms nor refutes the paper.
    """
    parts = sorted({record.part for record in records(root) if record.table == "kernels"})
    runs: dict[tuple[str, str], list[KernelsOfRun]] = {}
    if parts:
        tables = kernels(root, tuple(parts))
        of_paper = tables[tables["config"].isin(PAPER_SETTINGS)]
        for key, table in of_paper.groupby(["gpu", "part", "run"], sort=False):
            gpu, part, _ = map(str, key)
            runs.setdefault((gpu, part), []).append(KernelsOfRun(table))
    return runs


def findings(paper: pd.DataFrame, runs: Runs, view: str) -> dict[str, Finding]:
    """Returns a finding for every claim that a profile can settle, by id.

    Args:
        paper: schema `PAPER`.
        runs: of `every_run`.
        view: "window" or "step".
    """
    cases = [Case(claim, runs, view) for claim in claims_of(paper) if claim.id in PROFILED]
    return {case.claim.id: PROFILED[case.claim.id](case) for case in cases}
