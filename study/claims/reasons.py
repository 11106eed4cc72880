"""What a reason in `rules.csv` may name: facts that explain a verdict, taken from the records themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from medddpm.measure import summaries
from medddpm.measure.families import family_named
from study.claims import rules
from study.claims.paper import Claim

Runs = Mapping[tuple[str, str], list[rules.KernelsOfRun]]  # by card and part
ELSEWHERE = re.compile(r"window-(\d+)")


class Unknown(Exception):
    """The records do not hold a fact: the clause that names it is left out."""


def read_by(rule: rules.Rule, runs: Runs, view: str, card: str) -> list[rules.KernelsOfRun]:
    """A card's runs that a rule reads: for priority scores those of `<view>-by-function`, if there are any."""
    apart = runs.get((card, f"{view}-by-function"), []) if rule.rule == "rank" else []
    return apart or runs[card, view]


def as_text(values: list[float]) -> str:
    """Four significant digits; several numbers as the range "low-high"."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low}-{high}"


def listed(words: Iterable[str]) -> str:
    """A list as a sentence has it: "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def mean(rule: rules.Rule, runs: list[rules.KernelsOfRun]) -> str:
    """What a rule measures, as the mean of the runs that have it; empty if none does."""
    by_run = rules.over_runs(rule, runs)
    return as_text(np.mean(by_run, axis=0).tolist()) if by_run else ""


@dataclass(frozen=True)
class Judgement:
    """One claim and the records that settle it: fills the templates of its rule with `FACTS`.

    Args:
        claim: what is judged.
        every: the runs of all cards and parts.
        view: "window" or "step".
        card: the folder whose records settle the claim.
        by_run: the claim's numbers, one list per run.
    """

    claim: Claim
    every: Runs
    view: str
    card: str
    by_run: list[list[float]]

    def __getitem__(self, fact: str) -> object:
        return FACTS[fact](self)

    def causes(self) -> str:
        """What explains a difference: the rule's sentences, less those whose facts are unknown."""
        sentences = []
        for template in self._rule.differs.split("; "):
            try:
                sentences.append(template.format_map(self))
            except Unknown:
                continue
        return " ".join(sentences)

    def _where(self) -> str:
        if self.card in self.claim.gpu.split(";"):
            return f"on the {self.card}"
        cards = "every card" if self.claim.gpu == "all" else "the " + self.claim.gpu.replace(";", " and the ")
        return f"on the {self.card} (the paper speaks of {cards})"

    def _spread(self) -> str:
        if len(self.by_run) == 1:
            return "one run"
        values = np.asarray(self.by_run)
        middle = np.abs(values.mean(axis=0))
        apart = np.divide(np.ptp(values, axis=0), middle, out=np.zeros_like(middle), where=middle > 0)
        return f"the mean of {len(self.by_run)} runs, {apart.max():.1%} apart"

    def _clipped(self) -> str:
        """How many launches have a hit rate of the L2 that is none; see `summaries`."""
        tables = [self._newest.of(setting) for setting in self._compared]
        above = sum(int(table["count"][table["l2_hit_pct"] > 100].sum()) for table in tables)
        every = sum(int(table["count"].sum()) for table in tables)
        return f" For {above} of {every} launches the L2 hit rate reads above 100%; it counts as 100%." if above else ""

    def _tied(self) -> str:
        first, last = np.mean(self.by_run, axis=0)
        return (
            f" It is a tie, because scores within {rules.TIE:.0%} of each other count as equal: {self._scores()}."
            if first < last
            else ""
        )

    def _other(self, launches: str, settings: tuple[str, ...] = ()) -> str:
        """The claim's number of other launches."""
        rule = replace(self._rule, launches=launches, settings=settings or self._rule.settings)
        if value := mean(rule, self._own):
            return value
        raise Unknown

    def _scores(self) -> str:
        """The four kinds of work with the highest summed priority, in the last run that has any."""
        tables = [table for run in self._own if (table := run.of(self._setting))["priority"].notna().any()]
        summed = summaries.priorities(tables[-1], by="group").sum().head(4) / 1e6
        return ", ".join(f"{group} {score:.3g} ms" for group, score in summed.items())

    def _tensor_pct(self, gemms: bool) -> float:
        """How busy a launch keeps the Tensor Core pipe: other kernels than GEMMs use it too, a little."""
        table = self._newest.of(self._setting)
        chosen = rules.pick(table, rules.GEMMS)
        return float((chosen if gemms else table.drop(chosen.index))["tensor_pct"].mean())

    def _busiest(self) -> str:
        """The convolution or GEMM with the most time, under each setting that is compared."""
        named = {s: rules.short_name(rules.pick(self._newest.of(s), rules.DOMINANT)) for s in self._compared}
        return listed(f"{name} under {setting}" for setting, name in named.items())

    @property
    def _rule(self) -> rules.Rule:
        return self.claim.rule

    @property
    def _setting(self) -> str:
        return self._rule.settings[0]

    @property
    def _own(self) -> list[rules.KernelsOfRun]:
        return read_by(self._rule, self.every, self.view, self.card)

    @property
    def _newest(self) -> rules.KernelsOfRun:
        """The last run that has the claim's numbers: a run may lack a setting."""
        return next(run for run in reversed(self._own) if rules.numbers(self._rule, run))

    @property
    def _chosen(self) -> pd.DataFrame:
        return rules.pick(self._newest.of(self._setting), self._rule.launches)

    @property
    def _compared(self) -> tuple[str, ...]:
        """The settings that make the claim's number, with the one that it is held against."""
        return tuple(dict.fromkeys(filter(None, [*self._rule.settings, self._rule.base])))

    def _views(self) -> str:
        """What other windows and the whole step give, and what the launches are; of a step, what no window shows."""
        if sentences := list(self._of_the_window() if self.view == "window" else self._of_the_step()):
            return " ".join(sentences)
        raise Unknown

    def _of_the_window(self) -> Iterator[str]:
        elsewhere = self._elsewhere()
        yield from elsewhere
        if step := mean(self._rule, self.every.get((self.card, "step"), [])):
            yield f"A whole step gives {step}."
        settings = self._rule.settings
        if len(settings) > 1:
            parts = [f"{self._other(self._rule.launches, (setting,))} under {setting}" for setting in settings]
            yield f"By setting it is {listed(parts)}."
        elif settings != (summaries.BASE,) or not elsewhere:
            made = {setting: _made_of(self._newest.of(setting)) for setting in self._compared}
            (first, most), *others = made.items()
            told = "".join(f", under {setting} to {kinds}" for setting, kinds in others)
            yield f"Under {first} most of the window's time goes to {most}{told}."

    def _elsewhere(self) -> list[str]:
        """The claim's number in the windows that begin elsewhere, under the settings that were profiled there."""
        windows = {int(m[1]): runs for (gpu, part), runs in self.every.items()
                   if gpu == self.card and (m := ELSEWHERE.fullmatch(part))}  # fmt: skip
        wanted = self._rule.settings
        found: dict[tuple[str, ...], dict[int, str]] = {}
        for start, there in sorted(windows.items()):
            settings = tuple(name for name in wanted if name in set(there[-1].table["config"]))
            if settings and (values := rules.numbers(self._rule, there[-1], settings)):
                found.setdefault(settings, {})[start] = as_text(values)
        return [
            f"Windows that begin at launch {listed(map(str, given))} give {listed(given.values())}"
            + (f" under {listed(settings)}." if settings != wanted else ".")
            for settings, given in found.items()
        ]

    def _of_the_step(self) -> Iterator[str]:
        """What a window does not show of a step: the time in families that it does not launch."""
        windows = self.every.get((self.card, "window"), [])
        shown = {(c, f) for run in windows for c, f in zip(run.table["config"], run.table["family"], strict=True)}
        parts = []
        for setting in self._compared:
            shares = 100 * self._newest.shares.loc[setting]
            hidden = shares[[(setting, family) not in shown for family in shares.index]]
            if hidden.sum() > 0:
                parts.append(f"{hidden.sum():.3g}% under {setting} ({hidden.max():.3g}% {hidden.idxmax()})")
        if parts:
            yield f"Of the step's time, kernels that the window does not launch take {listed(parts)}."
        if not parts or {"ipc_geometric", *summaries.MEANS}.issuperset(self._rule.of):
            yield "A step's mean weights each launch by its time, the window's does not."


