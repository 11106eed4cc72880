"""Fig 6, the kernel mix of BASE (P083 to P085)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.kernels import KN1, KN6, KN7
from study.claims.numbers import time_share
from study.claims.verdicts import Finding


def p083(case: Case) -> Finding:
    """Judges Fig 6, V100 BASE, _5x_cudnn_volta_scudnn: share of kernel time nearly 80%."""
    return case.judge(time_share(KN7, "BASE"))


def p084(case: Case) -> Finding:
    """Judges Fig 6, A100 BASE, implicit_convolveNd_sgemm: share of kernel time approaches 90%."""
    return case.judge(time_share(KN6, "BASE"))


def p085(case: Case) -> Finding:
    """Judges Fig 6, H100 BASE, sm80_xmma_fprop_implicit_gemm: share of kernel time roughly 78%."""
    return case.judge(time_share(KN1, "BASE"))
