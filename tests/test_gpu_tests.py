"""`make test-gpu`: what it runs and records, and that no test is skipped for want of a GPU in another way."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import gpu
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.fast.kernels import dispatch
from medddpm.measure.tables import read_meta, read_table
from study.records import gpu_tests, schemas

TOY = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_passes(n): pass

@pytest.mark.gpu
def test_fails(): assert False

@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_is_skipped(n): pytest.skip("no second one")

@pytest.fixture
def broken():
    yield
    raise RuntimeError

@pytest.mark.gpu
def test_leaves_what_breaks(broken): pass

@pytest.mark.gpu
def test_fails_twice(broken): assert False

def test_needs_none(): raise AssertionError("not selected")
"""
WANTED = "import pytest\n\n@pytest.mark.gpu(count=99)\ndef test_passes(): pass\n"
UNREADABLE = "import nothing_of_the_kind  # pytest.mark.gpu\n"
UNMARKED = "raise AssertionError('not even imported')\n"
CUT = "import pytest\n\n@pytest.mark.gpu\ndef test_is_cut(): raise KeyboardInterrupt\n"


def run(root: Path, options: str = "", **files: str) -> subprocess.CompletedProcess[str]:
    """Runs a toy repository's GPU tests by the recipe of `make test-gpu`; a line stands for the record."""
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu"]\n')
    (root / "conftest.py").write_text("raise AssertionError('the notebooks are none of its business')\n")
    # On any machine the toy's tests run: all but the one that asks for more GPUs than there are.
    skips = "def pytest_runtest_setup(item):\n    for mark in item.iter_markers('gpu'):\n"
    skips += "        if mark.kwargs and (reason := lacking(**mark.kwargs)): pytest.skip(reason)\n"
    (root / "tests" / "conftest.py").write_text(f"import pytest\nfrom helpers.gpu import lacking\n\n{skips}")
    for name, source in files.items():
        (root / "tests" / f"test_{name}.py").write_text(source)
    (recipe,) = re.findall(r"^test-gpu: .+\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    recipe = recipe.replace("$(PY) -m study.records.gpu_tests", "echo recorded").replace("$(ARGS)", options)
    recipe = recipe.replace("\t", "").replace("$$", "$").replace("$(PY)", shlex.quote(sys.executable))
    # The book's other plugins of pytest do nothing here and take longer to load than the toy's tests to run.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    environment = os.environ | alone | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])}
    return subprocess.run(["sh", "-c", recipe], cwd=root, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("options", ["", pytest.param("-n 2", marks=pytest.mark.long)])
def test_a_run_is_recorded_by_file_outcome_and_reason(tmp_path: Path, options: str) -> None:
    done = run(tmp_path, options, toy=TOY, wanted=WANTED, unreadable=UNREADABLE, unmarked=UNMARKED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "recorded runs/gpu_tests.xml"
    table, seconds = gpu_tests.of_junit(tmp_path / "runs" / "gpu_tests.xml")
    here = torch.cuda.device_count() or "none"
    rows = table.fillna("")[["file", "outcome", "reason", "tests"]].itertuples(index=False, name=None)
    assert sorted(rows) == [
        ("test_toy.py", "failed", "tests/test_toy.py::test_fails", 1),
        ("test_toy.py", "failed", "tests/test_toy.py::test_fails_twice", 1),
        ("test_toy.py", "failed", "tests/test_toy.py::test_leaves_what_breaks", 1),
        ("test_toy.py", "passed", "", 2),
        ("test_toy.py", "skipped", "no second one", 2),
        ("test_unreadable.py", "failed", "tests/test_unreadable.py, which cannot be imported", 1),
        ("test_wanted.py", "skipped", f"needs 99 GPUs, and here is {here}", 1),
    ]
    assert options or seconds >= table["seconds"].sum()


def test_a_run_without_failures_ends_well(tmp_path: Path) -> None:
    done = run(tmp_path, wanted=WANTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert gpu_tests.of_junit(tmp_path / "runs" / "gpu_tests.xml")[0]["outcome"].tolist() == ["skipped"]


def test_a_run_that_is_cut_short_is_no_record(tmp_path: Path) -> None:
    done = run(tmp_path, cut=CUT)
    assert done.returncode != 0
    assert "recorded" not in done.stdout


def test_a_record_names_the_card_and_replaces_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"o\.xml: is not what pytest --junitxml writes; run make test-gpu again"):
        gpu_tests.of_junit(tmp_path / "o.xml")
    run(tmp_path, wanted=WANTED)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="make test-gpu: PyTorch finds no GPU here; "):
        gpu_tests.record(tmp_path / "runs" / "gpu_tests.xml", tmp_path)
    assert not (tmp_path / "figures").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L40S")
    for count, name in ((1, "gpu_tests.csv"), (2, "gpu_tests_2_gpus.csv")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        path = gpu_tests.record(tmp_path / "runs" / "gpu_tests.xml", tmp_path)
        assert path == tmp_path / "figures" / "records" / "L40S" / name
        assert read_table(path, schemas.GPU_TESTS)["tests"].tolist() == [1]
        meta = read_meta(path)
        assert {"processor", "driver", "cuda", "cudnn", "triton", "python", "date", "commit", "seconds"} <= set(meta)
        assert (meta["gpu"], meta["gpus"], meta["torch"]) == ("NVIDIA L40S", count, torch.__version__)
    assert [
        row.startswith("|2 × L40S|0|0|1|" if "2 ×" in row else "|L40S|0|0|1|") for row in gpu_tests.account(tmp_path)
    ] == [True] * 2
    assert all(meta["date"][:10] in row for row in gpu_tests.account(tmp_path))


@pytest.mark.parametrize(
    ("cards", "served", "wanted", "reason"),
    [
        (0, False, {}, "needs a GPU"),
        (1, True, {}, None),
        (1, True, {"count": 2}, "needs 2 GPUs, and here is 1"),
        (2, True, {"count": 2}, None),
        (0, True, {"kernels": True}, None),  # Triton's interpreter
        (1, False, {"kernels": True}, "the kernels need a GPU with BF16 and Triton, or Triton's interpreter"),
        (1, True, {"hopper": True}, "the kernels need a Hopper GPU, and Triton with Gluon"),
    ],
)
def test_what_a_mark_asks_for(cards: int, served: bool, wanted: dict, reason: str | None, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(dispatch, "serves", lambda device: served)
    assert gpu.lacking(**wanted) == reason


def test_only_the_mark_skips_for_want_of_a_gpu() -> None:
    """No test asks PyTorch for a GPU by itself, and each mark stands in a test file, where `make test-gpu` looks."""
    itself = Path(__file__).resolve()
    helpers = ROOT / "tests" / "helpers"
    own = {
        itself,
        helpers / "gpu.py",
        helpers / "browser.py",
    }
    sources = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")) if path not in own}
    asks = re.compile(r"cuda\.is_available\(\)|\bskipif\b|\bskipIf\b")
    assert [path.name for path, text in sources.items() if asks.search(text)] == []
    marks = [path for path, text in sources.items() if "mark.gpu" in text]
    assert len(marks) > 5
    assert [path.name for path in marks if not path.name.startswith("test_")] == []
    assert [path.name for path in marks if "pytest.mark.gpu" not in sources[path]] == []
