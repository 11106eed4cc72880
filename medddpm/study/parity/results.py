"""What the parity runs leave: two tables and a file of slices, joined with what earlier calls and machines left."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from medddpm.study.parity.plans import Run
from medddpm.study.parity.training import Slices
from medddpm.study.records import schemas
from medddpm.study.records.store import ONE_RUN, Store
from medddpm.study.records.tables import read_meta, read_table, write_table

QUALITY, LOSS, SLICES = "quality.csv", "loss.csv", "quality_slices.npz"
RESULT = "result.json"
LARGEST = 3_000_000  # bytes of slices that a commit should carry


def collect(out: Path, meta: Mapping[str, Any], tables: Path) -> pd.DataFrame:
    """Writes what the runs in `out` have found, of this machine and commit, and joins it with what is in `tables`.

    Args:
        out: a folder a run.
        meta: `machine.machine_meta` of this call.
        tables: where the tables go; a run that they hold already is replaced.

    Returns:
        the table of quality (schema `QUALITY`) of the runs in `out`.
    """
    store = Store(out, meta)
    quality: list[dict[str, Any]] = []
    loss: list[dict[str, Any]] = []
    slices: Slices = {}
    told: dict[str, Any] = {}
    for path in sorted(out.glob(f"*/{RESULT}")):
        found = store.read(path)
        if found is None:
            continue
        run = Run.of(found["spec"])
        known = _known(run) | {"step": found["step"]}
        quality += [{**known, **row, "sampler_steps": row["sampler_steps"] or 0} for row in found["quality"]]
        loss += [{**known, **row} for row in found["loss"]]
        told[run.key] = _told(run, found, meta)
        with np.load(path.with_name("slices.npz")) as kept:
            slices |= {name: kept[name] for name in kept.files}
    table = _typed(quality, schemas.QUALITY)
    if len(table):
        join(tables, table, _typed(loss, schemas.LOSS), slices, {**meta, "runs": told})
    return table


def join(tables: Path, quality: pd.DataFrame, loss: pd.DataFrame, slices: Slices, meta: Mapping[str, Any]) -> None:
    """Writes tables and slices to a folder; of what is there, the runs that are not given anew stay.

    Args:
        tables: the folder.
        quality, loss: schemas `QUALITY` and `LOSS`.
        slices: by their names, as `parity.evaluate` gives them.
        meta: with "runs": what each run of the tables was, by its key.
    """
    old = read(tables)
    told = dict(meta["runs"])
    if old is not None:
        new = set(told)
        stays = {key: known for key, known in old.meta.get("runs", {}).items() if key not in new}
        quality, loss = (
            pd.concat([before[~before["run"].isin(new)], now], ignore_index=True) if len(before) else now
            for before, now in ((old.quality, quality), (old.loss, loss))
        )
        slices = {name: plane for name, plane in old.slices.items() if not new & set(name.split("/"))} | slices
        told = stays | told
    described = {**meta, "runs": dict(sorted(told.items()))}
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
class Kept:
    """The tables of a folder.

    Args:
        quality, loss: schemas `QUALITY` and `LOSS`.
        meta: of the first.
        slices: by their names, (rows, columns) uint8.
    """

    quality: pd.DataFrame = field(default_factory=lambda: _typed([], schemas.QUALITY))
    loss: pd.DataFrame = field(default_factory=lambda: _typed([], schemas.LOSS))
    meta: Mapping[str, Any] = field(default_factory=dict)
    slices: Slices = field(default_factory=dict)

    def of(self, plan: str) -> pd.DataFrame:
        """The plan's rows of quality."""
        return self.quality[self.quality["plan"] == plan]


def read(tables: Path) -> Kept | None:
    """The tables of a folder; nothing where there are none.

    Raises:
        BadInput: one of them is broken.
    """
    if not (tables / QUALITY).is_file():
        return None
    quality, loss = (read_table(tables / n, s) for n, s in ((QUALITY, schemas.QUALITY), (LOSS, schemas.LOSS)))
    try:
        with np.load(tables / SLICES) as kept:
            slices = {name: kept[name] for name in kept.files}
    except (OSError, ValueError):
        raise BadInput(tables / SLICES, "is missing or damaged", "restore it (git checkout)") from None
    return Kept(quality, loss, read_meta(tables / QUALITY), slices)


def merge(source: Path, target: Path) -> int:
    """Joins a folder's tables, as they came back from a machine, with those of another; returns how many runs.

    Raises:
        BadInput: there are none, or they are broken.
    """
    found = read(source)
    if found is None:
        raise BadInput(source, f"holds no {QUALITY}", "give the folder that `medddpm.study.parity --tables` wrote")
    meta = {name: value for name, value in found.meta.items() if name not in ("rows", "columns")}
    join(target, found.quality, found.loss, found.slices, meta)
    return len(found.meta["runs"])


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m medddpm.study.parity.results FROM TO`."""
    top = argparse.ArgumentParser(prog="python -m medddpm.study.parity.results", description=merge.__doc__)
    top.add_argument("source", type=Path, help="tables that came back")
    top.add_argument("target", type=Path, help="as figures/records/H200")
    arguments = top.parse_args(argv)
    try:
        count = merge(arguments.source, arguments.target)
    except BadInput as error:
        print(f"medddpm: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.target}: {count} runs joined")
    return 0


def _known(run: Run) -> dict[str, Any]:
    return {
        "plan": run.plan, "run": run.key, "setting": run.setting, "contrast": run.contrast,
        "size": "x".join(map(str, run.size)), "width": run.channels, "seed": run.seed,
    }  # fmt: skip


def _told(run: Run, found: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run, what its rows do not say."""
    return {
        "steps_wanted": run.steps, "step": found["step"], "learning_rate": run.learning_rate,
        "accumulation": run.accumulation, "offset_noise": run.offset_noise, "norm_groups": run.groups,
        "clip_norm": run.clip_norm, "volumes": run.volumes, "ema_decay": run.config.ema_decay,
        "subjects": run.subjects, "held_out": run.held_out,
        "training_s": found["training_s"], "judging_s": found["judging_s"],
        "shared": found["shared"],
        **({"checkpoint": Path(run.checkpoint).name} if run.checkpoint else {}),
        **{name: meta[name] for name in (*ONE_RUN, "date")},
    }  # fmt: skip


def _typed(rows: Sequence[Mapping[str, Any]], schema: schemas.Schema) -> pd.DataFrame:
    kinds = {name: column.dtype for name, column in schema.columns.items() if column.dtype != "str"}
    return pd.DataFrame(rows, columns=list(schema.columns)).astype(kinds)


if __name__ == "__main__":
    sys.exit(main())
