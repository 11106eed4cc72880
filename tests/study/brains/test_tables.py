"""The record of synthetic brains is read from all its folders, and sets are called by a reader's names."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import brains_records

from medddpm.errors import BadInput
from medddpm.measure.tables import table_of
from study.brains.tables import called, passing, recorded, sampled
from study.records import schemas_brains as schemas


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "figures" / "records" / "H200" / "brains"
    for name, whole in (("joint", 3), ("flair", 0)):
        rows = brains_records.wholes("heads", 4) + brains_records.wholes(f"{name}.dpmpp20", whole)
        brains_records.write(folder / name / "wholes.csv", rows, schemas.WHOLES)
    brains_records.write(folder / "joint" / "verdicts.csv", brains_records.verdicts("heads"), schemas.VERDICTS)
    return tmp_path


def test_a_machines_tables_are_joined_and_each_row_says_where_it_was(record: Path) -> None:
    read = recorded(record, "H200")
    assert read.wholes.groupby(["folder", "samples"]).size().to_dict() == {
        ("flair", "flair.dpmpp20"): 20, ("flair", "heads"): 20, ("joint", "heads"): 20, ("joint", "joint.dpmpp20"): 20,
    }  # fmt: skip
    assert set(read.verdicts["folder"]) == {"joint"}
    assert list(read.trainings) == [*schemas.TRAININGS.columns, "folder"]
    assert read.trainings.empty
    with pytest.raises(BadInput, match="no synthetic brains of H100"):
        recorded(record, "H100")


def test_a_table_at_the_top_is_of_no_folder(record: Path) -> None:
    rows = brains_records.wholes("heads", 4)
    brains_records.write(record / "figures" / "records" / "H200" / "brains" / "wholes.csv", rows, schemas.WHOLES)
    assert set(recorded(record, "H200").wholes["folder"]) == {"", "flair", "joint"}


def test_sets_are_called_by_names_in_their_order(record: Path) -> None:
    names = {("joint", "joint.dpmpp20"): "this model", ("flair", "heads"): "heads, FLAIR"}
    rows = called(recorded(record, "H200").wholes, names)
    assert list(rows["set"].cat.categories) == ["this model", "heads, FLAIR"]
    assert rows.groupby("set", observed=True)["passes"].sum().to_dict() == {"this model": 15, "heads, FLAIR": 20}
    assert rows["set"].is_monotonic_increasing
    with pytest.raises(BadInput, match=r"brains/flair.*no row of the samples joint\.dpmpp20"):
        called(recorded(record, "H200").wholes, {("flair", "joint.dpmpp20"): "none"})


def test_a_sets_name_tells_model_sampler_and_evaluations() -> None:
    named = ["all_t1_64_c32_h768_120s_s0.dpmpp20", "joint.sde-dpmpp5", "heads", "ours"]
    rows = [row for name in named for row in brains_records.wholes(name, 1, count=1)]
    read = sampled(table_of(rows, schemas.WHOLES)).drop_duplicates("samples")
    assert read[["model", "sampler", "evaluations"]].to_numpy().tolist() == [
        ["all_t1_64_c32_h768_120s_s0", "dpm++", 20],
        ["joint", "sde-dpm++", 5],
    ]


def test_passing_samples_are_counted_with_wilsons_interval() -> None:
    """The ends solve (p̂ - p)² = z² p (1 - p) / n (Wilson 1927), with z of 97.5%."""
    rows = brains_records.wholes("b", 20, count=24) + brains_records.wholes("a", 4)
    counted = passing(table_of(rows, schemas.WHOLES), ["samples", "group"])
    assert list(dict.fromkeys(counted.index.get_level_values("samples"))) == ["b", "a"]
    one = counted.loc[("b", "anatomy")]
    assert (one["passes"], one["of"]) == (20, 24)
    for end in (one["low"], one["high"]):
        assert (20 / 24 - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / 24, rel=1e-5)
    assert one["low"] < 20 / 24 < one["high"]
    assert counted.loc[("a", "copy"), "high"] == 1
