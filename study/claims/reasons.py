"""Sentences that explain a verdict, each from the records of the card that decides.

A `Sentence` is empty if the records lack its facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.profile.families import family_named
from study.claims import kernels
from study.claims.kernels import GEMMS, KernelsOfRun, Runs
from study.claims.numbers import Number
from study.claims.paper import Claim
from study.claims.verdicts import Finding, status_by_the_change, status_of, tolerance_of
from study.words import listed

ELSEWHERE = re.compile(r"window-(\d+)")


@dataclass(frozen=True)
class OnCard:
    """One claim and the records of the card that decides.

    Args:
        claim: the one to judge.
        every: the runs of all cards and parts.
        view: "window" or "step".
        card: the folder whose records decide.
        number: how the claim's number is computed.
        by_run: the claim's numbers, one list per run.
    """

    claim: Claim
    every: Runs
    view: str
    card: str
    number: Number
    by_run: list[list[float]]

    @property
    def runs(self) -> list[KernelsOfRun]:
        """The card's runs that may have the number."""
        return runs_of(self.number, self.every, self.view, self.card)

    @property
    def newest(self) -> KernelsOfRun:
        """The last run that has the claim's number: a run may lack a setting."""
        return next(run for run in reversed(self.runs) if self.number.of(run))

    @property
    def launches(self) -> pd.DataFrame:
        """The number's launches, in the newest run under the first setting."""
        return self.number.launches.of(self.newest.of(self.number.settings[0]))

    def mean(self, number: Number) -> str:
        """Computes another number on this card, as `mean` does."""
        return mean(number, self.runs)

    @property
    def finding(self) -> Finding:
        """The claim's number as a finding without its reason."""
        ours = as_text(np.mean(self.by_run, axis=0).tolist())
        return Finding(self.view, "", ours, tolerance_of(self.claim), self.card)


Sentence = Callable[[OnCard], str]


def runs_of(number: Number, every: Runs, view: str, card: str) -> list[KernelsOfRun]:
    """Returns a card's runs; for priority scores those of `<view>-by-function`, if there are any."""
    by_function = every.get((card, f"{view}-by-function"), []) if number.by_function else []
    return by_function or every[card, view]


