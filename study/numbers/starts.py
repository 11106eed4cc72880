"""The verdicts that windows of other starts would give, by the H100's records of BASE and OPT2."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.measure.profile.windows import PAPERS_START
from study.claims import findings, verdicts
from study.claims.paper import paper_claims
from study.claims.reasons import ELSEWHERE
from study.words import listed

CARD = "H100"


@cache
def _verdicts(root: Path) -> dict[int, pd.DataFrame]:
    """Returns the numbers that the windows of every start have, by claim, with their verdicts."""
    paper, runs = paper_claims(root), findings.every_run(root)
    parts = {int(m[1]): part for card, part in runs if card == CARD and (m := ELSEWHERE.fullmatch(part))}
    judged = {}
    for start, part in {PAPERS_START: "window", **parts}.items():
        of_start = findings.findings(paper, {(CARD, "window"): runs[CARD, part]}, "window")
        judged[start] = verdicts.measured(verdicts.settle(paper, of_start)).set_index("id")
    common = set.intersection(*(set(table.index) for table in judged.values()))
    return {start: table[table.index.isin(common)] for start, table in sorted(judged.items())}


def numbers(root: Path) -> str:
    """Returns how many numbers the windows of every start have: "22"."""
    return str(len(_verdicts(root)[PAPERS_START]))


def rows(root: Path) -> list[str]:
    """Returns a row for each start: the launch, the count, what it gains and what it loses beside the paper's start."""
    usual = _reproduced(root, PAPERS_START)
    table = []
    for start in _verdicts(root):
        here = _reproduced(root, start)
        gained, lost = ([name for name in some if name not in other] for some, other in ((here, usual), (usual, here)))
        gains, losses = (listed(names) if names else "–" for names in (gained, lost))
        table.append(f"| {start} | {len(here)} | {gains} | {losses} |")
    return table


def _reproduced(root: Path, start: int) -> list[str]:
    status = _verdicts(root)[start]["status"]
    return [str(name) for name in status.index[status == "reproduced"]]
