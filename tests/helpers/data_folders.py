"""Small data folders in every arrangement that the field has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

SIZE = (12, 10, 8)
MODALITIES = ("t1", "t1ce", "t2", "flair")
ANNOTATED_2023 = {"t1": "t1n", "t1ce": "t1c", "t2": "t2w", "flair": "t2f"}
NNUNET: dict[str, Any] = {
    "channel_names": {"0": "FLAIR", "1": "T1w", "2": "T1gd", "3": "T2w"},
    "labels": {"background": 0, "edema": 1, "necrosis": 2, "enhancing tumor": 3},
    "numTraining": 1,
    "file_ending": ".nii.gz",
}
DECATHLON: dict[str, Any] = {
    "modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
    "labels": {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"},
    "training": [{"image": "./imagesTr/BRATS_001.nii.gz", "label": "./labelsTr/BRATS_001.nii.gz"}],
}
NUMBERS = {"t1": 1, "t1ce": 2, "t2": 3, "flair": 0}
"""The channels of both, in their order."""


def save(path: Path, data: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, np.diag([-1.0, -1.0, 1.0, 1.0])), path)
    return path


def head_labels() -> np.ndarray:
    labels = np.zeros(SIZE, np.uint8)
    labels[2:-2, 2:-2, 2:-2] = 1
    labels[4:6, 4:6, 3:5] = 2
    return labels


def tumour(oedema: int = 2, necrosis: int = 1, enhancing: int = 4) -> np.ndarray:
    """A raw mask: 10 voxels of oedema, 6 of necrosis, 2 of enhancing tumour."""
    labels = np.zeros(SIZE, np.uint8)
    labels[3:5, 3:8, 3] = oedema
    labels[5, 3:9, 4] = necrosis
    labels[6, 3:5, 4] = enhancing
    return labels


COUNTS = {1: 6, 2: 10, 3: 2}
"""The voxels of each of the models' labels in `tumour`."""


def image(level: float = 0.0) -> np.ndarray:
    """A skull-stripped image whose largest voxel is 100 + `level`: by it a test knows one from another."""
    data = np.random.default_rng(int(level)).uniform(1, 100, SIZE).astype(np.float32)
    inside = np.zeros(SIZE, bool)
    inside[2:-2, 2:-2, 2:-2] = True
    data[~inside] = 0
    data[3, 3, 3] = 100 + level
    return data


def level(path: Path) -> float:
    return float(np.asarray(nib.load(path).dataobj).max()) - 100


def case_folder(folder: Path, name: str = "{case}_{role}.nii.gz", mask: np.ndarray | None = None, **words: str) -> Path:
    """A folder a case as BraTS has it; `words` replace those of the roles."""
    for number, role in enumerate(MODALITIES):
        save(folder / name.format(case=folder.name, role=words.get(role, role)), image(number))
    save(folder / name.format(case=folder.name, role=words.get("seg", "seg")), tumour() if mask is None else mask)
    return folder


def nnunet(root: Path, cases: tuple[str, ...] = ("case_001",), content: Mapping[str, Any] = NNUNET) -> Path:
    for case in cases:
        for role, number in NUMBERS.items():
            save(root / "imagesTr" / f"{case}_{number:04d}.nii.gz", image(MODALITIES.index(role)))
        save(root / "labelsTr" / f"{case}.nii.gz", tumour(oedema=1, necrosis=2, enhancing=3))
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def decathlon(root: Path, content: Mapping[str, Any] = DECATHLON) -> Path:
    stacked = np.stack([image(MODALITIES.index(role)) for role in sorted(NUMBERS, key=NUMBERS.__getitem__)], axis=-1)
    save(root / "imagesTr" / "BRATS_001.nii.gz", stacked)
    save(root / "labelsTr" / "BRATS_001.nii.gz", tumour(oedema=1, necrosis=2, enhancing=3))
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def bids(root: Path, subjects: tuple[str, ...] = ("01", "02")) -> Path:
    for number, subject in enumerate(subjects):
        save(root / f"sub-{subject}" / "anat" / f"sub-{subject}_T1w.nii.gz", image(number))
        masks = root / "derivatives" / "seg" / f"sub-{subject}" / "anat"
        save(masks / f"sub-{subject}_dseg.nii.gz", head_labels())
    return root
