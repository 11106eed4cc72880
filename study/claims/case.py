"""Judges a claim of the paper by the records: the deciding card's number, and another card's number beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from study.claims.cards import deciding_cards
from study.claims.kernels import Runs
from study.claims.numbers import Number
from study.claims.paper import Claim
from study.claims.reasons import OnCard, Sentence, by_the_change, measured_over, runs_of, views
from study.claims.verdicts import Finding, status_of


def lacks(counters: str) -> Sentence:
    """Returns a sentence about the counters that the card's records lack."""
    return lambda on: f"No {on.view} of the {on.card} has {counters}. `site/add_your_card.md` says how to measure them."


no_counters = lacks("the counters or the settings it takes")


def _finding(on: OnCard, also: Sequence[Sentence], differs: Sequence[Sentence], missing: Sentence) -> Finding:
    """Returns the mean of the runs and the sentences that explain it; see `Case.judge`."""
    if not on.by_run:
        return Finding(on.view, missing(on))
    finding = on.finding
    explained = () if status_of(on.claim, finding) == "reproduced" else differs
    sentences = (sentence(on) for sentence in (measured_over, *also, by_the_change, *explained))
    return replace(finding, reason=" ".join(filter(None, sentences)))


@dataclass(frozen=True)
class Case:
    """A claim and the records to judge it by; the function of the claim gets one and returns the finding.

    Args:
        claim: the paper's.
        runs: of `study.claims.findings.every_run`.
        view: "window" or "step".
    """

    claim: Claim
    runs: Runs
    view: str

    def judge(
        self,
        number: Number,
        *,
        also: Sequence[Sentence] = (),
        differs: Sequence[Sentence] = (views,),
        missing: Sentence = no_counters,
    ) -> Finding:
        """Measures the claim's number, as the mean of the runs, and gives the reason.

        Args:
            number: the computation.
            also: further sentences of the reason.
            differs: sentences that explain a difference.
            missing: the reason if the records lack the number.
        """

        def on_card(card: str) -> Finding:
            by_run = number.over(runs_of(number, self.runs, self.view, card))
            return _finding(OnCard(self.claim, self.runs, self.view, card, number, by_run), also, differs, missing)

        return self.decide(on_card, in_bytes=number.columns == ("dram_pct",))

    def judge_together(
        self, number: Number, of_cards: Callable[[Sequence[float]], Sequence[float]], stated: str
    ) -> Finding:
        """Measures a number that the paper states of several cards together, which no card decides alone.

        Args:
            number: the computation on each card.
            of_cards: the paper's summary of the cards' numbers.
            stated: that summary in words, for the reason if a card was not measured.
        """
        each = [self.mean_on(gpu, number) for gpu in self._named]
        by_run = [] if math.isnan(sum(each)) else [list(of_cards(each))]

        def missing(on: OnCard) -> str:
            absent = " or ".join(gpu for gpu in self._named if (gpu, self.view) not in self.runs)
            alone = on.mean(number) or "nothing"
            return f"The paper gives {stated}. We have no {absent}. The {on.card} alone gives {alone}."

        def on_card(card: str) -> Finding:
            return _finding(OnCard(self.claim, self.runs, self.view, card, number, by_run), (), (views,), missing)

        return self._on_a_card_of_the_papers(on_card)

    def mean_on(self, card: str, number: Number) -> float:
        """Computes a number on one card, as the mean of its runs; NaN if none has it."""
        by_run = number.over(self.runs.get((card, self.view), []))
        return float(np.mean(by_run)) if by_run else math.nan

    def decide(self, on_card: Callable[[str], Finding], in_bytes: bool = False) -> Finding:
        """Returns the finding on the paper's card, and beside it the number of a card that stands in for it.

        Args:
            on_card: returns the finding by the records of one card.
            in_bytes: whether the number is a percentage of the memory's peak; the other card's is then converted to the
                peak of the paper's card.
        """
        finding = self._on_a_card_of_the_papers(on_card)
        stands_in = deciding_cards()["stands_in_for"]
        substitutes = map(str, stands_in.index[stands_in.isin(self._named)])
        other = next((gpu for gpu in substitutes if (gpu, self.view) in self.runs), None)
        beside = on_card(other) if other else None
        if not (other and beside and beside.our_value is not None):
            return finding
        value, reason, gpu = beside.our_value, finding.reason, str(stands_in.to_dict()[other])
        if self._card is None:
            absent = reason.partition(". ")[0].rstrip(".")  # not what to run: the other card was
            reason = (
                f"Measured on another card, the {other}, which decides nothing of the {gpu}. {absent}. {beside.reason}"
            )
        if in_bytes:
            peak = deciding_cards()["bandwidth_gbps"].to_dict()
            of_its_peak, value = value, f"{float(value) * peak[other] / peak[gpu]:.4g}"
            reason += (
                f" Beside it, the {other} moves as many bytes a second as {value}% of the {gpu}'s peak, "
                f"or {of_its_peak}% of its own."
            )
        return replace(finding, reason=reason, other_card=other, other_value=value)

    def _on_a_card_of_the_papers(self, on_card: Callable[[str], Finding]) -> Finding:
        if self._card:
            return on_card(self._card)
        first = self._named[0]
        if any(gpu == first for gpu, _ in self.runs):
            absent = f"The {first} has no record of a {self.view}. `site/add_your_card.md` says how to measure one."
        else:
            absent = str(deciding_cards()["absent"].to_dict()[first])
        return Finding(self.view, absent)

    @property
    def _named(self) -> list[str]:
        """The paper's cards that the claim names, preferred ones first."""
        of_paper = [str(gpu) for gpu, other in deciding_cards()["stands_in_for"].items() if pd.isna(other)]
        named = [gpu for gpu in of_paper if self.claim.gpu == "all" or gpu in self.claim.gpu.split(";")]
        if not named:
            problem = f"{self.claim.id} speaks of the card {self.claim.gpu!r}, which the paper did not measure"
            raise BadInput("claims", problem, f"use {', '.join(of_paper)}, or all")
        return named

    @property
    def _card(self) -> str | None:
        """The deciding card: the first one named that has records of the view."""
        return next((gpu for gpu in self._named if (gpu, self.view) in self.runs), None)
