"""The committed judge of T1 tells heads from textures of the same spectrum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from helpers import judge
from torch import Tensor

from study.brains.subjects import HELD_OUT, Subjects, subjects


def passing(volumes: Subjects) -> int:
    """Returns how many volumes have a head's anatomy."""
    return sum(row["passes"] for row in judge.verdicts("t1", volumes, ("t1",)) if row["group"] == "anatomy")


def texture(image: Tensor, brain: Tensor) -> Tensor:
    """Rearranges an image's values inside the brain: (1, D, W, H) of its power spectrum, with the phases of noise."""
    inside = np.where(brain, image[0], image[0][brain].mean())
    noise = np.random.default_rng(0).standard_normal(inside.shape)
    phases = np.exp(1j * np.angle(np.fft.fftn(noise)))
    drawn = np.fft.ifftn(np.abs(np.fft.fftn(inside)) * phases).real
    values = np.full(inside.shape, -1.0, np.float32)
    values[brain] = np.sort(image[0][brain])[drawn[brain].argsort().argsort()]
    return torch.from_numpy(values)[None]


def test_heads_pass_and_textures_of_their_spectrum_do_not() -> None:
    heads = subjects(3, (64, 64, 64), ("t1",), HELD_OUT, processes=1)
    assert passing(heads) >= 2, "one head in twenty fails"
    brains = heads.masks > 0
    textures = [texture(image, brain) for image, brain in zip(heads.images, brains, strict=True)]
    assert passing(replace(heads, images=torch.stack(textures))) == 0
