"""The abstract, the introduction and the conclusion (P001 to P007)."""

from __future__ import annotations

import math
from dataclasses import replace

from study.claims.case import Case
from study.claims.numbers import Number, increase, largest, reduction, summary
from study.claims.reasons import says, tensor_pipe, views
from study.claims.verdicts import Finding


def of_the_a100(case: Case, number: Number, hundredfold: str) -> Finding:
    """Judges a number of the abstract's sentence, which ends "and increase IPC by 7% on A100", on the A100.

    Args:
        case: the claim.
        number: its computation.
        hundredfold: says where the paper's Section 6 has the number.
    """
    named = "A100" if case.claim.gpu == "all" else case.claim.gpu
    of_card = replace(case, claim=replace(case.claim, gpu=named))
    finding = of_card.judge(number, differs=(says(hundredfold), views))
    if finding.our_value is not None:
        return finding
    reason = (
        f"Not decided by the H100: the sentence ends “and increase IPC by 7% on A100”. {finding.reason} Read of all "
        f"cards, it is the largest of several numbers, which one card cannot refute either."
    )
    ours = case.mean_on("H100", number)
    reason += f" The H100 gives {ours:.4g}." if math.isfinite(ours) else ""
    return replace(finding, reason=f"{reason} {hundredfold}")


def p001(case: Case) -> Finding:
    """Judges the abstract, all cards best, whole workload: SM cycles, reduction up to 100 x."""
    hundredfold = "The paper takes its hundredfold from OPT2's 0.01 to 0.02 (P104)."
    return of_the_a100(case, largest(reduction(summary("cycles", "OPT1", "OPT2", "OPT12"))), hundredfold)


def p002(case: Case) -> Finding:
    """Judges the abstract, all cards best, whole workload: dynamic instructions, reduction up to 100 x."""
    hundredfold = "The paper takes its hundredfold from OPT2's 0.01 (P105)."
    return of_the_a100(case, largest(reduction(summary("instructions", "OPT1", "OPT2", "OPT12"))), hundredfold)


def p003(case: Case) -> Finding:
    """Judges the abstract, A100 BASE, average over kernels: Tensor Core utilization = 1.45%."""
    return case.judge(summary("tensor_pct", "BASE"), differs=(tensor_pipe, views))


def p004(case: Case) -> Finding:
    """Judges the abstract, A100 OPT1, average over kernels: Tensor Core utilization = 9.98%."""
    return case.judge(summary("tensor_pct", "OPT1"), differs=(tensor_pipe, views))


def p005(case: Case) -> Finding:
    """Judges the abstract, A100 OPT2, whole workload: IPC, increase = 7%."""
    return case.judge(increase(summary("ipc_geometric", "OPT2")))


def p006(case: Case) -> Finding:
    """Judges Section 1, A100 OPT1, whole workload: SM cycles, reduction up to about 5 x."""
    return case.judge(reduction(summary("cycles", "OPT1")))


def p007(case: Case) -> Finding:
    """Judges Section 8, A100 and H100 OPT1, whole workload: SM cycles, reduction up to 5 x."""
    stated = "the larger reduction of two cards, which one card cannot decide"
    return case.judge_together(reduction(summary("cycles", "OPT1")), lambda numbers: [max(numbers)], stated)
