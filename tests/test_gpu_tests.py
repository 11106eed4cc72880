"""`make test-gpu`: what it runs and records, and that no test is skipped for want of a GPU in another way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import gpu
from helpers.repository import ROOT

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

def test_needs_none(): raise AssertionError("not selected")
"""
WANTED = "import pytest\n\n@pytest.mark.gpu(count=99)\ndef test_passes(): pass\n"
UNREADABLE = "import nothing_of_the_kind  # pytest.mark.gpu\n"
UNMARKED = "raise AssertionError('not even imported')\n"
CUT = "import pytest\n\n@pytest.mark.gpu\ndef test_is_cut(): raise KeyboardInterrupt\n"


def recorded(root: Path, workers: int = 1, **files: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Runs a toy repository's GPU tests as `make test-gpu` does; returns the process and the record's path."""
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu"]\n')
    (root / "conftest.py").write_text("raise AssertionError('the notebooks are none of its business')\n")
    # On any machine the toy's tests run: all but the one that asks for more GPUs than there are.
    skips = "def pytest_runtest_setup(item):\n    for mark in item.iter_markers('gpu'):\n"
    skips += "        if mark.kwargs and (reason := lacking(**mark.kwargs)): pytest.skip(reason)\n"
    (root / "tests" / "conftest.py").write_text(f"import pytest\nfrom helpers.gpu import lacking\n\n{skips}")
    for name, source in files.items():
        (root / "tests" / f"test_{name}.py").write_text(source)
    arguments = f"pathlib.Path({str(root)!r}), pathlib.Path('out'), {workers}"
    code = f"import gpu_tests, pathlib; exit(gpu_tests.record({arguments}))"
    # The book's other plugins of pytest do nothing here and take longer to load than the toy's tests to run.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    environment = os.environ | alone | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    return done, root / "out" / gpu_tests.file_name(torch.cuda.device_count())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_is_recorded_by_file_outcome_and_reason(tmp_path: Path, workers: int) -> None:
    done, path = recorded(tmp_path, workers, toy=TOY, wanted=WANTED, unreadable=UNREADABLE, unmarked=UNMARKED)
    assert done.returncode == 1, done.stdout + done.stderr
    table = read_table(path, schemas.GPU_TESTS).fillna("")
    here = torch.cuda.device_count() or "none"
    assert set(table[["file", "outcome", "reason", "tests"]].itertuples(index=False, name=None)) == {
        ("test_unreadable.py", "failed", "tests/test_unreadable.py, which cannot be imported", 1),
        ("test_toy.py", "passed", "", 2),
        ("test_toy.py", "failed", "tests/test_toy.py::test_fails", 1),
        ("test_toy.py", "failed", "tests/test_toy.py::test_leaves_what_breaks", 1),
        ("test_toy.py", "skipped", "no second one", 2),
        ("test_wanted.py", "skipped", f"needs 99 GPUs, and here is {here}", 1),
    }
    meta = read_meta(path)
    assert {"gpu", "gpus", "processor", "driver", "cuda", "cudnn", "triton", "python", "date", "commit"} <= set(meta)
    assert (meta["torch"], meta["pytest"]) == (torch.__version__, pytest.__version__)
    assert meta["workers"] == workers
    assert workers > 1 or meta["seconds"] >= table["seconds"].sum()


def test_a_run_without_failures_ends_well(tmp_path: Path) -> None:
    done, path = recorded(tmp_path, wanted=WANTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_table(path, schemas.GPU_TESTS)["outcome"].tolist() == ["skipped"]


@pytest.mark.parametrize(
    ("files", "said"),
    [({"cut": CUT}, "the run was cut short"), ({"unmarked": UNMARKED}, "no test there is marked gpu")],
)
def test_what_is_not_a_whole_run_is_no_record(tmp_path: Path, files: dict[str, str], said: str) -> None:
    done, path = recorded(tmp_path, **files)
    assert done.returncode != 0
    assert said in done.stderr
    assert not path.exists()


def test_without_a_gpu_nothing_is_recorded(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "gpu_tests", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("make test-gpu: PyTorch finds no GPU here; ")
    assert list(tmp_path.iterdir()) == []


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
        ROOT / "tests" / "gpu_tests.py",
    }
    sources = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")) if path not in own}
    asks = re.compile(r"cuda\.is_available\(\)|\bskipif\b|\bskipIf\b")
    assert [path.name for path, text in sources.items() if asks.search(text)] == []
    marks = [path for path, text in sources.items() if "mark.gpu" in text]
    assert len(marks) > 5
    assert [path.name for path in marks if not path.name.startswith("test_")] == []
    assert [path.name for path in marks if "pytest.mark.gpu" not in sources[path]] == []
