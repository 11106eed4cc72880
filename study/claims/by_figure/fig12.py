"""Fig 12, active warps per cycle (P181 to P189)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.numbers import ratio, summary
from study.claims.verdicts import Finding


def p181(case: Case) -> Finding:
    """Judges Fig 12, H100 OPT1, whole workload: active warps per cycle, relative to BASE = 1.15 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT1")))


def p182(case: Case) -> Finding:
    """Judges Fig 12, H100 OPT2, whole workload: active warps per cycle, relative to BASE reaches 1.3 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT2")))


def p183(case: Case) -> Finding:
    """Judges Fig 12, H100 OPT12, whole workload: active warps per cycle, relative to BASE reaches 1.3 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT12")))


def p184(case: Case) -> Finding:
    """Judges Fig 12, A100 OPT1, whole workload: active warps per cycle, relative to BASE = 1.0 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT1")))


def p185(case: Case) -> Finding:
    """Judges Fig 12, A100 OPT2, whole workload: active warps per cycle, relative to BASE reaches 1.4 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT2")))


def p186(case: Case) -> Finding:
    """Judges Fig 12, A100 OPT12, whole workload: active warps per cycle, relative to BASE reaches 1.4 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT12")))


def p187(case: Case) -> Finding:
    """Judges Fig 12, V100 OPT1, whole workload: active warps per cycle, relative to BASE = 1.0 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT1")))


def p188(case: Case) -> Finding:
    """Judges Fig 12, V100 OPT2, whole workload: active warps per cycle, relative to BASE reaches 1.4 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT2")))


def p189(case: Case) -> Finding:
    """Judges Fig 12, V100 OPT12, whole workload: active warps per cycle, relative to BASE reaches 1.4 x."""
    return case.judge(ratio(summary("warps_per_cycle", "OPT12")))
