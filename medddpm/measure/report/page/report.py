"""Makes the page of `medddpm report`: what bounds each profiled step, its kernels, and profiles side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm import __version__
from medddpm.errors import printable
from medddpm.measure.profile import summaries
from medddpm.measure.profile.families import OTHER
from medddpm.measure.report import bounds, gains, starts, window
from medddpm.measure.report.folder import Profile
from medddpm.measure.report.page import charts
from medddpm.runtime.files import check_output, replacing

GENERATOR = "medddpm report"
COSTLIEST, UNSORTED, LONGEST_NAME = 20, 5, 200  # launches, kernels of no family, characters of a name that are shown
FACTS = {"gpu": "GPU", "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver",
         "ncu": "Nsight Compute", "date": "measured"}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """What the template shows of one profile; texts are plain, and the template escapes them."""

    title: str
    card: str
    facts: Sequence[tuple[str, str]]
    sentences: Sequence[str]
    bound: Any
    known: float
    caveats: Sequence[str]
    charts: Sequence[Any]
    launches: Sequence[Mapping[str, Any]]
    families: Sequence[Mapping[str, Any]]
    unsorted: Sequence[Mapping[str, Any]]
    phases: Sequence[Mapping[str, Any]]
    curve: Mapping[str, Any] | None
    gains: Sequence[Mapping[str, Any]]
    no_gains: str
    numbers: Mapping[str, float]


def write_report(profiles: Sequence[Profile], path: Path) -> Path:
    """Writes the page of some profiles, the first of them the baseline of the others; returns its path."""
    titled = zip(profiles, _titles(profiles), strict=True)
    sections = [_section(profile, title, [p for p in profiles if p is not profile]) for profile, title in titled]
    text = _template().render(
        sections=sections, side_by_side=_side_by_side(sections), rules=bounds.RULES, rule=starts.RULE,
        gains_from=gains.FROM, gains_off=gains.OFF, version=__version__, generator=GENERATOR,
        close=f"{starts.CLOSE:.0%}",
    )  # fmt: skip
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def check_report(path: Path) -> None:
    """Checks, before work, that a page may be written to `path`: it is free, or has an earlier page.

    Raises:
        BadInput: it may not.
    """
    check_output(path, ours=_is_report, force=True)


def _is_report(path: Path) -> bool:
    with path.open("rb") as stream:
        return GENERATOR.encode() in stream.read(400)


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medddpm.measure.report.page", "."), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"percent": _percent, "number": _number}
    return environment.get_template("report.html")


def _titles(profiles: Sequence[Profile]) -> list[str]:
    """Returns a name for each profile; equal names are numbered."""
    names = [_shown(profile.name) for profile in profiles]
    return [f"{name} ({place + 1})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def _section(profile: Profile, title: str, others: Sequence[Profile]) -> Section:
    kernels, known = profile.by_launch, profile.known()
    bounded, refused = bounds.of_step(profile), gains.refused(profile)
    return Section(
        title=title,
        card=_shown(profile.card),
        facts=[(words, _shown(str(profile.facts[name]))) for name, words in FACTS.items() if profile.facts.get(name)],
        sentences=bounds.sentences(bounded, known),
        bound=charts.bound_chart(bounded.shares),
        known=known,
        caveats=_caveats(profile),
        charts=charts.charts(kernels),
        launches=_costliest(kernels),
        families=_families(kernels),
        unsorted=_unsorted(kernels),
        phases=_phases(profile.launches),
        curve=_curve(profile),
        gains=[] if refused else _gains(profile, others),
        no_gains=refused,
        numbers=_numbers(profile, kernels, bounded),
    )


def _costliest(kernels: pd.DataFrame) -> list[dict[str, Any]]:
    time = kernels["count"] * kernels["duration_ns"]
    table = kernels.assign(time=time, share=time / time.sum(), bound=bounds.of_launches(kernels))
    shown = table.nlargest(COSTLIEST, "time").astype({"grid": object, "block": object})
    texts = {name: [_shown(str(text)) for text in shown[name].fillna("")] for name in ("kernel", "grid", "block")}
    return [{str(name): value for name, value in row.items()} for row in shown.assign(**texts).to_dict("records")]


def _families(kernels: pd.DataFrame) -> list[dict[str, Any]]:
    bound = bounds.of_launches(kernels)
    time = kernels["count"] * kernels["duration_ns"]
    by_bound = time.groupby([kernels["family"], bound]).sum()
    table = pd.DataFrame({"family": kernels["family"], "count": kernels["count"], "time": time})
    rows = table.groupby("family").sum().sort_values("time", ascending=False)
    return [
        {"family": name, "count": int(row["count"]), "ms": row["time"] / 1e6, "share": row["time"] / time.sum(),
         "bound": str(by_bound.loc[str(name)].idxmax())}
        for name, row in rows.iterrows()
    ]  # fmt: skip


def _unsorted(kernels: pd.DataFrame) -> list[dict[str, Any]]:
    """Lists the kernels of no family that take most time."""
    time = kernels["count"] * kernels["duration_ns"]
    of_none = time[kernels["family"] == OTHER].groupby(kernels["kernel"]).sum().nlargest(UNSORTED)
    return [{"kernel": _shown(str(name)), "share": float(ns / time.sum())} for name, ns in of_none.items()]


def _phases(launches: pd.DataFrame) -> list[dict[str, Any]]:
    """Sums the launches' times by phase, those with most time first; none if the step has no marked phase."""
    if launches["phase"].isna().all():
        return []
    phase = launches["phase"].fillna(starts.UNMARKED)
    sums = launches["duration_ns"].groupby(phase).agg(["size", "sum"]).nlargest(8, "sum")
    total = launches["duration_ns"].sum()
    return [
        {"phase": _shown(str(name)), "count": int(row["size"]), "ms": row["sum"] / 1e6, "share": row["sum"] / total}
        for name, row in sums.iterrows()
    ]


