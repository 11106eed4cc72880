"""The bars of a page: Figures 4 to 13 of the paper for any profile's kernels, as numbers that the template lays out.

Bars are elements of the page, not pictures: their words stay legible on a phone and take the reader's theme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from medddpm.measure.profile import summaries, windows
from medddpm.measure.profile.families import GROUPS, family_named
from medddpm.measure.profile.instructions import CLASSES
from medddpm.measure.report import starts, window
from medddpm.measure.report.starts import RATES, TITLES

FAMILIES = 8  # of most time that a chart shows
APART = 16.0  # percent of a curve's height that two labels need
WARPS = 64.0  # that an SM of an A100 or H100 holds
STALLS = {"stall_long_scoreboard": "memory", "stall_math_pipe": "a busy pipe", "stall_branch": "a branch"}


@dataclass(frozen=True)
class Part:
    """A stretch of a bar: its name, its length in percent of the chart's width, the number of its colour, its value."""

    name: str
    width: float
    colour: int
    value: str


@dataclass(frozen=True)
class Bar:
    """A row of a chart."""

    label: str
    total: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Chart:
    """Bars under a title; `legend` has the names of colours, in their order, if bars have several parts."""

    title: str
    note: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Curve:
    """A curve over the starts of a window; places in percent of the width, heights from the top in percent.

    Args:
        title: of the counter.
        points: of the line, as SVG has them.
        ticks: labels of the axis, with their heights.
        band: from where to where a window's answer is close to the step's.
        mark: where the marked window begins.
        shades: begin and width of every second phase.
    """

    title: str
    points: str
    ticks: Sequence[tuple[str, float]]
    band: tuple[float, float]
    mark: float
    shades: Sequence[tuple[float, float]]


def curves(ratios: pd.DataFrame, run: pd.DataFrame, start: int) -> list[Curve]:
    """Returns the curves of `starts.curve` for the counters of `window.SHOWN` that were measured.

    Args:
        ratios: of `starts.curve`.
        run: the launches that starts count, of `starts.ordered`.
        start: of the window that is marked.
    """
    wide = max(1.0, float(ratios["start"].max()))
    shades = [(100 * first / wide, 100 * (min(last, wide) - first) / wide)
              for _, first, last in window.long_phases(windows.phases(run))[1::2] if first < wide]  # fmt: skip
    drawn = []
    for name in (name for name in window.SHOWN if ratios[name].notna().any()):
        x, y = window.thinned(ratios["start"].to_numpy(float), ratios[name].to_numpy(float))
        low, high = np.log10(window.span(y))

        def height(ratio: float, low: float = low, high: float = high) -> float:
            return float(100 * (high - np.log10(ratio)) / (high - low))

        known = [(at, ratio) for at, ratio in zip(x, y, strict=True) if ratio == ratio]
        points = " ".join(f"{100 * at / wide:.2f},{height(ratio):.2f}" for at, ratio in known)
        ends = [(f"{10**high:.2g}", 0.0), (f"{10**low:.2g}", 100.0)]
        ticks = [("1", height(1.0)), *((label, top) for label, top in ends if abs(top - height(1.0)) > APART)]
        band = (height(1 + starts.CLOSE), height(1 - starts.CLOSE))
        drawn.append(Curve(TITLES[name], points, ticks, band, 100 * start / wide, shades))
    return drawn


def bound_chart(shares: Mapping[str, float]) -> Chart:
    """Returns one bar: the step's time by what bounds it."""
    named = [(name, share, place) for place, (name, share) in enumerate(shares.items()) if share > 0]
    parts = [Part(name, 100 * share, place, f"{share:.1%}") for name, share, place in named]
    return Chart("", "", [Bar("", "", parts)], [(f"{name} {share:.1%}", place) for name, share, place in named])


def charts(kernels: pd.DataFrame) -> list[Chart]:
    """Returns the charts of a table `KERNELS` of one step, without those that need counters which it lacks."""
    time = (kernels["count"] * kernels["duration_ns"]).groupby(kernels["family"]).sum()
    largest = [str(name) for name in time.nlargest(FAMILIES).index]
    return [chart for chart in _every(kernels, largest) if chart.bars]


