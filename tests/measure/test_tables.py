from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fuzz.attack import limited
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.machine import gpu_folder_name, machine_meta
from medddpm.measure.schemas import KERNELS, TRACE, Column, Schema
from medddpm.measure.tables import LARGEST, check_table, gpu_folders, read_meta, read_table, table_file, write_table
from study.records.schemas import PAPER, TRAINING

SCHEMA = Schema(
    {
        "name": Column("str", "what it is", allowed=("base", "opt1")),
        "note": Column("str", "anything", nullable=True),
        "count": Column("int64", "how many"),
        "time": Column("float64", "how long", unit="ms"),
        "ratio": Column("float64", "against base", nullable=True),
    }
)


def rows(count: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "ratio": [np.nan, *rng.random(count - 1)],
            "name": ["base"] + ["opt1"] * (count - 1),
            "note": [None, *(f'a, "b" {i}' for i in range(count - 1))],
            "count": np.arange(count),
            "time": rng.random(count) * 1e-7,
        }
    )


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = write_table(rows(), tmp_path / "a" / "bench.csv", SCHEMA, {"gpu": "cpu"})
    back = read_table(path, SCHEMA)
    pd.testing.assert_frame_equal(back, rows()[list(SCHEMA.columns)], check_exact=True, check_dtype=False)
    assert [str(t) for t in back.dtypes[["count", "time", "ratio"]]] == ["int64", "float64", "float64"]
    meta = read_meta(path)
    assert meta["gpu"] == "cpu"
    assert meta["rows"] == 3
    assert meta["columns"]["time"] == {"dtype": "float64", "unit": "ms", "meaning": "how long"}


@pytest.mark.parametrize(
    ("column", "value", "wanted"),
    [
        ("launch_index", -1, "an integer from 0 to "),
        ("count", 0, "an integer from 1 to "),
        ("l2_hit_pct", 1e300, "a finite number from 0 to 1000 "),
        ("ipc", -0.5, "a finite number from 0 to 1000 "),
        ("duration_ns", -1.0, "a finite number from 0 to "),
        ("inst_fp", 1e30, "a finite number from 0 to "),
    ],
)
def test_a_number_out_of_its_column_s_range_is_neither_read_nor_written(
    column: str, value: float, wanted: str, tmp_path: Path
) -> None:
    path = ROOT / "figures" / "records" / "H200" / "kernels_base_window_run1.csv"
    table = read_table(path, KERNELS)
    table.loc[1, column] = value
    with pytest.raises(BadInput, match=f"row 2 of column {column} holds .* where {wanted}"):
        write_table(table, tmp_path / "kernels.csv", KERNELS, {})
    table.to_csv(tmp_path / "kernels.csv", index=False)
    with pytest.raises(BadInput, match=f"row 2 of column {column} holds .* where {wanted}"):
        read_table(tmp_path / "kernels.csv", KERNELS)


def test_a_trace_s_numbers_have_ranges_too(tmp_path: Path) -> None:
    good = pd.DataFrame({"index": [0], "kernel": ["k"], "grid": [""], "block": [""], "duration_ns": [0.0],
                         "phase": [""], "stream": [7]})  # fmt: skip
    good.to_csv(tmp_path / "trace.csv", index=False)
    assert len(read_table(tmp_path / "trace.csv", TRACE)) == 1
    for column, value in (("index", -1), ("duration_ns", 1e300), ("stream", -7)):
        good.assign(**{column: value}).to_csv(tmp_path / "trace.csv", index=False)
        with pytest.raises(BadInput, match=f"row 1 of column {column} holds"):
            read_table(tmp_path / "trace.csv", TRACE)


def test_a_column_that_came_later_is_empty_in_a_former_table(tmp_path: Path) -> None:
    path = write_table(rows(), tmp_path / "bench.csv", SCHEMA, {})
    later = Schema({**SCHEMA.columns, "bytes": Column("float64", "moved", nullable=True, later=True)})
    assert read_table(path, later)["bytes"].isna().all()
    write_table(rows().assign(bytes=1.0), path, later, {})
    assert read_table(path, later)["bytes"].tolist() == [1.0] * 3
    with pytest.raises(BadInput, match="has unknown column bytes"):
        read_table(path, SCHEMA)


