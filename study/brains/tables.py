"""Reads the records of synthetic brains in figures/records/GPU/brains: judged samples, and trainings.

A folder in it holds what a call of `study judge` or `study trainings` wrote: tables, and archives of samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy import stats

from medddpm.errors import BadInput
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import gpu_folders, read_table, table_of
from study.brains.judge import TABLES
from study.brains.training_results import TABLE
from study.records import schemas_brains as schemas

FOLDER = "brains"
_SAMPLED = re.compile(r"(?P<model>.+)\.(?P<sampler>[a-z-]+?)(?P<evaluations>\d+)")


@dataclass(frozen=True)
class BrainsRecord:
    """The tables of a machine, each with a column `folder`, in which a row was: "" at the top.

    Args:
        path: of the record.
        verdicts, wholes, sets, use: of `study judge`.
        trainings: of `study trainings`.
    """

    path: Path
    verdicts: pd.DataFrame
    wholes: pd.DataFrame
    sets: pd.DataFrame
    use: pd.DataFrame
    trainings: pd.DataFrame


def recorded(root: Path, gpu: str) -> BrainsRecord:
    """Reads a machine's record in the repository at `root`, by its folder's name.

    Raises:
        BadInput: there is none, or a table is broken.
    """
    path = root / "figures" / "records" / gpu / FOLDER
    if not path.is_dir():
        there = ", ".join(folder.name for folder in gpu_folders(root) if (folder / FOLDER).is_dir()) or "none"
        raise BadInput(f"gpu = {gpu!r}", f"no synthetic brains of {gpu}", f"there are: {there}")
    judged = (schemas.VERDICTS, schemas.WHOLES, schemas.SETS, schemas.USE)
    parts = zip((*TABLES, TABLE), (*judged, schemas.TRAININGS), strict=True)
    return BrainsRecord(path, *(_joined(path, name, schema) for name, schema in parts))


def called(table: pd.DataFrame, names: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    """Returns the rows of some sets of samples, with a first column `set` that is ordered as the names are.

    Args:
        table: with the columns folder and samples.
        names: what to call a set, by its folder and its name in `samples`.

    Raises:
        BadInput: the table has no row of a set.
    """
    places = pd.MultiIndex.from_frame(table[["folder", "samples"]])
    for folder, samples in names:
        if (folder, samples) not in places:
            raise BadInput(f"{FOLDER}/{folder}", f"no row of the samples {samples}", "judge them, or leave them out")
    rows = table[places.isin(list(names))]
    titles = [names[pair] for pair in rows[["folder", "samples"]].itertuples(index=False, name=None)]
    rows = rows.assign(set=pd.Categorical(titles, list(dict.fromkeys(names.values())), ordered=True))
    return rows[["set", *table.columns]].sort_values("set", kind="stable", ignore_index=True)


def sampled(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of sets that are called MODEL.SAMPLERn, as `trainer.archive_of` calls them, with three columns
    in front: model, sampler, evaluations.

    Args:
        table: with the column samples.
    """
    parts = [_SAMPLED.fullmatch(name) for name in table["samples"]]
    rows = table[[part is not None for part in parts]]
    rows = rows.assign(
        model=[part["model"] for part in parts if part],
        sampler=[part["sampler"].replace("pp", "++") for part in parts if part],
        evaluations=[int(part["evaluations"]) for part in parts if part],
    )
    return rows[["model", "sampler", "evaluations", *table.columns]]


def passing(wholes: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Counts the samples that pass: columns passes, of, low and high, the last two a 95% interval of their share.

    The interval is Wilson's (1927, J. Am. Stat. Assoc. 22:209), over samples as if they were independent.

    Args:
        wholes: schema `WHOLES`.
        by: the columns that tell the rows of the result; their order is that of `wholes`.
    """
    counted = wholes.groupby(list(by), sort=False, observed=True)["passes"].agg(passes="sum", of="count")
    pairs = zip(counted["passes"], counted["of"], strict=True)
    intervals = [stats.binomtest(passes, of).proportion_ci(method="wilson") for passes, of in pairs]
    return counted.assign(low=[each.low for each in intervals], high=[each.high for each in intervals])


def _joined(path: Path, name: str, schema: Schema) -> pd.DataFrame:
    """Reads all tables of a name below a folder."""
    folders = sorted({file.parent for suffix in ("", ".gz") for file in path.rglob(name + suffix)})
    parts = [
        read_table(folder / name, schema).assign(folder=folder.relative_to(path).as_posix().removeprefix("."))
        for folder in folders
    ]
    return pd.concat(parts, ignore_index=True) if parts else table_of([], schema).assign(folder="")
