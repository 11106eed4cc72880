"""The committed judge of T1 tells heads from textures of the same spectrum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medddpm.quality.measures import Measured, measure
from medddpm.quality.tissues import segment
from study.brains import segmenters
from study.brains.ranges import Ranges, relative_texture
from study.brains.subjects import HELD_OUT, Subjects, subjects

RECORDS = Path(__file__).parents[3] / "figures" / "records" / "H200"


def passing(volumes: Subjects) -> int:
    """Returns how many volumes have a head's anatomy."""
    network, _ = segmenters.read(RECORDS / "judge_t1_segmenter.safetensors")
    ranges = Ranges.read(RECORDS / "judge_t1_ranges.json")
    seen = segment(network, volumes.images)
    numbers = measure(Measured(volumes.images, volumes.masks, seen, volumes.voxel, volumes.tissues), ("t1",))
    verdicts = ranges.verdicts(relative_texture(numbers, ranges.texture))
    return sum(row["passes"] for row in verdicts if row["group"] == "anatomy")


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
