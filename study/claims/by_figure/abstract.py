"""The abstract, the introduction and the conclusion (P001 to P007)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.numbers import increase, largest, reduction, summary
from study.claims.reasons import says, tensor_pipe, views
from study.claims.verdicts import Finding


def p001(case: Case) -> Finding:
    """Judges the abstract, all cards best, whole workload: SM cycles, reduction up to 100 x."""
    hundredfold = says("The paper takes its hundredfold from OPT2's 0.01 to 0.02 (P104).")
    return case.judge(largest(reduction(summary("cycles", "OPT1", "OPT2", "OPT12"))), differs=(hundredfold, views))


def p002(case: Case) -> Finding:
    """Judges the abstract, all cards best, whole workload: dynamic instructions, reduction up to 100 x."""
    hundredfold = says("The paper takes its hundredfold from OPT2's 0.01 (P105).")
    number = largest(reduction(summary("instructions", "OPT1", "OPT2", "OPT12")))
    return case.judge(number, differs=(hundredfold, views))


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
