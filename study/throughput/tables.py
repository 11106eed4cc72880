"""Reads the records of the throughput's levers and of trainings that were watched."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from scipy import stats

from medddpm.measure.tables import of_any_machine
from study.records import schemas

NAME = "throughput.csv"
ENDURANCE = "endurance.csv"
SETTLED = 0.1  # of the steps: caches fill, and the graph is captured
LATE = 0.5  # of the steps: a volume was sampled and a checkpoint written before, whose buffers stay


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Reads every machine's record (schema `THROUGHPUT`) in the repository at `root`, by its folder's name; maybe none.

    Raises:
        BadInput: one does not fit its schema.
    """
    return of_any_machine(root, NAME, schemas.THROUGHPUT)


def watched(root: Path) -> dict[str, pd.DataFrame]:
    """Reads every machine's record (schema `ENDURANCE`) in the repository at `root`, by its folder's name; maybe none.

    Raises:
        BadInput: one does not fit its schema.
    """
    return of_any_machine(root, ENDURANCE, schemas.ENDURANCE)


def group(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Returns a group's rows, by choice, after the reference's.

    Returns:
        index choice; volumes_a_second, of_reference, predicted, ratio, device_pct, sm_active_pct, peak_gib,
        reserved_gib, costs.
    """
    rows = table[table["group"].isin(["reference", name])] if "BraTS" not in name else table[table["group"] == name]
    columns = [
        "volumes_a_second",
        "of_reference",
        "predicted",
        "ratio",
        "device_pct",
        "sm_active_pct",
        "peak_gib",
        "reserved_gib",
        "costs",
    ]
    return rows.set_index("choice")[columns]


def of_the_row(table: pd.DataFrame) -> pd.Series[float]:
    """Returns each row's volumes a second divided by those of its reference's row: FAST, for BraTS none computed again.

    The record's `of_reference` divides by the reference of the lever's part of the run, whose row may have given way to
    that of a later part.

    Args:
        table: schema `THROUGHPUT`, of one machine.
    """
    of_brats = table["group"].str.contains("BraTS")
    none = of_brats & (table["choice"] == "none")
    rates = {
        brats: table.loc[rows, "volumes_a_second"]
        for brats, rows in ((False, table["group"] == "reference"), (True, none))
    }
    reference = of_brats.map({brats: rate.iloc[0] if len(rate) else float("nan") for brats, rate in rates.items()})
    return table["volumes_a_second"] / reference


def endured(table: pd.DataFrame) -> pd.DataFrame:
    """Summarizes a watched training after the first tenth of its steps, and its memory after the first half.

    Args:
        table: schema `ENDURANCE`.

    Returns:
        index size and source; steps and seconds watched; busy_pct, its mean, and busy_least_pct, of the worst row; and
        for memory of the host and of the card, in MiB: host_mib and card_mib, the mean, and the slope of a
        least-squares line per 1000 steps with the half width of its 95% interval, as host_slope and host_slope_within.
        NaN for a slope of fewer than three rows.
    """
    rows = []
    for (size, source), watch in table.groupby(["size", "source"], sort=False):
        settled = watch[watch["step"] >= SETTLED * watch["step"].max()]
        row: dict[str, object] = {
            "size": size,
            "source": source,
            "steps": watch["step"].max(),
            "seconds": watch["seconds"].max(),
            "busy_pct": settled["busy_pct"].mean(),
            "busy_least_pct": settled["busy_pct"].min(),
        }
        late = watch[watch["step"] >= LATE * watch["step"].max()]
        for place in ("host", "card"):
            memory = late[f"{place}_mib"]
            row[f"{place}_mib"] = memory.mean()
            slope, within = float("nan"), float("nan")
            if memory.notna().all() and late["step"].nunique() > 2:
                line = stats.linregress(late["step"] / 1000, memory)
                off = line.stderr if memory.nunique() > 1 else 0.0  # linregress gives NaN for a constant
                slope, within = line.slope, off * stats.t.ppf(0.975, len(late) - 2)
            row |= {f"{place}_slope": slope, f"{place}_slope_within": within}
        rows.append(row)
    return pd.DataFrame(rows).set_index(["size", "source"])