def _made_of(table: pd.DataFrame) -> str:
    """The two kinds of work that take the most time: "17 launches of convolution (71.2%) and 27 of normalization …"."""
    time = rules.time_of(table)
    group = table["family"].map(lambda name: family_named(name).group)
    shares = (100 * time.groupby(group).sum() / time.sum()).nlargest(2)
    counts = table["count"].groupby(group).sum().to_dict()
    first, *second = (f"of {kind} ({share:.3g}%)" for kind, share in shares.items())
    numbers = [counts[kind] for kind in shares.index]
    return listed([f"{numbers[0]} launches {first}", *(f"{numbers[1]} {kind}" for kind in second)])


FACTS: Mapping[str, Callable[[Judgement], object]] = {
    "view": lambda j: j.view,
    "card": lambda j: j.card,
    "setting": lambda j: j._setting,
    "where": lambda j: j._where(),  # the card that settles the claim, and for which one
    "runs": lambda j: j._spread(),  # how many, and how far apart
    "kernel": lambda j: rules.short_name(j._chosen),
    "launches": lambda j: j._chosen["count"].sum(),
    "one_launch": lambda j: (j._chosen["count"] * j._chosen["cycles_active"]).sum() / j._chosen["count"].sum(),
    "tensor_floor": lambda _: rules.TENSOR_FLOOR,
    "gemm_share": lambda j: j._other(rules.GEMMS),  # the claim's number of all GEMMs
    "kn2": lambda j: j._other("KN2", ("OPT1",)),
    "clipped": lambda j: j._clipped(),
    "tied": lambda j: j._tied(),
    "alone": lambda j: mean(j._rule, j._own) or "nothing",  # the card's own number, where several would decide
    "absent": lambda j: " or ".join(gpu for gpu in j.claim.gpu.split(";") if (gpu, j.view) not in j.every),
    "scores": lambda j: j._scores(),
    "gemm_pct": lambda j: j._tensor_pct(gemms=True),
    "other_pct": lambda j: j._tensor_pct(gemms=False),
    "busiest": lambda j: j._busiest(),
    "views": lambda j: j._views(),
}
