"""The ranges of the numbers of held-out heads, and the verdict on a volume.

A range is the 5th to the 95th percentile of held-out heads, so one head in ten lies outside any of them, and of many
ranges hardly a head is within all. A sample is therefore judged twice: number by number against the ranges; and as a
whole, by how far its most unusual number lies from the median, in units of its range's half, against what 95 % of
held-out heads have (a single-step maximum test, Westfall & Young 1993, Resampling-Based Multiple Testing). A head fails
a whole in one case of twenty, whatever the number of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.quality.measures import Number
from medddpm.runtime.files import read_json, write_json

LOW, HIGH = 5.0, 95.0
JOINT = 95.0
"""Percentile of held-out heads' most unusual number beyond which a whole fails."""

FEWEST = 100
"""Held-out heads that a published range is of."""

BACKGROUND_LEVEL = 0.02
"""Root mean square above the background that passes: two and a half grey levels of 256, a choice. The background of
heads is exactly -1, so their percentiles say nothing."""

SPECTRUM_DB = 3.0
"""By how much a shell's power may differ from the mean of held-out heads, in dB. Necessary, not enough."""

Ends = Literal["both", "least", "most"]
ENDS: Mapping[str, Ends] = {
    "dice": "least",
    "confidence": "least",
    "connected": "least",
    "edges": "least",
    "background": "most",
    "spectrum": "most",
    "nearest": "most",
}
"""The ends of a range that count: a sample may agree better with its mask than heads do, or have less noise."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "anatomy": ("volume", "surface", "connected", "dice"),
    "image": ("contrast", "explained", "brightness", "texture", "background", "confidence"),
    "lesion": ("dice",),
    "copy": ("nearest",),
    "cortex": ("edges",),
}
"""What is judged as a whole. `anatomy` is of healthy tissues, `lesion` of the tumour.

`cortex` came after the first samples had been seen: grey and white matter blurred in them, and no other number told."""

Key = tuple[str, str, str]  # metric, channel, tissue


@dataclass(frozen=True)
class Range:
    """What held-out heads have of a number.

    Args:
        metric, channel, tissue: as in `medddpm.quality.measures.Number`.
        low, median, high: percentiles.
        ends: those that count.
        heads: of which it is made.
    """

    metric: str
    channel: str
    tissue: str
    low: float
    median: float
    high: float
    ends: Ends
    heads: int

    @property
    def key(self) -> Key:
        """Which number it is of."""
        return self.metric, self.channel, self.tissue

    def excess(self, value: float) -> float:
        """Returns how far a value lies from the median, in halves of the range: 1 at an end, 0 on a side that is free.

        A missing value, as of a tissue that is not there, lies infinitely far.
        """
        if not math.isfinite(value):
            return math.inf
        side, end = ("most", self.high) if value > self.median else ("least", self.low)
        if self.ends not in (side, "both") or value == self.median:
            return 0.0
        return abs(value - self.median) / max(abs(end - self.median), 1e-9)


@dataclass(frozen=True)
class Ranges:
    """The ranges of every number, and the limits of every group.

    Args:
        ranges: by number.
        limits: by group, the largest `Range.excess` of a volume that passes.
        texture: held-out heads' mean texture in dB, by channel and shell, which textures are measured against.
    """

    ranges: Mapping[Key, Range]
    limits: Mapping[str, float]
    texture: Mapping[tuple[str, str], float]

    def judged(self, numbers: Sequence[Number]) -> list[dict[str, Any]]:
        """Returns a row for each number that has a range: its fields, low, high, excess and within (0 or 1)."""
        rows = []
        for number in numbers:
            known = self.ranges.get(_key(number))
            if known is None:
                continue
            excess = known.excess(number.value)
            low = known.low if known.ends != "most" else math.nan
            high = known.high if known.ends != "least" else math.nan
            numeric = {"low": low, "high": high, "excess": min(excess, 1e9), "within": int(excess <= 1)}
            rows.append({**number._asdict(), **numeric})
        return rows

    def verdicts(self, numbers: Sequence[Number]) -> list[dict[str, Any]]:
        """Returns a row for each volume and group: its worst number, that excess, the limit, outside, of, passes."""
        rows = []
        for (volume, group), part in _groups(self.judged(numbers)).items():
            if group not in self.limits:
                continue
            worst = max(part, key=lambda row: row["excess"])
            name = " ".join(str(worst[key]) for key in ("metric", "channel", "tissue") if worst[key] != "all")
            outside = sum(1 - row["within"] for row in part)
            rows.append(
                {
                    "volume": volume, "group": group, "numbers": len(part), "outside": outside, "worst": name,
                    "excess": worst["excess"], "limit": self.limits[group],
                    "passes": int(worst["excess"] <= self.limits[group]),
                }
            )  # fmt: skip
        return rows

    def write(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Writes NAME.json: `meta`, which says where they come from, and all three."""
        texture = [[*key, mean] for key, mean in self.texture.items()]
        ranges = [asdict(known) for known in self.ranges.values()]
        write_json(path, {**meta, "limits": self.limits, "texture": texture, "ranges": ranges}, indent=1)

    @classmethod
    def read(cls, path: Path) -> Ranges:
        """Reads what `write` wrote.

        Raises:
            BadInput: it is no such file.
        """
        content = read_json(path, "write the ranges again")
        try:
            ranges = [Range(**row) for row in content["ranges"]]
            texture = {(channel, shell): float(mean) for channel, shell, mean in content["texture"]}
            return cls({known.key: known for known in ranges}, dict(content["limits"]), texture)
        except (KeyError, TypeError, ValueError):
            raise BadInput(path, "holds no ranges", "write the ranges again") from None


