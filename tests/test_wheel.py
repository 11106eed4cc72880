"""The wheel that is built holds every file that the package reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from helpers.repository import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def test_the_wheel_has_the_packages_data(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "medddpm", tree / "medddpm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=tree, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("medddpm/")}
    read = {str(path.relative_to(ROOT)) for path in (ROOT / "medddpm").rglob("*") if path.is_file()}
    assert {name for name in read if "__pycache__" not in name} <= held
    assert "medddpm/study/generative/models.toml" in held
