"""Kernels tables of several machines and runs: which there are, in what order, and how far the runs lie apart."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure import schemas
from medddpm.measure.profile.kernel_names import function_name, launch_keys
from medddpm.measure.tables import read_meta, read_table, write_table
from medddpm.switches import SETTINGS
from study.claims.paper import PAPER_SETTINGS as PAPERS
from study.profile.tables import (
    MACHINE,
    ORDER,
    VIEWS,
    Record,
    each_run,
    kernels,
    launches,
    next_run,
    over_runs,
    records,
    spread,
)


def put_kernels(root: Path, gpu: str, name: str, cycles: float = 8.0) -> Path:
    """Writes kernels_NAME.csv of two launches, of which only cycles and time are known."""
    config, part, _ = name.split("_")
    table = pd.DataFrame({"kernel": ["conv", "add"], "cycles_active": [cycles, 1.0], "duration_ns": [30.0, 10.0]})
    table = table.assign(
        config=config.upper(), view="step" if part == "step" else "window", launch_index=[0, 1], family="other",
        grid="(1, 1, 1)", block="(32, 1, 1)", count=1,
    )  # fmt: skip
    table = table.reindex(columns=list(schemas.KERNELS.columns))
    return write_table(table, root / "figures" / "records" / gpu / f"kernels_{name}.csv", schemas.KERNELS, {})


def put_launches(root: Path, gpu: str, name: str, kernel: str) -> None:
    table = pd.DataFrame({"index": [0], "kernel": [kernel], "grid": ["(1, 1, 1)"], "block": ["(32, 1, 1)"],
                          "duration_ns": [5.0], "phase": ["forward"], "stream": [7]})  # fmt: skip
    write_table(table, root / "figures" / "records" / gpu / f"launches_{name}.csv", schemas.TRACE, {})


# what there is


def test_records_are_ordered_by_machine_run_setting_and_part(tmp_path: Path) -> None:
    names = ["opt12_window_run1", "base_step_run1", "opt2_window-300_run1", "opt2_step_run1", "opt2_window_run1",
             "base_window_run1", "base_window_run2", "fast_window_run1", "base_window_run10"]  # fmt: skip
    for gpu, name in itertools.product(("H200", "A100"), names):
        put_kernels(tmp_path, gpu, name)
    put_launches(tmp_path, "H200", "base_window_run1", "conv")
    (tmp_path / "figures" / "records" / "H200" / "training.csv").write_text("not of this kind\n")
    listed = records(tmp_path)
    assert [r.gpu for r in listed] == ["A100"] * 9 + ["H200"] * 10
    assert [(r.table, r.run, r.setting, r.part) for r in listed[9:]] == [
        ("kernels", 1, "BASE", "window"),
        ("launches", 1, "BASE", "window"),
        ("kernels", 1, "BASE", "step"),
        ("kernels", 1, "OPT2", "window"),
        ("kernels", 1, "OPT2", "step"),
        ("kernels", 1, "OPT2", "window-300"),
        ("kernels", 1, "OPT12", "window"),
        ("kernels", 1, "FAST", "window"),
        ("kernels", 2, "BASE", "window"),
        ("kernels", 10, "BASE", "window"),
    ]
    assert listed[0].path == tmp_path / "figures" / "records" / "A100" / "kernels_base_window_run1.csv"


def test_tables_are_joined_with_machine_run_and_part(tmp_path: Path) -> None:
    put_kernels(tmp_path, "V100", "base_window_run2", cycles=3.0)
    put_kernels(tmp_path, "A100", "base_step_run1", cycles=5.0)
    put_kernels(tmp_path, "A100", "opt2_window-300_run1", cycles=7.0)
    joined = kernels(tmp_path)
    assert list(joined.columns) == ["gpu", "run", "part", *schemas.KERNELS.columns]
    assert joined[["gpu", "run", "part", "cycles_active"]].to_numpy().tolist() == [
        ["V100", 2, "window", 3], ["V100", 2, "window", 1], ["A100", 1, "step", 5], ["A100", 1, "step", 1],
    ]  # fmt: skip
    elsewhere = kernels(tmp_path, ("window-300",))
    assert elsewhere[["gpu", "part", "view"]].drop_duplicates().to_numpy().tolist() == [
        ["A100", "window-300", "window"]
    ]


def test_a_table_that_changes_is_read_again_and_the_callers_copy_is_its_own(tmp_path: Path) -> None:
    put_kernels(tmp_path, "V100", "base_window_run1", cycles=3.0)
    first = kernels(tmp_path)
    first["cycles_active"] = -1.0
    assert kernels(tmp_path)["cycles_active"].tolist() == [3, 1]
    put_kernels(tmp_path, "V100", "base_window_run1", cycles=4.0)
    assert kernels(tmp_path)["cycles_active"].tolist() == [4, 1]


def test_no_table_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"records: holds no kernels table of window or step; .*python -m study book --from 02"
    ):
        kernels(tmp_path)
    put_kernels(tmp_path, "V100", "base_window_run1")
    put_launches(tmp_path, "V100", "base_step_run1", "conv")
    with pytest.raises(BadInput, match="holds no kernels table of step") as raised:
        kernels(tmp_path, ("step",))
    assert "\n" not in str(raised.value)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    put_kernels(tmp_path, "V100", "base_window_run1")
    path = put_kernels(tmp_path, "V100", "opt1_window_run1")
    path.write_text(path.read_text().replace("8.0", "eight"))
    for _ in range(2):
        with pytest.raises(BadInput, match=r"kernels_opt1_window_run1\.csv: row 1 of column cycles_active: 'eight'"):
            kernels(tmp_path)


def test_launches_are_a_machines_newest(tmp_path: Path) -> None:
    put_launches(tmp_path, "A100", "base_window_run2", "newest")
    put_launches(tmp_path, "A100", "base_window_run1", "older")
    put_launches(tmp_path, "A100", "opt2_window_run3", "only")
    put_launches(tmp_path, "A100", "fast_window_run1", "last, though of the first run")
    put_launches(tmp_path, "V100", "opt1_window_run1", "of another machine")
    put_launches(tmp_path, "A100", "opt2_window-torch-2-2-2_run4", "under another PyTorch")
    tables = launches(tmp_path, "A100")
    assert [(name, table["kernel"].tolist()) for name, table in tables.items()] == [
        ("BASE", ["newest"]), ("OPT2", ["only"]), ("FAST", ["last, though of the first run"])
    ]  # fmt: skip
    (other,) = launches(tmp_path, "A100", "window-torch-2-2-2").values()
    assert other["kernel"].tolist() == ["under another PyTorch"]
    assert launches(tmp_path, "H100") == {}


# the next run


def test_the_next_run_of_a_machine_without_records_is_the_first(tmp_path: Path) -> None:
    assert next_run(tmp_path / "none", SETTINGS) == 1
    put_launches(tmp_path, "V100", "base_window_run4", "conv")
    put_kernels(tmp_path, "V100", "base_window-300_run5")
    assert next_run(tmp_path / "figures" / "records" / "V100", SETTINGS) == 1, "only window and step make a run"


@pytest.mark.parametrize("missing", [f"{setting}_{part}" for setting in ("base", "opt2") for part in VIEWS])
def test_a_run_is_gone_on_with_until_it_is_whole(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "figures" / "records" / "V100"
    for run, setting, part in itertools.product((1, 2), ("base", "opt2"), VIEWS):
        if (run, f"{setting}_{part}") != (2, missing):
            put_kernels(tmp_path, "V100", f"{setting}_{part}_run{run}")
    assert next_run(folder, ("BASE", "OPT2")) == 2
    put_kernels(tmp_path, "V100", f"{missing}_run2")
    assert next_run(folder, ("BASE", "OPT2")) == 3
    assert next_run(folder, ("BASE", "OPT1", "OPT2")) == 2, "a setting more is wanted"


# runs


def two_machines() -> pd.DataFrame:
    """Cycles of BASE and OPT1 in runs 1 and 2 of one machine and in run 1 of another."""
    rows = [("V100", 1, "BASE", 10.0), ("V100", 1, "BASE", 20.0), ("V100", 1, "OPT1", 6.0), ("V100", 2, "BASE", 34.0),
            ("V100", 2, "OPT1", 2.0), ("A100", 1, "BASE", 5.0), ("A100", 1, "OPT1", np.nan)]  # fmt: skip
    return pd.DataFrame(rows, columns=[*MACHINE, "config", "cycles"])


def summed(table: pd.DataFrame) -> pd.DataFrame:
    return table.groupby("config")[["cycles"]].sum(min_count=1)


def test_each_run_is_summed_by_itself() -> None:
    by_run = each_run(two_machines(), summed)["cycles"]
    assert list(by_run.index.names) == ["gpu", "run", "config"]
    assert by_run.dropna().to_dict() == {
        ("V100", 1, "BASE"): 30, ("V100", 1, "OPT1"): 6, ("V100", 2, "BASE"): 34, ("V100", 2, "OPT1"): 2,
        ("A100", 1, "BASE"): 5,
    }  # fmt: skip
    assert list(dict.fromkeys(by_run.index.get_level_values("gpu"))) == ["V100", "A100"], "not the tables' order"


def test_runs_are_averaged_and_their_distance_is_told() -> None:
    by_run = each_run(two_machines(), summed)
    means = over_runs(by_run)["cycles"]
    assert means.dropna().to_dict() == {("V100", "BASE"): 32, ("V100", "OPT1"): 4, ("A100", "BASE"): 5}
    assert list(means.index.names) == ["gpu", "config"]
    apart = spread(by_run)["cycles"]
    assert apart.dropna().to_dict() == {("V100", "BASE"): 4 / 32, ("V100", "OPT1"): 4 / 4}
    assert ("A100", "BASE") in apart.index


def test_a_setting_that_only_a_later_run_has_comes_in_its_place() -> None:
    names = ["gpu", "run", "view", "config"]
    rows = [("V100", 1, "window", "OPT1"), ("V100", 1, "step", "BASE"), ("V100", 2, "window", "BASE")]
    by_run = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=pd.MultiIndex.from_tuples(rows, names=names))
    expected = [("V100", "window", "BASE"), ("V100", "window", "OPT1"), ("V100", "step", "BASE")]
    assert over_runs(by_run).index.tolist() == spread(by_run).index.tolist() == expected


def test_settings_are_known_by_name_without_pytorch() -> None:
    """A notebook that only draws begins seconds earlier."""
    assert list(ORDER) == list(SETTINGS)
    asked = "import sys, study.page, study.profile.tables; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_spread_of_three_runs_is_of_the_farthest_two() -> None:
    index = pd.MultiIndex.from_product([["V100"], [1, 2, 3], ["BASE"]], names=["gpu", "run", "config"])
    by_run = pd.DataFrame({"a": [-9.0, -10.0, -11.0], "b": [1.0, np.nan, 3.0], "c": [2.0, np.nan, np.nan]}, index=index)
    apart = spread(by_run).loc[("V100", "BASE")]
    assert apart[["a", "b"]].to_dict() == {"a": 0.2, "b": 1.0}
    assert np.isnan(apart["c"]), "a number that one run has has no spread"


# the repository's own


def test_the_records_hold_the_papers_settings_in_both_views_twice_on_its_card() -> None:
    """What the issue asks of the study's records; the joined table is what every figure starts from."""
    runs = kernels(ROOT).groupby(["gpu", "config", "part"])["run"].nunique()
    for card, views in (("H100", VIEWS), ("H200", ["window"])):
        wanted = list(itertools.product([card], PAPERS, views))
        assert set(runs.index) >= set(wanted)
        assert [each for each in wanted if runs[each] < 2] == []
    assert set(runs.index) >= set(itertools.product(["H200"], PAPERS, VIEWS))


