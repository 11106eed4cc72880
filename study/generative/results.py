"""What the measurements of Figure 2 leave in their folder, and the table of it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.machine import machine_meta
from medddpm.measure.tables import write_table
from study.generative.ipc import CYCLES, INSTRUCTIONS
from study.generative.models import MODELS, Model
from study.records import publishing, schemas

NAME = "generative.csv"
KEY = ("model", "precision")  # columns that name a row


def trace_path(out: Path, model: Model, precision: str) -> Path:
    """Where the plain trace of a model's step lies."""
    return out / f"{model.name}_{precision}.csv.gz"


def raw_path(out: Path, model: Model, precisions: Sequence[str]) -> Path:
    """Where ncu's raw page of a model's steps lies, of all precisions together."""
    return out / f"{model.name}_{'-'.join(precisions)}_raw.csv.gz"


def key_of(model: Model, precisions: Sequence[str]) -> str:
    """The key of a model's result."""
    return f"{model.name}_{'-'.join(precisions)}"


def rows_of(results: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table (schema `GENERATIVE`) of those results that have these keys, in the models' order, and what it says."""
    rows = [row for result in results if result["key"] in keys for row in result["rows"]]
    table = pd.DataFrame(rows, columns=list(schemas.GENERATIVE.columns))
    return _sorted(table.astype({"training_gpu_hours": "float64"})), used()


def used() -> dict[str, Any]:
    """Returns what the table's description says beside the machine."""
    return {"diffusers": importlib.metadata.version("diffusers"), "metrics": [CYCLES, INSTRUCTIONS]}


def write(table: pd.DataFrame, path: Path, command: Sequence[str]) -> Path:
    """Writes the table and its description; to be called on the machine that measured it.

    Args:
        table: schema `GENERATIVE`.
        path: the record, NAME.csv.
        command: the command line that measured it.
    """
    return write_table(table, path, schemas.GENERATIVE, machine_meta(command) | used())


def publish(out: Path, folder: Path) -> list[Path]:
    """Takes the table at `out` and its description into a machine's records; returns their paths there.

    Models that stand there and were not measured again stay, each with the date, versions and commit that it has.
    """
    return publishing.joined(out, folder, schemas.GENERATIVE, KEY, _sorted)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Models in the order of models.toml, each with its precisions as they stand."""
    places = {name: place for place, name in enumerate(MODELS)}
    return table.sort_values("model", key=lambda names: names.map(places), kind="stable", ignore_index=True)
