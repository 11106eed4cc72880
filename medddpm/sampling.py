"""Samples synthetic volumes on their masks' grids: checkpoint and mask files in, volume files out."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from medddpm.checkpoints import released
from medddpm.checkpoints.files import diffusion_from, newest_checkpoint, read_checkpoint
from medddpm.data.brain_masks import read_brain_mask, subjects_of
from medddpm.data.grid import Affine, Size
from medddpm.data.layouts import BRATS, LAYOUTS, Layout
from medddpm.data.mask_lists import Request, find_requests
from medddpm.data.masks import one_hot
from medddpm.data.nifti import is_written, note_of, read_image, split_name
from medddpm.data.synthetic import Synthetic
from medddpm.data.volumes import (
    channel_files,
    checked_size,
    labels_on_grid,
    mask_case,
    prepared_labels,
    write_sample_volumes,
)
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.fast.reports import bars, log, report
from medddpm.runtime.files import check_output
from medddpm.runtime.processes import pick_device
from medddpm.runtime.ranks import share
from medddpm.schedules import default_sampler
from medddpm.switches import BASE, Switches
from medddpm.unet import UNet3D

_OF = ", of "  # in a note, between a volume's seed and sampler and the digest of its inputs

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of mallopt(3)


def sample_to_files(
    checkpoint: str | os.PathLike[str],
    mask: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    images: Sequence[str | os.PathLike[str]] = (),
    steps: int | None = None,
    sampler: str | None = None,
    weights: str = "ema",
    seed: int = 0,
    count: int = 1,
    batch: int = 1,
    setting: Switches = BASE,
    device: str = "auto",
    progress: bool = False,
    force: bool = False,
    on_file: Callable[[Path], None] = lambda _file: None,
) -> list[Path]:
    """Samples volumes for `mask` from the model in `checkpoint`, and writes them with the mask's affine and header.

    All masks are read before any volume is sampled. Under torchrun each process samples its share of the batches; the
    volumes do not change.

    Each file notes its seed, its sampler and a digest of its inputs. A whole volume with an equal note is not sampled
    again: after an interruption the same call samples the missing ones.

    Args:
        checkpoint: published, ours or released, or a run's folder, whose newest checkpoint is read;
            `checkpoints.shipped.weights()` is the shipped model's.
        mask: labels as the model was trained with, any size and orientation; or a folder of such files, or a CSV that
            names them (`medddpm.data.mask_lists`).
        out: a .nii or .nii.gz, or for several masks a folder. A model of several channels writes one file each,
            ``OUT_t1.nii.gz`` and so on.
        images: the case's images, for a raw BraTS mask (which does not label the brain) that does not lie beside them.
        steps, sampler: as for `GaussianDiffusion.sample`; by default those that a released model's file recommends,
            else "ddpm", or "ddim" for a model that predicts a flow.
        weights: "ema" or "model".
        seed: gives the same noise on every machine and to every mask; a mask's further volumes take the next seeds.
        count: volumes of each mask; several are numbered, ``OUT_1.nii.gz`` and so on.
        batch: volumes computed at once, also of several masks; it changes volumes by rounding at most.
        setting: the switches to compute under.
        device: "auto", "cpu", "cuda", …
        progress: shows a bar with its rate.
        force: samples anew, and replaces existing samples.
        on_file: called with each file of this process's volumes once it is whole, also if it existed already.

    Returns:
        the files of this process's volumes, also those that existed already.

    Raises:
        BadInput: a file is bad, a sample with another note exists, or the sampler cannot take that number of steps. If
            several masks are bad, a warning names each.
    """
    mask, out, image_files = Path(mask), Path(out), [Path(image) for image in images]
    requests = find_requests(mask, out, image_files, seed)
    if missing := [image for image in image_files if not image.is_file()]:
        raise BadInput(missing[0], "no such file", "check the name, or leave out --image")
    checkpoint = newest_checkpoint(checkpoint)
    content = read_checkpoint(checkpoint)
    diffusion = diffusion_from(content, checkpoint, weights)
    layout, size = trained_on(content, diffusion, checkpoint)
    subjects = subjects_of(content.get("training", {}), size)
    if image_files and layout != BRATS and not subjects:
        raise BadInput("--image", "only a BraTS mask needs one, and the model takes none", "leave it out")
    if sampler is None:
        advised = recommended(content)
        sampler, steps = advised["sampler"], steps or advised["steps"]
    conditions = _Conditions(layout, size, subjects)
    digests = _digests(requests, mask, conditions, released.digest(diffusion.state_dict()), setting, progress)
    steps = diffusion.checked_steps(steps, sampler)
    how = f"{sampler} {steps}"
    volumes = [
        _Volume(
            request,
            path,
            tuple(channel_files(path, layout)),
            request.seed + i,
            f"seed {request.seed + i}, {how}{_OF}{of}",
        )
        for request, of in zip(requests, digests, strict=True)
        for i, path in enumerate(numbered(request.out, count))
    ]
    _check_distinct(volumes)
    if layout.image_channels > 1:
        first = volumes[0].files[0]
        report(f"{out}: a file for each of {', '.join(layout.image_folders)}, {first.name} and so on")
    rank, world = share()
    batches = [volumes[first : first + batch] for first in range(rank * batch, len(volumes), batch * world)]
    assigned = [volume for volumes in batches for volume in volumes]  # another process samples the others
    read = _identities([checkpoint, *(path for request in requests for path in (request.mask, *request.images))])
    existing = {volume for volume in assigned if _exists(volume, read, force)}
    if existing:
        report(f"{out}: {len(existing)} of {len(assigned)} volumes kept, which were there already and drawn alike")
    where = pick_device(device)
    diffusion.to(where).eval()
    try:
        with setting.on(diffusion.denoise_fn):
            for volumes in batches:
                if not existing.issuperset(volumes):
                    inputs = conditions.of([volume.request for volume in volumes])
                    samples = diffusion.sample(  # of existing volumes too: then the others are the same to the last bit
                        torch.stack([condition for condition, _, _ in inputs]).to(where),
                        steps,
                        sampler,
                        generator=[torch.Generator().manual_seed(volume.seed) for volume in volumes],
                        progress=progress,
                    )
                    for sample, volume, (_, like, affine) in zip(samples, volumes, inputs, strict=True):
                        if volume not in existing:
                            write_sample_volumes(sample, volume.path, like, layout, size, volume.note, affine)
                for file in (file for volume in volumes for file in volume.files):
                    on_file(file)
    except KeyboardInterrupt:
        finished = sum(all(note_of(file) == volume.note for file in volume.files) for volume in assigned)
        counted = f"{finished} of {len(assigned)} volumes are" if world == 1 else "volumes that are whole are"
        remedy = "with --force the same command draws all anew" if force else "the same command draws what is missing"
        raise KeyboardInterrupt(f"{out}: interrupted, and {counted} kept; {remedy}") from None
    return [file for volume in assigned for file in volume.files]


_Condition = tuple[Tensor, nib.Nifti1Image, Affine | None]
"""A mask's condition (M, D, W, H) float32, its image, on whose grid volumes are written, and that of its model's grid
in mm, None where `medddpm.data.grid.to_grid` chooses it."""


class _Conditions:
    """A cache of masks' conditions.

    It holds only the last requests: a thousand masks of 128³ would take 16 GB.

    Args:
        layout, size: of the volumes that the model was trained on.
        subjects: the synthetic data set that they are of, if any.
    """

    def __init__(self, layout: Layout, size: Size, subjects: Synthetic | None) -> None:
        self._layout, self._size, self._subjects = layout, size, subjects
        self._known: dict[Request, _Condition] = {}

    def of(self, requests: Sequence[Request]) -> list[_Condition]:
        """Returns each request's condition.

        Raises:
            BadInput: a mask or an image is bad.
        """
        self._known = {request: self._known.get(request) or self._read(request) for request in requests}
        return [self._known[request] for request in requests]

    def _read(self, request: Request) -> _Condition:
        if missing := [image for image in request.images if not image.is_file()]:
            raise BadInput(missing[0], "no such file", "check its name in the CSV")
        images = list(request.images) or None
        if self._subjects:
            labels, like, affine = read_brain_mask(request.mask, self._subjects, images)
            return one_hot(labels, self._layout), like, affine
        like, labels = prepared_labels(mask_case(request.mask, self._layout), self._layout, images)
        return one_hot(labels_on_grid(labels, like, self._size, self._layout), self._layout), like, None


def _digests(
    requests: Sequence[Request], source: Path, conditions: _Conditions, weights: str, setting: Switches, progress: bool
) -> list[str]:
    """Reads every mask; returns the digest of the inputs of its volumes.

    Raises:
        BadInput: a mask is bad.
    """
    digests, problems = list[str](), list[BadInput]()
    several = len(requests) > 1
    shown = tqdm(requests, desc="reading", unit="mask", leave=False, disable=not (progress and several), **bars())
    for request in shown:
        try:
            ((mask, like, _),) = conditions.of([request])
        except BadInput as error:
            problems.append(error)
        else:
            digests.append(_digest(weights, mask, like, setting))
    if problems and not several:
        raise problems[0]
    for problem in problems:
        log.warning(str(problem))
    if problems:
        summary = f"{len(problems)} of its {len(requests)} masks cannot be drawn for"
        raise BadInput(source, summary, "mend them or take them out; no volume was drawn")
    return digests


def _check_distinct(volumes: Sequence[_Volume]) -> None:
    """Refuses masks whose volumes would be the same file."""
    known: dict[Path, Path] = {}
    for volume in volumes:
        if other := known.get(volume.path):
            problem = f"it would be the volume of {other} and of {volume.request.mask}"
            raise BadInput(volume.path, problem, "name each mask's volume in a CSV's column out")
        known[volume.path] = volume.request.mask


@dataclass(frozen=True)
class _Volume:
    """A volume to sample: its request, its path, a file for each channel, its noise's seed, and its note."""

    request: Request
    path: Path
    files: tuple[Path, ...]
    seed: int
    note: str


