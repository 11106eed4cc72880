"""The paper's three takeaways (ICPE '26, arXiv:2606.19365, Section 4), each as a rule that a whole step can break.

T1, "underutilizes GPU pipelines": in BASE no average (Tensor Core, FP32, integer pipe, SM throughput) reaches
`UTILIZED`. T2, "a single cuDNN convolution/GEMM kernel dominates runtime": in BASE one convolution or matrix product,
by its whole name, takes more than `DOMINATES` of the time. T3, "convolution, elementwise, and reduction kernels stress
different instruction paths": in BASE convolutions execute more floating-point instructions than of any other class, and
pointwise and reduction kernels (norms among them) do not. Averages and shares are of the step, by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from medddpm.study.claims import rules
from medddpm.study.claims.causes import Runs
from medddpm.study.claims.findings import SEVERAL
from medddpm.study.claims.rules import Run
from medddpm.study.profile import summaries
from medddpm.study.profile.instructions import CLASSES
from medddpm.study.records.schemas import CLAIMS

UTILIZED = 60.0  # percent of a pipe's peak: from there NVIDIA's ncu calls a unit well used (its "speed of light" rule)
DOMINATES = 50.0  # percent of the time: more than all others together
Verdict = tuple[bool, str, str]
PIPES = ("Tensor Core utilization", "CUDA core utilization", "integer ALU utilization", "SM throughput")
WORK = {  # what Section 4.3 sets against each other
    "convolutions": ("convolution", "matmul"),
    "pointwise": ("pointwise",),
    "reductions": ("reduction", "normalization"),
}


@dataclass(frozen=True)
class Takeaway:
    """One of the paper's conclusions.

    Args:
        stated: the paper's, in short.
        rule: what must hold for it, in words.
        judge: whether it holds in a run, by which numbers, and what breaks it where it does not.
    """

    stated: str
    rule: str
    judge: Callable[[Run], Verdict]


def settle(runs: Runs) -> pd.DataFrame:
    """The takeaways T1 to T3 (schema `CLAIMS`), judged by each run of a whole step on the newest card that has any.

    Args:
        runs: of `medddpm.study.claims.findings.every_run`.

    Returns:
        three rows; our_value is that of the newest run. One that some run breaks differs.
    """
    card = next((card for card in SEVERAL if (card, "step") in runs), None)
    steps = [run for run in runs[card, "step"] if "BASE" in set(run.table["config"])] if card else []
    rows: list[tuple[object, ...]] = []
    for identity, takeaway in TAKEAWAYS.items():
        if not steps:
            reason = "no record of a whole step: `medddpm profile` on a GPU and committing its folder settles it"
            rows.append((identity, takeaway.stated, None, "step", None, "not_measurable", reason))
            continue
        verdicts = [takeaway.judge(run) for run in steps]
        status = "reproduced" if all(holds for holds, _, _ in verdicts) else "differs"
        judged = f"by {len(steps)} runs" if len(steps) > 1 else "by one run"
        broken = "" if status == "reproduced" else f"; broken by {next(said for ok, _, said in verdicts if not ok)}"
        reason = f"rule: {takeaway.rule}; judged on the {card} {judged} of a whole step{broken}"
        rows.append((identity, takeaway.stated, verdicts[-1][1], "step", 0.0, status, reason))
    return pd.DataFrame(rows, columns=list(CLAIMS.columns)).astype({"tolerance": "float64"})


def is_underutilized(run: Run) -> Verdict:
    """T1."""
    averages = {pipe: run.value(summaries.BASE, rules.AVERAGES[pipe]) for pipe in PIPES}
    base = run.of(summaries.BASE)
    overhead = 100 - rules.time_share(base, rules.GEMMS(base))
    said = ", ".join(f"{pipe} {value:.3g}%" for pipe, value in averages.items())
    said = f"{said}; {overhead:.3g}% of the time is in all but convolutions and GEMMs"
    return all(value < UTILIZED for value in averages.values()), said, max(averages, key=lambda pipe: averages[pipe])


def is_dominated(run: Run) -> Verdict:
    """T2."""
    shares, said = {}, []
    for config in (name for name in (summaries.BASE, "OPT1") if name in run.summary.index):
        table = run.of(config)
        chosen = rules.DOMINANT.pick(table)
        shares[config] = rules.time_share(table, chosen)
        every = rules.time_share(table, rules.GEMMS(table))
        name = rules.short_name(chosen)
        said.append(f"{config}: {name} {shares[config]:.3g}%, all convolutions and GEMMs {every:.3g}%")
    return shares[summaries.BASE] > DOMINATES, "; ".join(said), "a busiest kernel that takes less"


def stresses_different_paths(run: Run) -> Verdict:
    """T3."""
    largest, said = {}, []
    for work, groups in WORK.items():
        chosen = rules.of_groups(*groups)(run.of(summaries.BASE))
        shares = {name: rules.instruction_share(chosen, [name]) for name in CLASSES}
        first, second = sorted(CLASSES, key=lambda name: -shares[name])[:2]
        largest[work] = first
        said.append(f"{work}: " + ", ".join(f"{CLASSES[c].lower()} {shares[c]:.3g}%" for c in (first, second)))
    broken = [work for work, name in largest.items() if (name == "inst_fp") != (work == "convolutions")]
    classes = ", ".join(f"{work}, whose largest class is {CLASSES[largest[work]].lower()}" for work in broken)
    return not broken, "; ".join(said), classes


TAKEAWAYS = {
    "T1": Takeaway(
        "Med-DDPM underutilizes GPU pipelines across all architectures",
        f"in BASE no pipe's average, and not the SM's, reaches {UTILIZED:g}%",
        is_underutilized,
    ),
    "T2": Takeaway(
        "a single cuDNN convolution/GEMM kernel dominates runtime",
        f"in BASE one convolution or GEMM, by its whole name, takes more than {DOMINATES:g}% of the time",
        is_dominated,
    ),
    "T3": Takeaway(
        "convolution, elementwise and reduction kernels stress different instruction paths",
        "in BASE the largest class of instructions is floating-point for convolutions and GEMMs, and another for "
        "pointwise and for reduction kernels",
        stresses_different_paths,
    ),
}
