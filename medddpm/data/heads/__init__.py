"""Synthetic MR images of heads that differ as people's do: in age, anatomy, scanner and lesion.

The anatomy is the MNI152 template's (`medddpm.data.heads.anatomy`), as one person's, deformed and aged; a subject is
drawn in millimetres and is the same at every size and under every contrast. `medddpm.data.phantom` is the simpler
phantom that earlier models were trained on: it stays as it is. Numbers here that name no source are choices, by how the
slices look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from medddpm.data.grid import Size, cubic_affine
from medddpm.data.heads.anatomy import (
    COARSEST,
    STEP,
    Array,
    Axes,
    at_nodes,
    at_voxels,
    deformed,
    enlarged,
    flow_for,
    largest,
    lattice,
    pushed,
    random_field,
    shadows,
    template,
)
from medddpm.data.heads.parameters import HeadParameters, Lesion, drawn
from medddpm.data.synthetic import BRAIN, CENTRE, LESION, Synthetic
from medddpm.data.tissues import CONTRASTS, Contrast
from medddpm.data.volumes import checked_size

EXTENT = np.array([166.0, 208.0, 176.0])  # mm, a large head and room for it to move
_FAR = np.float32(0.01)
"""What lies far from the ventricles has hyperintensities as rarely as what has this share of them about it."""

SCALES = ((48.0, 0.85), (20.0, 0.8), (11.0, 0.95))
"""Node distances in mm of the random deformations, and their strength as a part of what stays one-to-one.

