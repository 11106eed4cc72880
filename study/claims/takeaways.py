"""The paper's three takeaways (ICPE '26, arXiv:2606.19365, Section 4), each as a rule that a whole step can break.

`takeaways.csv` holds them with their rules in words and their limits. T1, "underutilizes GPU pipelines": in BASE no
average (Tensor Core, FP32, integer pipe, SM throughput) reaches the limit. Its cause, "due to persistent memory,
layout, and reduction overheads", is judged by itself: all but convolutions and GEMMs takes more of BASE's time than the
limit. T2, "a single cuDNN convolution/GEMM kernel dominates runtime": in BASE one convolution or matrix product, by its
whole name, takes more of the time than the limit. T3, "convolution, elementwise, and reduction kernels stress different
instruction paths": BASE's convolutions execute more floating-point instructions than of any other class, and pointwise
and reduction kernels (norms among them) do not. Averages and shares are of the step, weighted by time.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from medddpm.measure import summaries
from medddpm.measure.instructions import CLASSES
from medddpm.measure.schemas import Column, Schema
from medddpm.measure.tables import read_table
from study.claims import rules
from study.claims.reasons import Runs
from study.records.schemas import CLAIMS

Verdict = tuple[bool, str, str]  # whether the takeaway holds, by which numbers, and what breaks it
PIPES = {
    "Tensor Core utilization": "tensor_pct",
    "CUDA core utilization": "fma_pct",
    "integer ALU utilization": "alu_pct",
    "SM throughput": "sm_throughput_pct",
}
WORK = {  # what Section 4.3 sets against each other
    "convolutions and GEMMs": rules.GEMMS,
    "pointwise": "pointwise",
    "norms and reductions": "reduction+normalization",
}
NO_STEP = "There is no record of a whole step. `site/add_your_card.md` says how to measure one."


def settle(runs: Runs) -> pd.DataFrame:
    """The takeaways T1, its cause, T2 and T3 (schema `CLAIMS`), judged on the first card with a whole step by each of
    its runs of BASE.

    Args:
        runs: of `study.claims.findings.every_run`.

    Returns:
        four rows; our_value is that of the newest run. A takeaway that any run breaks differs.
    """
    card = next((card for card in rules.cards().index if (card, "step") in runs), None)
    steps = [run for run in runs[card, "step"] if summaries.BASE in set(run.table["config"])] if card else []
    rows: list[tuple[object, ...]] = []
    for row in read_table(rules.HERE / "takeaways.csv", TAKEAWAYS).to_dict("records"):
        verdicts = [JUDGES[row["rule"]](run, row["limit"]) for run in steps]
        broken = [by for holds, _, by in verdicts if not holds]
        status = ("differs" if broken else "reproduced") if verdicts else "not_measurable"
        told = {
            "limit": row["limit"],
            "card": card,
            "judged": f"by {len(verdicts)} runs" if len(verdicts) > 1 else "by one run",
            "broken": f" It is broken by {broken[0]}." if broken else "",
        }
        newest = " The numbers are the newest run's." if len(verdicts) > 1 else ""
        reason = row["reason"].format(**told) + newest if verdicts else NO_STEP
        ours, tolerance = (verdicts[-1][1], 0.0) if verdicts else (None, None)
        rows.append((row["id"], row["paper_value"], ours, "step", card, None, None, tolerance, status, reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def is_underutilized(run: rules.KernelsOfRun, limit: float) -> Verdict:
    """T1."""
    averages = {pipe: run.value(summaries.BASE, column) for pipe, column in PIPES.items()}
    numbers = ", ".join(f"{pipe} {value:.3g}%" for pipe, value in averages.items())
    highest = max(averages, key=lambda pipe: averages[pipe])
    return averages[highest] < limit, numbers, highest


def has_overheads(run: rules.KernelsOfRun, limit: float) -> Verdict:
    """T1's cause."""
    overhead = 100 - rules.time_share(run.of(summaries.BASE), rules.GEMMS)
    numbers = f"{overhead:.3g}% of the time is in all but convolutions and GEMMs"
    return overhead > limit, numbers, "convolutions and GEMMs, which take more"


def is_dominated(run: rules.KernelsOfRun, limit: float) -> Verdict:
    """T2."""
    shares, numbers = {}, []
    for setting in (name for name in (summaries.BASE, "OPT1") if name in run.summary.index):
        table = run.of(setting)
        shares[setting] = rules.time_share(table, rules.DOMINANT)
        name = rules.short_name(rules.pick(table, rules.DOMINANT))
        every = rules.time_share(table, rules.GEMMS)
        numbers.append(f"{setting}: {name} {shares[setting]:.3g}%, all convolutions and GEMMs {every:.3g}%")
    return shares[summaries.BASE] > limit, "; ".join(numbers), "a busiest kernel that takes less"


def stresses_different_paths(run: rules.KernelsOfRun, _limit: float) -> Verdict:
    """T3."""
    largest, numbers = {}, []
    for work, launches in WORK.items():
        chosen = rules.pick(run.of(summaries.BASE), launches)
        shares = {name: rules.instruction_share(chosen, [name]) for name in CLASSES}
        first, second = sorted(CLASSES, key=lambda name: -shares[name])[:2]
        largest[work] = first
        numbers.append(f"{work}: " + ", ".join(f"{CLASSES[c].lower()} {shares[c]:.3g}%" for c in (first, second)))
    broken = [work for work, name in largest.items() if (name == "inst_fp") != (WORK[work] == rules.GEMMS)]
    classes = ", ".join(f"{work}, whose largest class is {CLASSES[largest[work]].lower()}" for work in broken)
    return not broken, "; ".join(numbers), classes


JUDGES: dict[str, Callable[[rules.KernelsOfRun, float], Verdict]] = {
    "underutilized": is_underutilized,
    "overheads": has_overheads,
    "dominated": is_dominated,
    "different_paths": stresses_different_paths,
}
TAKEAWAYS = Schema(
    {
        "id": Column("str", "T1, T1 cause, T2, T3"),
        "paper_value": Column("str", "the paper's conclusion, in short"),
        "rule": Column("str", "which function judges it", allowed=tuple(JUDGES)),
        "limit": Column("float64", "percent that the rule compares with", "%", nullable=True),
        "limit_source": Column("str", "why that limit", nullable=True),
        "reason": Column("str", "template of the verdict's reason"),
    }
)
