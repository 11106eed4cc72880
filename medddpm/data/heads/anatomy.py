"""The MNI152 template (Fonov et al. 2011) as one person's anatomy, and smooth maps that carry it into other heads.

The grey and white matter maps and the brain mask are nilearn's ICBM152 2009; the rest of the brain mask is
cerebrospinal fluid. Each map here takes points (3, ...), in mm from `medddpm.data.synthetic.CENTRE`, to points; each
is a diffeomorphism, and so is their composition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.data.synthetic import CENTRE, mni152_maps

Array = npt.NDArray[np.float32]
Axes = Sequence[npt.NDArray[np.floating]]

STEP = 6.0
"""The distance of the nodes on which maps are computed, in mm: one lattice for all sizes."""
HALF = np.array([90.0, 114.0, 96.0])
"""How far the nodes reach from the centre, in mm; beyond them there is no head."""

COARSEST = 8
"""The largest voxel of a template, in mm."""

# Choices, by how the slices look beside one person's; `tests/data/test_heads.py` holds the volumes to those of adults.
_SHARPNESS = 5.0  # the power to which the maps' shares are raised: borders as sharp as one person's
_MIXED = 1.4  # the same where grey and white matter are mixed, as in thalamus and brain stem
_WHITER = 2.2  # the maps have more grey matter for their white than adults have: half a millimetre of cortex
_SMALLEST = 60  # mm³: a smaller island of a tissue is noise of the maps
_YOUNG, _OLD = -0.3, 1.0
"""The atrophy, in mm, of the two sets of shares between which `Template.tissues` interpolates."""
_LOG_SHARE_A_MM = 1.4
"""By how much the logarithm of fluid's share grows while its border with grey matter recedes by a millimetre.

