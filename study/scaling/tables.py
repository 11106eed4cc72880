"""Reads the record of scaling: efficiencies, the share of communication, volumes an hour."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medddpm.measure.tables import of_any_machine
from medddpm.training.config import TrainConfig
from study.records import schemas

NAME = "scaling.csv"
WHAT = ["network", "size", "channels", "setting", "weights"]


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Reads every machine's record (schema `SCALING`) in the repository at `root`, by its folder's name; maybe none.

    Raises:
        BadInput: one does not fit its schema.
    """
    return of_any_machine(root, NAME, schemas.SCALING)


def as_trained(table: pd.DataFrame) -> pd.DataFrame:
    """Keeps one row of each step: with `medddpm train`'s default sum of gradients, or else the first one measured.

    Args:
        table: schema `SCALING`, or as `efficiency` returns it.
    """
    key = table.columns.intersection([*WHAT, "measure", "gpus", "micro_steps", "gradient_dtype"])
    usual = table["bucket_mib"].fillna(TrainConfig.bucket_mib) == TrainConfig.bucket_mib
    first = table[usual].index.append(table[~usual].index)
    return table.loc[table.loc[first].drop_duplicates(list(key)).index.sort_values()]


def efficiency(table: pd.DataFrame) -> pd.DataFrame:
    """Compares training steps on several GPUs with those on one.

    Weak efficiency compares with one GPU's step of as many volumes as each GPU has; strong efficiency with one GPU's
    step of as many volumes as all GPUs have together. One GPU's step is measured with the others idle.

    Returns:
        a row for each step on several GPUs: `WHAT`, gradient_dtype, bucket_mib, gpus, micro_steps, median_ms, alone_ms;
        weak and strong, in %, missing if one GPU's step was not measured; communication_pct, the part of the step that
        is there only with communication.
    """
    steps = table[table["measure"] == "step"]
    several = steps[steps["gpus"] > 1].copy()
    single = steps[steps["gpus"] == 1].assign(weights="replicated").set_index([*WHAT, "micro_steps"])["median_ms"]
    # Sharded weights are compared with replicated ones on one GPU, which needs all weights.
    alike = several.assign(weights="replicated")

    def one_gpu(volumes: pd.Series[int]) -> pd.Series[float]:
        places = pd.MultiIndex.from_frame(alike[WHAT].assign(micro_steps=volumes))
        return pd.Series(single.reindex(places).to_numpy(), index=several.index)

    several["weak"] = 100 * one_gpu(several["micro_steps"]) / several["median_ms"]
    several["strong"] = (
        100 * one_gpu(several["micro_steps"] * several["gpus"]) / (several["gpus"] * several["median_ms"])
    )
    several["communication_pct"] = 100 * (1 - several["alone_ms"] / several["median_ms"])
    columns = ["gradient_dtype", "bucket_mib", "gpus", "micro_steps", "median_ms", "alone_ms"]
    return several[[*WHAT, *columns, "weak", "strong", "communication_pct"]].reset_index(drop=True)


def sampling(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the volumes drawn an hour.

    Returns:
        a row for each number of GPUs: `WHAT`, gpus, volumes_an_hour, and efficiency against one GPU in %, missing if
        that was not measured.
    """
    samples = table[table["measure"] == "sample"].copy()
    samples["volumes_an_hour"] = samples["gpus"] * 3.6e6 / samples["median_ms"]
    single = samples[samples["gpus"] == 1].set_index(WHAT)["volumes_an_hour"]
    alone = single.reindex(pd.MultiIndex.from_frame(samples[WHAT])).to_numpy()
    samples["efficiency"] = 100 * samples["volumes_an_hour"] / (samples["gpus"] * alone)
    return samples[[*WHAT, "gpus", "volumes_an_hour", "efficiency"]].reset_index(drop=True)
