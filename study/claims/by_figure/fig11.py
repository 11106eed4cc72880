"""Fig 11 and Section 6.3, the caches and the memory (P157 to P180, P203 and P204)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.numbers import ratio, summary
from study.claims.reasons import OnCard
from study.claims.verdicts import Finding


def clipped(on: OnCard) -> str:
    """Says how many launches have a hit rate of the L2 that is none; see `summaries`."""
    tables = [on.newest.of(setting) for setting in on.number.compared]
    above = sum(int(table["count"][table["l2_hit_pct"] > 100].sum()) for table in tables)
    every = sum(int(table["count"].sum()) for table in tables)
    return f"For {above} of {every} launches the L2 hit rate reads above 100%; it counts as 100%." if above else ""


def p157(case: Case) -> Finding:
    """Judges Fig 11, H100 BASE, average over kernels: L1 hit rate = 23.86%."""
    return case.judge(summary("l1_hit_pct", "BASE"))


def p158(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT1, average over kernels: L1 hit rate = 13.51%."""
    return case.judge(summary("l1_hit_pct", "OPT1"))


def p159(case: Case) -> Finding:
    """Judges Fig 11, H100 BASE, average over kernels: L2 hit rate = 64.1%."""
    return case.judge(summary("l2_hit_pct", "BASE"), also=(clipped,))


def p160(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT1, average over kernels: L2 hit rate = 62.44%."""
    return case.judge(summary("l2_hit_pct", "OPT1"), also=(clipped,))


def p161(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT2, average over kernels: L2 hit rate = 85.47%."""
    return case.judge(summary("l2_hit_pct", "OPT2"), also=(clipped,))


def p162(case: Case) -> Finding:
    """Judges Fig 11, H100 BASE, average over kernels: DRAM bandwidth utilization = 25.0%."""
    return case.judge(summary("dram_pct", "BASE"))


def p163(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT1, average over kernels: DRAM bandwidth utilization = 35.66%."""
    return case.judge(summary("dram_pct", "OPT1"))


def p164(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT2, average over kernels: DRAM bandwidth utilization = 11.32%."""
    return case.judge(summary("dram_pct", "OPT2"))


def p165(case: Case) -> Finding:
    """Judges Fig 11, H100 OPT12, average over kernels: DRAM bandwidth utilization = 11.87%."""
    return case.judge(summary("dram_pct", "OPT12"))


def p166(case: Case) -> Finding:
    """Judges Fig 11, A100 BASE, average over kernels: L1 hit rate = 24.5%."""
    return case.judge(summary("l1_hit_pct", "BASE"))


def p167(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT1, average over kernels: L1 hit rate = 16.15%."""
    return case.judge(summary("l1_hit_pct", "OPT1"))


def p168(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT2, average over kernels: L1 hit rate = 29.03%."""
    return case.judge(summary("l1_hit_pct", "OPT2"))


def p169(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT12, average over kernels: L1 hit rate = 27.84%."""
    return case.judge(summary("l1_hit_pct", "OPT12"))


def p170(case: Case) -> Finding:
    """Judges Fig 11, A100 BASE, average over kernels: L2 hit rate = 64.21%."""
    return case.judge(summary("l2_hit_pct", "BASE"), also=(clipped,))


def p171(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT1, average over kernels: L2 hit rate = 64.63%."""
    return case.judge(summary("l2_hit_pct", "OPT1"), also=(clipped,))


def p172(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT2, average over kernels: L2 hit rate = 81.4%."""
    return case.judge(summary("l2_hit_pct", "OPT2"), also=(clipped,))


def p173(case: Case) -> Finding:
    """Judges Fig 11, A100 BASE, average over kernels: DRAM bandwidth utilization = 29.95%."""
    return case.judge(summary("dram_pct", "BASE"))


def p174(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT1, average over kernels: DRAM bandwidth utilization = 36.55%."""
    return case.judge(summary("dram_pct", "OPT1"))


def p175(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT2, average over kernels: DRAM bandwidth utilization = 15.14%."""
    return case.judge(summary("dram_pct", "OPT2"))


def p176(case: Case) -> Finding:
    """Judges Fig 11, A100 OPT12, average over kernels: DRAM bandwidth utilization = 15.15%."""
    return case.judge(summary("dram_pct", "OPT12"))


def p177(case: Case) -> Finding:
    """Judges Fig 11, V100 BASE, average over kernels: L2 hit rate = 56.03%."""
    return case.judge(summary("l2_hit_pct", "BASE"), also=(clipped,))


def p178(case: Case) -> Finding:
    """Judges Fig 11, V100 OPT2, average over kernels: L2 hit rate = 81.57%."""
    return case.judge(summary("l2_hit_pct", "OPT2"), also=(clipped,))


def p179(case: Case) -> Finding:
    """Judges Fig 11, V100 BASE, average over kernels: DRAM bandwidth utilization = 33.07%."""
    return case.judge(summary("dram_pct", "BASE"))


def p180(case: Case) -> Finding:
    """Judges Fig 11, V100 OPT2, average over kernels: DRAM bandwidth utilization = 28.39%."""
    return case.judge(summary("dram_pct", "OPT2"))


def p203(case: Case) -> Finding:
    """Judges Fig 11, all cards OPT12, average over kernels: L2 hit rate, against OPT2 nearly identical 1 x."""
    return case.judge(ratio(summary("l2_hit_pct", "OPT12"), base="OPT2"), also=(clipped,))


def p204(case: Case) -> Finding:
    """Judges Fig 11, V100 OPT1, average over kernels: L1, L2 hit rate and DRAM bandwidth utilization, against BASE flat
    1 x.
    """
    return case.judge(ratio(summary(("l1_hit_pct", "l2_hit_pct", "dram_pct"), "OPT1")), also=(clipped,))