def test_no_setting_is_recorded_by_half() -> None:
    """A figure beside the others lacks nothing: the paper's settings have equal views on a card, and their launches.

    FAST, which is not the paper's, may have the window alone.
    """
    for gpu, table in kernels(ROOT).groupby("gpu"):
        recorded = set(table["config"])
        assert set(PAPERS) <= recorded <= set(SETTINGS)
        views = {name: frozenset(own["part"]) for name, own in table.groupby("config")}
        of_paper = {views[name] for name in PAPERS}
        assert of_paper in ({frozenset({"window"})}, {frozenset(VIEWS)})
        beyond = {views[name] for name in recorded - set(PAPERS)}
        assert beyond <= {frozenset({"window"}), *of_paper}
        assert recorded >= set(launches(ROOT, str(gpu))) >= set(PAPERS)


STEPS = [record for record in records(ROOT) if record.table == "kernels" and record.part == "step"]


BUSY = {"H100": (0.6, 0.9), "H200": (0.6, 0.9)}  # share of a step in which an SM is active; of other cards nobody knows


def sm_ghz(gpu: str) -> float:
    """Returns the clock of all multiprocessors together, by the card's peak: two operations a CUDA core and cycle."""
    card = read_table(ROOT / "figures" / "records" / gpu / "card.csv", schemas.CARD).set_index("property")["value"]
    large_ampere = card["architecture"] == "Ampere" and card["multi-instance GPU"] == "yes"  # A100, A30
    cores = 64 if large_ampere or card["architecture"] in ("Volta", "Turing") else 128  # of one multiprocessor
    return 1e3 * float(card["peak FP32"]) / (2 * cores)


