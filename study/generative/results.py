"""What the measurements of Figure 2 leave in their folder, and the table of it."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.machine import machine_meta, of_machine
from medddpm.measure.tables import meta_path, read_meta, write_table
from study.generative.ipc import CYCLES, INSTRUCTIONS, step_ipc
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


def collect(models: Sequence[Model], precisions: Sequence[str], out: Path) -> pd.DataFrame:
    """The table of what `out` holds of these models and precisions; needs no GPU.

    Raises:
        BadInput: it holds nothing of them.
    """
    rows = []
    for model in models:
        raw = raw_path(out, model, precisions)
        present = [p for p in precisions if raw.is_file() and trace_path(out, model, p).is_file()]
        parameters = sum(p.numel() for p in model.build("meta").parameters()) if present else 0
        meta = read_meta(raw) if meta_path(raw).is_file() else {}
        origin = {"date": meta.get("date"), **of_machine(meta)}
        for precision in present:
            try:
                found = step_ipc(raw, trace_path(out, model, precision))
            except BadInput as error:
                tell(model.name, str(error))
                continue
            rows.append(
                {
                    "model": model.name,
                    "title": model.title,
                    "kind": model.kind,
                    "precision": precision,
                    "parameters": parameters,
                    "resolution": model.resolution,
                    "ipc_geometric": round(found.ipc_geometric, 6),
                    "ipc_total": round(found.ipc_total, 6),
                    "step_ms": round(found.step_ms, 3),
                    "launches": found.launches,
                    "matched": round(found.matched, 6),
                    "training_gpu_hours": model.cost.gpu_hours,
                    "training_hardware": model.cost.hardware,
                    "source": model.cost.source,
                    "configuration": model.source,
                    **origin,
                }
            )
    if not rows:
        raise BadInput(out, "nothing was measured", "read the lines above; try one model by --models")
    table = pd.DataFrame(rows, columns=list(schemas.GENERATIVE.columns))
    return table.astype({"training_gpu_hours": "float64"})


def write(table: pd.DataFrame, path: Path, command: Sequence[str]) -> Path:
    """Writes the table and its description; to be called on the machine that measured it.

    Args:
        table: schema `GENERATIVE`.
        path: the record, NAME.csv.
        command: the command line that measured it.
    """
    used = {"diffusers": importlib.metadata.version("diffusers"), "metrics": [CYCLES, INSTRUCTIONS]}
    return write_table(table, path, schemas.GENERATIVE, machine_meta(command) | used)


def publish(out: Path, folder: Path) -> list[Path]:
    """Takes the table at `out` and its description into a machine's records; returns their paths there.

    Models that stand there and were not measured again stay, each with the date, versions and commit that it has.
    """
    return publishing.joined(out, folder, schemas.GENERATIVE, KEY, _sorted)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Models in the order of models.toml, each with its precisions as they stand."""
    places = {name: place for place, name in enumerate(MODELS)}
    return table.sort_values("model", key=lambda names: names.map(places), kind="stable", ignore_index=True)


def tell(name: str, problem: str) -> None:
    """Says on stderr why a model is left out."""
    print(f"medddpm: {problem if problem.startswith(name) else f'{name}: {problem}'}", file=sys.stderr, flush=True)
