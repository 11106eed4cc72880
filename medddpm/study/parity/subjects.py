"""The subjects that the parity runs are trained and evaluated on, drawn once for all runs and kept on disk."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nibabel
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from medddpm.data.grid import Size
from medddpm.data.masks import one_hot
from medddpm.data.phantom import Contrast, Phantom
from medddpm.data.volumes import VolumeFolder, Volumes
from medddpm.quality.metrics import BRATS_TISSUES, HEAD_TISSUES, Tissues
from medddpm.runtime.files import replacing
from medddpm.study.parity.plans import BRATS, TrainingRun

TRAINED, HELD_OUT = 0, 1
"""The phantom's seeds: for the subjects trained on, as in `medddpm train --phantom`, and for the held-out ones."""


class Subjects(Dataset[tuple[Tensor, Tensor]]):
    """A `Phantom`, its subjects read from `kept`; items are the same to the last bit.

    Args:
        phantom: whose subjects they are.
        kept: of `keep`.
    """

    def __init__(self, phantom: Phantom, kept: Path) -> None:
        self.size, self.layout, self._phantom = phantom.size, phantom.layout, phantom
        self._images = torch.from_numpy(np.load(kept / "images.npy"))
        self._labels = np.load(kept / "labels.npy")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index], one_hot(self._labels[index], self.layout)

    def names(self) -> list[str]:
        """The phantom's names."""
        return self._phantom.names()

    def digests(self) -> list[str]:
        """The phantom's digests."""
        return self._phantom.digests()

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """The phantom's reference."""
        return self._phantom.reference(index)


def volumes_of(run: TrainingRun, folder: Path) -> tuple[Volumes, Volumes]:
    """What a run is trained on, and what it is evaluated on; for BraTS the same case.

    Args:
        run: says which subjects.
        folder: of `prepare`, where the phantom's subjects are or will be kept.
    """
    if run.contrast == BRATS:
        case = VolumeFolder(str(run.data), run.size)
        return case, case
    trained, held_out = (Subjects(phantom, keep(phantom, folder)) for phantom in phantoms(run))
    return trained, held_out


def phantoms(run: TrainingRun) -> tuple[Phantom, Phantom]:
    """The subjects trained on, and those held out."""
    contrast: Contrast = run.contrast  # type: ignore[assignment]
    return (
        Phantom(run.subjects, run.size, contrast, TRAINED, cache_gib=0),
        Phantom(run.held_out, run.size, contrast, HELD_OUT, cache_gib=0),
    )


def tissues_of(run: TrainingRun) -> Tissues:
    """What the labels of its masks mean."""
    return BRATS_TISSUES if run.contrast == BRATS else HEAD_TISSUES


def channels_of(run: TrainingRun, volumes: Volumes) -> list[str]:
    """Names of its image channels."""
    return list(volumes.layout.image_folders) if run.contrast == BRATS else [run.contrast]


def prepare(runs: Sequence[TrainingRun], folder: Path, workers: int | None = None) -> None:
    """Draws the subjects of all runs that are not kept yet, on all cores.

    Args:
        runs: say which subjects.
        folder: gets a folder for each set of subjects.
        workers: processes; by default one a core, up to 16.
    """
    wanted = {kept_in(phantom, folder): phantom for run in runs if run.contrast != BRATS for phantom in phantoms(run)}
    missing = {path: phantom for path, phantom in wanted.items() if not (path / "labels.npy").is_file()}
    count = min(workers or min(16, os.cpu_count() or 1), max((len(p) for p in missing.values()), default=1))
    if count == 1:
        for phantom in missing.values():
            keep(phantom, folder)
        return
    # Not forked: a fork of a process whose PyTorch has started threads may hang.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawned, torch.set_num_threads, (1,)) as pool:
        for phantom in missing.values():
            part = -(-len(phantom) // count)
            spans = [(start, min(start + part, len(phantom))) for start in range(0, len(phantom), part)]
            jobs = [pool.submit(_drawn, phantom.size, phantom.contrast, phantom.seed, *span) for span in spans]
            _write([job.result() for job in jobs], kept_in(phantom, folder))


def keep(phantom: Phantom, folder: Path) -> Path:
    """Where a phantom's subjects are kept, as images.npy (N, 1, D, W, H) float32 and labels.npy (N, H, W, D) uint8."""
    path = kept_in(phantom, folder)
    if not (path / "labels.npy").is_file():
        _write([_drawn(phantom.size, phantom.contrast, phantom.seed, 0, len(phantom))], path)
    return path


def kept_in(phantom: Phantom, folder: Path) -> Path:
    """Where a phantom's subjects are kept; the name says all that they depend on."""
    size = "x".join(map(str, phantom.size))
    return folder / f"{phantom.contrast}_{size}_s{phantom.seed}_n{len(phantom)}"


Drawn = tuple[np.ndarray, np.ndarray]


def _drawn(size: Size, contrast: Contrast, seed: int, start: int, stop: int) -> Drawn:
    """Images and labels of subjects `start` to `stop`."""
    phantom = Phantom(stop, size, contrast, seed, cache_gib=0)
    items = [phantom._item(index) for index in range(start, stop)]
    return np.stack([image.numpy() for image, _ in items]), np.stack([labels for _, labels in items])


def _write(parts: Sequence[Drawn], path: Path) -> None:
    for place, name in enumerate(("images", "labels")):  # the labels last: once they are there, all is
        with replacing(path / f"{name}.npy") as temporary:
            np.save(temporary, np.concatenate([part[place] for part in parts]))