@pytest.mark.parametrize("record", STEPS, ids=lambda record: f"{record.gpu}-{record.path.stem}")
def test_a_steps_cycles_fit_into_its_time(record: Record) -> None:
    """No SM runs faster than its clock. The cycles are a profiled launch's, up to 3% longer than traced."""
    step = read_table(record.path, schemas.KERNELS)
    step = step[step["cycles_active"].notna()]
    time = step["count"] * step["duration_ns"]
    busy = step["cycles_active"] / (sm_ghz(record.gpu) * step["duration_ns"])
    assert time[busy > 1.03].sum() < 0.02 * time.sum()
    least, most = BUSY.get(record.gpu, (0.3, 1.03))
    assert least < (time * busy).sum() / time.sum() < most


@pytest.mark.parametrize("record", [r for r in STEPS if r.setting in PAPERS], ids=lambda record: record.path.stem)
def test_a_steps_counters_were_scaled_by_the_trace_that_its_description_names(record: Record) -> None:
    """ncu counts whole instructions: with the factor taken out again they are whole, and those of one launch agree."""
    step, meta = read_table(record.path, schemas.KERNELS), read_meta(record.path)["scaled_by"]
    run = read_table(record.path.with_name(meta["trace"]), schemas.TRACE)
    phase = run["phase"].fillna("")
    done = ((phase != "update") & (phase.shift() == "update")).cumsum()  # steps that have ended
    places = np.flatnonzero((done == meta["step"] - 1) & (phase != ""))
    trace = run.iloc[places[0] : places[-1] + 1]
    ran = trace["duration_ns"].groupby(launch_keys(trace))
    rows = step[step["count"] > 1].nlargest(20, "instructions")
    alone = ~launch_keys(step, function_name).duplicated(keep=False)
    checked = rows[alone[rows.index]]
    assert len(checked) >= 5
    keys = launch_keys(checked)
    factor = keys.map(ran.mean()) / keys.map(ran.first())
    assert (factor - 1).abs().max() > 0.2, "nothing is scaled"
    counted = checked["instructions"] / factor
    assert (counted - counted.round()).abs().max() < 0.05
    assert (checked["ipc"] * checked["cycles_active"] / checked["instructions"] - 1).abs().max() < 1e-5
