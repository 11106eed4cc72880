"""Profiles of a folder become a machine's records: what `medddpm profile` leaves, made up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from helpers.ncu_pages import ADD, CONV, CUPTI_ADD, CUPTI_NORM, NORM, Raw, details

from medddpm.errors import BadInput
from medddpm.measure import schemas
from medddpm.measure.profile import trace
from medddpm.measure.profile.records import adopt
from medddpm.measure.tables import meta_path, read_meta, read_table
from medddpm.runtime.files import write_gzipped
from study.profile import tables as kernel_tables

TABLES = ("kernels", "launches")


def put(profiles: Path, name: str, text: str, meta: dict[str, object] | None = None) -> Path:
    """A page as the profiler leaves it: compressed, and described when it is whole."""
    profiles.mkdir(exist_ok=True)
    path = profiles / f"{name}.csv.gz"
    write_gzipped(text.encode(), path)
    meta_path(path).write_text(json.dumps({"gpu": "NVIDIA V100", "launches": 3} if meta is None else meta))
    return path


def put_trace(profiles: Path, name: str) -> None:
    """A trace of four launches and a fill; the convolution runs twice."""
    rows = [(CONV, "(64, 1, 1)", 500.0), (CUPTI_ADD, "(128, 1, 1)", 100.0), ("Memset (Device)", "", 5.0),
            (CUPTI_NORM, "(256, 1, 1)", 30.0), (CONV, "(64, 1, 1)", 100.0)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["kernel", "grid", "duration_ns"])
    table = table.assign(index=range(5), block="(128, 1, 1)", phase="forward", stream=7, start_ns=range(5))
    path = profiles / f"{name}_trace.csv.gz"
    trace.write(table[list(schemas.TRACE.columns)].itertuples(index=False, name=None), path)
    meta_path(path).write_text('{"gpu": "NVIDIA V100", "steps": 2}')


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """A window with estimates and a trace, one elsewhere with neither, and a step with its trace."""
    folder = tmp_path / "profiles"
    put(folder, "opt1_window_run2_raw", Raw().text())
    put(folder, "opt1_window_run2_details", details([(0, "global", "30")]))
    put_trace(folder, "opt1_window_run2")
    put(folder, "opt1_window-300_run2_raw", Raw(kernels=[ADD, NORM, CONV]).text())
    put(folder, "base_step_run1_raw", Raw().text(), {"gpu": "NVIDIA V100", "date": "2026-11-21"})
    put_trace(folder, "base_step_run1")
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return tmp_path / "figures" / "records" / "V100"


def test_every_profile_becomes_a_record(profiles: Path, machine: Path, tmp_path: Path) -> None:
    said = list(adopt(profiles, machine.parent))
    assert [line.partition(":")[0] for line in said] == [
        "kernels_base_step_run1.csv", "launches_base_step_run1.csv", "kernels_opt1_window-300_run2.csv",
        "kernels_opt1_window_run2.csv", "launches_opt1_window_run2.csv",
    ]  # fmt: skip
    assert "4 distinct of 5 launches" in said[0]
    assert "99.3% of the time has counters" in said[0]
    assert said[-1].endswith(": 5 launches in order")
    assert {name for name in contents(machine) if name.endswith(".csv")} == {line.partition(":")[0] for line in said}
    assert [(r.table, r.gpu, r.setting, r.part, r.run) for r in kernel_tables.records(tmp_path)] == [
        ("kernels", "V100", "BASE", "step", 1),
        ("launches", "V100", "BASE", "step", 1),
        ("kernels", "V100", "OPT1", "window", 2),
        ("launches", "V100", "OPT1", "window", 2),
        ("kernels", "V100", "OPT1", "window-300", 2),
    ]


def test_a_window_has_its_estimates_and_a_row_a_launch(profiles: Path, machine: Path) -> None:
    list(adopt(profiles, machine.parent))
    window = read_table(machine / "kernels_opt1_window_run2.csv", schemas.KERNELS)
    assert window[["config", "view"]].drop_duplicates().to_numpy().tolist() == [["OPT1", "window"]]
    assert window["kernel"].tolist() == [CONV, ADD, NORM]
    assert window["est_speedup_pct"].tolist() == [30, 0, 0]
    assert window["duration_ns"].tolist() == [1000] * 3, "a window's times are ncu's, not the trace's"
    elsewhere = read_table(machine / "kernels_opt1_window-300_run2.csv", schemas.KERNELS)
    assert elsewhere["view"].unique().tolist() == ["window"]
    assert elsewhere["kernel"].tolist() == [ADD, NORM, CONV]
    assert elsewhere["est_speedup_pct"].isna().all()


@pytest.mark.parametrize("profile", ["opt1_window_run2", "base_step_run1"])
def test_a_trace_goes_along_as_it_is(profiles: Path, machine: Path, profile: str) -> None:
    list(adopt(profiles, machine.parent))
    path = machine / f"launches_{profile}.csv"
    original = read_table(profiles / f"{profile}_trace.csv.gz", schemas.TRACE)
    pd.testing.assert_frame_equal(read_table(path, schemas.TRACE), original)
    assert read_meta(path)["steps"] == 2


def test_a_step_is_weighted_by_its_trace(profiles: Path, machine: Path) -> None:
    list(adopt(profiles, machine.parent))
    path = machine / "kernels_base_step_run1.csv"
    step = read_table(path, schemas.KERNELS).set_index("kernel")
    assert step["view"].unique().tolist() == ["step"]
    assert step["count"].to_dict() == {CONV: 2, CUPTI_ADD: 1, "Memset (Device)": 1, CUPTI_NORM: 1}
    assert step.loc[CONV, "duration_ns"] == 300
    meta = read_meta(path)
    assert meta["date"] == "2026-11-21", "how it was measured is lost"
    assert meta["parsed_from"] == "base_step_run1_raw.csv.gz"
    assert meta["matched"] == pytest.approx(730 / 735)
    assert (meta["scaled_by"]["trace"], meta["scaled_by"]["step"]) == ("launches_base_step_run1.csv", 1)
    assert (machine / meta["scaled_by"]["trace"]).is_file()


def test_a_step_measured_otherwise_is_a_step_too(profiles: Path, machine: Path, tmp_path: Path) -> None:
    put(profiles, "base_step-cache-none_run1_raw", Raw().text())
    put_trace(profiles, "base_step-cache-none_run1")
    list(adopt(profiles, machine.parent))
    step, otherwise = (kernel_tables.kernels(tmp_path, (part,)) for part in ("step", "step-cache-none"))
    assert set(otherwise["view"]) == {"step"}
    assert otherwise["count"].tolist() == step["count"].tolist(), "weighted by its trace"


def test_a_step_under_another_pytorch_is_a_step(profiles: Path, machine: Path, tmp_path: Path) -> None:
    put(profiles, "base_step-torch-2-2-2_run1_raw", Raw().text(), {"gpu": "NVIDIA V100", "torch": "2.2.2"})
    put_trace(profiles, "base_step-torch-2-2-2_run1")
    list(adopt(profiles, machine.parent))
    path = machine / "kernels_base_step-torch-2-2-2_run1.csv"
    assert read_table(path, schemas.KERNELS)["view"].unique().tolist() == ["step"]
    assert read_meta(path)["torch"] == "2.2.2"
    assert kernel_tables.kernels(tmp_path)["part"].unique().tolist() == ["step", "window"]


def test_a_trace_by_itself_becomes_launches(profiles: Path, machine: Path, tmp_path: Path) -> None:
    """Times without counters: no table of kernels, and nothing that the views of the book would draw."""
    put_trace(profiles, "opt2_step-torch-2-2-2_run1")
    assert list(adopt(profiles, machine.parent))[-1] == "launches_opt2_step-torch-2-2-2_run1.csv: 5 launches in order"
    kept = kernel_tables.launches(tmp_path, "V100", "step-torch-2-2-2")
    original = read_table(profiles / "opt2_step-torch-2-2-2_run1_trace.csv.gz", schemas.TRACE)
    pd.testing.assert_frame_equal(kept["OPT2"], original)
    assert "OPT2" not in set(kernel_tables.kernels(tmp_path)["config"])


@pytest.mark.parametrize("how", ["missing", "unfinished"])
def test_a_step_without_its_trace_is_refused(profiles: Path, machine: Path, how: str) -> None:
    table = profiles / "base_step_run1_trace.csv.gz"
    (table if how == "missing" else meta_path(table)).unlink()
    with pytest.raises(BadInput, match=r"base_step_run1_raw\.csv\.gz: its trace is missing") as raised:
        list(adopt(profiles, machine.parent))
    assert "\n" not in str(raised.value)
    assert not machine.exists()


def test_what_is_not_finished_is_passed_over(profiles: Path, machine: Path) -> None:
    """A description is written last; pages without one, and files of other names, are left alone."""
    meta_path(profiles / "opt1_window-300_run2_raw.csv").unlink()
    meta_path(profiles / "opt1_window_run2_details.csv").unlink()
    put(profiles, "dit_fp32_raw", "of another kind")
    names = [line.partition(":")[0] for line in adopt(profiles, machine.parent)]
    assert names == [f"{table}_{of}.csv" for of in ("base_step_run1", "opt1_window_run2") for table in TABLES]
    window = read_table(machine / "kernels_opt1_window_run2.csv", schemas.KERNELS)
    assert window["est_speedup_pct"].isna().all(), "an unfinished details page was read"


def test_twice_gives_the_same_bytes(profiles: Path, machine: Path) -> None:
    list(adopt(profiles, machine.parent))
    first = contents(machine)
    list(adopt(profiles, machine.parent))
    assert contents(machine) == first
    assert len(first) == 10


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_finished_is_refused(tmp_path: Path, machine: Path, exists: bool) -> None:
    folder = tmp_path / "profiles"
    if exists:
        meta_path(put(folder, "opt1_window_run1_raw", Raw().text())).unlink()
    with pytest.raises(BadInput, match=r"profiles: holds no finished profile; medddpm profile --out /.*/profiles"):
        list(adopt(folder, machine.parent))
    assert not machine.exists()


def test_a_broken_page_is_named_and_writes_nothing(profiles: Path, machine: Path) -> None:
    put(profiles, "base_step_run1_raw", "name,value\na,1\n")
    with pytest.raises(BadInput, match=r"base_step_run1_raw\.csv\.gz: holds no table of ncu's raw page"):
        list(adopt(profiles, machine.parent))
    assert not machine.exists()


def test_profiles_of_two_cards_go_to_the_folders_of_both(profiles: Path, machine: Path) -> None:
    """What another machine measured stays its own, wherever it is parsed."""
    put(profiles, "opt2_window_run1_raw", Raw().text(), {"gpu": "NVIDIA A100-SXM4-80GB"})
    list(adopt(profiles, machine.parent))
    assert [path.name for path in (machine.parent / "A100").glob("kernels*.csv")] == ["kernels_opt2_window_run1.csv"]
    assert len(list(machine.glob("kernels*.csv"))) == 3


def test_a_trace_from_before_the_launches_begins_is_adopted_as_it_was(profiles: Path, machine: Path) -> None:
    path = profiles / "opt1_window_run2_trace.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    old = "\n".join(line.rpartition(",")[0] for line in lines) + "\n"
    write_gzipped(old.encode(), path)
    list(adopt(profiles, machine.parent))
    written = machine / "launches_opt1_window_run2.csv"
    assert written.read_text().partition("\n")[0] == "index,kernel,grid,block,duration_ns,phase,stream"
    assert "start_ns" not in read_meta(written)["columns"]
    assert read_table(written, schemas.TRACE)["start_ns"].isna().all()