def _curve(profile: Profile) -> dict[str, Any] | None:
    """Returns the window's curves and a row for each counter; None for a step of fills and copies alone."""
    if profile.launches["grid"].isna().all():
        return None
    order = starts.ordered(profile)
    count = max(1, min(100, len(order.run) // 5))
    start = min(10, len(order.run) - count)
    ratios = starts.curve(order, count)
    rows = starts.spread(ratios).reset_index().to_dict("records")
    held = order.run["duration_ns"].iloc[start : start + count].sum() / order.step["duration_ns"].sum()
    return {
        "lines": charts.curves(ratios, order.run, start),
        "count": count,
        "start": start,
        "last": len(order.run) - count,
        "held": float(held),
        "rows": [{**row, "title": starts.TITLES[row["counter"]]} for row in rows if row["counter"] in window.SHOWN],
    }


def _gains(profile: Profile, others: Sequence[Profile]) -> list[dict[str, Any]]:
    """Returns a row for each tool: the predicted time, and the measured one of another profile of the same step."""
    measured = gains.measured(profile, others)
    return [
        {**vars(gain), "measured": measured.get(gain.tool), "ratio": gain.ms / measured.get(gain.tool, math.nan)}
        for gain in gains.predicted(profile)
    ]


def _caveats(profile: Profile) -> list[str]:
    """Says what is not straightforward about a profile."""
    program, told = profile.program, []
    if program.graphs:
        told.append(
            "The program launches CUDA graphs. Launches of a graph belong to the phase of the graph's launch, and its "
            "kernels have counters only if Nsight Compute was told to profile graphs kernel by kernel."
        )
    if program.processes > 1 or program.gpus > 1:
        told.append(
            f"The program has {program.processes} process{'es' * (program.processes > 1)} on {program.gpus} "
            f"GPU{'s' * (program.gpus > 1)}. The page shows the one that was profiled; communication takes longer "
            "under a profiler, which slows one process and lets the others wait."
        )
    if program.varies:
        told.append("The program's steps differ in their launches: the page shows one of them.")
    streams = profile.launches["stream"].nunique()
    if streams > 1 and ("start_ns" not in profile.launches or profile.launches["start_ns"].isna().any()):
        told.append(f"Launches ran on {streams} streams: where they overlapped their times are added.")
    return told


def _numbers(profile: Profile, kernels: pd.DataFrame, bounded: bounds.Bounds) -> dict[str, float]:
    """Returns the numbers of the table of profiles side by side, by what they are."""
    sums, means = summaries.totals(kernels).iloc[0], summaries.averages(kernels).iloc[0]
    return {
        "a step, ms": math.nan if bounded.wall_ms is None else bounded.wall_ms,
        "GPU busy, ms": bounded.busy_ms,
        "launches": float(len(profile.launches)),
        "SM cycles": float(sums["cycles"]),
        "instructions": float(sums["instructions"]),
        "instructions a cycle": float(sums["ipc_total"]),
        **{title: float(means[name]) for name, title in starts.RATES.items()},
    }


def _side_by_side(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Returns a row for each number that some profile has: the values, and those of the others by the first's."""
    if len(sections) < 2:
        return []
    rows = []
    for name in sections[0].numbers:
        values = [section.numbers[name] for section in sections]
        if not all(map(math.isnan, values)):
            ratios = [value / values[0] if values[0] else math.nan for value in values[1:]]
            rows.append({"name": name, "values": values, "ratios": ratios})
    return rows


def _shown(text: str) -> str:
    """Returns a text of a file for the page: its begin and end, on one line, without characters that do not print."""
    half = LONGEST_NAME // 2
    return printable(text if len(text) <= LONGEST_NAME else f"{text[:half]} … {text[-half:]}")


def _percent(share: float | None) -> str:
    return "" if share is None or math.isnan(share) else f"{share:.1%}"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e7 else f"{value:.{digits}g}"
