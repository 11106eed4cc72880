"""Sentences of the paper that state no number, each as a rule whose parts the records confirm or break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from medddpm.measure.profile import summaries
from study.claims.cards import deciding_cards
from study.claims.kernels import KernelsOfRun, Runs
from study.records.schemas import CONCLUSIONS
from study.words import listed

IN_WORDS = {"window": "the paper's window", "step": "a whole step"}


@dataclass(frozen=True)
class Part:
    """One of the things that a sentence says.

    Args:
        name: the thing, in words that fit into an enumeration.
        numbers: ours, in words; empty if another part has them.
        holds: whether the records confirm it.
    """

    name: str
    numbers: str
    holds: bool


@dataclass(frozen=True)
class Judged:
    """What the records say about a sentence.

    Args:
        parts: of the newest run; a part holds if it does in every run.
        by: the card and the records that decide, as "on the H100 by 3 runs of a whole step".
        card: the card whose records decide.
        view: their view: window, step, or another record's name.
    """

    parts: Sequence[Part]
    by: str
    card: str | None
    view: str


@dataclass(frozen=True)
class Conclusion:
    """A sentence of the paper, judged by profiles.

    Args:
        id: its number in our table.
        stated: the sentence, and where it stands.
        rule: the condition under which it holds, with the limits that are our choice.
        judge: judges one run.
        narrower: how our scope is narrower than the sentence's; what holds then holds in part.
        settings: the settings that a run must have.
    """

    id: str
    stated: str
    rule: str
    judge: Callable[[KernelsOfRun], Sequence[Part]]
    narrower: str = ""
    settings: tuple[str, ...] = (summaries.BASE,)

    def over(self, runs: Runs, view: str) -> Judged | None:
        """Judges the sentence by the runs of the first card that has the view; None if there is none."""
        card = next((card for card in deciding_cards().index if (card, view) in runs), None)
        of_card = runs[str(card), view] if card else []
        complete = [run for run in of_card if set(self.settings) <= set(run.table["config"])]
        if not complete:
            return None
        by_run = [self.judge(run) for run in complete]
        holds = [all(run[place].holds for run in by_run) for place in range(len(by_run[-1]))]
        parts = [Part(part.name, part.numbers, ok) for part, ok in zip(by_run[-1], holds, strict=True)]
        count = f"{len(complete)} runs" if len(complete) > 1 else "one run"
        newest = "; the numbers are the newest run's" if len(complete) > 1 else ""
        return Judged(parts, f"on the {card} by {count} of {IN_WORDS[view]}{newest}", str(card), view)


def status_of(judged: Judged, narrower: str = "") -> str:
    """Returns "reproduced" if all parts hold, "differs" if none does, else "in_part".

    Args:
        judged: the parts.
        narrower: of `Conclusion`.
    """
    holding = sum(part.holds for part in judged.parts)
    if not holding:
        return "differs"
    return "in_part" if narrower or holding < len(judged.parts) else "reproduced"


def row(
    name: str, stated: str, rule: str, judged: Judged | None, view: str, missing: str, narrower: str = ""
) -> tuple[object, ...]:
    """Returns a row of the schema `CONCLUSIONS`.

    Args:
        name, stated, rule: of `Conclusion`.
        judged: what the records say; None if they lack it.
        view: of the row.
        missing: the reason if `judged` is None.
        narrower: of `Conclusion`.
    """
    if judged is None:
        return name, stated, None, view, None, None, None, None, "not_measurable", missing
    said = {verb: [part.name for part in judged.parts if part.holds is holds] for verb, holds in _VERBS.items()}
    outcome = [f"{verb}: {listed(names)}." for verb, names in said.items() if names]
    reason = " ".join([f"The rule: {rule}. Judged {judged.by}.", *outcome, *([narrower] if narrower else [])])
    ours = "; ".join(part.numbers for part in judged.parts if part.numbers)
    return name, stated, ours, judged.view, judged.card, None, None, 0.0, status_of(judged, narrower), reason


_VERBS = {"Holds": True, "Does not hold": False}


def table(rows: Sequence[tuple[object, ...]]) -> pd.DataFrame:
    """Returns rows of `row` as a table of the schema `CONCLUSIONS`."""
    return pd.DataFrame(rows, columns=list(CONCLUSIONS.columns)).astype({"tolerance": "float64"})


def by_profiles(conclusions: Sequence[Conclusion], runs: Runs, view: str) -> list[tuple[object, ...]]:
    """Returns a row for each sentence that profiles judge, in one view: "window" or "step"."""
    missing = f"There is no record of {IN_WORDS[view]}. `site/add_your_card.md` says how to measure one."
    return [row(c.id, c.stated, c.rule, c.over(runs, view), view, missing, c.narrower) for c in conclusions]
