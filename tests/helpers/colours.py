"""Measures distances between colours, for readers of every colour vision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb

Array = npt.NDArray[np.float64]

# Machado, Oliveira & Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE
# Transactions on Visualization and Computer Graphics 15(6): severity 1.0, on linear RGB.
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, D65


def lab(colour: str, vision: str = "full") -> Array:
    """Returns the CIELAB of a colour as a reader of that vision sees it."""
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    perceived = np.clip(VISIONS[vision] @ linear, 0, 1)
    x, y, z = TO_XYZ @ perceived / TO_XYZ.sum(axis=1)
    fx, fy, fz = (np.cbrt(v) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def apart(one: str, other: str) -> float:
    """Returns the least distance in CIELAB (1976) between two colours, over all visions."""
    return min(float(np.linalg.norm(lab(one, vision) - lab(other, vision))) for vision in VISIONS)


def closest(colours: Sequence[str]) -> tuple[float, str, str]:
    """Returns the two of `colours` that are hardest to tell apart, and their distance."""
    return min((apart(one, other), one, other) for one, other in combinations(colours, 2))