def test_large_table_is_zipped_the_same_way_each_time(tmp_path: Path) -> None:
    small, large = rows(), rows(30_000)
    plain = write_table(small, tmp_path / "t.csv", SCHEMA, {})
    zipped = write_table(large, tmp_path / "t.csv", SCHEMA, {})
    first = zipped.read_bytes()
    assert zipped.name == "t.csv.gz"
    assert not plain.exists(), "the smaller table of the same name is still there"
    assert first[4:8] == bytes(4), "the archive holds a time"
    assert write_table(large, tmp_path / "t.csv", SCHEMA, {}).read_bytes() == first
    assert gzip.decompress(first).decode() == large[list(SCHEMA.columns)].to_csv(index=False, lineterminator="\n")
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "t.csv", SCHEMA), large[list(SCHEMA.columns)], check_exact=True, check_dtype=False
    )
    assert (tmp_path / "t.meta.json").is_file()
    assert write_table(small, zipped, SCHEMA, {}) == plain
    assert not zipped.exists()


def test_a_table_may_have_no_rows(tmp_path: Path) -> None:
    path = write_table(rows().iloc[:0], tmp_path / "t.csv", SCHEMA, {})
    assert path.read_text() == "name,note,count,time,ratio\n"
    assert read_table(path, SCHEMA).empty


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.drop(columns="time"), "lacks column time"),
        (lambda t: t.assign(more=1), "unknown column more"),
        (lambda t: t.assign(count=t["time"]), "column count is float64, not int64"),
        (lambda t: t.assign(note=[1, 2, 3]), "column note is int64, not str"),
        (lambda t: t.assign(note=["a", 2, None]), "column note is object, not str"),
        (lambda t: t.assign(time=[1.0, np.nan, 2.0]), "row 2 of column time holds nothing"),
        (lambda t: t.assign(ratio=[1.0, 2.0, np.inf]), "row 3 of column ratio holds inf"),
        (
            lambda t: t.assign(name=["base", "opt1", "fast"]),
            "row 3 of column name holds fast where one of base, opt1",
        ),
    ],
)
def test_write_refuses_what_does_not_fit(tmp_path: Path, change, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        write_table(change(rows()), tmp_path / "t.csv", SCHEMA, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a readable table"),
        ("setting,step,loss\nbase,1,0.5\n", "lacks column step_ms"),
        ("setting,step,loss,step_ms,x\nbase,1,0.5,3,4\n", "unknown column x"),
        ("setting,step,loss,step_ms\nbase,1.5,0.5,3\n", "row 1 of column step: '1.5' is no int64"),
        ("setting,step,loss,step_ms\nbase,1,0.5,3\nbase,2,,3\n", "row 2 of column loss holds nothing"),
        ("setting,step,loss,step_ms\nbase,1,nan,3\n", "row 1 of column loss holds nothing"),
        ("setting,step,loss,step_ms\n,1,0.5,3\n", "row 1 of column setting holds nothing where some text"),
    ],
)
def test_read_refuses_what_does_not_fit(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "training.csv").write_text(text)
    with pytest.raises(BadInput, match=told) as caught:
        read_table(tmp_path / "training.csv", TRAINING)
    assert "\n" not in str(caught.value)


def test_a_column_that_may_be_empty_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_text("name,note,count,time\nbase,,1,0.5\n")
    with pytest.raises(BadInput, match=r"bench\.csv: lacks column ratio"):
        read_table(tmp_path / "bench.csv", SCHEMA)


@pytest.mark.parametrize(
    "data",
    [b"not gzip", gzip.compress(b"setting,step\n" * 100)[:-20], gzip.compress(b"\xff\xfe")],
    ids=["not gzip", "cut short", "not text"],
)
def test_broken_archive_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.csv.gz").write_bytes(data)
    with pytest.raises(BadInput, match=r"t\.csv\.gz: is not a readable table"):
        read_table(tmp_path / "t.csv", TRAINING)


def test_missing_table_and_wrong_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such table"):
        read_table(tmp_path / "t.csv", TRAINING)
    with pytest.raises(BadInput, match=r"ends in \.csv"):
        write_table(rows(), tmp_path / "t.tsv", SCHEMA, {})


def test_folders_come_in_one_order(tmp_path: Path) -> None:
    for name in ("cpu", "H200", "RTX-4090", "paper", "V100", "B200", "H100"):
        (tmp_path / "figures" / "records" / name).mkdir(parents=True)
    assert [p.name for p in gpu_folders(tmp_path)] == ["V100", "H100", "H200", "B200", "RTX-4090", "cpu"]


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("cpu", "cpu"),
    ],
)
def test_folder_of_a_card(gpu: str, folder: str) -> None:
    assert gpu_folder_name(gpu) == folder


