"""Table 2, the kernels by name (P062 to P069): is one of them launched in our records?"""

from __future__ import annotations

import pandas as pd

from study.claims.case import Case
from study.claims.kernels import KN1, KN2, KN3, KN4, KN5, KN6, KN7, KN8, Launches, short_name
from study.claims.reasons import ELSEWHERE
from study.claims.verdicts import Finding
from study.words import listed

PLACES = {"window": "the paper's window", "step": "a whole step"}


def launched(case: Case, kernel: Launches, seen_on: str = "") -> Finding:
    """Judges a name by the launches of that kernel, in the step, or for the window's view in any record of the card.

    Records under another PyTorch than the book's (`medddpm profile --python`) do not count.

    Args:
        case: the claim and the records.
        kernel: one of Table 2.
        seen_on: the one card that the paper saw it on, where it is of that architecture alone.
    """

    def on_card(card: str) -> Finding:
        looked = {
            (part, n): kernel.of(run.table)
            for (gpu, part), runs in case.runs.items()
            for n, run in enumerate(runs)
            if gpu == card and case.view in ("window", part) and "-torch-" not in part
        }
        rows = pd.concat(looked, names=["part", "run", "row"])
        if rows.empty and seen_on:
            absent = f"A kernel of another architecture, which the paper saw on the {seen_on}. We have no {seen_on}."
            return Finding(case.view, absent)
        if rows.empty:
            (name,) = kernel.kinds
            absent = f"No launch of the {case.view} on the {card} is {name}, under any setting."
            return Finding(case.view, absent, "none", card=card)
        same = rows[rows["kernel"].str.contains(case.claim.value, regex=False)]
        shown = same if len(same) else rows
        settings = listed(dict.fromkeys(shown["config"]))
        reason = f"Launched on the {card} under {settings}, in {_places(shown)}."
        return Finding(case.view, reason, case.claim.value if len(same) else short_name(shown), card=card)

    return case.decide(on_card)


def _places(launches: pd.DataFrame) -> str:
    parts = dict.fromkeys(launches.index.get_level_values("part"))
    starts = {part: start[1] for part in parts if (start := ELSEWHERE.fullmatch(part))}
    windows = "window that begins" if len(starts) == 1 else "windows that begin"
    places = [PLACES[part] for part in PLACES if part in parts]
    places += [f"the {windows} at launch {listed(starts.values())}"] if starts else []
    places += [f"the record {part}" for part in parts if part not in PLACES and part not in starts]
    return listed(places)


def p062(case: Case) -> Finding:
    """Judges Table 2, all cards, KN1: kernel name = sm80_xmma_fprop_implicit."""
    return launched(case, KN1)


def p063(case: Case) -> Finding:
    """Judges Table 2, all cards, KN2: kernel name = sm90_xmma_fprop_implicit."""
    return launched(case, KN2)


def p064(case: Case) -> Finding:
    """Judges Table 2, all cards, KN3: kernel name = RowwiseMomentsCUDAKernel."""
    return launched(case, KN3)


def p065(case: Case) -> Finding:
    """Judges Table 2, all cards, KN4: kernel name = elementwise_kernel."""
    return launched(case, KN4)


def p066(case: Case) -> Finding:
    """Judges Table 2, all cards, KN5: kernel name = nhwcToNchwKernel."""
    return launched(case, KN5)


def p067(case: Case) -> Finding:
    """Judges Table 2, all cards, KN6: kernel name = implicit_convolveNd."""
    return launched(case, KN6, seen_on="A100")


def p068(case: Case) -> Finding:
    """Judges Table 2, all cards, KN7: kernel name = _5x_cudnn_volta_scudnn."""
    return launched(case, KN7, seen_on="V100")


def p069(case: Case) -> Finding:
    """Judges Table 2, all cards, KN8: kernel name = nhwcAddPaddingKernel."""
    return launched(case, KN8)
