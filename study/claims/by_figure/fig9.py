"""Fig 9, the instruction mix under OPT1 (P109 to P117)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.kernels import DOMINANT, GEMMS, KN6, TENSOR, short_name
from study.claims.numbers import instruction_share, ratio
from study.claims.reasons import OnCard, views
from study.claims.verdicts import Finding
from study.words import listed


def busiest(on: OnCard) -> str:
    """Says which convolution or GEMM takes the most time under each setting that is compared."""
    named = {s: short_name(DOMINANT.of(on.newest.of(s))) for s in on.number.compared}
    return f"Most of their time is in {listed(f'{name} under {setting}' for setting, name in named.items())}."


def p109(case: Case) -> Finding:
    """Judges Fig 9, A100 BASE, implicit_convolveNd_sgemm: Integer share of instructions about 45%."""
    return case.judge(instruction_share("inst_int", KN6, "BASE"))


def p110(case: Case) -> Finding:
    """Judges Fig 9, A100 BASE, implicit_convolveNd_sgemm: FP share of instructions about 33%."""
    return case.judge(instruction_share("inst_fp", KN6, "BASE"))


def p111(case: Case) -> Finding:
    """Judges Fig 9, A100 BASE, implicit_convolveNd_sgemm: load/store share of instructions about 8%."""
    return case.judge(instruction_share("inst_ldst", KN6, "BASE"))


def p112(case: Case) -> Finding:
    """Judges Fig 9, A100 BASE, implicit_convolveNd_sgemm: control share of instructions about 7%."""
    return case.judge(instruction_share("inst_control", KN6, "BASE"))


def p113(case: Case) -> Finding:
    """Judges Fig 9, A100 OPT1, Tensor Core path: Integer share of instructions about 72%."""
    return case.judge(instruction_share("inst_int", TENSOR, "OPT1"))


def p114(case: Case) -> Finding:
    """Judges Fig 9, A100 OPT1, Tensor Core path: FP share of instructions about 10%."""
    return case.judge(instruction_share("inst_fp", TENSOR, "OPT1"))


def p115(case: Case) -> Finding:
    """Judges Fig 9, H100 BASE, dominant kernels: FP share of instructions about 73%."""
    return case.judge(instruction_share("inst_fp", GEMMS, "BASE"))


def p116(case: Case) -> Finding:
    """Judges Fig 9, H100 OPT1, dominant kernels: FP share of instructions about 41%."""
    return case.judge(instruction_share("inst_fp", GEMMS, "OPT1"))


def p117(case: Case) -> Finding:
    """Judges Fig 9, H100 OPT1, dominant kernels: uniform-datapath + movement share, relative to BASE roughly 2 x."""
    share = instruction_share(("inst_uniform", "inst_move", "inst_misc"), GEMMS, "OPT1")
    return case.judge(ratio(share), differs=(busiest, views))
