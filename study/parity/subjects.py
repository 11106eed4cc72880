"""Makes the subjects that the parity runs are trained and evaluated on, once for all runs, and stores them on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medddpm.data.disk_cache import DiskCache
from medddpm.data.phantom import Phantom
from medddpm.data.tissues import Contrast
from medddpm.data.volumes import VolumeFolder, Volumes
from medddpm.quality.metrics import BRATS_TISSUES, HEAD_TISSUES, Tissues
from study.parity.plans import BRATS, TrainingRun

TRAINED, HELD_OUT = 0, 1
"""The phantom's seeds: for the subjects trained on, as in `medddpm train --phantom`, and for the held-out ones."""


def volumes_of(run: TrainingRun, folder: Path) -> tuple[Volumes, Volumes]:
    """Returns the volumes that a run is trained on, and those it is evaluated on; for BraTS one case is both.

    Args:
        run: names the subjects.
        folder: of `prepare`, for the phantom's subjects.
    """
    if run.contrast == BRATS:
        case = VolumeFolder(str(run.data), run.size)
        return case, case
    trained, held_out = (DiskCache(phantom, folder) for phantom in phantoms(run))
    return trained, held_out


def phantoms(run: TrainingRun) -> tuple[Phantom, Phantom]:
    """Returns the subjects trained on, and those held out."""
    contrast: Contrast = run.contrast  # type: ignore[assignment]
    return (
        Phantom(run.subjects, run.size, contrast, TRAINED, cache_gib=0),
        Phantom(run.held_out, run.size, contrast, HELD_OUT, cache_gib=0),
    )


def tissues_of(run: TrainingRun) -> Tissues:
    """Returns the tissues of the labels of a run's masks."""
    return BRATS_TISSUES if run.contrast == BRATS else HEAD_TISSUES


def channels_of(run: TrainingRun, volumes: Volumes) -> list[str]:
    """Names the image channels of a run."""
    return list(volumes.layout.image_folders) if run.contrast == BRATS else [run.contrast]


def prepare(runs: Sequence[TrainingRun], folder: Path) -> None:
    """Draws the missing subjects of all runs, on all cores.

    Args:
        runs: name the subjects.
        folder: holds the subjects.
    """
    for run in runs:
        if run.contrast != BRATS:
            for phantom in phantoms(run):
                DiskCache(phantom, folder).prepare(progress=True)
