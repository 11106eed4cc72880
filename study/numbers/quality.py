"""Does FAST cost quality: the pairs of trainings and the models sampled under every setting.

A plan is one of `study.parity.plans`: `offset` and `short` compare FAST with OPT1 in pairs, `fp32` both with BASE.
An H100 trained the last, an H200 the others.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from study.numbers.texts import in_words
from study.parity import tables
from study.parity.results import QualityRecord

_LOSS = ("held_out_loss", "all")


@cache
def _recorded(root: Path, plan: str) -> QualityRecord:
    return tables.recorded(root, "H100" if "fp32" in plan else "H200")


@cache
def _fast(root: Path, plan: str) -> pd.DataFrame:
    """Returns FAST's rows of a plan's table of `parity.tables.parity`, a metric each."""
    quality = _recorded(root, plan).quality
    if plan == "fp32":
        compared = tables.parity(quality, reference="BASE", plan=plan)
    else:
        compared = tables.parity(quality[quality["setting"] != "BASE"], plan=plan)
    return compared[compared["setting"] == "FAST"]


def equivalent(root: Path, plan: str) -> str:
    """Returns on how many metrics FAST is equivalent to the plan's reference: "8"."""
    return str(_fast(root, plan)["equivalent"].sum())


def equivalent_in_words(root: Path, plan: str) -> str:
    """Returns `equivalent` in words: "eight"."""
    return in_words(int(equivalent(root, plan)))


def metrics(root: Path, plan: str) -> str:
    """Returns how many metrics the settings were compared by: "11"."""
    return str(len(_fast(root, plan)))


def metrics_in_words(root: Path, plan: str) -> str:
    """Returns `metrics` in words: "eleven"."""
    return in_words(int(metrics(root, plan)))


def wide(root: Path, plan: str) -> str:
    """Returns on how many of the equivalent metrics the margin exceeds any difference between two seeds: "four"."""
    compared = _fast(root, plan)
    return in_words((compared["equivalent"] & compared["wide"]).sum())


def seeds(root: Path, plan: str) -> str:
    """Returns how many seeds were trained under each setting: "twelve"."""
    return in_words(int(_fast(root, plan)["seeds"].min()))


def loss_above(root: Path, plan: str) -> str:
    """Returns by how many percent FAST's held-out loss lies above the reference's after training: "1.3"."""
    row = _of_metric(root, plan, *_LOSS)
    return f"{100 * row['difference'] / row['reference']:.1f}"


def pairs_above(root: Path, plan: str, metric: str, tissue: str) -> str:
    """Returns in how many pairs, or triples, a metric is larger under FAST than under the reference: "ten"."""
    return in_words(_of_metric(root, plan, metric, tissue)["pairs_above"])


def chance(root: Path, plan: str, metric: str, tissue: str) -> str:
    """Returns the p value of a paired t test of FAST's difference from the reference, two-sided: "0.016"."""
    return f"{_of_metric(root, plan, metric, tissue)['p_differs']:.3f}"


def _of_metric(root: Path, plan: str, metric: str, tissue: str) -> pd.Series[float]:
    return _fast(root, plan).set_index(tables.METRIC).loc[[(metric, tissue)]].iloc[0]
