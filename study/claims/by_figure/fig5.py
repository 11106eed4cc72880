"""Fig 5, the kinds of work by cumulative priority score (P080 to P082)."""

from __future__ import annotations

from study.claims.case import Case
from study.claims.kernels import GEMMS, NORMS, POINTWISE
from study.claims.numbers import rank
from study.claims.reasons import OnCard, summed_scores, tied
from study.claims.verdicts import Finding


def no_speedups(on: OnCard) -> str:
    """Says that the card's records have no priority scores."""
    return (
        f"No {on.view} of the {on.card} has ncu's estimated speedups. `site/add_your_card.md` says how to measure them."
    )


def p080(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, normalization: rank by cumulative priority score = 1."""
    return case.judge(rank(NORMS, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))


def p081(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, tensor-core GEMM: rank by cumulative priority score = 2."""
    return case.judge(rank(GEMMS, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))


def p082(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, elementwise: rank by cumulative priority score = 3."""
    return case.judge(rank(POINTWISE, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))
