"""Synthetic MR images of real anatomy: the MNI152 template (Fonov et al. 2011), warped, with lesions.

Anatomy: nilearn's ICBM152 2009 grey and white matter maps and brain mask; the rest of the brain mask is cerebrospinal
fluid. Subjects are drawn in millimetres, so a subject is the same at every size. Tissues are BrainWeb's
(`medddpm.data.tissues`). Models and records are named after these subjects, so they stay as they are, to the last bit;
`medddpm.data.heads` has heads that differ more.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.data.grid import Size, cubic_affine
from medddpm.data.layouts import HEAD
from medddpm.data.nifti import write_mask, write_volume
from medddpm.data.synthetic import BACKGROUND, BRAIN, CENTRE, LESION, Synthetic, contrasts_of, mni152_maps
from medddpm.data.tissues import (
    CONTRASTS,
    CSF,
    DAMAGED,
    GREY,
    WHITE,
    Contrast,
    Tissue,
    inversion_recovery,
    nulling_time,
    spin_echo,
)
from medddpm.data.volumes import checked_size

Array = npt.NDArray[np.float32]

_EXTENT = np.array([180.0, 216.0, 188.0])  # mm, the brain and room for it to move
_REACH = 150.0  # mm from the centre: the extent of the random fields


TISSUES = (CSF, GREY, WHITE, DAMAGED)
"""`DAMAGED` is taken for any oedematous tissue."""


def signal(tissue: Tissue, contrast: Contrast) -> float:
    """Returns the signal of a pure tissue, with timings usual at 1.5 T."""
    if contrast == "t1":
        return spin_echo(tissue, tr=500, te=10)
    if contrast == "t2":
        return spin_echo(tissue, tr=4000, te=90)
    return inversion_recovery(tissue, tr=9000, te=110, ti=nulling_time(CSF, tr=9000))


@dataclass(frozen=True)
class Subject:
    """A synthetic subject, skull-stripped.

    Args:
        t1, t2, flair: (H, W, D) float32; 1 is the signal of the brightest pure tissue, 0 the background.
        labels: (H, W, D) uint8: 0 background, 1 brain, 2 lesion.
        affine: voxel indices to MNI millimetres, axes RAS.
    """

    t1: Array
    t2: Array
    flair: Array
    labels: npt.NDArray[np.uint8]
    affine: npt.NDArray[np.float64]


class Phantom(Synthetic):
    """Phantoms as a data set; its items are those of `VolumeFolder` in the whole-head layout.

    Item i depends only on `seed` and i: image (1, D, W, H) float32 in [-1, 1]; mask (2, D, W, H) float32, -1 or 1,
    brain and lesion.
    """

    kind = "phantom"

    def _subject(self, index: int) -> tuple[list[Array], npt.NDArray[np.uint8]]:
        anatomy = _anatomy(index, self.size, self.seed)
        return [_image(anatomy, contrast, index, self.seed) for contrast in self.contrasts], anatomy.labels

    def affine(self) -> npt.NDArray[np.float64]:
        """Returns the affine: voxel indices to millimetres."""
        return cubic_affine(CENTRE, _EXTENT, self.size)


def phantom_subject(index: int, size: Size, seed: int = 0) -> Subject:
    """Returns subject `index` of `seed` under every contrast, (H, W, D) = `size`."""
    anatomy = _anatomy(index, checked_size(size), seed)
    images = {contrast: _image(anatomy, contrast, index, seed) for contrast in CONTRASTS}
    return Subject(**images, labels=anatomy.labels, affine=anatomy.affine)


def write_phantom(
    root: str | os.PathLike[str], count: int, size: Size, contrast: Contrast = "t1", seed: int = 0
) -> None:
    """Writes `count` subjects as a whole-head data folder: ``mask/phantom_0000.nii.gz``, ``image/…`` and so on.

    Raises:
        BadInput: the folder cannot be written.
    """
    root = Path(root)
    (shown,) = contrasts_of(contrast)
    for index in range(count):
        anatomy = _anatomy(index, checked_size(size), seed)
        like = nib.Nifti1Image(anatomy.labels, anatomy.affine)
        like.header.set_xyzt_units("mm")
        name = f"phantom_{index:04d}.nii.gz"
        write_mask(root / HEAD.mask_folder / name, anatomy.labels, like)
        write_volume(root / HEAD.image_folders[0] / name, _image(anatomy, shown, index, seed), like)


@dataclass(frozen=True)
class _Anatomy:
    fractions: Array  # (4, H, W, D): each voxel's share of each of TISSUES
    labels: npt.NDArray[np.uint8]
    affine: npt.NDArray[np.float64]


def _anatomy(index: int, size: Size, seed: int) -> _Anatomy:
    # The number of random draws does not depend on the size, so a subject is the same at every size.
    rng = np.random.default_rng([seed, index])
    affine = cubic_affine(CENTRE, _EXTENT, size)
    axes = [affine[axis, axis] * np.arange(size[axis]) + affine[axis, 3] - CENTRE[axis] for axis in range(3)]
    points = _warp(rng, axes)
    grey, white, brain = _template_at(points, resolution=max(1, round(affine[0, 0])))
    inside = (brain > 0.5).astype(np.float32)
    fluid = np.clip(brain - grey - white, 0, None)
    # The maps are averages over 152 people; squaring and renormalising makes borders as sharp as one person's.
    healthy = np.stack([fluid, grey, white]) ** 2
    healthy *= inside / np.maximum(healthy.sum(axis=0), 1e-6)
    lesion, halo, core = _lesions(rng, points, axes)
    lesion *= inside * (1 - healthy[0])
    damage = np.maximum(lesion, halo * healthy[2])
    fractions = np.concatenate([healthy * (1 - damage), damage[None]])
    fractions[0] += fractions[3] * core
    fractions[3] *= 1 - core
    labels = np.where(lesion > 0.5, LESION, np.where(inside > 0, BRAIN, BACKGROUND)).astype(np.uint8)
    return _Anatomy(fractions, labels, affine)


def _image(anatomy: _Anatomy, contrast: Contrast, index: int, seed: int) -> Array:
    """Returns the signal of each voxel's mixture, with MONAI's bias field and Rician noise."""
    from monai.transforms.intensity.array import RandBiasField, RandRicianNoise

    signals = np.array([signal(tissue, contrast) for tissue in TISSUES], np.float32)
    image = np.tensordot(signals / signals.max(), anatomy.fractions, axes=1)
    draw = int(np.random.default_rng([seed, index, 1 + CONTRASTS.index(contrast)]).integers(2**31))
    bias = RandBiasField(prob=1, degree=2, coeff_range=(-0.06, 0.06))
    noise = RandRicianNoise(prob=1, std=0.015, sample_std=False)
    bias.set_random_state(seed=draw)
    noise.set_random_state(seed=draw)
    observed = np.asarray(noise(bias(torch.from_numpy(image)[None])))[0]
    return np.where(anatomy.labels > 0, observed, 0).astype(np.float32)


def _warp(rng: np.random.Generator, axes: Sequence[npt.NDArray[np.float64]]) -> Array:
    """Returns the point of the template that each voxel shows: (3, H, W, D), mm from the template's centre.

    The warp is a random affine (a few degrees, per cent and millimetres) and two smooth fields: one
    shapes the head, one the gyri.
    """
    from scipy.spatial.transform import Rotation

    turn = Rotation.from_euler("xyz", 3 * _bounded(rng, 3), degrees=True).as_matrix()
    matrix = (turn * (1 + 0.03 * _bounded(rng, 3))).astype(np.float32)
    shift = (2 * _bounded(rng, 3)).astype(np.float32)
    position = np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)
    moved = np.tensordot(matrix, position, axes=1) + shift[:, None, None, None]
    return np.asarray(moved + 4.0 * _smooth(rng, axes, 42.0, 3) + 1.4 * _smooth(rng, axes, 17.0, 3), np.float32)


def _lesions(
    rng: np.random.Generator, points: Array, axes: Sequence[npt.NDArray[np.float64]]
) -> tuple[Array, Array, Array]:
    """Returns membership, surrounding oedema and fluid core of one to three lesions at white-matter points."""
    seeds = _white_points()
    rough = np.maximum(1 + 0.35 * _smooth(rng, axes, 11.0, 1)[0], 0.4)
    membership, halo, core = (np.zeros(points.shape[1:], np.float32) for _ in range(3))
    for _ in range(int(rng.integers(1, 4))):
        centre = seeds[rng.integers(len(seeds))]
        radii = rng.uniform(7, 16) * rng.uniform(0.75, 1.3, 3)
        offset = (points - centre[:, None, None, None]) / radii[:, None, None, None].astype(np.float32)
        distance = np.sqrt((offset**2).sum(axis=0)) * rough
        membership = np.maximum(membership, _inside(distance, 1.0, 0.06))
        halo = np.maximum(halo, 0.5 * _inside(distance, 1.5, 0.12))
        core = np.maximum(core, 0.4 * _inside(distance, 0.4, 0.1))
    return membership, halo, core


def _inside(distance: Array, border: float, softness: float) -> Array:
    from scipy.special import expit

    return np.asarray(expit((border - distance) / softness), np.float32)


def _bounded(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Returns normal draws, clipped at two deviations to keep the head in the field of view."""
    return rng.standard_normal(count).clip(-2, 2)


