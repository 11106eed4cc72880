"""A profile out of a folder: records, ncu's own pages beside traces, several labels and runs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ncu_pages import ADD, CONV, CUPTI_ADD, CUPTI_NORM, Raw, details, duration
from helpers.profiles import CONV as TOY
from helpers.profiles import Launch, kernels_of, trace_of, write_profile
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.report.folder import Program, read_profile
from medddpm.measure.schemas import KERNELS, TRACE
from medddpm.measure.tables import write_meta, write_table
from medddpm.runtime.files import write_gzipped

RECORDS = ROOT / "figures" / "records" / "H100"
TWO = [Launch(us=100.0), Launch("Memset (Device)", 5.0, None, None, counted=False), Launch(us=300.0, phase="backward")]


def test_records_of_a_card_are_profiles() -> None:
    with pytest.raises(BadInput, match="several profiles: base, fast, opt1, opt12, opt2"):
        read_profile(RECORDS)
    profile = read_profile(RECORDS, "BASE")
    assert (profile.name, profile.card, profile.path.name) == (
        "BASE", "NVIDIA H100 80GB HBM3", "launches_base_step_run1.csv",
    )  # fmt: skip
    assert profile.known() > 0.99
    assert profile.kernels["count"].sum() == len(profile.launches)
    assert set(profile.counted["view"]) == {"window", "step"}
    assert profile.run["phase"].iloc[0] is None or profile.run["phase"].iloc[0] == "load"
    assert read_profile(RECORDS, "base", run=2).path.name == "launches_base_step_run2.csv"


def pages(folder: Path, label: str, meta: dict[str, object]) -> None:
    """Writes what `medddpm profile` leaves of a step and of a window of three launches."""
    folder.mkdir(exist_ok=True)
    raw = Raw(cells=duration("100", "20", "7")).text()
    step = [(CONV, "(64, 1, 1)", 100.0), (CUPTI_ADD, "(128, 1, 1)", 20.0), (CONV, "(64, 1, 1)", 300.0)]
    table = pd.DataFrame([*step, (CUPTI_NORM, "(256, 1, 1)", 7.0)], columns=["kernel", "grid", "duration_ns"])
    table = table.assign(index=range(4), block="(128, 1, 1)", phase="forward", stream=7)
    table = table[[name for name in TRACE.columns if name in table]]
    texts = {"raw": raw, "details": details([(0, "global", "30")]), "trace": table.to_csv(index=False)}
    for part in ("step", "window"):
        for kind, text in texts.items():
            path = folder / f"{label}_{part}_run1_{kind}.csv.gz"
            write_gzipped(text.encode(), path)
            write_meta({"measurement": {}, "gpu": "Toy", **meta}, path)


def test_pages_of_nsight_compute_are_parsed_with_what_lies_beside(tmp_path: Path) -> None:
    pages(tmp_path, "own", {"program": {"name": "train.py"}})
    profile = read_profile(tmp_path)
    assert (profile.name, profile.card, profile.path.name) == ("train.py", "Toy", "own_step_run1_trace.csv.gz")
    step = profile.kernels.set_index("kernel")
    assert step.loc[CONV, ["count", "duration_ns", "est_speedup_pct"]].tolist() == [2, 200, 30]
    assert profile.counted["view"].value_counts().to_dict() == {"step": 3, "window": 3}
    assert ADD in set(profile.counted["kernel"])
    assert len(profile.run) == 4
    assert profile.known() == pytest.approx(1)


def test_an_unfinished_table_is_none(tmp_path: Path) -> None:
    pages(tmp_path, "own", {})
    pages(tmp_path, "base", {"unfinished": True})
    assert read_profile(tmp_path).path.name.startswith("own_step")
    write_meta({"unfinished": True}, tmp_path / "own_step_run1_raw.csv.gz")
    profile = read_profile(tmp_path)
    assert profile.kernels is None
    assert set(profile.counted["view"]) == {"window"}


def test_a_trace_alone_is_a_profile_without_counters(tmp_path: Path) -> None:
    profile = read_profile(write_profile(tmp_path, TWO, counted=False))
    assert (profile.kernels, profile.known()) == (None, 0.0)
    table = profile.by_launch
    assert list(table.columns) == list(KERNELS.columns)
    assert table["count"].tolist() == [2, 1]
    assert table["duration_ns"].tolist() == [200_000, 5_000]
    assert table["family"].tolist() == ["sm80_xmma_fprop_implicit", "memset and memcpy"]
    assert table["cycles_active"].isna().all()


def test_the_share_with_counters_is_of_the_time(tmp_path: Path) -> None:
    launches = [Launch(us=30.0), Launch("other", 10.0, counted=False)]
    assert read_profile(write_profile(tmp_path, launches)).known() == pytest.approx(0.75)


def test_a_kernels_family_is_told_anew(tmp_path: Path) -> None:
    """Records may be older than the table of families, and a file may say anything."""
    write_profile(tmp_path, TWO)
    write_table(kernels_of(TWO).assign(family="<b>no family"), tmp_path / "kernels_own_step_run1.csv", KERNELS, {})
    assert read_profile(tmp_path).kernels["family"].tolist() == ["sm80_xmma_fprop_implicit", "memset and memcpy"]


def test_begins_are_read_where_they_were_recorded(tmp_path: Path) -> None:
    assert read_profile(write_profile(tmp_path / "a", TWO)).launches["start_ns"].isna().all()
    profile = read_profile(write_profile(tmp_path / "b", TWO, starts=[0.0, 200.0, 300.0]))
    assert profile.launches["start_ns"].tolist() == [0, 200_000, 300_000]


def test_one_of_several_profiles_must_be_chosen(tmp_path: Path) -> None:
    write_profile(tmp_path, TWO, "opt1")
    write_profile(tmp_path, TWO[:1], "opt1", run=3)
    write_profile(tmp_path, TWO, "base")
    with pytest.raises(BadInput, match="holds several profiles: base, opt1; choose one by --setting"):
        read_profile(tmp_path)
    with pytest.raises(BadInput, match="holds no profile fast; choose one by --setting: base, opt1"):
        read_profile(tmp_path, "fast")
    with pytest.raises(BadInput, match="holds no run 2 of opt1; choose one by --run: 1, 3"):
        read_profile(tmp_path, "opt1", run=2)
    assert len(read_profile(tmp_path, "opt1").launches) == 3
    assert len(read_profile(tmp_path, "opt1", run=3).launches) == 1


def test_what_is_no_profile_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no trace of a step; profile a step"):
        read_profile(tmp_path)
    with pytest.raises(BadInput, match="there is no such folder; give the folder of medddpm profile --out"):
        read_profile(tmp_path / "none")
    write_table(trace_of([Launch(us=0.0)]), tmp_path / "launches_own_step_run1.csv", TRACE, {})
    with pytest.raises(BadInput, match="holds no launch that takes time"):
        read_profile(tmp_path)


def test_a_programs_numbers_are_read(tmp_path: Path) -> None:
    told = {"name": "x" * 500, "step_ms": [10, 11.5], "loading_ms": [None, 2.0], "processes": 2, "gpus": 2,
            "graphs": True, "varies": False, "host_ms": None, "later": {}}  # fmt: skip
    program = read_profile(write_profile(tmp_path, TWO, program=told)).program
    assert program == Program("x" * 200, (10.0, 11.5), (2.0,), 2, 2, True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("name", 5), ("step_ms", 5.0), ("step_ms", ["x"]), ("step_ms", [-1]), ("loading_ms", [float("nan")]),
     ("step_ms", [10**400]), ("step_ms", [[]]), ("processes", 0), ("gpus", "two"), ("graphs", 1), ("varies", {})],
)  # fmt: skip
def test_a_programs_numbers_of_another_kind_are_refused(tmp_path: Path, name: str, value: object) -> None:
    write_profile(tmp_path, TWO)
    path = tmp_path / "launches_own_step_run1.meta.json"
    path.write_text(json.dumps({"program": {name: value}}))
    with pytest.raises(BadInput, match=f"its program's {name} is"):
        read_profile(tmp_path)
    path.write_text(json.dumps({"program": [1]}))
    with pytest.raises(BadInput, match="its program is no description"):
        read_profile(tmp_path)


def test_a_profile_under_another_pytorch_has_its_own_windows(tmp_path: Path) -> None:
    write_profile(tmp_path, TWO)
    for path in sorted(tmp_path.glob("*_step_*")):
        path.rename(tmp_path / path.name.replace("_step_", "_step-torch-2-2-2_"))
    for part, us in (("window-torch-2-2-2", 7.0), ("window", 9.0)):
        write_table(trace_of([Launch(us=us)]), tmp_path / f"launches_own_{part}_run1.csv", TRACE, {})
        write_table(kernels_of([Launch(TOY)], "window"), tmp_path / f"kernels_own_{part}_run1.csv", KERNELS, {})
    profile = read_profile(tmp_path)
    assert np.array_equal(profile.run["duration_ns"], [7000.0])
    assert profile.counted["view"].tolist() == ["step", "step", "window"]