def test_machine_meta_says_what_measures_without_folders() -> None:
    import torch

    meta = machine_meta(["/somewhere/bin/medddpm", "bench", "--out=/somewhere/else/bench.csv", "/a/b c.nii.gz"])
    assert meta["command"] == "medddpm bench --out=bench.csv b c.nii.gz"
    assert machine_meta(["/a/medddpm/__main__.py", "book"])["command"] == "medddpm book"
    assert meta["torch"] == torch.__version__
    assert (meta["gpu"] == "cpu") == (torch.cuda.device_count() == 0)
    assert meta["processor"]
    json.dumps(meta)


def test_what_a_cpu_measures_is_no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert machine_meta(["medddpm"])["gpu"] == "NVIDIA H100 80GB HBM3"
    assert machine_meta(["medddpm"], device="cpu")["gpu"] == "cpu"


def test_a_told_commit_says_nothing_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDDDPM_COMMIT", "abc")
    meta = machine_meta(["medddpm"])
    assert (meta["commit"], meta["dirty"]) == ("abc", None)


def test_the_papers_numbers_are_all_there() -> None:
    table = read_table(ROOT / "figures" / "records" / "paper" / "paper_reported.csv", PAPER)
    assert list(table["id"]) == [f"P{n:03}" for n in range(1, 205)]
    assert "arXiv:2606.19365" in read_meta(ROOT / "figures" / "records" / "paper" / "paper_reported.csv")["source"]


# what may be replaced


def test_a_first_table_that_was_cut_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, moved = tmp_path / "t.csv", []
    real = os.replace

    def killed_at_the_second(*names: object) -> None:
        moved.append(names)
        if len(moved) == 2:
            raise KeyboardInterrupt
        real(*names)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            write_table(rows(), path, SCHEMA, {})
    check_table(path)
    assert write_table(rows(), path, SCHEMA, {}) == path
    check_table(path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.meta.json"])
@pytest.mark.parametrize("described", [False, True])
def test_what_this_package_did_not_write_is_not_replaced(tmp_path: Path, name: str, described: bool) -> None:
    (tmp_path / "t.meta.json").write_text('{"title": "my own"}') if described else None
    (tmp_path / name).write_text("[1]")
    with pytest.raises(BadInput, match="a file stands there that this command did not write"):
        check_table(tmp_path / "t.csv")


def test_a_folder_in_the_descriptions_place_is_said_first(tmp_path: Path) -> None:
    (tmp_path / "t.meta.json").mkdir()
    with pytest.raises(BadInput, match=r"t\.meta\.json: a folder stands there"):
        check_table(tmp_path / "t.csv")


@pytest.mark.parametrize("what", ["line", "gzip", "device"])
def test_a_table_that_does_not_end_is_named_before_it_is_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / ("bench.csv.gz" if what == "gzip" else "bench.csv")
    if what == "line":
        path.write_bytes(b"name,note\n")
        os.truncate(path, 3 * 2**30)
        said = rf"bench\.csv: it has 3221225472 bytes, and a file of this kind at most {LARGEST}"
    elif what == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        path.write_bytes(b"".join(packer.compress(bytes(2**20)) for _ in range(300)) + packer.flush())
        said = rf"bench\.csv\.gz: it unpacks to more than the {LARGEST} bytes that a table has at most"
    else:
        path.symlink_to("/dev/zero")
        said = r"bench\.csv: there is no such table"
    with limited(), pytest.raises(BadInput, match=said):
        read_table(tmp_path / "bench.csv", SCHEMA)


def test_a_description_that_is_a_fifo_belongs_to_nobody(tmp_path: Path) -> None:
    write_table(rows(), tmp_path / "bench.csv", SCHEMA, {})
    (tmp_path / "bench.meta.json").unlink()
    os.mkfifo(tmp_path / "bench.meta.json")
    with limited(), pytest.raises(BadInput, match=r"bench\.csv: a file stands there that this command did not write"):
        check_table(tmp_path / "bench.csv")
    (tmp_path / "bench.csv").unlink()
    with limited(), pytest.raises(BadInput, match=r"bench\.meta\.json: a FIFO stands there"):
        check_table(tmp_path / "bench.csv")


def test_every_record_holds_the_rows_and_columns_that_its_description_says() -> None:
    """Each row once: a record is written with its description, and never edited by itself."""
    described = 0
    for path in sorted((ROOT / "figures" / "records").rglob("*.meta.json")):
        meta = read_meta(path.with_name(path.name.replace(".meta.json", ".csv")))
        if "rows" in meta:  # ncu's own pages have a description of how they were measured alone
            table = pd.read_csv(table_file(path.with_name(path.name.replace(".meta.json", ".csv"))), dtype=str)
            found = len(table), list(table.columns), int(table.duplicated().sum())
            assert found == (meta["rows"], list(meta["columns"]), 0), path.name
            described += 1
    assert described > 100
