"""The paper's three takeaways (ICPE '26, arXiv:2606.19365, Section 4), each as a rule that a whole step can break.

T1, "underutilizes GPU pipelines", and its cause, "due to persistent memory, layout, and reduction overheads", are
judged apart. T2 is that "a single cuDNN convolution/GEMM kernel dominates runtime", T3 that "convolution, elementwise,
and reduction kernels stress different instruction paths". Both are judged by the kernels that Section 4 names for the
H100: `sm80_xmma_fprop_implicit_gemm`, `elementwise_kernel` and `RowwiseMomentsCUDAKernel`, Table 2's KN1, KN4 and KN3.
Averages and shares are of the step, weighted by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.profile.instructions import CLASSES
from study.claims.conclusions import Conclusion, Part, by_profiles, table
from study.claims.kernels import (
    DOMINANT,
    GEMMS,
    KN1,
    KN3,
    KN4,
    TIE,
    KernelsOfRun,
    Launches,
    Runs,
    instruction_share,
    short_name,
    time_share,
)

WELL_USED = 60.0  # percent of a unit's peak from which NVIDIA's ncu calls it well used (its speed-of-light rule)
MOST = 50.0  # percent of the time: more than all others together
EVEN = 100 / len(CLASSES)  # percent of the instructions, if all classes had as many: a choice for "rely heavily"
PIPES = {
    "Tensor Core utilization": "tensor_pct",
    "CUDA core utilization": "fma_pct",
    "integer ALU utilization": "alu_pct",
    "SM throughput": "sm_throughput_pct",
}
CONVOLUTION, ELEMENTWISE, MOMENTS = (
    "the forward convolution (KN1)",
    "elementwise kernels (KN4)",
    "row-wise moments (KN3)",
)


def settle(runs: Runs) -> pd.DataFrame:
    """Judges the takeaways T1, its cause, T2 and T3 (schema `CONCLUSIONS`) by the whole steps of BASE.

    Args:
        runs: of `study.claims.findings.every_run`.

    Returns:
        four rows, judged on the first card with a whole step; our_value is that of the newest run.
    """
    return table(by_profiles(TAKEAWAYS, runs, "step"))


def shares_of(run: KernelsOfRun, launches: Launches, setting: str = summaries.BASE) -> dict[str, float]:
    """Returns each class's share of some launches' instructions, percent, by the columns of `CLASSES`."""
    chosen = launches.of(run.of(setting))
    return {name: instruction_share(chosen, name) for name in CLASSES}


def leads(shares: Mapping[str, float]) -> str | None:
    """Returns the largest class; None for a tie: classes within `TIE` of each other count as equal."""
    first, second = sorted(shares, key=lambda name: -shares[name])[:2]
    return first if shares[second] < (1 - TIE) * shares[first] else None


def in_words(shares: Mapping[str, float], *classes: str) -> str:
    """Writes the shares of some classes, of the two largest by default: "floating point 71.4%, integer 13.8%"."""
    named = classes or sorted(shares, key=lambda name: -shares[name])[:2]
    return ", ".join(f"{CLASSES[name].lower()} {shares[name]:.3g}%" for name in named)


def t1(run: KernelsOfRun) -> list[Part]:
    """Judges T1: no pipe's average, nor the SM's, reaches `WELL_USED`."""
    averages = {pipe: run.value(summaries.BASE, column) for pipe, column in PIPES.items()}
    highest = max(averages, key=lambda pipe: averages[pipe])
    numbers = ", ".join(f"{pipe} {value:.3g}%" for pipe, value in averages.items())
    return [Part(f"the highest average, {highest}, is below {WELL_USED:g}%", numbers, averages[highest] < WELL_USED)]


def t1_cause(run: KernelsOfRun) -> list[Part]:
    """Judges the cause of T1: all but convolutions and GEMMs takes more of the time than these."""
    overhead = 100 - time_share(run.of(summaries.BASE), GEMMS)
    numbers = f"{overhead:.3g}% of the time is in all but convolutions and GEMMs"
    return [Part("the overheads take more of the time than convolutions and GEMMs", numbers, overhead > MOST)]


def t2(run: KernelsOfRun) -> list[Part]:
    """Judges T2: under BASE one convolution or GEMM takes more of the time than all else, and it is the one named."""
    numbers, shares = [], {}
    for setting in (name for name in (summaries.BASE, "OPT1") if name in run.summary.index):
        chosen = run.of(setting)
        shares[setting] = time_share(chosen, DOMINANT)
        name, every = short_name(DOMINANT.of(chosen)), time_share(chosen, GEMMS)
        numbers.append(f"{setting}: {name} {shares[setting]:.3g}%, all convolutions and GEMMs {every:.3g}%")
    named = time_share(run.of(summaries.BASE), KN1)
    return [
        Part("a single kernel dominates", "; ".join(numbers), shares[summaries.BASE] > MOST),
        Part(
            "it is the forward convolution that Section 4.2 names (KN1)",
            f"the named sm80_xmma_fprop_implicit_gemm has {named:.3g}% under BASE",
            named > MOST,
        ),
    ]


def t3(run: KernelsOfRun) -> list[Part]:
    """Judges T3: floating point leads in the named convolution, other classes lead in the other named kernels."""
    work = {CONVOLUTION: shares_of(run, KN1), ELEMENTWISE: shares_of(run, KN4), MOMENTS: shares_of(run, KN3)}
    first = {name: leads(shares) for name, shares in work.items()}
    load_store, control = work[MOMENTS]["inst_ldst"], work[MOMENTS]["inst_control"]
    return [
        Part(
            "floating point leads in the convolution",
            f"{CONVOLUTION}: {in_words(work[CONVOLUTION])}",
            first[CONVOLUTION] == "inst_fp",
        ),
        Part(
            "another class leads in elementwise kernels",
            f"{ELEMENTWISE}: {in_words(work[ELEMENTWISE])}",
            first[ELEMENTWISE] not in ("inst_fp", None),
        ),
        Part(
            "another class leads in row-wise moments",
            f"{MOMENTS}: {in_words(work[MOMENTS])}",
            first[MOMENTS] not in ("inst_fp", None),
        ),
        Part(
            "row-wise moments “emphasize load/store and control”",
            in_words(work[MOMENTS], "inst_ldst", "inst_control"),
            min(load_store, control) >= EVEN,
        ),
    ]


ONE_CARD = "The paper says it of all architectures, and one card decides: we have no A100 and no V100."
TAKEAWAYS: Sequence[Conclusion] = (
    Conclusion(
        "T1",
        "“Med-DDPM underutilizes GPU pipelines across all architectures” (Takeaway 1)",
        f"under BASE neither the average of any pipe nor that of the SM reaches {WELL_USED:g}%",
        t1,
        narrower=ONE_CARD,
    ),
    Conclusion(
        "T1 cause",
        "“due to persistent memory, layout, and reduction overheads” (Takeaway 1)",
        f"under BASE everything except convolutions and GEMMs takes more than {MOST:g}% of the time",
        t1_cause,
        narrower=ONE_CARD,
    ),
    Conclusion(
        "T2",
        "“A single cuDNN convolution/GEMM kernel dominates runtime” (Takeaway 2); on the H100 "
        "“sm80_xmma_fprop_implicit_gemm, accounts for roughly 78%” (Section 4.2)",
        f"under BASE one convolution or GEMM, by its whole name, takes more than {MOST:g}% of the time, and so does "
        "the named one",
        t2,
    ),
    Conclusion(
        "T3",
        "“Convolution, elementwise, and reduction kernels stress different instruction paths” (Takeaway 3); reductions "
        "“emphasize load/store and control behavior” (Section 4.3)",
        "under BASE the largest class of instructions, by more than a tie (20%), is floating point in the named "
        "convolution and another in elementwise kernels and row-wise moments; of the latter's instructions load/store "
        f"and control each have {EVEN:.3g}% or more, an even share of the {len(CLASSES)} classes (our choice)",
        t3,
    ),
)
