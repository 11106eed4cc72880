"""Names the files of Figure 2's measurements, and makes their table."""

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
    """Returns the file of the plain trace of a model's step."""
    return out / f"{model.name}_{precision}.csv.gz"


def raw_path(out: Path, model: Model, precisions: Sequence[str]) -> Path:
    """Returns the file of ncu's raw page of a model's steps, of all precisions together."""
    return out / f"{model.name}_{'-'.join(precisions)}_raw.csv.gz"


def key_of(model: Model, precisions: Sequence[str]) -> str:
    """Returns the key of a model's result."""
    return f"{model.name}_{'-'.join(precisions)}"


def rows_of(results: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Makes the table (schema `GENERATIVE`) of results by their keys, in the models' order, and its description."""
    rows = [row for result in results if result["key"] in keys for row in result["rows"]]
    table = pd.DataFrame(rows, columns=list(schemas.GENERATIVE.columns))
    return _sorted(table.astype({"training_gpu_hours": "float64"})), used()


def used() -> dict[str, Any]:
    """Returns the table's description beside the machine."""
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
    """Copies the table at `out` and its description into a machine's records; returns their paths there.

    Recorded models that were not measured again stay, with their date, versions and commit.
    """
    return publishing.joined(out, folder, schemas.GENERATIVE, KEY, _sorted)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sorts by the models' order in models.toml; a model's precisions keep their order."""
    places = {name: place for place, name in enumerate(MODELS)}
    return table.sort_values("model", key=lambda names: names.map(places), kind="stable", ignore_index=True)
