"""`python -m promises`: plants the fault of each promise in `promises.md`, and says whether its test fails.

Runs in a copy of what git tracks, so the tree stays as it is. A promise counts as kept by its test if the test passes
without the fault and fails with it: pytest's exit code 1, not a file that cannot be imported. Only tests that
`make test` runs count.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".md")
ITEM = re.compile(
    r"^(?P<number>\d+)\. (?P<says>.+?)\n"
    r" +Guard: `(?P<guard>[^`]+)`\. +Fault in `(?P<file>[^`]+)`:\n+"
    r" +```diff\n(?P<diff>.*?)^ +```$",
    re.MULTILINE | re.DOTALL,
)
PYTEST = ["-q", "-x", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist"]


@dataclass(frozen=True)
class Promise:
    """One line of `promises.md`.

    Args:
        number: its place in the list.
        says: the promise.
        guard: the test, as pytest names it.
        file: where the fault is planted, from the top of the repository.
        old, new: the lines that the fault takes out, and those that stand there instead.
    """

    number: int
    says: str
    guard: str
    file: str
    old: str
    new: str

    def plant(self, root: Path) -> str:
        """Plants the fault in a copy of the repository; returns the file's text as it was.

        Raises:
            ValueError: the lines to take out do not stand there exactly once.
        """
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.number}: {self.file} holds the fault's lines {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new))
        return text


def promises(text: str) -> list[Promise]:
    """Reads the list; the lines of a fault's diff begin with `-`, `+` or a space, behind the item's indent."""
    read = []
    for item in ITEM.finditer(text):
        lines = [re.sub(r"^ {3}", "", line) for line in item["diff"].splitlines(keepends=True)]
        old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in ("- ", "+ "))
        says = " ".join(item["says"].split())
        read.append(Promise(int(item["number"]), says, item["guard"], item["file"], old, new))
    return read


def copied(folder: Path) -> Path:
    """Copies what git tracks into a folder; returns it."""
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, files):
        if (ROOT / name).exists():  # one that was removed and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # tests ask git which files there are
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    return folder


def ends(root: Path, guard: str) -> int:
    """Runs a test in a copy; returns pytest's exit code."""
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *PYTEST, guard]
    return subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def verdict(promise: Promise, root: Path) -> str:
    """Says whether the guard tells the fault: `caught`, or why not."""
    if ends(root, promise.guard) != 0:
        return "the guard fails without the fault"
    try:
        before = promise.plant(root)
    except ValueError as error:
        return str(error)
    code = ends(root, promise.guard)
    (root / promise.file).write_text(before)
    return {0: "NOT CAUGHT", 1: "caught"}.get(code, f"pytest ended with {code}")


def main() -> int:
    """Prints a line for each promise; returns 1 if a fault was not caught."""
    top = argparse.ArgumentParser(prog="python -m promises", description=__doc__)
    top.add_argument("numbers", type=int, nargs="*", help="of the promises to try (all)")
    top.add_argument("--workers", type=int, default=2, help="faults tried at a time (2)")
    arguments = top.parse_args()
    listed = [p for p in promises(LIST.read_text()) if not arguments.numbers or p.number in arguments.numbers]
    missed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.workers) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for worker in range(arguments.workers):
            copies.put(copied(Path(folder, str(worker))))

        def tried(promise: Promise) -> str:
            root = copies.get()
            try:
                return verdict(promise, root)
            finally:
                copies.put(root)

        for promise, said in zip(listed, pool.map(tried, listed), strict=True):
            missed += said != "caught"
            print(f"{promise.number:3} {said:12} {promise.says}", flush=True)
    print(f"{len(listed) - missed} of {len(listed)} faults caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
