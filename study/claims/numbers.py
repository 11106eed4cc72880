"""Computes the paper's numbers from the kernels of one run.

Each function returns a `Number`, which the function of a claim passes to `Case.judge`. `summary`, `time_share`,
`instruction_share` … measure some launches under a setting; `ratio`, `reduction` … compare the number with that under
BASE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from medddpm.measure.profile import summaries
from study.claims import kernels
from study.claims.kernels import ALL, KernelsOfRun, Launches, summed


@dataclass(frozen=True)
class Number:
    """A number of the paper, or several that the paper sums up in one.

    Args:
        measure: returns the numbers of some launches of a run under one setting, in the claim's unit.
        settings: the settings to measure under; each gives one of the numbers.
        launches: the launches to measure.
        columns: of `summaries.summary`, if the number is one of them.
        base: the setting to compare with; empty for none.
        form: compares a value with the base's.
        largest: whether only the largest of the numbers counts.
        by_function: whether these are priority scores, which a step has in the records by function.
    """

    measure: Callable[[KernelsOfRun, str, Launches], list[float]]
    settings: tuple[str, ...]
    launches: Launches = ALL
    columns: tuple[str, ...] = ()
    base: str = ""
    form: Callable[[float, float], float] = lambda value, base: value / base
    largest: bool = False
    by_function: bool = False

    @property
    def compared(self) -> tuple[str, ...]:
        """The settings that make the number, with its base."""
        return tuple(dict.fromkeys(filter(None, [*self.settings, self.base])))

    def under(self, *settings: str) -> Number:
        """Returns the number under other settings."""
        return replace(self, settings=settings)

    def of(self, run: KernelsOfRun) -> list[float]:
        """Computes the number in one run; empty if the run lacks a setting or a counter."""
        if not set(self.compared) <= set(run.table["config"]):
            return []
        values = [value for setting in self.settings for value in self.measure(run, setting, self.launches)]
        if self.base:
            bases = self.measure(run, self.base, self.launches) * len(self.settings)
            values = [self.form(value, base) for value, base in zip(values, bases, strict=True)]
        if not all(math.isfinite(value) for value in values):
            return []
        return [max(values)] if self.largest else values

    def over(self, runs: Iterable[KernelsOfRun]) -> list[list[float]]:
        """Computes the number in every run that has it."""
        return [values for run in runs if (values := self.of(run))]


def summary(columns: str | tuple[str, ...], *settings: str) -> Number:
    """Returns what `summaries.summary` has in one column or several, of all launches."""
    columns = (columns,) if isinstance(columns, str) else columns
    return Number(lambda run, setting, _: [run.value(setting, name) for name in columns], settings, columns=columns)


def time_share(launches: Launches, setting: str) -> Number:
    """Returns the share of the time that some launches take, percent."""
    return Number(lambda run, name, some: [kernels.time_share(run.of(name), some)], (setting,), launches)


def instruction_share(classes: str | tuple[str, ...], launches: Launches, setting: str) -> Number:
    """Returns the share of some launches' instructions that belong to one class or several, percent."""
    names = (classes,) if isinstance(classes, str) else classes
    return Number(
        lambda run, name, some: [kernels.instruction_share(some.of(run.of(name)), *names)], (setting,), launches
    )


def cycles(launches: Launches, setting: str) -> Number:
    """Returns the active cycles of some launches, summed over the SMs."""
    return Number(lambda run, name, some: [summed(some.of(run.of(name)), "cycles_active")], (setting,), launches)


def ipc(launches: Launches, setting: str) -> Number:
    """Returns the instructions per active cycle of some launches together."""

    def measure(run: KernelsOfRun, name: str, some: Launches) -> list[float]:
        chosen = some.of(run.of(name))
        return [summed(chosen, "instructions") / summed(chosen, "cycles_active")]

    return Number(measure, (setting,), launches)


def family_shares(setting: str) -> Number:
    """Returns the share of the time of every family of kernels, percent."""
    return Number(lambda run, name, _: list(100 * run.shares.loc[name].to_numpy()), (setting,))


def rank(launches: Launches, setting: str) -> Number:
    """Returns the first and the last rank that a kind of work has by its summed priority score."""
    return Number(
        lambda run, name, some: kernels.ranks(run.of(name), some.kinds[0]), (setting,), launches, by_function=True
    )


def ratio(number: Number, base: str = summaries.BASE) -> Number:
    """Returns a number divided by what it is under the base."""
    return replace(number, base=base)


def reduction(number: Number) -> Number:
    """Returns by how many times a number is smaller than under BASE."""
    return replace(number, base=summaries.BASE, form=lambda value, base: 1 / (value / base))


def increase(number: Number) -> Number:
    """Returns by how much a number is larger than under BASE, percent."""
    return replace(number, base=summaries.BASE, form=lambda value, base: 100 * (value / base - 1))


def points(shares: Number) -> Number:
    """Returns by how many percentage points shares differ from those under BASE."""
    return replace(shares, base=summaries.BASE, form=lambda value, base: abs(value - base))


def largest(number: Number) -> Number:
    """Returns the largest of a number's values."""
    return replace(number, largest=True)
