"""`medddpm parse RUN.ncu-rep`: by ncu, which a script plays, or by NVIDIA's module, whose calls a small one has."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.ncu_pages import ADD, CLASS_CELL, CONV, NORM, UNITS, Raw, details

from medddpm.cli.main import main
from medddpm.measure import programs, schemas
from medddpm.measure.profile import ncu_rep
from medddpm.measure.profile.counters import COLLECTED, INSTRUCTIONS, METRICS
from medddpm.measure.profile.ncu import Collection
from medddpm.measure.profile.ncu_csv import CLOSED
from medddpm.measure.profile.parse import parse
from medddpm.measure.tables import read_meta, read_table

NCU = r"""#!/bin/bash
# Plays ncu --import: prints the page that it is asked for, or fails.
[ -n "$FAILS" ] && { echo "==ERROR== Cannot open report file"; exit 1; }
case "$*" in
*"--page raw"*) exec cat "$PAGES/raw.csv" ;;
*) exec cat "$PAGES/details.csv" ;;
esac
"""
# NVIDIA's interface as its Python Report Interface documents it: the calls that are made, on a report of JSON.
MODULE = """
import json

class Labels:
    def __init__(self, names): self.names = names
    def value(self, at): return self.names[at]

class Metric:
    def __init__(self, told): self.told = told
    def unit(self): return self.told["unit"]
    def value(self, at=None): return self.told["value"] if at is None else list(self.told["instances"].values())[at]
    def num_instances(self): return len(self.told.get("instances", {}))
    def correlation_ids(self): return Labels(list(self.told["instances"]))

class Rule:
    def __init__(self, told): self.told = told
    def name(self): return "SOLBottleneck"
    def has_speedup_estimation(self): return "speedup" in self.told
    def speedup_estimation(self): return self.told

class IAction:
    NameBase_MANGLED = "mangled"
    def __init__(self, told): self.told = told
    def name(self, base): return self.told[base]
    def metric_names(self): return tuple(self.told["metrics"])
    def metric_by_name(self, name): return Metric(self.told["metrics"][name]) if name in self.told["metrics"] else None
    def rule_results(self): return tuple(map(Rule, self.told["rules"]))

class Range:
    def __init__(self, told): self.told = told
    def num_actions(self): return len(self.told)
    def action_by_idx(self, place): return IAction(self.told[place])

class Report:
    def __init__(self, told): self.told = told
    def num_ranges(self): return len(self.told)
    def range_by_idx(self, place): return Range(self.told[place])

def load_report(path):
    text = open(path).read()
    if text == "crash":
        import os, signal
        os.kill(os.getpid(), signal.SIGSEGV)
    return Report(json.loads(text) if text.startswith("[") else [])
"""
RULES = [(0, "global", "30"), (1, "local", "12.5")]


def report_of(kernels: list[str], rules: bool = True) -> str:
    """A report of the launches that `Raw` has, in two ranges."""
    launches = []
    for place, kernel in enumerate(kernels):
        metrics = {
            metric.names[0]: {"unit": UNITS[metric.unit], "value": at + 0.5}
            for at, metric in enumerate(METRICS.values())
        }
        for column, value in (("duration_ns", 1000), ("cycles_active", 4000), ("instructions", 2000)):
            metrics[METRICS[column].names[0]]["value"] = value
        counts = dict(part.rsplit(": ", 1) for part in CLASS_CELL.partition("(")[2][:-1].replace(",", "").split("; "))
        metrics[INSTRUCTIONS[0]] = {
            "unit": "inst", "value": 2000, "instances": {name: int(count) for name, count in counts.items()},
        }  # fmt: skip
        for what, first in (("grid", 64 << place), ("block", 128)):
            for side, size in zip("xyz", (first, 1, 1), strict=True):
                metrics[f"launch__{what}_dim_{side}"] = {"unit": "", "value": size}
        told = [{"type": kind, "speedup": float(speedup)} for at, kind, speedup in RULES if at == place and rules]
        launches.append({"mangled": kernel, "metrics": metrics, "rules": [*told, {}]})
    return json.dumps([launches[:1], launches[1:]])


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report in a folder with a blank in its name; there is no ncu, and no module."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "CUDA", str(tmp_path / "cuda"))
    path = tmp_path / "a folder" / "run.ncu-rep"
    path.parent.mkdir()
    path.write_text(report_of([CONV, ADD, NORM]))
    return path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "ncu_report.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def by_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script that plays ncu where NVIDIA's installer leaves it; the folder of the pages that it prints."""
    script = tmp_path / "cuda" / "ncu"
    script.parent.mkdir()
    script.write_text(NCU)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (script.parent / "raw.csv").write_text(Raw().text())
    (script.parent / "details.csv").write_text(details(RULES))
    monkeypatch.setenv("PAGES", str(script.parent))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), "/usr/bin", "/bin"]))
    return script.parent


@pytest.fixture
def expected(tmp_path: Path) -> pd.DataFrame:
    (tmp_path / "details.csv").write_text(details(RULES))
    return parse(Raw().write(tmp_path), "OPT1", "window", details=tmp_path / "details.csv").table


def parsed(report: Path) -> pd.DataFrame:
    out = report.parent / "kernels.csv"
    assert main(["parse", str(report), "--setting", "opt1", "--out", str(out)]) == 0
    assert read_meta(out)["parsed_from"] == "run.ncu-rep"
    return read_table(out, schemas.KERNELS)


