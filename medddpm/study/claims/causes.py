"""Why a measured number is not the paper's, as far as the records themselves tell: one clause a cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from medddpm.study.claims import rules
from medddpm.study.claims.paper import Claim, as_range
from medddpm.study.claims.rules import Run
from medddpm.study.profile import summaries
from medddpm.study.profile.families import family_named

Runs = Mapping[tuple[str, str], list[Run]]  # by card and part
BANDWIDTH = {"H100": 3350.0, "H200": 4800.0}  # GB/s: Table 1 of the paper; NVIDIA's H200 data sheet
ALONE = ("cycles", "UD share of IPC stack", "FP share of IPC stack")  # need no more than the metric's own clauses
ELSEWHERE = re.compile(r"window-(\d+)")


# Where the paper's own numbers explain a difference: what else it states, by the claim that differs.
ELSE_STATED = {
    "P001": "the paper takes its hundredfold from OPT2's 0.01 to 0.02 (P104)",
    "P002": "the paper takes its hundredfold from OPT2's 0.01 (P105)",
    "P007": "the paper's own H100 has 0.39 of the cycles (P100), 2.6 times fewer, and only its A100 comes to 5 (P097)",
    "P078": "Section 4.3 of the paper itself gives the H100's dominant GEMM over 70% of FP (P087)",
    "P079": "Section 4.3 of the paper itself gives the H100's dominant GEMM over 70% of FP (P087)",
}


def causes(claim: Claim, runs: Runs, view: str, card: str) -> str:
    """Clauses joined to one; never empty."""
    found = [ELSE_STATED[claim.id]] if claim.id in ELSE_STATED else []
    found += _of_the_metric(claim, runs, view, card)
    if claim.metric not in (*ALONE, rules.RANK):
        found += _of_the_window(claim, runs, card) if view == "window" else _of_the_step(claim, runs, card)
    return ", and ".join(found)


def as_text(values: list[float]) -> str:
    """Four significant digits; several numbers as the range "low-high"."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low}-{high}"


def mean(claim: Claim, runs: list[Run]) -> str | None:
    """A claim's number as the mean of those runs that have it."""
    by_run = rules.over_runs(claim, runs)
    return as_text(np.mean(by_run, axis=0).tolist()) if by_run else None


def _of_the_metric(claim: Claim, runs: Runs, view: str, card: str) -> Iterator[str]:
    newest = _newest(claim, runs[card, view])
    stated = as_range(claim.value)
    if claim.metric.startswith("DRAM") and stated and claim.gpu in BANDWIDTH and card != claim.gpu:
        ours, theirs = BANDWIDTH[card], BANDWIDTH[claim.gpu]
        yield (
            f"the {card}'s memory moves {ours:g} GB/s where the {claim.gpu}'s moves {theirs:g}, so that the same "
            f"traffic would read {stated[0] * theirs / ours:.4g}"
        )
    if claim.metric == "cycles":
        chosen = rules.SUBJECTS[claim.subject].pick(newest.of(claim.config))
        one = float((chosen["count"] * chosen["cycles_active"]).sum() / chosen["count"].sum())
        yield (
            f"ours are summed over all SMs and {chosen['count'].sum()} launches, one of which takes {one:.3g}, and the "
            "paper does not say over what its own are"
        )
    if claim.metric == rules.RANK:
        scores = [r for r in runs[card, view] if r.of(claim.config)["priority"].notna().any()][-1].of(claim.config)
        summed = summaries.priorities(scores, by="group").sum().head(4) / 1e6
        yield "summed scores are " + ", ".join(f"{group} {score:.3g} ms" for group, score in summed.items())
    if claim.metric.endswith("share of IPC stack"):
        other = mean(replace(claim, config="OPT1", subject="KN2"), runs[card, view])
        if other:
            yield f"KN2, Hopper's TF32 kernel that runs under OPT1, has {other}% here"
    if claim.metric == "Tensor Core utilization":
        yield _tensor_by_kind(newest.of(claim.config), claim.config)
    if rules.SUBJECTS[claim.subject].pick is rules.GEMMS and claim.metric.split(",")[0].endswith("share"):
        compared = _compared(claim)
        names = (f"{rules.short_name(rules.DOMINANT.pick(newest.of(config)))} under {config}" for config in compared)
        yield f"most of their time is in {' and '.join(names)}"


