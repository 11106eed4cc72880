"""How the notebooks are tested: each cell against its stored output, each file they write against where it may lie.

`make test` has pytest-xdist give each notebook and each test file to one of two processes. What those count and find is
summed here, by the process that started them.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell

ROOT = Path(__file__).parent
MAY_BE_WRITTEN = {"figures", "runs"}  # at the top of the repository
NOT_LOOKED_AT = re.compile(r"\.git|\.venv.*|__pycache__|\.\w+_cache|\.hypothesis|\.ipynb_checkpoints|.*\.egg-info")
CELLS = pytest.StashKey[Counter[str]]()
BEFORE = pytest.StashKey[dict[str, tuple[int, int]]]()
STRAYS = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Gives the kernels what `python -m study book` gives them, so that a cell prints and draws the same under both."""
    os.environ.update(SOURCE_DATE_EPOCH="0", PYTHONHASHSEED="0", OMP_WAIT_POLICY="PASSIVE")
    os.environ.pop("MPLBACKEND", None)
    # As in the Makefile: else each of some hundred processes compiles PyTorch's and MONAI's sources for itself.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False
    config.stash[CELLS] = Counter()
    config.stash[STRAYS] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Takes the picture of the tree before the first notebook's first cell."""
    if isinstance(item, IPyNbCell) and BEFORE not in item.config.stash:
        item.config.stash[BEFORE] = snapshot(ROOT)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Counts a cell as compared only where nbval has held its output against the stored one."""
    if isinstance(item, IPyNbCell):
        cells = item.config.stash[CELLS]
        cells["code"] += 1
        cells["compared"] += hasattr(item, "comparison_traceback")  # set by the comparison itself, passed or not
        cells["ignored"] += not item.options["check"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run where a notebook wrote outside figures/ and runs/."""
    stash = session.config.stash
    if BEFORE in stash:
        stash[STRAYS] |= changes(stash[BEFORE], snapshot(ROOT))
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput |= {"cells": dict(stash[CELLS]), "strays": sorted(stash[STRAYS])}
    elif stash[STRAYS] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    """Adds what one of two processes counted and found; one that crashed has handed nothing over."""
    left = getattr(node, "workeroutput", {})
    node.config.stash[CELLS].update(left.get("cells", {}))
    node.config.stash[STRAYS].update(left.get("strays", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how many notebook cells were compared, and what was written where nothing may be."""
    for path in sorted(config.stash[STRAYS]):
        terminalreporter.write_line(
            f"{path}: changed while the notebooks ran; they may write to figures/ and runs/ only"
        )
    cells = config.stash[CELLS]
    if cells["code"]:
        terminalreporter.write_line(
            f"notebook cells compared: {cells['compared']} (of {cells['code']} code cells; "
            f"{cells['ignored']} with output that cannot repeat)"
        )


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change (ns) of every file under `root`, by its path from there, where none should appear."""
    return {p.relative_to(root).as_posix(): (s.st_size, s.st_mtime_ns) for p, s in _walk(root, root)}


def changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> set[str]:
    """The files made, changed or removed between two snapshots."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _walk(folder: Path, root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in os.scandir(folder):
        allowed = folder == root and entry.name in MAY_BE_WRITTEN
        if allowed or NOT_LOOKED_AT.fullmatch(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), root)
        else:
            yield Path(entry.path), entry.stat(follow_symlinks=False)
