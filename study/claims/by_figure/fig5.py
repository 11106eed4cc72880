"""Fig 5, the kinds of work by cumulative priority score (P080 to P082)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from medddpm.measure.profile import summaries
from study.claims.case import Case, lacks
from study.claims.kernels import GEMMS, NORMS, POINTWISE, TIE, ranks
from study.claims.numbers import rank
from study.claims.reasons import OnCard, hinges
from study.claims.verdicts import Finding, status_of

no_speedups = lacks("ncu's estimated speedups")


def tied(on: OnCard) -> str:
    """Says that a rank is shared, and by which scores."""
    first, last = np.mean(on.by_run, axis=0)
    if first == last:
        return ""
    rank = ranks(_scored(on), on.number.launches.kinds[0], tie=0.0)[0]
    status = status_of(on.claim, replace(on.finding, our_value=f"{rank:g}"))
    strict = hinges(on, f"without ties (rank {rank:g})", status)
    tie = f"It is a tie, because scores within {TIE:.0%} of each other count as equal: {_scores(on)}."
    return f"{tie} {strict}".rstrip()


def summed_scores(on: OnCard) -> str:
    """Says which kinds of work score highest."""
    return f"The summed scores are {_scores(on)}."


def _scores(on: OnCard) -> str:
    """Names the four kinds of work with the highest summed priority, in the last run that has any."""
    summed = summaries.priorities(_scored(on), by="group").sum().head(4) / 1e6
    return ", ".join(f"{group} {score:.3g} ms" for group, score in summed.items())


def _scored(on: OnCard) -> pd.DataFrame:
    """Returns the launches of the last run that has scores."""
    tables = [run.of(on.number.settings[0]) for run in on.runs]
    return [table for table in tables if table["priority"].notna().any()][-1]


def p080(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, normalization: rank by cumulative priority score = 1."""
    return case.judge(rank(NORMS, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))


def p081(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, tensor-core GEMM: rank by cumulative priority score = 2."""
    return case.judge(rank(GEMMS, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))


def p082(case: Case) -> Finding:
    """Judges Fig 5, all cards BASE, elementwise: rank by cumulative priority score = 3."""
    return case.judge(rank(POINTWISE, "BASE"), also=(tied,), missing=no_speedups, differs=(summed_scores,))
