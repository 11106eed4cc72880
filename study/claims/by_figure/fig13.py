"""Fig 13, stalled warps (P190 to P198)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.numbers import Number, ratio, summary
from study.claims.reasons import otherwise
from study.claims.verdicts import Finding

STALLS = ("stall_long_scoreboard", "stall_math_pipe", "stall_branch")


def relative_stalls(case: Case, stall: str) -> Finding:
    """Judges a class of stalls under OPT1, summed over the launches, in relation to BASE's."""
    per_cycle = Number(lambda run, name, _: [run.value(name, stall) / run.value(name, "cycles")], ("OPT1",))
    return case.judge(ratio(summary(stall, "OPT1")), also=(otherwise("taken per active cycle", ratio(per_cycle)),))


def p190(case: Case) -> Finding:
    """Judges Fig 13, H100 OPT1, whole workload: long-latency dependency stalls, relative to BASE = 1.45 x."""
    return relative_stalls(case, "stall_long_scoreboard")


def p191(case: Case) -> Finding:
    """Judges Fig 13, H100 OPT1, whole workload: math pipe throttle stalls, relative to BASE = 0.52 x."""
    return relative_stalls(case, "stall_math_pipe")


def p192(case: Case) -> Finding:
    """Judges Fig 13, H100 OPT1, whole workload: divergent branch stalls, relative to BASE = 1.38 x."""
    return relative_stalls(case, "stall_branch")


def p193(case: Case) -> Finding:
    """Judges Fig 13, A100 OPT1, whole workload: long-latency dependency stalls, relative to BASE = 0.74 x."""
    return relative_stalls(case, "stall_long_scoreboard")


def p194(case: Case) -> Finding:
    """Judges Fig 13, A100 OPT1, whole workload: math pipe throttle stalls, relative to BASE = 0.08 x."""
    return relative_stalls(case, "stall_math_pipe")


def p195(case: Case) -> Finding:
    """Judges Fig 13, A100 OPT1, whole workload: divergent branch stalls, relative to BASE = 0.08 x."""
    return relative_stalls(case, "stall_branch")


def p196(case: Case) -> Finding:
    """Judges Fig 13, H100 OPT2 and OPT12, whole workload: all stall classes, relative to BASE = 0.03-0.10 x."""
    return case.judge(ratio(summary(STALLS, "OPT2", "OPT12")))


def p197(case: Case) -> Finding:
    """Judges Fig 13, A100 OPT2 and OPT12, whole workload: all stall classes, relative to BASE = 0.03-0.10 x."""
    return case.judge(ratio(summary(STALLS, "OPT2", "OPT12")))


def p198(case: Case) -> Finding:
    """Judges Fig 13, V100 all, whole workload: all stall classes effectively 0."""
    reason = "Section 3.2 of the paper says that a V100 has none of its three counters, so the zero was never counted."
    return Finding(case.view, reason)
