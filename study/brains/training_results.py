"""Reads the results of `study trainings`, of any commit and card, and makes their table and its summary.

A training of another commit is not repeated, so that spare minutes of many sessions fill one table; each row says where
it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.store import Store
from medddpm.measure.tables import table_of, write_table
from medddpm.runtime.files import LARGEST_JSON, read_json, write_json
from study.brains.arms import ARMS, Training
from study.brains.trainer import RESULT
from study.records import schemas_brains as schemas
from study.records.packing import packed

TABLE = "trainings.csv"
SHOWN = (0.05, 1.0, 5.0, 20.0)  # of `RATIOS`, in the summary
KINDS = {
    "contrast": "{}", "side": "{}³", "channels": "{} channels", "heads": "{} heads", "setting": "{}",
    "wanted_s": "{:g} s", "wanted_steps": "{:.0f} steps",
}  # fmt: skip
"""The columns in which trainings of an arm may differ, and how the summary says so."""

_NOT_READ = "give a tar that `study trainings --pack` wrote, or a folder of its results"


def key_of(training: Training) -> str:
    """Returns the key of a training's result in the store."""
    return f"{training.key}/{RESULT.removesuffix('.json')}"


def read_results(folder: Path) -> dict[Training, dict[str, Any]]:
    """Reads the results in a store's folder that harness or `take` have put there, in the order of the arms."""
    results = {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        result = _sound(read_json(path, "remove it"))
        if result is not None:
            results[Training.of(result["training"])] = result
    order = list(ARMS)
    return dict(sorted(results.items(), key=lambda pair: (order.index(pair[0].arm), pair[0].key)))


def lacking(trainings: Sequence[Training], folder: Path) -> list[Training]:
    """Returns the trainings without a whole result in a store's folder."""
    there = read_results(folder)
    return [training for training in trainings if there.get(training, {"partial": True}).get("partial")]


def take(source: Path, folder: Path) -> int:
    """Takes results of earlier calls into a store's folder, where it lacks them; returns their number.

    Args:
        source: a tar of `study.brains.packing`, or a folder of such tars or of results.
        folder: the store's.

    Raises:
        BadInput: there are none, or a tar cannot be read.
    """
    there = read_results(folder)
    read = taken = 0
    for result in _results_of(source):
        read += 1
        training = Training.of(result["training"])
        if training not in there or (there[training].get("partial") and not result.get("partial")):
            write_json(folder / f"{key_of(training)}.json", result)
            there[training] = result
            taken += 1
    if not read:
        raise BadInput(source, "it holds no result of a training", _NOT_READ)
    return taken


def collect(store: Store) -> pd.DataFrame:
    """Writes the table (schema `TRAININGS`) of all results in a store's folder; returns the table."""
    rows = [row for training, result in read_results(store.folder).items() for row in _rows(training, result)]
    table = table_of(rows, schemas.TRAININGS)
    if rows:
        write_table(table, store.folder / TABLE, schemas.TRAININGS, {**store.meta, "failed": store.failed})
    return table


def summary(table: pd.DataFrame) -> str:
    """Returns a line for each arm and kind: steps, seconds, errors of x_0, last loss, with half the seeds' range.

    A name has those of `KINDS` in which an arm's trainings differ. The errors are those of the averaged weights, by the
    noise-to-signal ratio. The last column is the largest growth of the error at ratio 1 from a mark of a training to
    the next, in percent: above 0 the training went back.

    Args:
        table: schema `TRAININGS`.
    """
    if table.empty:
        return "no training has a result"
    lines = [["arm", "seeds", "steps", "seconds", *(f"x_0 at {ratio:g}" for ratio in SHOWN), "loss", "back %"]]
    table = table.assign(wanted_steps=table["steps"].where(table["wanted_s"].isna()))
    varies = table.groupby("arm")[list(KINDS)].nunique(dropna=False).max() > 1
    for (arm, *of), part in table.groupby(["arm", *KINDS], sort=False, dropna=False):
        by_seed = part.drop_duplicates("seed")
        kind = zip(KINDS, of, strict=True)
        said = (KINDS[column].format(value) for column, value in kind if varies[column] and value == value)
        name = " ".join([str(arm), *said])
        errors = part[(part["metric"] == "clean_error") & (part["weights"] == "averaged")]
        end = errors[errors["share"] == 1]
        loss = part[(part["metric"] == "loss") & (part["share"] == 1)]
        lines.append(
            [
                name, str(part["seed"].nunique()), f"{by_seed['steps'].mean():.0f}", f"{by_seed['seconds'].mean():.0f}",
                *(_spread(end.loc[end["ratio"] == ratio, "value"]) for ratio in SHOWN), _spread(loss["value"]),
                f"{_growth(errors):.0f}",
            ]
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(w.ljust(n) for w, n in zip(line, widths, strict=True)).rstrip() for line in lines)


def _spread(values: pd.Series[Any]) -> str:
    half = (values.max() - values.min()) / 2
    return f"{values.mean():.3g}" + (f" ± {half:.1g}" if len(values) > 1 else "")


def _growth(errors: pd.DataFrame) -> float:
    """Returns the largest growth of the error at ratio 1 from a mark to the next, in percent."""
    marks = errors[errors["ratio"] == 1].pivot_table(index="share", columns="seed", values="value").sort_index()
    growth = marks.pct_change(fill_method=None).max().max()
    return float(100 * growth) if growth == growth else 0.0


def _rows(training: Training, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the rows of schema `TRAININGS` of a result."""
    known = {
        "arm": training.arm, "seed": training.seed, "contrast": training.contrast, "side": training.side,
        "heads": training.heads, "wanted_s": None if training.steps else training.seconds,
        **{name: result[name] for name in ("channels", "volumes", "setting", "steps", "seconds", "date")},
        **result["machine"], "weights": None, "share": 1.0, "ratio": None, "sampler": None, "evaluations": None,
    }  # fmt: skip
    for error in result["errors"]:
        yield {**known, "metric": "clean_error", **error, "n": training.held_out}
    for window in result["losses"]:
        yield {**known, "metric": "loss", **window}
    for sample in result["samples"]:
        drawn = {name: sample[name] for name in ("sampler", "evaluations", "n")}
        yield {**known, "metric": "sample_s", "weights": "averaged", **drawn, "value": sample["seconds"]}
        if sample.get("peak_bytes") is not None:  # earlier results lack it, and those of a CPU
            value = sample["peak_bytes"] / 2**30
            yield {**known, "metric": "sample_gib", "weights": "averaged", **drawn, "value": value}


def _results_of(source: Path) -> Iterator[dict[str, Any]]:
    """Yields the results in a tar, or in a folder of tars or of results."""
    if source.is_dir():
        for path in sorted(source.glob(f"*/{RESULT}")):
            if (result := _sound(read_json(path, _NOT_READ))) is not None:
                yield result
    for _, content in packed(source, lambda name: name.endswith(f"/{RESULT}"), LARGEST_JSON, _NOT_READ):
        try:
            result = _sound(json.loads(content))
        except ValueError:
            raise BadInput(source, "it holds a result that is not JSON", _NOT_READ) from None
        if result is not None:
            yield result


def _sound(result: Any) -> dict[str, Any] | None:
    """Returns a result that was stamped by the harness and has what a row needs; None for any other content."""
    try:
        if not isinstance(result, dict):
            return None
        list(_rows(Training.of(result["training"]), result))
    except (KeyError, TypeError, ValueError):
        return None
    return result
