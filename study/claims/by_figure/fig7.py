"""Fig 7, the instruction mix of BASE (P086 and P087)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.kernels import DOMINANT
from study.claims.numbers import instruction_share
from study.claims.verdicts import Finding


def p086(case: Case) -> Finding:
    """Judges Fig 7, V100 BASE, main convolution: FP share of instructions more than 50%."""
    return case.judge(instruction_share("inst_fp", DOMINANT, "BASE"))


def p087(case: Case) -> Finding:
    """Judges Fig 7, H100 BASE, dominant GEMM: FP share of instructions over 70%."""
    return case.judge(instruction_share("inst_fp", DOMINANT, "BASE"))
