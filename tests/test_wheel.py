"""The wheel that is built holds every file that the package reads, and a description that any index can show."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from helpers.repository import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    shutil.copytree(ROOT / "medddpm", tree / "medddpm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=tree, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_the_packages_data(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if name.startswith("medddpm/")}
    read = {str(path.relative_to(ROOT)) for path in (ROOT / "medddpm").rglob("*") if path.is_file()}
    assert {name for name in read if "__pycache__" not in name} <= held
    assert "medddpm/study/generative/models.toml" in held


def test_the_description_has_no_link_into_the_repository(wheel: zipfile.ZipFile) -> None:
    """A package index shows it by itself: a relative link or picture would lead nowhere."""
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = str(email.message_from_bytes(wheel.read(metadata)).get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