A choice: fluid then grows by 190 ml a mm, as if a cortex of 1900 cm² receded.
"""


def lattice() -> tuple[Axes, Array]:
    """Returns the coordinates of the nodes along each axis, and as points (3, ...)."""
    axes = [np.arange(-half, half + STEP / 2, STEP) for half in HALF]
    return axes, np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)


def at_voxels(nodes: Array, axes: Axes) -> Array:
    """Returns the cubic B-spline with coefficients `nodes` (C, ...) on the lattice, on the grid with axes `axes`.

    A B-spline averages its coefficients, so differences of a map's values are averages of the coefficients'
    differences: what is one-to-one on the lattice is one-to-one between its nodes.
    """
    from scipy.interpolate import BSpline

    for axis, half in zip(axes, HALF, strict=True):
        knots = np.arange(-half - 2 * STEP, half + 2.5 * STEP, STEP)
        inside = np.asarray(axis).clip(-half + STEP, half - STEP)
        weights = BSpline.design_matrix(inside, knots, 3).toarray().astype(np.float32)
        nodes = np.tensordot(nodes, weights, axes=([1], [1]))
    return np.ascontiguousarray(nodes, np.float32)


def at_nodes(nodes: Array) -> Array:
    """Returns `at_voxels` at the nodes themselves, of a part of the lattice too."""
    from scipy.ndimage import correlate1d

    for axis in range(1, 4):
        nodes = correlate1d(nodes, (1 / 6, 4 / 6, 1 / 6), axis=axis, mode="nearest")
    return nodes


def values_at(maps: Tensor, points: Array, low: npt.NDArray[np.float64], step: float) -> Array:
    """Returns `maps` (C, ...) at `points` (3, ...) by linear interpolation; outside, the value at the border.

    Args:
        maps: on a grid.
        points: in mm.
        low: the grid's first point, mm.
        step: the grid's voxel, mm.
    """
    # grid_sample takes coordinates last axis first, -1 and 1 at the centres of the first and last voxel.
    last = np.array(maps.shape[1:]) - 1.0
    scale, offset = 2 / (step * last), -1 - 2 * low / (step * last)
    grid = np.stack([points[axis] * np.float32(scale[axis]) + np.float32(offset[axis]) for axis in (2, 1, 0)], axis=-1)
    sample = torch.nn.functional.grid_sample
    return sample(maps[None], torch.from_numpy(grid)[None], padding_mode="border", align_corners=True)[0].numpy()


def random_field(rng: np.random.Generator, spacing: float, components: int) -> Array:
    """Returns a cubic B-spline, sampled on the lattice, of random nodes in [-1, 1] that are `spacing` mm apart."""
    from scipy.interpolate import BSpline

    axes, _ = lattice()
    knots = [np.arange(-half - 4 * spacing, half + 4.5 * spacing, spacing) for half in HALF]
    field = rng.standard_normal((components, *(len(knot) - 4 for knot in knots))).clip(-1, 1).astype(np.float32)
    for axis, knot in zip(axes, knots, strict=True):
        weights = BSpline.design_matrix(axis, knot, 3).toarray().astype(np.float32)
        field = np.tensordot(field, weights, axes=([1], [1]))
    return np.ascontiguousarray(field)


def deformed(points: Array, field: Array) -> Array:
    """Moves points by a random field, whose nodes are `spacing` mm apart and in ±0.4 `spacing` or less.

    A cubic B-spline in space is one-to-one if its nodes move by less than 1 / 2.479472335 = 0.4033 spacings along each
    axis (Choi & Lee 2000, Graphical Models 62:411).
    """
    return points + values_at(torch.from_numpy(field), points, -HALF, STEP)


def pushed(points: Array, centre: npt.NDArray[np.floating], push: float, radius: float) -> Array:
    """Moves points towards `centre`, so that what is there appears pushed outwards, at most by about `push` mm."""
    away = points - np.asarray(centre, np.float32)[:, None, None, None]
    falloff = np.exp(-(away**2).sum(axis=0) / (2 * radius**2))
    return points - np.float32(push / radius) * away * falloff


class Template:
    """The template at a resolution: the tissues' shares, the ventricles, and the flow that enlarges them.

    Args:
        resolution: voxels, mm, up to `COARSEST`.
    """

    def __init__(self, resolution: int) -> None:
        maps, low = _template()
        self.step, self.low = float(resolution), low + (resolution - 1) / 2
        self._maps = torch.nn.functional.avg_pool3d(maps, resolution)

    def tissues(self, points: Array, atrophy: float) -> Array:
        """Returns the shares of fluid, grey matter, deep grey matter and white matter, and the brain: (5, ...).

        Args:
            points: mm.
            atrophy: how far the border of grey matter and fluid has receded, mm.
        """
        old = float(np.clip((atrophy - _YOUNG) / (_OLD - _YOUNG), 0, 1))
        # The borders move by less than a voxel, so what a voxel holds changes linearly.
        mixed = torch.cat([(1 - old) * self._maps[:4] + old * self._maps[4:8], self._maps[8:9]])
        return values_at(mixed, points, self.low, self.step)

    def brain(self, points: Array) -> Array:
        """Returns the share of the brain with its fluid, (...)."""
        return values_at(self._maps[8:9], points, self.low, self.step)[0]

    def ventricles(self, points: Array) -> Array:
        """Returns the share of the lateral and third ventricles, (...)."""
        return values_at(self._maps[9:10], points, self.low, self.step)[0]

    def near_ventricles(self, points: Array) -> Array:
        """Returns the blurred ventricles, which fall from 1 to 0 over about 15 mm, (...)."""
        return values_at(self._maps[10:], points, self.low, self.step)[0]

    def white_points(self) -> Array:
        """Returns the voxels deep in the white matter, (n, 3), mm."""
        deep = np.argwhere(self._maps[3].numpy() * (1 - self._maps[9].numpy()) > 0.95)
        return np.asarray(deep * self.step + self.low, np.float32)


@functools.cache
def template(resolution: int) -> Template:
    """Returns the template, averaged over cubes of `resolution` mm."""
    return Template(resolution)


_FLOW_STEP = 2.5
"""How far a step of the flow goes at most, in mm; its velocity changes by 0.18 a mm, so a step is one-to-one."""


def enlarged(points: Array, flow: float, asymmetry: float = 0.0) -> Array:
    """Moves points along the flow towards the ventricles: these appear larger, and what surrounds them displaced.

    Args:
        points: mm.
        flow: how far the fastest point moves, mm; negative makes the ventricles smaller.
        asymmetry: by what part the flow is stronger on the left, and weaker on the right.
    """
    velocity, low, step = _velocity()
    steps = math.ceil(abs(flow) / _FLOW_STEP)
    for _ in range(steps):
        side = 1 - np.float32(asymmetry) * np.tanh(points[0] / 8)
        points = points + np.float32(flow / steps) * side * values_at(velocity, points, low, step)
    return points


def flow_for(ratio: float) -> float:
    """Returns the flow under which the template's ventricles have `ratio` times their volume."""
    flows, ratios = _flows()
    return float(np.interp(math.log(ratio), np.log(ratios), flows))


def ventricles_ml() -> float:
    """Returns the volume of the template's lateral and third ventricles."""
    return float(_template()[0][9].sum()) / 1000


@functools.cache
def _velocity() -> tuple[Tensor, npt.NDArray[np.float64], float]:
    """Returns the gradient of the blurred ventricles, of length at most 1, with the grid's first point and voxel."""
    from scipy.ndimage import gaussian_filter

    maps, low = _template()
    step = 4
    ventricles = torch.nn.functional.avg_pool3d(maps[9:10], step)[0].numpy()
    # The wide blur carries the white matter around along, the narrow one keeps the horns' shape.
    blurred = sum(gaussian_filter(ventricles, sigma / step) * sigma for sigma in (5.0, 10.0))
    velocity = np.stack(np.gradient(blurred))
    velocity /= np.sqrt((velocity**2).sum(axis=0)).max()
    return torch.from_numpy(velocity.astype(np.float32)), low + (step - 1) / 2, float(step)


@functools.cache
def _flows() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns flows and the volumes of the template's ventricles under them, relative to their own."""
    axes = [np.arange(-half, half, 3.0) for half in (60, 80, 60)]
    points = np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)
    known, flows = template(2), np.array([-6.0, -4, -2, 0, 2, 4, 6, 9, 12, 16, 20, 25, 30])
    volumes = np.array([known.ventricles(enlarged(points, flow)).sum() for flow in flows], np.float64)
    return flows, np.maximum.accumulate(volumes / volumes[3] + 1e-9 * flows)


