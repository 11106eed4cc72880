"""The paper's three takeaways (ICPE '26, arXiv:2606.19365, Section 4), each as a rule that a whole step can break.

T1, "underutilizes GPU pipelines", and its cause, "due to persistent memory, layout, and reduction overheads", are
judged apart. T2 is that "a single cuDNN convolution/GEMM kernel dominates runtime", T3 that "convolution, elementwise,
and reduction kernels stress different instruction paths". Averages and shares are of the step, weighted by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.profile.instructions import CLASSES
from study.claims.cards import deciding_cards
from study.claims.kernels import (
    DOMINANT,
    GEMMS,
    POINTWISE,
    KernelsOfRun,
    Launches,
    Runs,
    instruction_share,
    short_name,
    time_share,
)
from study.records.schemas import CLAIMS

WELL_USED = 60.0  # percent of a unit's peak from which NVIDIA's ncu calls it well used (its speed-of-light rule)
MOST = 50.0  # percent of the time: more than all others together
PIPES = {
    "Tensor Core utilization": "tensor_pct",
    "CUDA core utilization": "fma_pct",
    "integer ALU utilization": "alu_pct",
    "SM throughput": "sm_throughput_pct",
}
CONVOLUTIONS = "convolutions and GEMMs"
WORK = {  # compared in Section 4.3
    CONVOLUTIONS: GEMMS,
    "pointwise": POINTWISE,
    "norms and reductions": Launches("norms and reductions", ("reduction", "normalization")),
}
NO_STEP = "There is no record of a whole step. `site/add_your_card.md` says how to measure one."


@dataclass(frozen=True)
class Verdict:
    """The verdict of one run on a takeaway.

    Args:
        holds: whether the takeaway holds.
        numbers: the numbers, in words.
        breaker: the reason, if it does not hold.
    """

    holds: bool
    numbers: str
    breaker: str


@dataclass(frozen=True)
class Takeaway:
    """One of the paper's conclusions.

    Args:
        id: T1, T1 cause, T2 or T3.
        stated: the conclusion, in short.
        rule: the condition under which it holds.
        judge: judges it by the whole step of one run.
    """

    id: str
    stated: str
    rule: str
    judge: Callable[[KernelsOfRun], Verdict]


def settle(runs: Runs) -> pd.DataFrame:
    """The takeaways T1, its cause, T2 and T3 (schema `CLAIMS`), judged on the first card with a whole step by each of
    its runs of BASE.

    Args:
        runs: of `study.claims.findings.every_run`.

    Returns:
        four rows; our_value is that of the newest run. A takeaway that any run breaks differs.
    """
    card = next((card for card in deciding_cards().index if (card, "step") in runs), None)
    steps = [run for run in runs[card, "step"] if summaries.BASE in set(run.table["config"])] if card else []
    rows: list[tuple[object, ...]] = []
    for takeaway in TAKEAWAYS:
        verdicts = [takeaway.judge(run) for run in steps]
        if not verdicts:
            ours, tolerance, status, reason = None, None, "not_measurable", NO_STEP
        else:
            breakers = [verdict.breaker for verdict in verdicts if not verdict.holds]
            ours, tolerance, status = verdicts[-1].numbers, 0.0, "differs" if breakers else "reproduced"
            several = len(verdicts) > 1
            reason = f"It holds if {takeaway.rule}. Judged on the {card} "
            reason += f"by {len(verdicts)} runs of a whole step." if several else "by one run of a whole step."
            reason += f" It is broken by {breakers[0]}." if breakers else ""
            reason += " The numbers are the newest run's." if several else ""
        rows.append((takeaway.id, takeaway.stated, ours, "step", card, None, None, tolerance, status, reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def t1(run: KernelsOfRun) -> Verdict:
    """Judges T1: no pipe's average, nor the SM's, reaches `WELL_USED`."""
    averages = {pipe: run.value(summaries.BASE, column) for pipe, column in PIPES.items()}
    highest = max(averages, key=lambda pipe: averages[pipe])
    numbers = ", ".join(f"{pipe} {value:.3g}%" for pipe, value in averages.items())
    return Verdict(averages[highest] < WELL_USED, numbers, highest)


def t1_cause(run: KernelsOfRun) -> Verdict:
    """Judges the cause of T1: all but convolutions and GEMMs takes more of the time than these."""
    overhead = 100 - time_share(run.of(summaries.BASE), GEMMS)
    numbers = f"{overhead:.3g}% of the time is in all but convolutions and GEMMs"
    return Verdict(overhead > MOST, numbers, "convolutions and GEMMs, which take more")


def t2(run: KernelsOfRun) -> Verdict:
    """Judges T2: under BASE one convolution or GEMM takes more of the time than all else; also gives OPT1's numbers."""
    shares, numbers = {}, []
    for setting in (name for name in (summaries.BASE, "OPT1") if name in run.summary.index):
        table = run.of(setting)
        shares[setting] = time_share(table, DOMINANT)
        name, every = short_name(DOMINANT.of(table)), time_share(table, GEMMS)
        numbers.append(f"{setting}: {name} {shares[setting]:.3g}%, all convolutions and GEMMs {every:.3g}%")
    return Verdict(shares[summaries.BASE] > MOST, "; ".join(numbers), "a busiest kernel that takes less")


def t3(run: KernelsOfRun) -> Verdict:
    """Judges T3: convolutions execute more floating-point instructions than of any other class, other work does not."""
    largest, numbers = {}, []
    for work, launches in WORK.items():
        chosen = launches.of(run.of(summaries.BASE))
        shares = {name: instruction_share(chosen, name) for name in CLASSES}
        first, second = sorted(CLASSES, key=lambda name: -shares[name])[:2]
        largest[work] = first
        numbers.append(f"{work}: " + ", ".join(f"{CLASSES[c].lower()} {shares[c]:.3g}%" for c in (first, second)))
    broken = [work for work, name in largest.items() if (name == "inst_fp") != (work == CONVOLUTIONS)]
    classes = ", ".join(f"{work}, whose largest class is {CLASSES[largest[work]].lower()}" for work in broken)
    return Verdict(not broken, "; ".join(numbers), classes)


TAKEAWAYS = (
    Takeaway(
        "T1",
        "Med-DDPM underutilizes GPU pipelines across all architectures",
        f"under BASE neither the average of any pipe nor that of the SM reaches {WELL_USED:g}%",
        t1,
    ),
    Takeaway(
        "T1 cause",
        "what leaves them idle is memory, layout and reduction overheads",
        f"under BASE everything except convolutions and GEMMs takes more than {MOST:g}% of the time",
        t1_cause,
    ),
    Takeaway(
        "T2",
        "a single cuDNN convolution/GEMM kernel dominates runtime",
        f"under BASE one convolution or GEMM, by its whole name, takes more than {MOST:g}% of the time",
        t2,
    ),
    Takeaway(
        "T3",
        "convolution, elementwise and reduction kernels stress different instruction paths",
        "the largest class of instructions is floating point in BASE's convolutions and GEMMs, and another class in "
        "pointwise kernels and in norms and reductions",
        t3,
    ),
)