def _digest(weights: str, mask: Tensor, reference: nib.Nifti1Image, setting: Switches) -> str:
    """Returns the digest of a volume's inputs: weights, mask on the model's grid, the mask's grid, and setting."""
    header, affine = np.frombuffer(reference.header.binaryblock, np.uint8), np.asarray(reference.affine, np.float64)
    grid = {"mask": mask, "header": torch.from_numpy(header.copy()), "affine": torch.from_numpy(affine.copy())}
    return hashlib.sha256(" ".join([weights, released.digest(grid), setting.name]).encode()).hexdigest()[:12]


def _identities(files: Iterable[Path]) -> set[tuple[int, int]]:
    """Returns device and inode of the files that exist, which identify them under any name."""
    statuses = [file.stat() for file in files if file.exists()]
    return {(status.st_dev, status.st_ino) for status in statuses}


def _exists(volume: _Volume, inputs: set[tuple[int, int]], force: bool) -> bool:
    """Returns whether a volume exists, whole and with an equal note. If not, its files may be written.

    Raises:
        BadInput: a file exists that has another note, or that may not be replaced.
    """
    notes = {file: None if force else note_of(file) for file in volume.files}
    alike = [file for file, note in notes.items() if note == volume.note]
    if len(alike) == len(notes) and all(map(_is_whole, alike)):
        return True
    for file, note in notes.items():
        if note and file not in alike:
            raise BadInput(file, _difference(note, volume.note), "give --force to replace it, or choose another name")
        check_output(file, [file] if _identities([file]) & inputs else [], is_written, force or file in alike)
    return False


