"""Reads samples with the heads whose masks they were drawn for: an archive of arrays, or a folder of volumes."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.data.grid import Size, to_grid
from medddpm.data.nifti import read_image
from medddpm.data.tissues import Contrast
from medddpm.data.volumes import to_tensor
from medddpm.errors import BadInput
from medddpm.runtime.files import opened, replacing
from study.brains.subjects import HeadName

_NAME = re.compile(r"head-(\d{1,18})-(\d{1,9})(?:_(t1|t2|flair))?\.nii(?:\.gz)?")
LARGEST = 2**33  # bytes of samples


def read_samples(path: Path, size: Size, contrasts: Sequence[Contrast]) -> tuple[Tensor, tuple[HeadName, ...]]:
    """Reads samples.

    Args:
        path: NAME.npz with `images` (N, C, D, W, H) in [-1, 1], `seed` and `subject` (N,) of the heads whose masks they
            were drawn for; or a folder of volumes named head-SEED-SUBJECT.nii.gz, or head-SEED-SUBJECT_CONTRAST.nii.gz
            where there are more contrasts than one.
        size: (H, W, D).
        contrasts: the channels, in order.

    Returns:
        images (N, C, D, W, H) float32 and the heads.

    Raises:
        BadInput: there are none, or they are not of that size and those contrasts.
    """
    images, names = _folder(path, size, contrasts) if path.is_dir() else _archive(path)
    shape = (len(contrasts), *reversed(size))
    if images.dim() != 5 or len(images) != len(names) or not len(names) or tuple(images.shape[1:]) != shape:
        problem = f"holds {len(names)} heads and images of shape {tuple(images.shape)}"
        raise BadInput(path, problem, f"give (N, {', '.join(map(str, shape))}), and each volume its head")
    if not torch.isfinite(images).all():
        raise BadInput(path, "some voxels are not finite", "look at the model that drew them")
    return images.clamp(-1, 1), names


def write_samples(path: Path, images: Tensor, names: Sequence[HeadName]) -> None:
    """Writes samples as `read_samples` reads them, in float16, whose steps are half a thousandth.

    Args:
        path: NAME.npz.
        images: (N, C, D, W, H) in [-1, 1].
        names: the heads whose masks they were drawn for.
    """
    seeds, numbers = np.array(names, np.int64).T
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, images=images.cpu().numpy().astype(np.float16), seed=seeds, subject=numbers)


def _archive(path: Path) -> tuple[Tensor, tuple[HeadName, ...]]:
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            if sum(part.file_size for part in archive.infolist()) > LARGEST:
                raise BadInput(path, "its arrays are too large", "give fewer samples")
        with np.load(path) as arrays:
            images, seeds, numbers = (arrays[name] for name in ("images", "seed", "subject"))
        names = tuple(HeadName(int(s), int(i)) for s, i in zip(seeds, numbers, strict=True))
        return torch.from_numpy(images.astype(np.float32)), names
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, OSError) as error:
        problem = f"is no archive of samples ({type(error).__name__})"
        raise BadInput(path, problem, "give arrays images, seed and subject") from None


def _folder(path: Path, size: Size, contrasts: Sequence[Contrast]) -> tuple[Tensor, tuple[HeadName, ...]]:
    files: dict[HeadName, dict[str, Path]] = {}
    for file in sorted(path.iterdir()):
        if match := _NAME.fullmatch(file.name):
            contrast = match[3] or (contrasts[0] if len(contrasts) == 1 else "")
            files.setdefault(HeadName(int(match[1]), int(match[2])), {})[contrast] = file
    if not files:
        raise BadInput(path, "holds no sample", "name volumes head-SEED-SUBJECT.nii.gz")
    images = []
    for name, channels in sorted(files.items()):
        if absent := [contrast for contrast in contrasts if contrast not in channels]:
            problem = f"subject {name.subject} of seed {name.seed} has no {', '.join(absent)}"
            raise BadInput(path, problem, "give each sample all contrasts")
        images.append(to_tensor([_on_grid(channels[contrast], size) for contrast in contrasts]))
    return torch.stack(images), tuple(sorted(files))


def _on_grid(path: Path, size: Size) -> npt.NDArray[np.float32]:
    """Reads a volume in [0, 1], as samples are written, into [-1, 1]; its extremes say nothing of its background."""
    data = to_grid(read_image(path), size, nearest=False)
    if data.min() < -0.01 or data.max() > 1.01:
        problem = f"intensities from {data.min():.4g} to {data.max():.4g}"
        raise BadInput(path, problem, "give a sample as `medddpm sample` writes it, in [0, 1]")
    return 2 * data - 1
