"""Fig 8 and Section 6.1, the kernel mix, cycles, instructions and IPC under the optimizations (P088 to P108)."""

from __future__ import annotations

from dataclasses import replace

from study.claims.by_figure.fig6 import p083, p085
from study.claims.case import Case
from study.claims.kernels import GEMMS, KN3, KN4, KN6, POINTWISE, TENSOR, Launches
from study.claims.numbers import family_shares, largest, points, ratio, summary, time_share
from study.claims.reasons import OnCard
from study.claims.verdicts import Finding

ELEMENTWISE = replace(KN4, words=f"{KN4.words} (copies are among them)")
ELEMENTWISE_AND_LAYOUT = Launches("layout kernels and those that Table 2 calls KN4", ("KN4", "layout"))
ALL_BUT_GEMMS = Launches("norms, pointwise and layout kernels", ("normalization", "pointwise", "layout"))


def all_gemms(on: OnCard) -> str:
    """Says what share all convolutions and GEMMs take."""
    return f"All convolutions and GEMMs together have {on.mean(time_share(GEMMS, 'OPT1'))}%."


def p088(case: Case) -> Finding:
    """Judges Fig 8, V100 BASE, _5x_cudnn_volta_scudnn: share of kernel time about 80%."""
    return p083(case)


def p089(case: Case) -> Finding:
    """Judges Fig 8, A100 BASE, implicit_convolveNd_sgemm: share of kernel time about 91%."""
    return case.judge(time_share(KN6, "BASE"))


def p090(case: Case) -> Finding:
    """Judges Fig 8, H100 BASE, sm80_xmma_fprop_implicit_gemm: share of kernel time about 78%."""
    return p085(case)


def p091(case: Case) -> Finding:
    """Judges Fig 8, V100 OPT1, kernel mix: change against BASE unchanged 0%."""
    return case.judge(largest(points(family_shares("OPT1"))))


def p092(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, conv/GEMM: share of kernel time about 43%."""
    return case.judge(time_share(GEMMS, "OPT1"))


def p093(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, row-wise moments: share of kernel time about 19%."""
    return case.judge(time_share(KN3, "OPT1"))


def p094(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, elementwise: share of kernel time about 17%."""
    return case.judge(time_share(POINTWISE, "OPT1"))


def p095(case: Case) -> Finding:
    """Judges Fig 8, H100 OPT1, Tensor Core work: share of kernel time about 31%."""
    return case.judge(time_share(TENSOR, "OPT1"), also=(all_gemms,))


def p096(case: Case) -> Finding:
    """Judges Fig 8, H100 OPT1, normalization + pointwise + layout: share of kernel time exceeds 55%."""
    return case.judge(time_share(ALL_BUT_GEMMS, "OPT1"))


def p097(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, whole workload: SM cycles, relative to BASE = 0.18 x."""
    return case.judge(ratio(summary("cycles", "OPT1")))


def p098(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, whole workload: instructions, relative to BASE = 0.09 x."""
    return case.judge(ratio(summary("instructions", "OPT1")))


def p099(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT1, whole workload: IPC, relative to BASE = 1.02 x."""
    return case.judge(ratio(summary("ipc_geometric", "OPT1")))


def p100(case: Case) -> Finding:
    """Judges Fig 8, H100 OPT1, whole workload: SM cycles, relative to BASE = 0.39 x."""
    return case.judge(ratio(summary("cycles", "OPT1")))


def p101(case: Case) -> Finding:
    """Judges Fig 8, H100 OPT1, whole workload: instructions, relative to BASE = 0.18 x."""
    return case.judge(ratio(summary("instructions", "OPT1")))


def p102(case: Case) -> Finding:
    """Judges Fig 8, H100 OPT1, whole workload: IPC, relative to BASE = 0.95 x."""
    return case.judge(ratio(summary("ipc_geometric", "OPT1")))


def p103(case: Case) -> Finding:
    """Judges Fig 8, all cards OPT2, elementwise_kernel: share of kernel time about 73-80%."""
    return case.judge(time_share(ELEMENTWISE, "OPT2"))


def p104(case: Case) -> Finding:
    """Judges Fig 8, A100 and H100 OPT2, whole workload: SM cycles, relative to BASE = 0.01-0.02 x."""
    return case.judge(ratio(summary("cycles", "OPT2")))


def p105(case: Case) -> Finding:
    """Judges Fig 8, A100 and H100 OPT2, whole workload: instructions, relative to BASE = 0.01 x."""
    return case.judge(ratio(summary("instructions", "OPT2")))


def p106(case: Case) -> Finding:
    """Judges Fig 8, A100 and H100 OPT2, whole workload: IPC, relative to BASE about 1.07 x."""
    return case.judge(ratio(summary("ipc_geometric", "OPT2")))


def p107(case: Case) -> Finding:
    """Judges Fig 8, A100 OPT12, GEMM: share of kernel time about 42%."""
    return case.judge(time_share(GEMMS, "OPT12"))


def p108(case: Case) -> Finding:
    """Judges Fig 8, V100 and H100 OPT12, elementwise + layout: share of kernel time more than 80%."""
    return case.judge(time_share(ELEMENTWISE_AND_LAYOUT, "OPT12"))
