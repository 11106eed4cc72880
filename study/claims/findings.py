"""What the profiles say of the paper's claims (ICPE '26, arXiv:2606.19365): one finding per claim, with its reason.

The primary comparison is with the paper's own view, the window; the same rules say what a whole step gives. A number is
the mean of the runs. A claim about a card is settled by that card's folder under figures/records and by no other; one
about each of several cards, by the first of `cards` that has records. Another card's number stands beside as a second
one: the H200's beside the H100's (the same Hopper SMs, more and faster memory). It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from study.claims.paper import PAPER_SETTINGS, Claim, claims_of
from study.claims.reasons import ELSEWHERE, Judgement, Runs, as_text, listed, read_by
from study.claims.rules import FORMS, MEASURES, KernelsOfRun, cards, over_runs, pick, short_name
from study.claims.verdicts import Finding, status_of
from study.profile.tables import found, kernels

PROXY = "Measured on another card, {other}, which decides nothing of the {gpu}. {absent} {reason}"
IN_BYTES = " Beside it, {other} moves as many bytes a second as {value}% of the {gpu}'s peak, or {own}% of its own."
NO_COUNTERS = (
    "No {view} of the {card} has the counters or the settings it takes. "
    "`site/add_your_card.md` says how to measure them."
)
PLACES = {"window": "the paper's window", "step": "a whole step"}
KERNEL_NAME = "kernel_name"  # the one rule that looks for a kernel and measures nothing
NO_COUNTER = "no_counter"  # the one rule of what no card's counters can show
TOGETHER: Mapping[str, Callable[[list[float]], list[float]]] = {
    "largest of cards": lambda values: [max(values)],
    "all cards": list,
}  # what is taken of the numbers of all cards that a claim speaks of, which no card decides alone


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
    profiled = [claim for claim in claims_of(paper) if claim.rule.rule in (*MEASURES, KERNEL_NAME, NO_COUNTER)]
    return {claim.id: finding(claim, runs, view) for claim in profiled}


def finding(claim: Claim, runs: Runs, view: str) -> Finding:
    """What the runs say of one claim, in one view: a card of the paper's decides, another stands beside."""
    if claim.rule.rule == NO_COUNTER:
        return Finding(view, claim.rule.reason)
    named = _named(claim)
    card = next((gpu for gpu in named if (gpu, view) in runs), None)
    absent = str(cards()["absent"].to_dict()[named[0]])
    if any(gpu == named[0] for gpu, _ in runs):
        absent = f"The {named[0]} has no record of a {view}. `site/add_your_card.md` says how to measure one."
    settled = _on(claim, runs, view, card) if card else Finding(view, absent)
    stands_in = cards()["stands_in_for"]
    other = next((str(gpu) for gpu in stands_in.index[stands_in.isin(named)] if (gpu, view) in runs), None)
    if other is None or claim.rule.take in TOGETHER:
        return settled
    beside = _on(claim, runs, view, other)
    value = beside.our_value
    if value is None:
        return settled
    gpu = str(stands_in.to_dict()[other])
    reason = settled.reason
    if card is None:
        first = absent.partition(". ")[0].rstrip(".")  # not what to run: the other card was
        reason = PROXY.format(other=f"the {other}", gpu=gpu, absent=f"{first}.", reason=beside.reason)
    if claim.rule.of == ("dram_pct",):  # percent of a card's own peak: comparable as bytes a second only
        peak = cards()["bandwidth_gbps"].to_dict()
        own, value = value, f"{float(value) * peak[other] / peak[gpu]:.4g}"
        reason += IN_BYTES.format(other=f"the {other}", value=value, gpu=gpu, own=own)
    return replace(settled, reason=reason, other_card=other, other_value=value)


def _named(claim: Claim) -> Sequence[str]:
    """The paper's cards that a claim speaks of, those preferred first."""
    of_paper = [str(gpu) for gpu, other in cards()["stands_in_for"].items() if pd.isna(other)]
    named = [gpu for gpu in of_paper if claim.gpu == "all" or gpu in claim.gpu.split(";")]
    if not named:
        problem = f"{claim.id} speaks of the card {claim.gpu!r}, which the paper did not measure"
        raise BadInput("claims", problem, f"use {', '.join(of_paper)}, or all")
    return named


def _on(claim: Claim, runs: Runs, view: str, card: str) -> Finding:
    """What one card's runs say of a claim."""
    rule = claim.rule
    if rule.rule == KERNEL_NAME:
        return _name_found(claim, runs, view, card)
    by_run = over_runs(rule, read_by(rule, runs, view, card))
    if rule.against and not rule.base:  # another card, which must be here too
        theirs = over_runs(rule, runs.get((rule.against, view), []))
        by_run = [[FORMS[rule.form](own[0], np.mean(theirs))] for own in by_run] if theirs else []
    if rule.take in TOGETHER:
        each = [over_runs(rule, runs.get((gpu, view), [])) for gpu in _named(claim)]
        by_run = [TOGETHER[rule.take]([float(np.mean(of_card)) for of_card in each])] if all(each) else []
    judged = Judgement(claim, runs, view, card, by_run)
    if not by_run:
        return Finding(view, (rule.missing or NO_COUNTERS).format_map(judged))
    ours = as_text(np.mean(by_run, axis=0).tolist())
    settled = Finding(view, rule.reason.format_map(judged), ours, rule.tolerance, card)
    if status_of(claim, settled) == "reproduced":
        return settled
    return replace(settled, reason=f"{settled.reason} {judged.causes()}".rstrip())


def _name_found(claim: Claim, runs: Runs, view: str, card: str) -> Finding:
    """Whether a kernel of Table 2 is launched: in the step, or for the window's view in any record of the card.

    Records under another PyTorch than the book's (`medddpm profile --python`) do not count.
    """
    looked = {
        (part, n): pick(run.table, claim.rule.launches)
        for (gpu, part), own in runs.items()
        for n, run in enumerate(own)
        if gpu == card and view in ("window", part) and "-torch-" not in part
    }
    launched = pd.concat(looked, names=["part", "run", "row"])
    if launched.empty:
        only_on_another = claim.rule.of != ("",)
        reason = claim.rule.missing.format(view=view, card=card)
        return Finding(view, reason) if only_on_another else Finding(view, reason, "none", card=card)
    same = launched[launched["kernel"].str.contains(claim.value, regex=False)]
    shown = same if len(same) else launched
    settings, parts = (dict.fromkeys(c) for c in (shown["config"], shown.index.get_level_values("part")))
    starts = {part: start[1] for part in parts if (start := ELSEWHERE.fullmatch(part))}
    places = [PLACES[part] for part in PLACES if part in parts]
    windows = "window that begins" if len(starts) == 1 else "windows that begin"
    places += [f"the {windows} at launch {listed(starts.values())}"] if starts else []
    places += [f"the record {part}" for part in parts if part not in PLACES and part not in starts]
    reason = claim.rule.reason.format(card=card, settings=listed(settings), parts=listed(places))
    return Finding(view, reason, claim.value if len(same) else short_name(shown), card=card)
