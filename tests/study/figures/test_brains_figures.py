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


def test_a_gallery_shows_each_slice_under_its_name_the_right_way_round() -> None:
    planes = {f"seed {k}": np.full((6, 5), k / 8) for k in range(8)}
    planes["seed 7"][0, 0] = 1
    figure = readable(slices.gallery(planes, "8 uncurated samples", columns=3))
    assert [axis.get_title() for axis in figure.axes] == [*planes, ""]
    shown = np.asarray(figure.axes[7].images[0].get_array())
    np.testing.assert_array_equal(shown, planes["seed 7"])
    assert figure.axes[7].images[0].get_clim() == (0, 1)
    assert not figure.axes[8].axison


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
    assert [axis.get_ylabel() for axis in figure.axes] == list(brains.ANATOMY.values())
    volume, dice = figure.axes[0], figure.axes[6]
    assert [volume.get_title(), dice.get_title()] == ["white matter"] * 2
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


def test_an_arm_has_a_dot_for_each_seed_and_the_plain_arms_mean_is_a_line() -> None:
    errors = pd.DataFrame({"arm": ["flow", "flow", "plain", "plain"], "seed": [0, 1, 0, 1], "x": [1.0, 2, 3, 5]})
    (axis,) = readable(brains.recipe_figure(errors, {"x": "error at 1"})).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["flow", "plain"]
    assert np.asarray(axis.collections[1].get_offsets()).tolist() == [[1, 0], [2, 0], [3, 1], [5, 1]]
    assert list(axis.lines[0].get_xdata()) == [4, 4]
    assert [part[:, 0].tolist() for part in axis.collections[0].get_segments()] == [[1, 2], [3, 5]]


def test_passing_samples_and_seconds_are_drawn_by_evaluations() -> None:
    passing = brains_records.passing()
    figure = readable(brains.evaluations_figure(passing))
    left, right = figure.axes
    assert left.get_ylabel() == "samples that pass, of 24"
    drawn = {tuple(line.get_ydata()) for line in left.lines if len(line.get_xdata())}
    assert drawn == {tuple(rows["passes"]) for _, rows in passing.groupby(["sampler", "group"])}
    assert {tuple(line.get_ydata()) for line in right.lines if len(line.get_xdata())} == {(0.1, 0.2, 0.4)}
    assert legend(figure) == ["DDIM", "DPM-Solver++", "anatomy", "image"]


def test_dice_stands_beside_dice_of_heads_alone() -> None:
    figure = readable(brains.use_figure(brains_records.use()))
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()][:2] == ["white matter", "grey matter"]
    dots = [line for line in axis.lines if len(line.get_xdata()) == 1]
    assert len(dots) == 6 * 3 * 2
    values = {
        round(float(line.get_xdata()[0]), 3) for line in dots if to_hex(line.get_color()) == SET_COLOURS[0].lower()
    }
    assert values == {0.9, 0.91}
    assert legend(figure) == ["heads", "both", "samples"]