The widest shapes the head, the others shift lobes and gyri, as an affine registration leaves two people's apart (Klein
et al. 2009, NeuroImage 46:786). The distances and strengths are choices.
"""


@dataclass(frozen=True)
class Head:
    """A synthetic subject, skull-stripped.

    Args:
        images: for each contrast (H, W, D) float32; 1 is the signal of the brightest healthy tissue, 0 the background.
        shares: (7, H, W, D): each voxel's share of each of `medddpm.data.tissues.Tissues`; oedema includes
            hyperintensities.
        ventricles: (H, W, D): each voxel's share of the lateral and third ventricles.
        labels: (H, W, D) uint8: 0 background, 1 brain, 2 lesion, which is tumour without oedema.
        affine: voxel indices to millimetres, axes RAS.
        parameters: of which it is made.
    """

    images: dict[Contrast, Array]
    shares: Array
    ventricles: Array
    labels: npt.NDArray[np.uint8]
    affine: npt.NDArray[np.float64]
    parameters: HeadParameters


class Heads(Synthetic):
    """Heads as a data set; its items are those of `VolumeFolder` in the whole-head layout.

    Item i depends only on `seed` and i: image (1, D, W, H) float32 in [-1, 1]; mask (2, D, W, H) float32, -1 or 1,
    brain and lesion. With `contrast="all"` the image is (3, D, W, H): T1, T2 and FLAIR, each as it is by itself.
    """

    kind = "head"
    choices = (*CONTRASTS, "all")

    def _subject(self, index: int) -> tuple[list[Array], npt.NDArray[np.uint8]]:
        anatomy = _anatomy(index, self.size, self.seed, head_parameters(index, self.seed))
        return [_image(anatomy, contrast, index, self.seed) for contrast in self.contrasts], anatomy.labels

    def affine(self) -> npt.NDArray[np.float64]:
        """Returns the affine: voxel indices to millimetres."""
        return cubic_affine(CENTRE, EXTENT, self.size)


def head_parameters(index: int, seed: int = 0) -> HeadParameters:
    """Returns the parameters of subject `index` of `seed`."""
    return drawn(_generator(seed, index, "parameters"))


def head_subject(index: int, size: Size, seed: int = 0, **changed: object) -> Head:
    """Returns subject `index` of `seed` under every contrast.

    Args:
        index, seed: of `Heads`.
        size: (H, W, D).
        changed: fields of `HeadParameters` that take other values, with all else as it is; `lesions=()` gives a head
            without a lesion.
    """
    anatomy = _anatomy(index, checked_size(size), seed, replace(head_parameters(index, seed), **changed))  # type: ignore[arg-type]
    return replace(anatomy, images={contrast: _image(anatomy, contrast, index, seed) for contrast in CONTRASTS})


def head_map(parameters: HeadParameters, rng: np.random.Generator) -> Array:
    """Returns the map from the head to the template at the nodes of the lattice, and where its lesions are.

    Returns:
        (7, ...): points of the template; depths in mm inside the tumours, their cores and their oedema, negative
        outside; and a field that is above minus the logarithm of `Template.near_ventricles` in hyperintensities.
    """
    from scipy.spatial.transform import Rotation

    turn = Rotation.from_euler("xyz", parameters.turn, degrees=True).as_matrix() / np.array(parameters.shape)
    shift = np.array(parameters.shift, np.float32)[:, None, None, None]
    fields = [np.float32(0.4 * amount * spacing) * random_field(rng, spacing, 3) for spacing, amount in SCALES]
    _, nodes = lattice()

    def shaped(scale: float, nodes: Array) -> Array:
        points = np.tensordot((turn / scale).astype(np.float32), nodes, axes=1) + shift
        for field in fields:
            points = deformed(points, field)
        points[1] += np.float32(parameters.torque / 2) * np.tanh(points[0] / 25)
        return points

    known, cell = template(4), STEP**3 / 1000
    # Deformation and tumours change the volume, so it is measured before it is set: a skull does not yield to a tumour.
    coarse = _displaced(shaped(1.0, nodes[:, ::2, ::2, ::2]), parameters.lesions, 1.0)
    scale = (parameters.intracranial_ml / (known.brain(coarse).sum() * 8 * cell)) ** (1 / 3)
    points = shaped(scale, nodes)
    points = _with_ventricles(points, parameters.ventricles_ml, parameters.asymmetry)
    # The tumours lie where the anatomy was before they pushed it aside.
    place, points = points, _displaced(points, parameters.lesions, scale)
    shares, spots = known.tissues(points, 0.0), 4 * random_field(rng, 12.0, 1)
    depths = _depths(parameters.lesions, place, shares, scale, rng)
    score = spots[0] + np.log(known.near_ventricles(points) + _FAR)
    least = -_radius(-score, shares[3] * (depths[0] < 0), parameters.hyperintensities_ml)
    return np.concatenate([points, depths.clip(-60, 60), spots - np.float32(least)])


def _displaced(points: Array, lesions: tuple[Lesion, ...], scale: float) -> Array:
    """Returns `points` after the tumours have pushed the tissue about them aside, in a head `scale` times as large."""
    for lesion in lesions:
        radius = (lesion.tumour_ml * 750 / np.pi) ** (1 / 3) / scale
        points = pushed(points, np.array(lesion.centre), lesion.push * radius, radius)
    return points


def _with_ventricles(points: Array, ml: float, asymmetry: float) -> Array:
    """Returns `points` along the flow under which their ventricles have a volume."""
    axes, _ = lattice()
    near = tuple(slice(*np.searchsorted(axis, (-reach, reach))) for axis, reach in zip(axes, (60, 80, 60), strict=True))
    part = points[:, *near]

    def volume(points: Array) -> float:
        return float(template(4).ventricles(at_nodes(points)).sum()) * STEP**3 / 1000

    ratio = ml / volume(part)
    # The first flow is the template's; the second corrects it for this head.
    ratio *= ml / volume(enlarged(part, flow_for(ratio), asymmetry))
    return enlarged(points, flow_for(ratio), asymmetry)


def _depths(lesions: tuple[Lesion, ...], place: Array, shares: Array, scale: float, rng: np.random.Generator) -> Array:
    """Returns (3, ...) depths in mm inside tumours, cores and oedema at the nodes, which have `shares`."""
    fluid, _, _, white, brain = shares
    rough = 1 + np.float32(1.2) * random_field(rng, 18.0, 2)
    depths = np.full((3, *white.shape), -1e3, np.float32)
    for lesion in lesions:
        centre = np.array(lesion.centre, np.float32)[:, None, None, None]
        axes = np.array(lesion.axes, np.float32)[:, None, None, None]
        distance = np.sqrt((((place - centre) / axes) ** 2).sum(axis=0)) * rough[0].clip(0.5, 1.6)
        distance *= _folds(place, lesion.centre[0])
        spread = distance * rough[1].clip(0.65, 1.8)
        solid = brain * (1 - fluid)
        # The spline between the nodes makes what is round smaller, so the volumes are measured with it.
        seen, spread_seen = at_nodes(np.stack([distance, spread]))
        tumour = _radius(seen, solid, lesion.tumour_ml)
        within = float((white * (seen < tumour)).sum()) * STEP**3 / 1000
        oedema = _radius(spread_seen, white, within + lesion.oedema_ml)
        core = tumour * lesion.necrosis - distance if lesion.necrosis else np.full_like(distance, -1e3)
        these = np.stack([tumour - distance, core, oedema - spread]) * np.float32(scale)
        depths = np.maximum(depths, these)
    return depths


def _folds(place: Array, x: float) -> Array:
    """Returns 2 beyond the falx, for a lesion at `x` to one side of it, and below the tentorium; elsewhere 1.

    The folds stop most gliomas; what lies in the middle grows to both sides. Their places and the factor are choices.
    """
    from scipy.special import expit

    _, y, z = CENTRE
    across = min(abs(x) / 15, 1) * expit((-np.sign(x) * place[0] - 1) / 2)
    below = expit((-14 - z - place[2]) / 3) * expit((-38 - y - place[1]) / 3)
    return np.asarray(1 + np.maximum(across, below), np.float32)


def _radius(distance: Array, share: Array, ml: float) -> float:
    """Returns the distance within which the nodes' cells hold `ml` of a tissue."""
    order = distance.ravel().argsort()
    volume = share.ravel()[order].cumsum(dtype=np.float64) * STEP**3 / 1000
    return float(np.interp(ml, volume, distance.ravel()[order]))


