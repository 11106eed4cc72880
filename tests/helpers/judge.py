"""The committed judge: the verdicts of a segmenter and of ranges among an H200's records."""

from __future__ import annotations

from typing import Any

from helpers.repository import ROOT
from medddpm.quality.measures import Measured, measure
from medddpm.quality.tissues import segment
from study.brains import segmenters
from study.brains.ranges import Ranges, relative_texture
from study.brains.subjects import Subjects

RECORDS = ROOT / "figures" / "records" / "H200"


def verdicts(name: str, volumes: Subjects, contrasts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Judges volumes by the judge of that name, "t1" or "all"; returns a row for each and group of numbers."""
    network, _ = segmenters.read(RECORDS / f"judge_{name}_segmenter.safetensors")
    ranges = Ranges.read(RECORDS / f"judge_{name}_ranges.json")
    seen = segment(network, volumes.images)
    numbers = measure(Measured(volumes.images, volumes.masks, seen, volumes.voxel, volumes.tissues), contrasts)
    return ranges.verdicts(relative_texture(numbers, ranges.texture))
