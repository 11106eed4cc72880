"""Packs the results of `study trainings` into a few tars, as a machine from which few files come back needs them."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from medddpm.measure.tables import meta_path, table_file
from medddpm.runtime.files import replacing
from study.brains.arms import Training
from study.brains.trainer import RESULT, WEIGHTS, archive_of
from study.brains.training_results import TABLE

PART = 15 * 2**20  # bytes of a tar at most; a lent machine sends back files of 16 MiB
PARTS = 4  # tars at most
BLOCK = tarfile.BLOCKSIZE
END = 2 * BLOCK + tarfile.RECORDSIZE  # bytes behind the files of a tar at most


def pack(results: Mapping[Training, Mapping[str, Any]], folder: Path, file: Path) -> list[Path]:
    """Packs a store's folder: NAME.tar, and NAME.2.tar to NAME.4.tar as far as they are needed.

    The table and all results come first, then weights, then the samples of each training's first sampler, of the
    second, and so on. What has no room is left out, and stderr says so.

    Args:
        results: of `read_results`.
        folder: the store's.
        file: NAME.tar.

    Returns:
        the files that were left out.
    """
    parts: list[list[Path]] = [[]]
    sizes = [END]
    left_out = []
    for path in _by_importance(results, folder):
        size = BLOCK + -(-path.stat().st_size // BLOCK) * BLOCK
        place = next((k for k, taken in enumerate(sizes) if taken + size <= PART), len(parts))
        if place == PARTS or size + END > PART:
            left_out.append(path)
            continue
        if place == len(parts):
            parts.append([])
            sizes.append(END)
        parts[place].append(path)
        sizes[place] += size
    for number, paths in enumerate(parts, 1):
        _write(paths, folder, file if number == 1 else file.with_suffix(f".{number}.tar"))
    if left_out:
        print(f"{file}: no room for {len(left_out)} of the files in {folder}", file=sys.stderr, flush=True)
    return left_out


def _by_importance(results: Mapping[Training, Mapping[str, Any]], folder: Path) -> Iterator[Path]:
    table = table_file(folder / TABLE)
    names: list[Path] = [table, meta_path(table)]
    names += [folder / training.key / RESULT for training in results]
    names += [folder / training.key / WEIGHTS for training in results]
    most = max((len(training.samplings) for training in results), default=0)
    for place in range(most):
        for training in results:
            names += [folder / training.key / archive_of(training, s) for s in training.samplings[place : place + 1]]
    return (path for path in names if path.is_file())


def _write(paths: Iterable[Path], folder: Path, file: Path) -> None:
    with replacing(file) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in paths:
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())  # without an owner's name
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(content))
