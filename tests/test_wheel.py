"""The wheel holds every file that the package reads, and a description that any index can show; the sdist no tests."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.repository import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
SOURCES = BUILD.replace("build_wheel", "build_sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in ("medddpm", "study"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=tree, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_the_packages_data(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    read = {str(path.relative_to(ROOT)) for path in (ROOT / "medddpm").rglob("*") if path.is_file()}
    assert held == {name for name in read if "__pycache__" not in name}, "and nothing of the book's study"


def test_the_description_has_no_link_into_the_repository(wheel: zipfile.ZipFile) -> None:
    """A package index shows it by itself: a relative link or picture would lead nowhere."""
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = str(email.message_from_bytes(wheel.read(metadata)).get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_sdist_holds_none_of_the_tests(tmp_path: Path) -> None:
    """They read the whole repository. Setuptools takes those in tests/ itself, and none in a folder of it."""
    for name in ("pyproject.toml", "LICENSE", "MANIFEST.in", "medddpm/README.md", "medddpm/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("tests/test_errors.py", "tests/conftest.py", "tests/data/test_pairs.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    subprocess.run([sys.executable, "-c", SOURCES, "built"], cwd=tmp_path, check=True, capture_output=True)
    (built,) = (tmp_path / "built").glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "medddpm/__init__.py" in names
    assert [name for name in names if name.startswith("tests")] == []