def ranges_of(numbers: Sequence[Number], others: Sequence[Number] = ()) -> Ranges:
    """Returns the ranges of held-out heads.

    Args:
        numbers: of the heads, as `measure` gives them, and what else is known of each.
        others: numbers that stand in for a head's own where they are less: the Dice of a tissue with its anatomy of
            another head. No sample is asked for more than the segmenter sees in the head itself.
    """
    texture = mean_texture(numbers)
    less = {(number.volume, *_key(number)): number.value for number in others}
    heads = [
        n._replace(value=min(n.value, less.get((n.volume, *_key(n)), n.value)))
        for n in relative_texture(numbers, texture)
        if math.isfinite(n.value)
    ]
    ranges = {}
    for key, part in pd.DataFrame(heads, columns=Number._fields).groupby(["metric", "channel", "tissue"], sort=False):
        metric, channel, tissue = map(str, key)
        low, median, high = (float(value) for value in np.percentile(part["value"], (LOW, 50, HIGH)))
        if metric == "background":
            median, high = min(median, BACKGROUND_LEVEL), max(high, BACKGROUND_LEVEL)
        ends = ENDS.get(metric, "both")
        ranges[metric, channel, tissue] = Range(metric, channel, tissue, low, median, high, ends, len(part))
    worst: dict[str, list[float]] = {group: [] for group in GROUPS}
    free = Ranges(ranges, dict.fromkeys(GROUPS, math.inf), texture)
    for row in free.verdicts(heads):
        worst[row["group"]].append(row["excess"])
    limits = {group: float(np.percentile(values, JOINT)) for group, values in worst.items() if values}
    return Ranges(ranges, limits, texture)


def relative_texture(numbers: Sequence[Number], reference: Mapping[tuple[str, str], float]) -> list[Number]:
    """Returns the numbers with textures in dB against a reference, and `spectrum`, the largest of a volume's shells.

    Args:
        numbers: of `measure`.
        reference: the mean of held-out heads, by channel and shell; of `mean_texture`.
    """
    changed: list[Number] = []
    largest: dict[tuple[int, str], float] = {}
    for number in numbers:
        if number.metric == "texture":
            number = number._replace(value=number.value - reference[number.channel, number.tissue])
            at = number.volume, number.channel
            largest[at] = max(largest.get(at, 0.0), abs(number.value))
        changed.append(number)
    return [*changed, *(Number(volume, "spectrum", channel, "all", v) for (volume, channel), v in largest.items())]


def mean_texture(numbers: Sequence[Number]) -> dict[tuple[str, str], float]:
    """Returns the mean texture of volumes in dB, by channel and shell."""
    values: dict[tuple[str, str], list[float]] = {}
    for number in numbers:
        if number.metric == "texture":
            values.setdefault((number.channel, number.tissue), []).append(number.value)
    return {key: float(np.mean(decibels)) for key, decibels in values.items()}


def _key(number: Number) -> Key:
    return number.metric, number.channel, number.tissue


def _groups(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    parts: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        for group, metrics in GROUPS.items():
            tumour = row["tissue"].startswith("tumour")
            if row["metric"] in metrics and (group not in ("anatomy", "lesion") or tumour == (group == "lesion")):
                parts.setdefault((row["volume"], group), []).append(row)
    return parts