def _smooth(
    rng: np.random.Generator, axes: Sequence[npt.NDArray[np.float64]], spacing: float, components: int
) -> Array:
    """Returns a random field (components, H, W, D) of unit variance, a cubic B-spline with nodes `spacing` mm apart."""
    from scipy.interpolate import BSpline

    knots = np.arange(-_REACH - 4 * spacing, _REACH + 4 * spacing, spacing)
    field = _bounded(rng, components * (len(knots) - 4) ** 3).reshape(components, *[len(knots) - 4] * 3)
    # A cubic spline averages its nodes: along each axis, 151/315 of their variance remains.
    field /= math.sqrt(151 / 315) ** 3
    for axis in axes:
        weights = BSpline.design_matrix(axis.clip(-_REACH, _REACH), knots, 3).toarray()
        field = np.tensordot(field, weights.astype(np.float32), axes=([1], [1]))
    return np.asarray(field, np.float32)


def _template_at(points: Array, resolution: int) -> Array:
    """Returns grey matter, white matter and brain, (3, H, W, D) in [0, 1], at `points` (3, H, W, D), in mm."""
    maps, affine = _template(resolution)
    inverse = np.linalg.inv(affine)
    index = (
        np.tensordot(inverse[:3, :3], points, axes=1) + (inverse[:3, :3] @ CENTRE + inverse[:3, 3])[:, None, None, None]
    )
    # grid_sample takes coordinates last axis first, -1 and 1 at the centres of the first and last voxel.
    last = np.array(maps.shape[1:])[:, None, None, None] - 1
    grid = torch.from_numpy((2 * index / last - 1)[::-1].astype(np.float32)).movedim(0, -1)
    sampled = torch.nn.functional.grid_sample(maps[None], grid[None], align_corners=True)[0]
    return np.asarray(sampled.numpy(), np.float32)


@functools.cache
def _template(resolution: int) -> tuple[Tensor, npt.NDArray[np.float64]]:
    """Returns the template's three maps, averaged over cubes of `resolution` mm, and their affine."""
    maps, affine = mni152_maps()
    coarser = np.diag([resolution, resolution, resolution, 1.0])
    coarser[:3, 3] = (resolution - 1) / 2
    return torch.nn.functional.avg_pool3d(torch.from_numpy(np.stack(maps)), resolution), affine @ coarser


@functools.cache
def _white_points() -> Array:
    """Returns points deep in the white matter, (n, 3), mm from the centre, where lesions grow."""
    maps, affine = _template(4)
    inside = np.argwhere(maps[1].numpy() > 0.9)
    return np.asarray(inside @ affine[:3, :3].T + affine[:3, 3] - CENTRE, np.float32)