def refused(report: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["parse", str(report), "--out", str(report.parent / "kernels.csv")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"medddpm: {report}: ")
    return line


def test_ncu_exports_the_pages(report: Path, by_ncu: Path, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(parsed(report), expected, check_dtype=False)


def test_nvidias_module_gives_the_same_table(report: Path, module: None, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(parsed(report), expected, check_dtype=False)
    assert "ncu_report" not in sys.modules, "its native code was loaded into this process"


def test_a_report_that_an_older_ncu_cannot_read_goes_to_the_module(
    report: Path, by_ncu: Path, module: None, expected: pd.DataFrame, monkeypatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    pd.testing.assert_frame_equal(parsed(report), expected, check_dtype=False)


def test_a_report_without_estimates_has_none(report: Path, module: None) -> None:
    report.write_text(report_of([CONV], rules=False))
    assert parsed(report)["est_speedup_pct"].isna().all()


def test_kernels_are_spelled_as_in_ncus_pages(report: Path, module: None) -> None:
    report.write_text(report_of(["_ZN2at6native13reduce_kernelILi512EEEvi"]))
    assert parsed(report)["kernel"].tolist() == ["void at::native::reduce_kernel<512>(int)"]


def test_without_ncu_and_module_the_two_commands_are_named(report: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(ncu_rep, "MODULE", "ncu_report_that_is_not_there")
    line = refused(report, capsys)
    assert "neither ncu nor ncu-report is installed here to read it; pip install 'medddpm[ncu]', or where ncu " in line
    assert "ncu --import run.ncu-rep --page raw --csv --print-metric-instances details > raw.csv" in line
    assert "ncu --import run.ncu-rep --page details --csv > details.csv" in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the report holds no launch, or is cut short"),
        ("crash", "killed by signal 11, SIGSEGV"),
        ('[[{"mangled": "k", "metrics": {}, "rules": []}]]', "lacks the metric gpu__time_duration.sum"),
        ("[[[]]]", "ncu-report cannot read it"),
    ],
)
def test_a_broken_report_is_refused_in_a_line(text: str, told: str, report: Path, module: None, capsys) -> None:
    report.write_text(text)
    assert told in refused(report, capsys)


def test_what_ncu_says_of_a_report_is_told(report: Path, by_ncu: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(ncu_rep, "MODULE", "ncu_report_that_is_not_there")
    monkeypatch.setenv("FAILS", "1")
    assert "ncu cannot read it (==ERROR== Cannot open report file); pip install" in refused(report, capsys)
    report.unlink()
    assert "there is no such file" in refused(report, capsys)


def test_a_report_brings_its_rules_itself(report: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["parse", str(report), "--details", "d.csv", "--out", "k.csv"])
    assert "argument --details: only with a raw page; a report has its rules itself" in capsys.readouterr().err


def test_nvidias_own_module_refuses_what_is_no_report(report: Path, capsys) -> None:
    if importlib.util.find_spec("ncu_report") is None:
        pytest.skip("NVIDIA's ncu-report is not installed")
    for content in (b"", b"junk", bytes(range(256)) * 400):
        report.write_bytes(content)
        assert "ncu-report cannot read it (" in refused(report, capsys)


def test_nvidias_own_module_has_the_names_that_are_called() -> None:
    module = pytest.importorskip("ncu_report")
    calls = {
        module.IContext: ("num_ranges", "range_by_idx"),
        module.IRange: ("num_actions", "action_by_idx"),
        module.IAction: ("NameBase_MANGLED", "name", "metric_names", "metric_by_name", "rule_results"),
        module.IMetric: ("unit", "value", "num_instances", "correlation_ids"),
        module.IRuleResult: ("name", "has_speedup_estimation", "speedup_estimation"),
    }
    assert [(kind.__name__, name) for kind, names in calls.items() for name in names if not hasattr(kind, name)] == []
    assert {kind.name.lower() for kind in module.SpeedupType} >= {"global", "local"}, "as the details page spells them"


LAUNCHES = "import torch; x = torch.randn(512, 512, device='cuda'); print(float((x @ x).relu().sum()))"


@pytest.mark.gpu
def test_ncu_and_nvidias_module_read_one_report_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that comes with ncu, or the installed one; a report of three launches or more, with rules."""
    if (ncu := programs.find("ncu")) is None:
        pytest.skip("there is no ncu here")
    counted = ["--set", "full", "--metrics", ",".join(COLLECTED), "--launch-count", "5"]
    collection = Collection("a report", [sys.executable, "-c", LAUNCHES], counted)
    done = programs.run(collection.collect_command(tmp_path / "r.ncu-rep", ncu))
    if CLOSED in done.stdout:
        pytest.skip("the counters are closed")
    assert (tmp_path / "r.ncu-rep").is_file(), done.stdout
    tables = []
    for where in (ncu, None):
        monkeypatch.setattr(programs, "find", lambda _name, where=where: where)
        beside = [str(path) for parent in Path(ncu).resolve().parents for path in parent.glob("extras/python")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*beside, os.environ.get("PYTHONPATH", "")]))
        for path in beside:
            monkeypatch.syspath_prepend(path)
        out = tmp_path / f"{len(tables)}.csv"
        assert main(["parse", str(tmp_path / "r.ncu-rep"), "--out", str(out)]) == 0
        tables.append(read_table(out, schemas.KERNELS))
    pd.testing.assert_frame_equal(*tables, rtol=1e-3, atol=0.006)  # ncu prints two decimals
    assert tables[0]["est_speedup_pct"].notna().all()
