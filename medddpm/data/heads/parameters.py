"""What makes one head differ from another: the parameters of `medddpm.data.heads`, and how they are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from medddpm.data.heads.anatomy import template
from medddpm.data.tissues import SCANNERS, Scanner

YOUNGEST, OLDEST = 20.0, 80.0
"""Ages in years; the studies below have adults of these ages."""


@dataclass(frozen=True)
class Lesion:
    """A glioma: solid tumour, with a necrotic core or without, and oedema in the white matter about it.

    Args:
        centre: mm in the template, from `medddpm.data.synthetic.CENTRE`.
        tumour_ml: core and rim.
        oedema_ml: the white matter about it that has oedema.
        necrosis: the core's radius as a part of the tumour's; 0 without a core.
        axes: how much longer each half axis is than a sphere's.
        push: how far the tissue at the border is displaced, as a part of the tumour's radius.
    """

    centre: tuple[float, float, float]
    tumour_ml: float
    oedema_ml: float
    necrosis: float
    axes: tuple[float, float, float]
    push: float


@dataclass(frozen=True)
class HeadParameters:
    """One subject; `drawn` says how each is distributed, and after whom.

    Args:
        age: years.
        intracranial_ml: brain and fluid.
        ventricle_factor: the volume of lateral and third ventricles relative to `usual_ventricles_ml` of that age.
        atrophy: by how much the border of cortex and fluid has receded from the template's, mm.
        hyperintensities_ml: white matter with the bright spots of age.
        asymmetry: by what part the left ventricle is enlarged more than the right.
        torque: how far the right hemisphere lies before the left, mm.
        turn: degrees about each axis.
        shift: mm along each axis.
        shape: factors of length, width and height, of product 1.
        scanner: field strength and timings.
        bias: half the spread of the coil's sensitivity over the brain, as a part of its mean.
        snr: white matter's signal over the noise's deviation.
        lesions: up to three; `drawn` gives at least one.
    """

    age: float
    intracranial_ml: float
    ventricle_factor: float
    atrophy: float
    hyperintensities_ml: float
    asymmetry: float
    torque: float
    turn: tuple[float, float, float]
    shift: tuple[float, float, float]
    shape: tuple[float, float, float]
    scanner: Scanner
    bias: float
    snr: float
    lesions: tuple[Lesion, ...]

    @property
    def ventricles_ml(self) -> float:
        """The volume of the lateral and third ventricles."""
        return self.ventricle_factor * usual_ventricles_ml(self.age)


def usual_ventricles_ml(age: float) -> float:
    """Returns the ventricles' usual volume at an age, in ml: 16.2 at 25 years, and a fifth more every decade.

    The volumes: 16.2 ml in the twenties and 24.9 ml in the forties, the fourth ventricle included, of 218 people (Chung
    et al. 2006, Neurosci. Lett. 395:155). A fifth a decade: 107 people (Kaye et al. 1992, J. Am. Geriatr. Soc. 40:225),
    whose ventricles grow faster from the fifth or sixth decade on; this is left out. At 48 years it gives 24.6 ml; 133
    people of that mean age have 25.2 (Yamada et al. 2023, Eur. Radiol. 33:7099), who do not find growth before 60.
    """
    return float(16.2 * 1.2 ** ((age - 25) / 10))


def usual_atrophy(age: float) -> float:
    """Returns by how much the border of cortex and fluid has receded at an age, in mm: 0.09 a decade from 20 years on.

    The cortex thins by 0.35 % a year (Storsve et al. 2014, J. Neurosci. 34:8488), of about 2.5 mm (Fischl & Dale 2000,
    Proc. Natl. Acad. Sci. 97:11050). The template is taken to be 31 years old; its people were 18 to 44.
    """
    return -0.1 + 0.009 * (age - YOUNGEST)


def usual_hyperintensities_ml(age: float) -> float:
    """Returns the median volume of white-matter hyperintensities at an age: 0.25 ml at 40, 2 ml at 64 years.

    Of 14 876 people without dementia (de Kort et al. 2025, Neurobiol. Aging 146:38), whose volumes grow exponentially
    with age: 0.25 ml below 45 years, 2.0 ml in all, at a mean of 63.9.
    """
    return float(0.25 * 8 ** ((age - 40) / 24))


def drawn(rng: np.random.Generator) -> HeadParameters:
    """Draws a subject's parameters.

    - `age`: uniform, `YOUNGEST` to `OLDEST`.
    - `intracranial_ml`: 1469 ± 102 in men, 1289 ± 111 in women (Matsumae et al. 1996, J. Neurosurg. 84:982).
    - `ventricle_factor`: log-normal of deviation 0.34, twofold either way at most. The ventricles of 133 people of 21
      to 92 years, 48 ± 17, have 25.2 ± 12.2 ml (Yamada et al. 2023), that is 0.46 in the logarithm; a fifth a decade
      makes 0.31 of this, and 0.34 remain.
    - `atrophy`: `usual_atrophy` ± 0.12 mm, a choice. Age and scanner explain 43 % of the variance of the cortex's mean
      thickness (Potvin et al. 2017, NeuroImage 156:315); beside `usual_atrophy` this would leave ± 0.18 mm, which
      includes errors of measurement.
    - `hyperintensities_ml`: log-normal of deviation 1 about `usual_hyperintensities_ml`, a choice: at 64 years its
      quartiles are 2.9 ml apart, those of de Kort's people of all ages 3.9.
    - `asymmetry`, `torque`: choices. The left occipital horn is the longer one more often than the right (McRae et al.
      1968, Neurology 18:95); in most, the right frontal and the left occipital lobe protrude (Toga & Thompson 2003,
      Nat. Rev. Neurosci. 4:37).
    - `shape`: 3.5 % of each axis, and `turn`, `shift`: choices, as heads differ and lie in a coil.
    - `bias`: 3 to 25 %, `snr`: 25 to 100, its logarithm uniform; choices about BrainWeb's, which has non-uniformity of
      20 and 40 %, that is ±10 and ±20 % over the brain, and noise of 1 to 9 % of a tissue's signal, white matter's in
      T1 (Collins et al. 1998), on voxels of 1 mm; larger voxels have less.
    - `lesions`: `_lesion`. In a fifth of the subjects they have no core: 111 of 561 gliomas take up no contrast agent
      (Eichberg et al. 2020, J. Neurooncol. 147:671). Of the others, 15 % have two or three; 47 of 368 glioblastomas
      have several (Patil et al. 2012, J. Neurosurg. 117:705).

    All normal distributions are cut at two deviations.
    """
    age = float(rng.uniform(YOUNGEST, OLDEST))
    mean, deviation = ((1469, 102), (1289, 111))[int(rng.integers(2))]
    intracranial = mean + deviation * _normal(rng)
    factor = math.exp(0.34 * _normal(rng))
    atrophy = usual_atrophy(age) + 0.12 * _normal(rng)
    hyperintensities = min(usual_hyperintensities_ml(age) * math.exp(_normal(rng)), 25.0)
    asymmetry, torque = 0.08 + 0.08 * _normal(rng), 1.0 + 0.7 * _normal(rng)
    turn, shift = [4 * _normal(rng) for _ in range(3)], [2 * _normal(rng) for _ in range(3)]
    logs = np.array([0.035 * _normal(rng) for _ in range(3)])
    shape = np.exp(logs - logs.mean())
    scanner = SCANNERS[int(rng.integers(len(SCANNERS)))]
    bias, snr = float(rng.uniform(0.03, 0.25)), float(np.exp(rng.uniform(np.log(25), np.log(100))))
    solid = bool(rng.random() < 0.2)
    lesions = [_lesion(rng, solid)]
    for _ in range(0 if solid else int(rng.choice(3, p=[0.85, 0.1, 0.05]))):
        lesions.append(_lesion(rng, solid, lesions[0].tumour_ml))
    return HeadParameters(
        age, intracranial, factor, atrophy, hyperintensities, asymmetry, torque, _three(turn), _three(shift),
        _three(shape), scanner, bias, snr, tuple(lesions),
    )  # fmt: skip


def _lesion(rng: np.random.Generator, solid: bool, first_ml: float | None = None) -> Lesion:
    """Draws a lesion.

    The volumes of the first are log-normal about the means of 214 glioblastomas: tumour 33.6 ml, half of which
    enhances, and with its oedema 97.9 ml in FLAIR (Loebel et al. 2025, Brain Spine 5:104324). All else is a choice: the
    deviations; that the first has at most 100 ml and none less than 1 ml, thirty voxels at 64³; that further ones have
    a twentieth to half of the first's volume, and solid ones little oedema.

    Args:
        rng: draws.
        solid: without a core, as a glioma that takes up no contrast agent.
        first_ml: the volume of the subject's first tumour, if this is a further one.
    """
    white = template(4).white_points()
    white = white[white[:, 2] > -20]  # above cerebellum and brain stem, as nearly all glioblastomas of adults
    centre = white[int(rng.integers(len(white)))]
    tumour = 22 * math.exp(_normal(rng)) if first_ml is None else first_ml * rng.uniform(0.05, 0.5)
    tumour = float(np.clip(tumour, 1, 100))
    ratio = 0.3 if solid else 2.0
    oedema = min(ratio * math.exp(0.5 * _normal(rng)) * tumour, 120.0)
    axes = np.exp(rng.uniform(-0.25, 0.25, 3))
    necrosis, push = float(rng.uniform(0.45, 0.9)), float(rng.uniform(0, 0.35))
    return Lesion(
        _three(centre), tumour, oedema, 0.0 if solid else necrosis, _three(axes / axes.prod() ** (1 / 3)), push
    )


def _normal(rng: np.random.Generator) -> float:
    return float(np.clip(rng.standard_normal(), -2, 2))


def _three(values: object) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in np.asarray(values).tolist())
    return x, y, z
