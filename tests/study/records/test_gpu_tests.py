"""The record of the tests that need a GPU, as the site's page has it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.tables import gpu_folders, write_table
from study.records import gpu_tests
from study.records.schemas import GPU_TESTS

META = {
    "gpu": "NVIDIA H100 80GB HBM3", "gpus": 1, "driver": "580.1", "cuda": "13.0", "cudnn": 91900, "torch": "2.11.0",
    "triton": "3.6.0", "python": "3.12.3", "date": "2026-11-22T10:00:00+00:00", "commit": "abc1234", "dirty": None,
    "seconds": 181.4,
}  # fmt: skip
ROWS = [
    ("kernels/test_norm.py", "passed", None, 40, 20.0),
    ("kernels/test_norm.py", "failed", "tests/fast/kernels/test_norm.py::test_x[1]", 1, 1.0),
    ("kernels/test_add.py", "passed", None, 8, 3.0),
    ("training/test_trainer.py", "skipped", "needs 2 GPUs, and here is 1", 1, 0.0),
    ("fast/test_unet.py", "skipped", "needs 2 GPUs, and here is 1", 2, 0.0),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    table = pd.DataFrame(ROWS, columns=list(GPU_TESTS.columns))
    runs = (("H200", table.iloc[2:3], {"gpus": 2, "gpu": "NVIDIA H200"}), ("H100", table.iloc[:1], {"gpus": 2}))
    for card, rows, more in (*runs, ("H100", table, {})):
        path = tmp_path / "figures" / "records" / card / gpu_tests.file_name(more.get("gpus", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(rows, path, GPU_TESTS, META | more)
    return tmp_path


def test_counts_by_file(root: Path) -> None:
    table = gpu_tests.by_file(root)
    assert table.index.names == ["card", "file"]
    assert table.loc["H100"].to_dict("index") == {
        "kernels/test_norm.py": {"passed": 40, "failed": 1, "skipped": 0},
        "kernels/test_add.py": {"passed": 8, "failed": 0, "skipped": 0},
        "training/test_trainer.py": {"passed": 0, "failed": 0, "skipped": 1},
        "fast/test_unet.py": {"passed": 0, "failed": 0, "skipped": 2},
    }
    assert table.loc["2 × H200"].to_dict("index") == {"kernels/test_add.py": {"passed": 8, "failed": 0, "skipped": 0}}


def test_the_account_names_failures_and_groups_what_was_skipped(root: Path) -> None:
    day = "2026-11-22, commit abc1234"
    versions = "PyTorch 2.11.0, CUDA 13.0, cuDNN 91900, driver 580.1, Triton 3.6.0, Python 3.12.3, 181 s"
    assert gpu_tests.account(root) == [
        "|H100|48|1|3|failed: `tests/fast/kernels/test_norm.py::test_x[1]`<br>skipped 3: needs 2 GPUs, and here is 1|"
        f"{day}, NVIDIA H100 80GB HBM3, {versions}|",
        f"|2 × H100|40|0|0|–|{day}, NVIDIA H100 80GB HBM3, {versions}|",
        f"|2 × H200|8|0|0|–|{day}, NVIDIA H200, {versions}|",
    ]


def test_without_a_record_there_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "figures" / "records" / "H100").mkdir(parents=True)
    assert gpu_tests.account(tmp_path) == []
    assert list(gpu_tests.by_file(tmp_path).columns) == ["passed", "failed", "skipped"]
    assert gpu_tests.by_file(tmp_path).empty


def test_the_records_of_this_repository_are_read() -> None:
    runs = [path for folder in gpu_folders(ROOT) for path in folder.glob("gpu_tests*.csv")]
    assert gpu_tests.by_file(ROOT).index.get_level_values("card").nunique() == len(runs) > 0
