"""Joins the parity runs' results with those of earlier calls: two tables and a file of slices."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.store import ONE_RUN, Store
from medddpm.measure.tables import (
    check_table,
    has_description,
    read_meta,
    read_table,
    table_file,
    table_of,
    write_table,
)
from medddpm.runtime.files import check_output, opened, replacing
from study.parity.plans import TrainingRun
from study.parity.training import Slices
from study.records import schemas

QUALITY, LOSS, SLICES = "quality.csv", "loss.csv", "quality_slices.npz"
RESULT = "result.json"
LARGEST_SLICES = 2**28  # bytes of a file of slices, unpacked: a hundred times the largest record's
LARGEST = 3_000_000  # bytes of slices that a commit should carry


def collect(store: Store, tables: Path) -> pd.DataFrame:
    """Writes the results of this machine and commit to `tables`, joined with the runs there.

    Args:
        store: of the folder that holds a folder for each run.
        tables: folder of the tables; an older result of a run is replaced.

    Returns:
        the table of quality (schema `QUALITY`) of the runs in the store.
    """
    quality: list[dict[str, Any]] = []
    loss: list[dict[str, Any]] = []
    slices: Slices = {}
    runs: dict[str, Any] = {}
    for result in store.results():
        run = TrainingRun.of(result["spec"])
        known = _known(run) | {"step": result["step"]}
        quality += [{**known, **row, "sampler_steps": row["sampler_steps"] or 0} for row in result["quality"]]
        loss += [{**known, **row} for row in result["loss"]]
        runs[run.key] = _run_meta(run, result, store.meta)
        path = store.path(key_of(run))
        slices |= read_slices(path.with_name("slices.npz"), f"remove {path.name} beside it, and run the same again")
    table = table_of(quality, schemas.QUALITY)
    if len(table):
        join(tables, table, table_of(loss, schemas.LOSS), slices, {**store.meta, "runs": runs})
    return table


def key_of(run: TrainingRun) -> str:
    """Returns the key of a run's result, which lies in the run's folder."""
    return f"{run.key}/{RESULT.removesuffix('.json')}"


def check_tables(tables: Path) -> None:
    """Checks, before long work, that tables and slices may be written to a folder, beside other runs there.

    Raises:
        BadInput: another file has one of their names, or one of them is broken.
    """
    for name in (QUALITY, LOSS):
        check_table(tables / name)
    check_output(tables / SLICES, ours=lambda _path: has_description(tables / QUALITY), force=True)
    try:
        read(tables)
    except BadInput as error:  # without `QUALITY` all are written anew, from the results of each run
        remedy = f"restore it, or remove {table_file(tables / QUALITY)} and run the same again"
        raise BadInput(error.path, error.problem, remedy) from None


def join(tables: Path, quality: pd.DataFrame, loss: pd.DataFrame, slices: Slices, meta: Mapping[str, Any]) -> None:
    """Writes tables and slices to a folder; those of other runs stay.

    Args:
        tables: the folder.
        quality, loss: schemas `QUALITY` and `LOSS`.
        slices: by their names, as `parity.evaluate` gives them.
        meta: with "runs": the description of each run of the tables, by its key.
    """
    old = read(tables)
    runs = dict(meta["runs"])
    if old is not None:
        new = set(runs)
        stays = {key: known for key, known in old.meta.get("runs", {}).items() if key not in new}
        quality, loss = (
            pd.concat([before[~before["run"].isin(new)], now], ignore_index=True) if len(before) else now
            for before, now in ((old.quality, quality), (old.loss, loss))
        )
        slices = {name: plane for name, plane in old.slices.items() if not new & set(name.split("/"))} | slices
        runs = stays | runs
    described = {**meta, "runs": dict(sorted(runs.items()))}
    order = ["plan", "run"]
    write_table(quality.sort_values(order, kind="stable"), tables / QUALITY, schemas.QUALITY, described)
    write_table(
        loss.sort_values([*order, "part", "step"], kind="stable"), tables / LOSS, schemas.LOSS,
        {name: value for name, value in described.items() if name != "runs"},
    )  # fmt: skip
    with replacing(tables / SLICES) as temporary:
        np.savez_compressed(temporary, **dict(sorted(slices.items())))  # type: ignore[arg-type]
    if (size := (tables / SLICES).stat().st_size) > LARGEST:
        print(f"{SLICES}: {size / 1e6:.1f} MB, more than a commit should carry", file=sys.stderr)


@dataclass(frozen=True)
class QualityRecord:
    """The tables of a folder.

    Args:
        quality, loss: schemas `QUALITY` and `LOSS`.
        meta: of `quality`.
        slices: by their names, (rows, columns) uint8.
    """

    quality: pd.DataFrame = field(default_factory=lambda: table_of([], schemas.QUALITY))
    loss: pd.DataFrame = field(default_factory=lambda: table_of([], schemas.LOSS))
    meta: Mapping[str, Any] = field(default_factory=dict)
    slices: Slices = field(default_factory=dict)

    def of(self, plan: str) -> pd.DataFrame:
        """Returns the rows of a plan."""
        return self.quality[self.quality["plan"] == plan]


def read(tables: Path) -> QualityRecord | None:
    """Reads the tables of a folder; None if there are none.

    Raises:
        BadInput: one of them is broken.
    """
    if not table_file(tables / QUALITY).is_file():
        return None
    quality, loss = (read_table(tables / n, s) for n, s in ((QUALITY, schemas.QUALITY), (LOSS, schemas.LOSS)))
    slices = read_slices(tables / SLICES, "restore it (git checkout)")
    return QualityRecord(quality, loss, read_meta(tables / QUALITY), slices)


def read_slices(path: Path, remedy: str) -> Slices:
    """Reads the slices of a file, by their names.

    Raises:
        BadInput: it is missing or damaged.
    """
    try:
        with opened(path) as stream:
            with zipfile.ZipFile(stream) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > LARGEST_SLICES:
                    raise BadInput(path, f"it unpacks to more than {LARGEST_SLICES} bytes", remedy)
            stream.seek(0)
            with np.load(stream) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except BadInput:
        raise
    except Exception:  # a dozen kinds, by where the reader fails
        raise BadInput(path, "is missing or damaged", remedy) from None


def _known(run: TrainingRun) -> dict[str, Any]:
    return {
        "plan": run.plan, "run": run.key, "setting": run.setting, "contrast": run.contrast,
        "size": "x".join(map(str, run.size)), "width": run.config.model_channels, "seed": run.config.seed,
    }  # fmt: skip


def _run_meta(run: TrainingRun, result: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Describes a run beyond its rows, under the names that records have."""
    config = run.config
    return {
        "steps_wanted": run.steps, "step": result["step"], "learning_rate": config.learning_rate,
        "accumulation": config.accumulation, "offset_noise": config.offset_noise, "norm_groups": config.norm_groups,
        "clip_norm": config.clip_norm, "volumes": config.batch_size, "ema_decay": config.ema_decay,
        "subjects": run.subjects, "held_out": run.held_out,
        "training_s": result["training_s"], "judging_s": result["evaluation_s"],
        **({"checkpoint": Path(run.checkpoint).name} if run.checkpoint else {}),
        **{name: meta[name] for name in (*ONE_RUN, "date")},
    }  # fmt: skip