@functools.cache
def _template() -> tuple[Tensor, npt.NDArray[np.float64]]:
    """Returns eleven maps at 1 mm, and their first voxel in mm from the centre.

    The shares of fluid, grey, deep grey and white matter with the least atrophy and with the most; the brain; the
    lateral and third ventricles, and these blurred.
    """
    from scipy.ndimage import uniform_filter

    images, affine = mni152_maps()
    # The brain stem ends at the maps' lowest slice.
    grey, white, mask = (np.pad(image, 2 * COARSEST) for image in images)
    low = affine[:3, 3] - CENTRE - 2 * COARSEST
    brain = mask > 0.5
    # Coarser grids lose up to a voxel at the upper faces.
    box = tuple(slice(edge[0] - 4, edge[-1] + 4 + 2 * COARSEST) for edge in map(np.flatnonzero, shadows(brain)))
    grey, white, brain = grey[box], white[box], brain[box]
    low = low + [part.start for part in box]
    fluid = np.clip(brain - grey - white, 0, None)
    ventricles = _ventricles(fluid, low)
    # Where grey and white matter are mixed over a wide region, this is anatomy, and elsewhere a blurred border.
    mixture = uniform_filter((4 * grey * white).clip(0, 1), 7)
    power = _MIXED + (_SHARPNESS - _MIXED) * (1 - ((mixture - 0.45) / 0.25).clip(0, 1))
    deep = _deep(low, brain.shape)
    sets = []
    for atrophy in (_YOUNG, _OLD):
        # The ventricles' size is the flow's to change.
        shift = np.exp(np.where(ventricles > 0, 0, _LOG_SHARE_A_MM * atrophy)).astype(np.float32)
        shares = np.stack([fluid * shift, grey, _WHITER * white]) ** power
        shares *= brain / np.maximum(shares.sum(axis=0), 1e-12)
        fluid_, grey_, white_ = _without_islands(shares)
        sets += [fluid_, grey_ * (1 - deep), grey_ * deep, white_]
    blurred = uniform_filter(uniform_filter(ventricles, 11), 11)
    return torch.from_numpy(np.stack([*sets, brain, ventricles, blurred]).astype(np.float32)), low


def shadows(mask: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.bool_]]:
    """Returns for each axis which planes across the axis hold something of a mask."""
    return [np.asarray(mask.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]


def largest(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns the largest connected part of a mask."""
    from scipy.ndimage import label

    labels, count = label(mask)
    return labels == np.bincount(labels.ravel())[1:].argmax() + 1 if count > 1 else mask


def _box(low: npt.NDArray[np.float64], *edges: tuple[float, float]) -> tuple[slice, ...]:
    """Returns the voxels between edges in MNI millimetres."""
    first = low + CENTRE
    return tuple(slice(round(a - f), round(b - f)) for (a, b), f in zip(edges, first, strict=True))


def _ventricles(fluid: Array, low: npt.NDArray[np.float64]) -> Array:
    """Returns fluid's share in the lateral and third ventricles: the largest component in a box about each of them."""
    from scipy.ndimage import binary_dilation

    inside = np.zeros(fluid.shape, bool)
    boxes = (
        (((-41, -1), (-62, 38), (-20, 34)), 0.5),  # left
        (((2, 42), (-62, 38), (-20, 34)), 0.5),  # right
        (((-5, 6), (-26, 8), (-14, 12)), 0.35),  # the third ventricle, narrow and blurred away
    )
    for edges, least in boxes:
        part = _box(low, *edges)
        inside[part] |= largest(fluid[part] > least)
    near = binary_dilation(inside, iterations=2)
    return np.where(near, fluid, 0)


def _deep(low: npt.NDArray[np.float64], shape: tuple[int, ...]) -> Array:
    """Returns 1 about thalamus and basal ganglia, an ellipsoid each side, and 0 some millimetres outside."""
    from scipy.special import expit

    axes = [start + np.arange(count) for start, count in zip(low + CENTRE, shape, strict=True)]
    x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
    # Within the insula's cortex, at |x| = 33 mm.
    distance = np.sqrt(((np.abs(x) - 14) / 17) ** 2 + ((y + 5) / 32) ** 2 + ((z - 5) / 17) ** 2)
    return np.asarray(expit((1 - distance) / 0.06), np.float32)


def _without_islands(shares: Array) -> Array:
    """Gives small islands of a tissue to the tissue that comes next there."""
    from scipy.ndimage import label

    winner = shares.argmax(axis=0)
    for tissue in range(len(shares)):
        labels, _ = label((winner == tissue) & (shares[tissue] > 0))
        small = np.bincount(labels.ravel()) < _SMALLEST
        small[0] = False
        shares[tissue][small[labels]] = 0
    return shares / np.maximum(shares.sum(axis=0), 1e-12) * (shares.sum(axis=0) > 0)
