"""The paper's numbers by card and setting, in the shape in which ours are drawn (ICPE '26, arXiv:2606.19365)."""

from __future__ import annotations

import numpy as np
import pandas as pd

CARDS = ("V100", "A100", "H100")  # the paper's, by age
SETTINGS = ("BASE", "OPT1", "OPT2", "OPT12")


def stated(paper: pd.DataFrame, figure: str, metric: str, subject: str | None = None) -> pd.DataFrame:
    """What the paper says of one metric in one figure.

    Args:
        paper: schema `medddpm.study.records.PAPER`.
        figure: as "Fig 10".
        metric: as "Tensor Core utilization"; a ratio's ", relative to BASE" may be left out.
        subject: as "average over kernels"; default any.

    Returns:
        a row a card of `CARDS`, a column a setting of `SETTINGS`; NaN where the paper states nothing. Of a range the
        middle; what is called "about" or "more than" a number is that number.
    """
    table = pd.DataFrame(np.nan, index=pd.Index(CARDS, name="gpu"), columns=list(SETTINGS))
    chosen = (paper["figure"] == figure) & paper["metric"].isin([metric, f"{metric}, relative to BASE"])
    if subject is not None:
        chosen &= paper["subject"] == subject
    for row in paper[chosen].itertuples():
        cards = CARDS if row.gpu == "all" else str(row.gpu).split(";")
        settings = SETTINGS if row.config == "all" else str(row.config).split(";")
        for card in cards:
            table.loc[card, settings] = _number(str(row.value))
    if metric in _RATIOS or f"{metric}, relative to BASE" in set(paper.loc[chosen, "metric"]):
        table.loc[table.notna().any(axis="columns"), "BASE"] = 1.0
    return table


def shares(paper: pd.DataFrame, figure: str, gpu: str, config: str) -> dict[str, float]:
    """The shares (0 to 1) of instruction classes or kernels that a figure states for one card and setting, by metric.

    Args:
        paper: schema `medddpm.study.records.PAPER`.
        figure, gpu, config: as in its columns.

    Returns:
        by what the share is of: an instruction class as "FP", or a kernel as "sm80_xmma_fprop_implicit_gemm".
    """
    rows = paper[(paper["figure"] == figure) & (paper["unit"] == "%")]
    of_card = rows["gpu"].map(lambda names: names == "all" or gpu in names.split(";"))
    rows = rows[of_card & (rows["config"] == config) & rows["metric"].str.contains("share of")]
    found = {}
    for row in rows.itertuples():
        what = str(row.metric).partition(" share of ")[0]
        found[str(row.subject) if what == "share of kernel time" else what] = _number(str(row.value)) / 100
    return found


_RATIOS = ("all stall classes",)


def _number(text: str) -> float:
    low, dash, high = text.partition("-")
    return (float(low) + float(high)) / 2 if dash and low else float(text)