def as_text(values: list[float]) -> str:
    """Writes four significant digits; several numbers as the range "low-high"."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low}-{high}"


def mean(number: Number, runs: list[KernelsOfRun]) -> str:
    """Computes a number as the mean of the runs that have it, as text; empty if none does."""
    by_run = number.over(runs)
    return as_text(np.mean(by_run, axis=0).tolist()) if by_run else ""


def says(text: str) -> Sentence:
    """Returns a sentence that needs no facts."""
    return lambda _: text


def measured_over(on: OnCard) -> str:
    """Says over which launches, on which card and in how many runs the number was measured."""
    launches = on.number.launches
    kernel = f", {kernels.short_name(on.launches)}," if launches.one_kernel else ""
    return f"Measured over {launches.words}{kernel} {_where(on)}: {_spread(on)}."


def _where(on: OnCard) -> str:
    if on.card in on.claim.gpu.split(";"):
        return f"on the {on.card}"
    cards = "every card" if on.claim.gpu == "all" else "the " + on.claim.gpu.replace(";", " and the ")
    return f"on the {on.card} (the paper speaks of {cards})"


def _spread(on: OnCard) -> str:
    if len(on.by_run) == 1:
        return "one run"
    values = np.asarray(on.by_run)
    middle = np.abs(values.mean(axis=0))
    apart = np.divide(np.ptp(values, axis=0), middle, out=np.zeros_like(middle), where=middle > 0)
    return f"the mean of {len(on.by_run)} runs, {apart.max():.1%} apart"


def hinges(on: OnCard, choice: str, status: str | None) -> str:
    """Says that the verdict would be another one under another choice; empty if it would not.

    Args:
        on: the claim and the records.
        choice: the other choice and what it gives, as "counted alike (1.2)".
        status: the verdict under that choice; None if it gives none.
    """
    if status in (None, status_of(on.claim, on.finding)):
        return ""
    outcome = "be reproduced" if status == "reproduced" else "differ"
    return f"The verdict hinges on a choice: {choice}, it would {outcome}."


def by_the_change(on: OnCard) -> str:
    """Says that 20% of the change that a ratio states, in place of 20% of the ratio, would give another verdict."""
    return hinges(
        on,
        "with a tolerance of 20% of the change that the ratio states (the ratio less 1)",
        status_by_the_change(on.claim, on.finding),
    )


def otherwise(words: str, number: Number) -> Sentence:
    """Returns a sentence that says what another computation of the number gives if it changes the verdict."""

    def sentence(on: OnCard) -> str:
        value = on.mean(number)
        status = status_of(on.claim, replace(on.finding, our_value=value)) if value else None
        return hinges(on, f"{words} ({value})", status)

    return sentence


def tensor_pipe(on: OnCard) -> str:
    """Says how busy a launch keeps the Tensor Core pipe; kernels other than GEMMs use it too, a little."""
    (setting,) = on.number.settings
    table = on.newest.of(setting)
    gemms = GEMMS.of(table)
    busy, other = (float(part["tensor_pct"].mean()) for part in (gemms, table.drop(gemms.index)))
    return f"Under {setting} a launch of a convolution or GEMM has {busy:.3g}%, any other {other:.3g}%."


def views(on: OnCard) -> str:
    """Compares a window with other windows and the step; for a step, says which part of its time no window shows."""
    return " ".join(_of_the_window(on) if on.view == "window" else _of_the_step(on))


def _of_the_window(on: OnCard) -> Iterator[str]:
    elsewhere = _elsewhere(on)
    yield from elsewhere
    if step := mean(on.number, on.every.get((on.card, "step"), [])):
        yield f"A whole step gives {step}."
    settings = on.number.settings
    if len(settings) > 1:
        each = [f"{on.mean(on.number.under(setting))} under {setting}" for setting in settings]
        yield f"By setting it is {listed(each)}."
    elif settings != (summaries.BASE,) or not elsewhere:
        made = {setting: _made_of(on.newest.of(setting)) for setting in on.number.compared}
        (first, most), *others = made.items()
        rest = "".join(f", under {setting} to {kinds}" for setting, kinds in others)
        yield f"Under {first} most of the window's time goes to {most}{rest}."


def _elsewhere(on: OnCard) -> list[str]:
    """Says the claim's number in the windows that begin elsewhere, under the settings that were profiled there."""
    windows = {int(m[1]): runs for (gpu, part), runs in on.every.items()
               if gpu == on.card and (m := ELSEWHERE.fullmatch(part))}  # fmt: skip
    of_claim = on.number.settings
    by_settings: dict[tuple[str, ...], dict[int, str]] = {}
    for start, there in sorted(windows.items()):
        settings = tuple(name for name in of_claim if name in set(there[-1].table["config"]))
        if settings and (values := on.number.under(*settings).of(there[-1])):
            by_settings.setdefault(settings, {})[start] = as_text(values)
    return [
        f"Windows that begin at launch {listed(map(str, values_at))} give {listed(values_at.values())}"
        + (f" under {listed(settings)}." if settings != of_claim else ".")
        for settings, values_at in by_settings.items()
    ]


def _of_the_step(on: OnCard) -> Iterator[str]:
    """Says how much of a step's time is in families that the window does not launch."""
    windows = on.every.get((on.card, "window"), [])
    shown = {(c, f) for run in windows for c, f in zip(run.table["config"], run.table["family"], strict=True)}
    parts = []
    for setting in on.number.compared:
        shares = 100 * on.newest.shares.loc[setting]
        hidden = shares[[(setting, family) not in shown for family in shares.index]]
        if hidden.sum() > 0:
            parts.append(f"{hidden.sum():.3g}% under {setting} ({hidden.max():.3g}% {hidden.idxmax()})")
    if parts:
        yield f"Of the step's time, kernels that the window does not launch take {listed(parts)}."
    columns = set(on.number.columns)
    if not parts or (columns and columns <= {"ipc_geometric", *summaries.MEANS}):
        yield "A step's mean weights each launch by its time, the window's does not."


def _made_of(table: pd.DataFrame) -> str:
    """Names the two kinds of work with most time: "17 launches of convolution (71.2%) and 27 of normalization …"."""
    time = kernels.time_of(table)
    group = table["family"].map(lambda name: family_named(name).group)
    shares = (100 * time.groupby(group).sum() / time.sum()).nlargest(2)
    counts = table["count"].groupby(group).sum().to_dict()
    first, *second = (f"of {kind} ({share:.3g}%)" for kind, share in shares.items())
    numbers = [counts[kind] for kind in shares.index]
    return listed([f"{numbers[0]} launches {first}", *(f"{numbers[1]} {kind}" for kind in second)])
