"""Ranges of held-out heads, and how volumes are judged by them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from medddpm.errors import BadInput
from medddpm.quality.measures import Number
from study.brains.ranges import BACKGROUND_LEVEL, Range, Ranges, ranges_of, relative_texture

TISSUES = ("white", "grey", "csf", "ventricles")


def heads(count: int, seed: int = 0) -> list[Number]:
    rng = np.random.default_rng(seed)
    rows = []
    for volume in range(count):
        rows += [Number(volume, "volume", "all", tissue, float(rng.normal(500, 50))) for tissue in TISSUES]
        rows += [Number(volume, "texture", "t1", f"shell {k}", float(rng.normal(-30 - k, 1))) for k in (1, 2)]
        rows += [Number(volume, "dice", "all", "grey", 0.95), Number(volume, "background", "t1", "all", 0.0)]
        rows.append(Number(volume, "confidence", "all", "all", float(rng.uniform(0.9, 0.95))))
    return rows


def strangers(count: int) -> list[Number]:
    return [Number(v, "dice", "all", "grey", 0.5 + 0.2 * v / count) for v in range(count)]


def test_a_range_has_its_ends_at_one() -> None:
    both = Range("volume", "all", "grey", 400.0, 500.0, 700.0, "both", 100)
    assert [both.excess(value) for value in (400, 500, 600, 700, 900)] == [1, 0, 0.5, 1, 2]
    assert both.excess(math.nan) == math.inf
    least = Range("dice", "all", "grey", 0.5, 0.6, 0.7, "least", 100)
    assert [round(least.excess(value), 9) for value in (0.4, 0.5, 0.99)] == [2, 1, 0]


def test_percentiles_and_what_stands_in_for_the_heads_own() -> None:
    known = ranges_of(heads(200), strangers(200)).ranges
    volumes = [n.value for n in heads(200) if n.tissue == "white"]
    white = known["volume", "all", "white"]
    assert (white.low, white.high, white.heads) == (*np.percentile(volumes, (5, 95)), 200)
    assert known["dice", "all", "grey"].high < 0.7
    background = known["background", "t1", "all"]
    assert background.high == BACKGROUND_LEVEL
    assert background.excess(BACKGROUND_LEVEL / 2) == pytest.approx(0.5)


def test_no_more_is_asked_for_than_the_segmenter_sees_in_a_head() -> None:
    blind = [n._replace(value=0.3) if n.metric == "dice" else n for n in heads(50)]
    assert ranges_of(blind, strangers(50)).ranges["dice", "all", "grey"].low == 0.3


def test_heads_of_other_draws_pass_as_a_whole_nineteen_times_of_twenty_and_outliers_do_not() -> None:
    ranges = ranges_of(heads(400), strangers(400))
    fresh = [n for n in relative_texture(heads(400, seed=1), ranges.texture) if n.metric != "dice"]
    rows = ranges.verdicts(fresh)
    for group in ("anatomy", "image"):
        part = [row["passes"] for row in rows if row["group"] == group]
        assert len(part) == 400
        assert 0.9 < np.mean(part) < 0.99
    outside = [row["within"] for row in ranges.judged(fresh) if row["metric"] == "volume"]
    assert np.mean(outside) == pytest.approx(0.9, abs=0.03)
    flat = [n._replace(value=n.value / 3) if n.tissue == "ventricles" else n for n in fresh if n.volume < 5]
    verdicts = [row for row in ranges.verdicts(flat) if row["group"] == "anatomy"]
    assert [row["passes"] for row in verdicts] == [0] * 5
    assert {row["worst"] for row in verdicts} == {"volume ventricles"}


def test_a_tissue_that_is_missing_fails() -> None:
    ranges = ranges_of(heads(100), strangers(100))
    (row,) = ranges.judged([Number(0, "volume", "all", "grey", math.nan)])
    assert row["within"] == 0
    assert math.isfinite(row["excess"])


def test_textures_are_against_the_mean_of_the_heads() -> None:
    ranges = ranges_of(heads(200))
    louder = [n._replace(value=n.value + 7) for n in heads(20) if n.metric == "texture"]
    relative = relative_texture(louder, ranges.texture)
    assert np.mean([n.value for n in relative if n.metric == "texture"]) == pytest.approx(7, abs=0.5)
    spectrum = [n.value for n in relative if n.metric == "spectrum"]
    assert len(spectrum) == 20
    assert min(spectrum) > 5


def test_a_tumours_dice_is_no_part_of_the_anatomy() -> None:
    rows = heads(100) + [Number(v, "dice", "all", "tumour from 40 ml", 0.9 + v / 2000) for v in range(100)]
    ranges = ranges_of(rows)
    bad = [Number(0, "dice", "all", "tumour from 40 ml", 0.1), Number(0, "volume", "all", "white", 500.0)]
    assert {row["group"]: row["passes"] for row in ranges.verdicts(bad)} == {"lesion": 0, "anatomy": 1}


def test_ranges_are_read_as_they_were_written(tmp_path: Path) -> None:
    ranges = ranges_of(heads(50), strangers(50))
    ranges.write(tmp_path / "ranges.json", {"seed": 3})
    assert Ranges.read(tmp_path / "ranges.json") == ranges
    (tmp_path / "other.json").write_text('{"limits": {}}')
    with pytest.raises(BadInput, match="holds no ranges"):
        Ranges.read(tmp_path / "other.json")