def _every(kernels: pd.DataFrame, largest: Sequence[str]) -> Iterator[Chart]:
    mix = summaries.family_shares(kernels).iloc[0]
    yield Chart(
        "Kernel families by time", "Figures 6 and 8: share of the GPU's time",
        _single({name: float(mix[name]) for name in largest}, "{:.1%}", by_group=True), _groups(largest),
    )  # fmt: skip
    yield _stacks(
        "Instructions a cycle", "Figure 4: a family's instructions by its cycles, by class",
        summaries.ipc_stacks(kernels).droplevel([0, 1]), largest, "{:.2f}",
    )  # fmt: skip
    yield _stacks(
        "Instruction mix", "Figures 7 and 9: share of a family's instructions",
        summaries.instruction_mix(kernels, ["family"]).droplevel([0, 1]), largest, "{:.0%}",
    )  # fmt: skip
    if kernels["priority"].notna().any():
        sums = summaries.priorities(kernels).iloc[0].dropna().head(FAMILIES)
        shares = sums / max(float(kernels["priority"].sum()), 1e-300)
        note = "Figure 5: count × time × the speedup that Nsight Compute's rules estimate, as shares"
        yield Chart("Priorities", note, _single({str(name): float(share) for name, share in shares.items()}, "{:.1%}"))
    means = summaries.averages(kernels).iloc[0]
    for title, note, names in (
        ("Utilization", "Figure 10: percent of the unit's peak, mean by time", summaries.UTILIZATION),
        ("Memory", "Figure 11: hits, and percent of DRAM's peak bandwidth, mean by time", summaries.MEMORY),
    ):
        yield Chart(title, note, _single({RATES[n]: float(means[n]) for n in names}, "{:.1f}", most=100.0))
    warps = {"resident on an SM": float(means["warps_per_cycle"])}
    yield Chart("Active warps", f"Figure 12: mean by time, of {WARPS:g}", _single(warps, "{:.1f}", most=WARPS))
    sums = summaries.totals(kernels).iloc[0]
    stalls = {title: starts.over(sums[name], sums["instructions"]) for name, title in STALLS.items()}
    yield Chart("Stalls", "Figure 13: cycles that warps wait for each instruction", _single(stalls, "{:.2f}"))


def _single(values: Mapping[str, float], form: str, most: float | None = None, by_group: bool = False) -> list[Bar]:
    """Returns a bar of one part for each known value; the longest fills the chart, or `most` does."""
    known = {str(name): value for name, value in values.items() if value == value}
    longest = max([most or 0.0, *known.values(), 1e-300])
    colours = {name: GROUPS.index(family_named(name).group) if by_group else 0 for name in known}
    return [
        Bar(name, form.format(value), [Part(name, 100 * value / longest, colours[name], form.format(value))])
        for name, value in known.items()
    ]


def _groups(families: Sequence[str]) -> list[tuple[str, int]]:
    groups = {family_named(name).group for name in families}
    return [(group, place) for place, group in enumerate(GROUPS) if group in groups]


def _stacks(title: str, note: str, table: pd.DataFrame, families: Sequence[str], form: str) -> Chart:
    """Returns a bar of a part a class for each family that has counters."""
    rows = table.reindex([name for name in families if name in table.index]).dropna(how="all").fillna(0.0)
    longest = max(float(rows.sum(axis="columns").max()) if len(rows) else 0.0, 1e-300)
    names = list(CLASSES.items())
    bars = [
        Bar(
            str(family), form.format(row.sum()) if "%" not in form else "",
            [Part(words, 100 * float(row[column]) / longest, place, form.format(row[column]))
             for place, (column, words) in enumerate(names) if row[column] > 0],
        )
        for family, row in rows.iterrows()
    ]  # fmt: skip
    used = {part.name for bar in bars for part in bar.parts}
    return Chart(title, note, bars, [(words, place) for place, (_, words) in enumerate(names) if words in used])
