"""The pictures of synthetic brains show their tables' numbers, and can be read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import brains_records
from helpers.figures import legend, readable
from matplotlib.colors import to_hex

from medddpm.measure.tables import table_of
from study.brains.tables import called
from study.figures import brains, slices
from study.figures.style import SET_COLOURS
from study.records import schemas_brains as schemas

NAMES = {("joint", "heads"): "held-out heads", ("joint", "joint.dpmpp20"): "this model"}


@pytest.fixture(scope="module")
def verdicts() -> pd.DataFrame:
    rows = brains_records.verdicts("heads") + brains_records.verdicts("joint.dpmpp20", shift=3)
    return called(table_of(rows, schemas.VERDICTS).assign(folder="joint"), NAMES)


def test_a_gallery_shows_each_names_slices_side_by_side_the_right_way_round() -> None:
    planes = {f"seed {k}": [np.full((6, 5), k / 8), np.full((6, 5), (k + 1) / 8)] for k in range(8)}
    planes["seed 7"][0][0, 0] = 1
    figure = readable(slices.gallery(planes, "8 uncurated samples", columns=3))
    assert [axis.get_title() for axis in figure.axes] == [*planes, ""]
    shown = np.asarray(figure.axes[7].images[0].get_array())
    np.testing.assert_array_equal(shown, np.hstack(planes["seed 7"]))
    assert figure.axes[7].images[0].get_clim() == (0, 1)
    assert not figure.axes[8].axison


def test_a_gallery_is_cut_to_what_is_bright_in_any_slice() -> None:
    planes = {name: [np.full((20, 30), -1.0)] for name in ("a", "b")}
    planes["a"][0][4, 10], planes["b"][0][12, 22] = 0.0, 0.5
    pictures = [axis.images[0].get_array() for axis in slices.gallery(planes, "two", 2, (-1, 1)).axes]
    rows, across = slice(4 - slices.MARGIN, 13 + slices.MARGIN), slice(10 - slices.MARGIN, 23 + slices.MARGIN)
    for picture, (plane,) in zip(pictures, planes.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(picture), plane[rows, across])
    black = {"a": [np.zeros((4, 4))]}
    assert slices.gallery(black, "black").axes[0].images[0].get_array().shape == (4, 4)


def test_real_slices_stand_above_synthetic_ones_with_the_lesion_on_both() -> None:
    lesion = np.zeros((6, 6), bool)
    lesion[2:4, 2:4] = True
    columns = {name: (np.full((6, 6), k), np.full((6, 6), -k), lesion) for k, name in enumerate(("T1", "T2"))}
    figure = readable(slices.real_above_synthetic(columns, (-1, 1)))
    assert [float(np.asarray(axis.images[0].get_array())[0, 0]) for axis in figure.axes] == [0, 1, 0, -1]
    assert [axis.get_ylabel() for axis in figure.axes[::2]] == ["held out", "synthetic"]
    assert all(len(axis.collections) == 1 for axis in figure.axes)


def test_each_number_has_its_range_and_a_dot_for_each_sample(verdicts: pd.DataFrame) -> None:
    figure = readable(brains.ranges_figure(verdicts))
    assert [axis.get_title().split("\n")[1] for axis in figure.axes] == list(brains.ANATOMY.values())
    volume, dice = figure.axes[0], figure.axes[6]
    assert [volume.get_title(), dice.get_title()] == ["white matter\nvolume, ml", "white matter\nDice"]
    assert [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in volume.patches] == [(300, 500)] * 2
    heads, model = (np.asarray(dots.get_offsets()) for dots in volume.collections)
    assert heads[:, 1].tolist() == [400] * 4
    assert model[:, 1].tolist() == [700] * 4
    assert (np.diff(model[:, 0]) > 0).all()
    bar = dice.patches[0]
    assert (bar.get_y(), bar.get_y() + bar.get_height()) == (0.4, 1.0), "more agreement is no fault"
    assert legend(figure) == [*NAMES.values(), "5th to 95th percentile of held-out heads"]


def test_a_sample_without_a_tissue_has_no_dot(verdicts: pd.DataFrame) -> None:
    lacking = verdicts.copy()
    where = (lacking["set"] == "this model") & (lacking["metric"] == "dice") & (lacking["subject"] == 0)
    lacking.loc[where, "value"] = np.nan
    dots = brains.ranges_figure(lacking).axes[6].collections[1].get_offsets()
    assert np.isfinite(np.ma.filled(dots, np.nan)).all(axis=1).sum() == 3


def test_a_number_that_no_set_has_gets_no_panel_and_one_that_a_set_lacks_no_dots(verdicts: pd.DataFrame) -> None:
    lacking = verdicts[verdicts["metric"] != "connected"]
    lacking = lacking[(lacking["metric"] != "dice") | (lacking["set"] == "this model")]
    figure = readable(brains.ranges_figure(lacking))
    assert len(figure.axes) == len(brains.ANATOMY) - 2
    assert len(figure.axes[5].collections) == 1


def test_spectra_are_the_means_of_the_sets(verdicts: pd.DataFrame) -> None:
    figure = readable(brains.spectra_figure(verdicts))
    assert [axis.get_title() for axis in figure.axes] == ["T1", "T2", "FLAIR"]
    means = {to_hex(line.get_color()): line.get_ydata() for line in figure.axes[0].lines}
    assert means[SET_COLOURS[0].lower()] == pytest.approx([0] * 8)
    assert means[SET_COLOURS[1].lower()] == pytest.approx([3] * 8)
    assert sorted(line.get_ydata()[0] for line in figure.axes[0].lines[2:]) == [-3, 3]


def test_errors_are_drawn_by_step_a_line_for_each_training() -> None:
    errors = pd.DataFrame(
        {"training": name, "step": step, "ratio": ratio, "value": ratio + value}
        for name, step, value in (("short", 1e3, 4.0), ("short", 2e3, 3.0), ("long", 2e3, 2.5), ("long", 4e3, 2.0))
        for ratio in (1.0, 5.0)
    )
    figure = readable(brains.errors_figure(errors, {5.0: "at 5", 1.0: "at 1"}))
    assert [axis.get_title() for axis in figure.axes] == ["at 5", "at 1"]
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[1].lines]
    assert lines == [([1, 2], [5, 4]), ([2, 4], [3.5, 3])]
    assert figure.axes[0].get_ylim()[0] == 0
    assert legend(figure) == ["short", "long"]


def test_each_sampling_has_its_counts_their_intervals_and_its_seconds() -> None:
    counts = {("ddim", 10): (20, 22), ("ddim", 20): (19, 24), ("dpm++", 20): (17, 24)}
    rows = {
        (*sampling, group): (passes, 24, passes / 24 - 0.1, passes / 24 + 0.05)
        for sampling, both in counts.items()
        for group, passes in zip(("anatomy", "image"), both, strict=True)
    }
    passing = pd.DataFrame.from_dict(rows, orient="index", columns=["passes", "of", "low", "high"])
    passing.index = pd.MultiIndex.from_tuples(rows, names=["sampler", "evaluations", "group"])
    ms = pd.Series([30, 10, 20], pd.MultiIndex.from_tuples([("dpm++", 20), ("ddim", 10), ("ddim", 20)]))
    anatomy, image, times = readable(brains.evaluations_figure(passing, ms)).axes
    assert [label.get_text() for label in anatomy.get_yticklabels()] == ["DPM-Solver++, 20", "DDIM, 10", "DDIM, 20"]
    assert [axis.get_title() for axis in (anatomy, image)] == ["anatomy passes, of 24", "image passes, of 24"]
    assert [line.get_xdata()[0] for line in anatomy.lines] == [17, 20, 19]
    assert [line.get_xdata()[0] for line in image.lines] == [24, 22, 24]
    ends = [part[:, 0].tolist() for part in anatomy.collections[0].get_segments()]
    assert ends[0] == pytest.approx([17 - 2.4, 17 + 1.2])
    assert [bar.get_width() for bar in times.patches] == [30, 10, 20]
    assert to_hex(times.patches[0].get_facecolor()) != to_hex(times.patches[1].get_facecolor())
