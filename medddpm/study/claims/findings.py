"""What the profiles say of the paper's claims (ICPE '26, arXiv:2606.19365): one finding per claim, with its reason.

The primary comparison is with the paper's own view, the window; the same rules say what a whole step gives. A number is
the mean of the runs. A claim about a card is settled by that card's folder under figures/records, if there is one; the
H200 stands in for the H100 (the same Hopper SMs; Table 1's 14592 cores are those of 114 SMs, the H200 has 132). A claim
about several cards is settled by the first of `cards` that has records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.study.claims.paper import PAPER_SETTINGS, Claim, claims_of
from medddpm.study.claims.reasons import Judgement, Runs, as_text
from medddpm.study.claims.rules import FORMS, MEASURES, KernelsOfRun, cards, over_runs, pick, short_name
from medddpm.study.claims.verdicts import Finding, status_of
from medddpm.study.profile.tables import found, kernels

NO_CARD = "no {wanted} here; `medddpm profile` on one and committing its folder settles it"
NO_COUNTERS = (
    "no {view} of the {card} has the counters or the settings it takes: `medddpm profile --details` there settles it"
)
KERNEL_NAME = "kernel_name"  # the one rule that looks for a kernel and measures nothing


def every_run(root: Path) -> dict[tuple[str, str], list[KernelsOfRun]]:
    """The kernels of every run by card and part (see `profile.tables.Record`); empty if there is none.

    Only the paper's settings: what runs under another one, as FAST, neither confirms nor refutes the paper.
    """
    parts = sorted({record.part for record in found(root) if record.table == "kernels"})
    runs: dict[tuple[str, str], list[KernelsOfRun]] = {}
    if parts:
        tables = kernels(root, tuple(parts))
        of_paper = tables[tables["config"].isin(PAPER_SETTINGS)]
        for key, table in of_paper.groupby(["gpu", "part", "run"], sort=False):
            gpu, part, _ = map(str, key)
            runs.setdefault((gpu, part), []).append(KernelsOfRun(table))
    return runs


def findings(paper: pd.DataFrame, runs: Runs, view: str) -> dict[str, Finding]:
    """A finding for every claim that a profile can settle, by id.

    Args:
        paper: schema `PAPER`.
        runs: of `every_run`.
        view: "window" or "step".
    """
    profiled = [claim for claim in claims_of(paper) if claim.rule.rule in (*MEASURES, KERNEL_NAME)]
    return {claim.id: finding(claim, runs, view) for claim in profiled}


def finding(claim: Claim, runs: Runs, view: str) -> Finding:
    """What the runs say of one claim, in one view."""
    rule = claim.rule
    card = card_for(claim, runs, view)
    if card is None:
        wanted = "card" if claim.gpu == "all" else claim.gpu.replace(";", " or ")
        return Finding(view, NO_CARD.format(wanted=wanted))
    if rule.rule == KERNEL_NAME:
        return _name_found(claim, runs, view, card)
    by_run = over_runs(rule, runs[card, view])
    if rule.against and not rule.uses_base:  # another card, which must be here too
        theirs = over_runs(rule, runs.get((rule.against, view), []))
        by_run = [[FORMS[rule.form](own[0], np.mean(theirs))] for own in by_run] if theirs else []
    judged = Judgement(claim, runs, view, card, by_run)
    if not by_run:
        return Finding(view, (rule.missing or NO_COUNTERS).format_map(judged))
    ours = as_text(np.mean(by_run, axis=0).tolist())
    settled = Finding(view, rule.reason.format_map(judged), ours, rule.tolerance)
    if status_of(claim, settled) == "reproduced":
        return settled
    return Finding(view, f"{settled.reason}; {judged.causes()}", ours, rule.tolerance)


def card_for(claim: Claim, runs: Runs, view: str) -> str | None:
    """The folder whose records settle a claim; None if there is no such card."""
    named = claim.gpu.split(";")
    stands_in = cards()["stands_in_for"].items()
    candidates = [card for card, other in stands_in if claim.gpu == "all" or card in named or other in named]
    return next((str(card) for card in candidates if (card, view) in runs), None)


def _name_found(claim: Claim, runs: Runs, view: str, card: str) -> Finding:
    """Whether a kernel of Table 2 is launched: in the step, or for the window's view in any record of the card."""
    looked = {
        (part, n): pick(run.table, claim.rule.launches)
        for (gpu, part), own in runs.items()
        for n, run in enumerate(own)
        if gpu == card and view in ("window", part)
    }
    launched = pd.concat(looked, names=["part", "run", "row"])
    if launched.empty:
        only_on_another = claim.rule.of != ("",)
        reason = claim.rule.missing.format(view=view, card=card)
        return Finding(view, reason, None if only_on_another else "none")
    same = launched[launched["kernel"].str.contains(claim.value, regex=False)]
    shown = same if len(same) else launched
    settings, parts = (", ".join(dict.fromkeys(c)) for c in (shown["config"], shown.index.get_level_values("part")))
    reason = claim.rule.reason.format(card=card, settings=settings, parts=parts)
    return Finding(view, reason, claim.value if len(same) else short_name(shown))
