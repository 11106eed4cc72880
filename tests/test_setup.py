"""`make`'s first use: which PyTorch it asks pip for. A stub stands for Python and pip, and nothing is fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from helpers.repository import ROOT
from packaging.requirements import Requirement

# Makes an environment whose Python is this script again; notes what pip is asked for; fails for an index if told to.
STUB = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
echo "$*" >> asked
case "$*" in *--index-url*) exit "${NO_INDEX:-0}";; esac
"""
LOCKED = "torch==" + re.findall(r"^torch==(.+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[0]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "requirements.lock", "requirements.nodeps.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def set_up(checkout: Path, *variables: str, no_index: int = 0) -> tuple[list[str], str]:
    """What pip was asked for, one line a call, and what make printed to stderr."""
    command = ["make", f"PYTHON={checkout / 'python'}", *variables, ".venv/.ready"]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "NO_INDEX": str(no_index)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv" / ".ready").exists()
    return (checkout / "asked").read_text().splitlines(), done.stderr


@pytest.mark.parametrize("variables", [(), ("CPU=",), ("CPU=0",)])
def test_by_itself_only_the_locks_are_asked_for(checkout: Path, variables: tuple[str, ...]) -> None:
    asked, said = set_up(checkout, *variables)
    assert [line for line in asked if "--index-url" in line] == []
    assert asked[0].endswith("-r requirements.lock")
    assert said == ""


def test_cpu_1_takes_the_locked_torch_from_pytorchs_index_and_then_the_locks(checkout: Path) -> None:
    asked, said = set_up(checkout, "CPU=1")
    assert asked[0].endswith(f"--no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu {LOCKED}")
    assert asked[1].endswith("-r requirements.lock")
    assert said == ""


def test_an_index_that_is_not_reached_costs_one_line(checkout: Path) -> None:
    asked, said = set_up(checkout, "CPU=1", no_index=1)
    assert asked[1].endswith("-r requirements.lock")
    (line,) = said.splitlines()
    assert "was not reached; installing the build that pip finds" in line


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("medddpm/README.md", r"pip is asked for PyTorch (\d+\.\d+),"),
        ("site/fast_path.md", r"which needs PyTorch (\d+\.\d+) or newer"),
        ("medddpm/measure/profile/worker.py", r'TorchVersion\(torch.__version__\) < "(\d+\.\d+)"'),
        ("medddpm/measure/profile/worker.py", r"needs PyTorch (\d+\.\d+) or later"),
    ],
)
def test_the_oldest_pytorch_that_pip_takes_is_the_one_that_is_told(file: str, said: str) -> None:
    asked = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (floor,) = [str(r.specifier) for r in asked if r.name == "torch"]
    assert [f">={version}" for version in re.findall(said, (ROOT / file).read_text())] == [floor]


def test_what_a_notebook_computes_on_this_machine_is_no_committed_picture() -> None:
    """Another processor rounds sums otherwise: a picture of a training here would leave the tree changed there."""
    text = (ROOT / "notebooks" / "01_train.ipynb").read_text()
    assert re.findall(r'\\"(\w+)\\", page.figures', text) == ["01_training"]
    assert sorted(path.name for path in (ROOT / "figures").glob("01_*")) == [
        "01_training.narrow.svg",
        "01_training.png",
        "01_training.svg",
    ]