def _is_whole(file: Path) -> bool:
    try:
        read_image(file)
    except BadInput:
        return False
    return True


def _difference(there: str, note: str) -> str:
    how, now = there.rpartition(_OF)[0], note.rpartition(_OF)[0]
    if how != now:
        return f"it was drawn with {how}, not {now}"
    return "it was drawn from another checkpoint or mask, or under another setting"


def recommended(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `sampler` and `steps` for `GaussianDiffusion.sample` that a checkpoint's file recommends.

    A released model's file names them; the default is ancestral sampling over all timesteps, as published, or DDIM for
    a model that predicts a flow.
    """
    sampler = default_sampler(content.get("prediction", "noise"))
    return {"sampler": sampler, "steps": None, **content.get("sampling", {})}


def keep_freed_memory() -> bool:
    """Lets this process keep the memory it frees, for a command that samples on a CPU and then ends.

    glibc returns blocks as large as volumes to the system, which zeroes their pages before giving them back at the next
    step. At 64³ on two cores that takes 0.4 of a step's time. The results are the same.

    Returns:
        whether this C library can do it (glibc can).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    from_heap = mallopt(_M_MMAP_MAX, 0)
    return bool(from_heap and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def numbered(out: Path, count: int) -> list[Path]:
    """The files of `count` volumes: ``NAME_1.nii.gz`` and so on, or `out` itself for one."""
    if count == 1:
        return [out]
    stem, ending = split_name(out)
    return [out.with_name(f"{stem}_{number}{ending}") for number in range(1, count + 1)]


def trained_on(content: Mapping[str, Any], diffusion: GaussianDiffusion, path: Path) -> tuple[Layout, Size]:
    """The layout and the (H, W, D) of the volumes a checkpoint was trained on.

    Ours store the size. For a published one the number of channels gives the layout and the image size gives the
    volume: 192 means 192×192×144, any other a cube.

    Raises:
        BadInput: no layout has the network's numbers of channels, or the size is none.
    """
    unet = diffusion.denoise_fn
    assert isinstance(unet, UNet3D)  # as every checkpoint holds
    channels = (unet.in_channels, unet.out_channels)
    for layout in LAYOUTS:
        if channels == (layout.image_channels + layout.mask_channels, layout.image_channels):
            side = unet.image_size
            size = content.get("size") or [side, side, 144 if side == 192 else side]
            try:
                return layout, checked_size(size)
            except BadInput:
                raise BadInput(path, f"its volumes' size is {size!r}", "give another checkpoint") from None
    raise BadInput(
        path,
        f"its network takes {channels[0]} channels and gives {channels[1]}, which is no known data layout",
        "give a whole-head model (3 to 1), a three-contrast head one (5 to 3) or a BraTS one (8 to 4)",
    )
