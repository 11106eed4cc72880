"""Packs the results of `study trainings`, what matters most first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medddpm.measure.tables import meta_path, table_file
from study.brains.arms import Training
from study.brains.trainer import RESULT, WEIGHTS, archive_of
from study.brains.training_results import TABLE
from study.records import packing


def pack(results: Mapping[Training, Mapping[str, Any]], folder: Path, file: Path) -> list[Path]:
    """Packs a store's folder, as `study.records.packing.pack` does; returns the files that were left out.

    The table and all results come first, then weights, then the samples of each training's first sampler, of the
    second, and so on.

    Args:
        results: of `read_results`.
        folder: the store's.
        file: NAME.tar.
    """
    return packing.pack(_by_importance(results, folder), folder, file)


def _by_importance(results: Mapping[Training, Mapping[str, Any]], folder: Path) -> Iterator[Path]:
    table = table_file(folder / TABLE)
    yield from (table, meta_path(table))
    yield from (folder / training.key / RESULT for training in results)
    yield from (folder / training.key / WEIGHTS for training in results)
    most = max((len(training.samplings) for training in results), default=0)
    for place in range(most):
        for training in results:
            yield from (folder / training.key / archive_of(training, s) for s in training.samplings[place : place + 1])