def _anatomy(index: int, size: Size, seed: int, parameters: HeadParameters) -> Head:
    # The lattice and the number of random draws do not depend on the size, so a subject is the same at every size.
    nodes = head_map(parameters, _generator(seed, index, "map"))
    affine = cubic_affine(CENTRE, EXTENT, size)
    voxel = float(affine[0, 0])
    axes = [voxel * np.arange(size[axis]) + affine[axis, 3] - CENTRE[axis] for axis in range(3)]
    box = _box_of(nodes[:3], axes)
    inside = [axis[part] for axis, part in zip(axes, box, strict=True)]
    shares, ventricles, labels = _mixed(at_voxels(nodes, inside), voxel, parameters.atrophy)
    head = Head(
        {}, np.zeros((len(shares), *size), np.float32), np.zeros(size, np.float32), np.zeros(size, np.uint8), affine,
        parameters,
    )  # fmt: skip
    head.shares[:, *box], head.ventricles[box], head.labels[box] = shares, ventricles, labels
    return head


def _box_of(points: Array, axes: Axes) -> tuple[slice, slice, slice]:
    """Returns the part of the grid with axes `axes` that holds the brain: two thirds of a field of view are air."""
    brain = template(4).brain(at_nodes(points)) > 0
    edges = []
    for axis, nodes, inside in zip(axes, lattice()[0], shadows(brain), strict=True):
        low, high = nodes[inside][[0, -1]] + (-STEP, STEP)
        edges.append(slice(*np.searchsorted(axis, (low, high))))
    x, y, z = edges
    return x, y, z


def _mixed(fields: Array, voxel: float, atrophy: float) -> tuple[Array, Array, npt.NDArray[np.uint8]]:
    """Returns the shares, ventricles and labels of a `Head` where `head_map` has the values `fields`."""
    known = template(min(max(1, round(voxel)), COARSEST))
    shares = known.tissues(fields[:3], atrophy)
    brain = largest(shares[4] > 0.5)
    healthy = shares[:4] * (brain / np.maximum(shares[:4].sum(axis=0), 1e-6))
    tumour, core = (_inside(depth, voxel) for depth in fields[3:5])
    # Oedema thins out towards its border.
    oedema = _inside(fields[5], 2 * voxel) * (0.5 + 0.5 * (fields[5] / 15).clip(0, 1))
    spots = fields[6] + np.log(known.near_ventricles(fields[:3]) + _FAR)
    oedema = np.maximum(oedema, 0.8 * _inside(spots, 0.0))
    tumour *= brain * (1 - healthy[0])
    core *= tumour
    healthy *= 1 - tumour
    oedema *= healthy[3]
    healthy[3] -= oedema
    labels = np.where(tumour > 0.5, LESION, BRAIN * brain).astype(np.uint8)
    mixed = np.stack([*healthy, oedema, tumour - core, core])
    ventricles = known.ventricles(fields[:3]) * brain * (1 - tumour)
    return mixed, ventricles, labels


def _image(head: Head, contrast: Contrast, index: int, seed: int) -> Array:
    """Returns the signal of each voxel's mixture, with MONAI's bias field and Rician noise."""
    from monai.transforms.intensity.array import RandBiasField, RandRicianNoise

    image, brain = np.zeros(head.labels.shape, np.float32), head.labels > 0
    box = tuple(slice(edges[0], edges[-1] + 1) for edges in map(np.flatnonzero, shadows(brain)) if len(edges))
    if not box:
        return image  # voxels so large that none is brain
    brain = brain[box]
    signals = np.array(head.parameters.scanner.signals(contrast), np.float32)
    signals /= signals[:4].max()
    draw = int(_generator(seed, index, contrast).integers(2**31))
    bias = RandBiasField(prob=1, degree=3, coeff_range=(-1, 1))
    noise = RandRicianNoise(prob=1, std=float(signals[3]) / head.parameters.snr, sample_std=False)
    bias.set_random_state(seed=draw)
    noise.set_random_state(seed=draw)
    field = np.log(np.asarray(bias(torch.ones(1, *brain.shape)))[0])
    low, middle, high = np.quantile(field[brain], (0.025, 0.5, 0.975))
    field = np.exp((field - middle) * (2 * head.parameters.bias / max(high - low, 1e-6)))
    clean = np.tensordot(signals, head.shares[:, *box], axes=1) * field
    observed = np.asarray(noise(torch.from_numpy(clean.astype(np.float32))[None]))[0]
    image[box] = np.where(brain, observed, 0)
    return image


def _inside(depth: Array, voxel: float) -> Array:
    """Returns the share of a voxel inside a border at depth 0, itself half a millimetre wide."""
    from scipy.special import expit

    # The logistic function with the deviation of a box a voxel wide.
    return np.asarray(expit(depth / np.float32(0.3 + 0.16 * voxel)), np.float32)


def _generator(seed: int, index: int, purpose: str) -> np.random.Generator:
    """Returns a generator of its own for each purpose, none of them `Phantom`'s."""
    purposes = ("parameters", "map", *CONTRASTS)
    return np.random.default_rng([seed, index, 100 + purposes.index(purpose)])
