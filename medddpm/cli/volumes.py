"""The volumes that `train` trains on, from its options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from medddpm.cli.options import complain
from medddpm.errors import BadInput
from medddpm.fast.reports import is_first, log

if TYPE_CHECKING:
    from medddpm.data.disk_cache import DiskCache
    from medddpm.data.synthetic import Synthetic

HELD_OUT_SEED = 1
"""Of the synthetic subjects that are held out; those that are trained on have 0."""


def prepared_volumes(
    arguments: argparse.Namespace, size: tuple[int, int, int]
) -> tuple[DiskCache, DiskCache | None] | None:
    """Returns the volumes to train on, and those held out; None if the folder's check printed problems.

    Once all volumes of a folder are prepared it is not checked again: preparing a volume reads it to its end.
    """
    from medddpm.data.checking import check_folder
    from medddpm.data.disk_cache import DiskCache, default_folder

    folder = arguments.cache or default_folder()
    if not arguments.data:
        volumes = DiskCache(_synthetic(arguments, arguments.heads or arguments.phantom, size), folder)
        if not arguments.holdout:
            return volumes, None
        return volumes, DiskCache(_synthetic(arguments, arguments.holdout, size, HELD_OUT_SEED), folder)
    parts, problem = None, None
    try:
        parts = _of_folder(arguments, size, folder)
    except BadInput as error:
        problem = error
    unprepared = parts is None or any(part.missing() for part in parts if part)
    if not arguments.no_check and is_first() and unprepared:
        report = check_folder(arguments.data, progress=not arguments.quiet)
        for fault in report.problems:
            complain(str(fault))
        if report.problems:
            return None
    if problem:
        raise problem
    return parts


def _synthetic(arguments: argparse.Namespace, count: int, size: tuple[int, int, int], seed: int = 0) -> Synthetic:
    from medddpm.data.heads import Heads
    from medddpm.data.phantom import Phantom

    kind = Heads if arguments.heads else Phantom
    return kind(count, size, arguments.contrast or "t1", seed=seed, cache_gib=0)


def _of_folder(
    arguments: argparse.Namespace, size: tuple[int, int, int], folder: Path
) -> tuple[DiskCache, DiskCache | None]:
    from medddpm.data.disk_cache import DiskCache
    from medddpm.data.volumes import VolumeFolder
    from medddpm.training.holdout import parted

    source = VolumeFolder(arguments.data, size, arguments.scaling or "volume", cache_gib=0)
    if source.notes:
        log.warning(str(source.notes))
    if not arguments.holdout:
        return DiskCache(source, folder), None
    trained, held_out = parted(len(source), arguments.holdout, arguments.seed)
    return DiskCache(source.part(trained), folder), DiskCache(source.part(held_out), folder)