def _newest(claim: Claim, runs: list[Run]) -> Run:
    """The last run that has a claim's numbers: a run may lack a setting."""
    return next(run for run in reversed(runs) if rules.numbers(claim, run))


def _tensor_by_kind(table: pd.DataFrame, config: str) -> str:
    """The Tensor Core pipe by kind of work: other kernels keep it busy too, a little."""
    matrices, others = rules.GEMMS(table), table.drop(rules.GEMMS(table).index)
    means = [float(kind["tensor_pct"].mean()) for kind in (matrices, others)]
    return f"under {config} a launch of a convolution or GEMM has {means[0]:.3g}%, any other {means[1]:.3g}%"


def _compared(claim: Claim) -> tuple[str, ...]:
    """The settings that make a claim's number, BASE among them if it is a ratio to it."""
    settings = rules.settings_of(claim)
    return tuple(dict.fromkeys([*settings, summaries.BASE])) if rules.uses_base(claim) else settings


def _of_the_window(claim: Claim, runs: Runs, card: str) -> Iterator[str]:
    elsewhere = _elsewhere(claim, runs, card)
    yield from elsewhere
    if step := mean(claim, runs.get((card, "step"), [])):
        yield f"a whole step gives {step}"
    settings = rules.settings_of(claim)
    newest = _newest(claim, runs[card, "window"])
    if len(settings) > 1:
        parts = [(config, rules.numbers(claim, newest, (config,))) for config in settings]
        yield "by setting it is " + ", ".join(f"{config} {as_text(values)}" for config, values in parts)
    elif settings != (summaries.BASE,) or not elsewhere:
        yield " and ".join(f"the launches under {c} are {_made_of(newest.of(c))}" for c in _compared(claim))


def _elsewhere(claim: Claim, runs: Runs, card: str) -> list[str]:
    """The claim's number in the windows that begin elsewhere, of the settings that were profiled there."""
    windows = {int(m[1]): runs[gpu, part] for gpu, part in runs if gpu == card and (m := ELSEWHERE.fullmatch(part))}
    wanted = rules.settings_of(claim)
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for start, there in sorted(windows.items()):
        settings = tuple(name for name in wanted if name in set(there[-1].table["config"]))
        if settings and (values := rules.numbers(claim, there[-1], settings)):
            found.setdefault(settings, {})[start] = as_text(values)
    return [
        f"a hundred launches from {', '.join(map(str, given))} on give {', '.join(given.values())}"
        + (f" for {', '.join(settings)}" if settings != wanted else "")
        for settings, given in found.items()
    ]


def _made_of(table: pd.DataFrame) -> str:
    """The two kinds of work that take the most time: "17 of convolution (71.2% of the time) and …"."""
    time = rules.time_of(table)
    group = table["family"].map(lambda name: family_named(name).group)
    shares = (100 * time.groupby(group).sum() / time.sum()).nlargest(2)
    counts = table["count"].groupby(group).sum().to_dict()
    return " + ".join(f"{counts[kind]} of {kind} ({share:.3g}% of the time)" for kind, share in shares.items())


def _of_the_step(claim: Claim, runs: Runs, card: str) -> Iterator[str]:
    """What of a step the window does not show: the time in families that it does not launch."""
    newest = _newest(claim, runs[card, "step"])
    windows = runs.get((card, "window"), [])
    shown = {(c, f) for run in windows for c, f in zip(run.table["config"], run.table["family"], strict=True)}
    parts = []
    for config in _compared(claim):
        shares = 100 * newest.shares.loc[config]
        hidden = shares[[(config, family) not in shown for family in shares.index]]
        if hidden.sum() > 0:
            parts.append(f"{hidden.sum():.3g}% under {config} ({hidden.idxmax()} {hidden.max():.3g}%)")
    if parts:
        yield f"of the step's time {', '.join(parts)} is in kernels that the window does not launch"
    if claim.metric.removesuffix(", relative to BASE") in rules.MEANS or not parts:
        yield "a step's mean weights each launch by its time, the window's does not"
