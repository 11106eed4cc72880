"""Reads the runs of the one network that was timed on many hosts, since its step waits for the host."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medddpm.measure.tables import read_table
from study.bench import tables
from study.records import schemas

OTHER_HOSTS = "bench_other_hosts.csv"


def on_other_hosts(root: Path, gpu: str) -> list[pd.DataFrame]:
    """Reads a card's rows of `tables.HOST_BOUND` on hosts other than its record's, by setting: a table for each run.

    The rows of a run begin with `accelerate`'s.

    Raises:
        BadInput: the table is missing, or does not fit its schema.
    """
    table = read_table(root / "figures" / "records" / gpu / OTHER_HOSTS, schemas.BENCH)
    runs = table.groupby((table["setting"] == "accelerate").cumsum(), sort=False)
    return [rows.set_index("setting") for _, rows in runs]


def every_run(root: Path, gpu: str) -> pd.DataFrame:
    """Compares a training step of `tables.HOST_BOUND` in every recorded run on a card; the last is that of `bench.csv`.

    Returns:
        date (of accelerate's row), launch_ms (the host's time to launch accelerate's step to an idle GPU) and searched
        (whether `max-autotune` was timed), then as `tables.others` has them: best, best_ms, accelerate_ms, ratio,
        step_ms, step_ratio, apart_h.

    Raises:
        BadInput: a record is missing, or does not fit its schema.
    """
    runs = [*on_other_hosts(root, gpu), tables.rows_of(tables.recorded(root)[gpu], tables.HOST_BOUND, "step")]
    ours = [rows.loc["accelerate"] for rows in runs]
    compared_runs = pd.DataFrame(map(tables.compare_step, runs))
    compared_runs.insert(0, "date", [row["date"][:10] for row in ours])
    compared_runs.insert(1, "launch_ms", [row["host_ms"] for row in ours])
    compared_runs.insert(2, "searched", [rows.index.str.startswith("max-autotune").any() for rows in runs])
    return compared_runs


def searched_runs(root: Path, gpu: str) -> pd.DataFrame:
    """Returns the runs of `every_run` that have `max-autotune`, as most networks' rows have, for `tables.others`.

    Raises:
        BadInput: a record is missing, or does not fit its schema.
    """
    runs = every_run(root, gpu)
    return runs[runs["searched"]].drop(columns="searched").reset_index(drop=True)
