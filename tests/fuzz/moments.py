"""Commands that a signal ends within seconds of their start, or amid writing: one line, 130, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import torch
from helpers.interruptible import interruptible
from helpers.ncu_pages import Raw
from safetensors import safe_open

from medddpm.data.phantom import write_phantom

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOY = ("--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--accumulation", "1", "--sample-every", "0",
       "--device", "cpu", "-q")  # fmt: skip
TRAIN = ("train", "--data", "data", "--cache", "cache", "--save-every", "1", *TOY)
MIDDLE = (".writing-", ".former-")  # the beginnings of names that stand for a file only while it is written
GONE = 20.0  # seconds after which nothing of a command that was ended may run on
DRAWS = """
from pathlib import Path
for number in range(200):
    Path(f"../figures/{number}.csv").write_text("1,2\\n" * number)
"""


@dataclass(frozen=True)
class Command:
    """A command, run in a copy of the folder that `prepared` makes.

    Args:
        words: of `medddpm`.
        results: a glob of the files that come out the same each time.
        there: what a second call says where the first one was done already; empty where it succeeds.
    """

    words: tuple[str, ...]
    results: str
    there: str = ""


COMMANDS = {
    "train": Command((*TRAIN, "--out", "run", "--steps", "6"), "run/checkpoints/*"),
    "sample": Command(
        ("sample", "--checkpoint", "trained", "--mask", "data/mask", "--out", "drawn", "--count", "8", "--batch", "2",
         "--sampler", "ddim", "--steps", "1", "--device", "cpu", "-q"), "drawn/*",
    ),
    "release": Command(
        ("release", "trained", "--out", "new/r.safetensors", "--held-out", "0", "--device", "cpu", "-q"),
        "new/r.*", "it exists already",
    ),
    "parse": Command(("parse", "raw.csv", "--out", "new/kernels.csv"), "new/kernels.csv", "it exists already"),
    "book": Command(("book",), "figures/*"),
}  # fmt: skip
WRITING = ("sample", "release", "parse", "book")


def prepared(folder: Path) -> None:
    """Makes what the commands read: volumes, a run, ncu's page and a book of one notebook."""
    write_phantom(folder / "data", 2, (8, 8, 8))
    for name in ("notebooks", "figures", "medddpm"):
        (folder / name).mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "raw.csv").write_text(Raw().text())
    book = nbformat.v4.new_notebook()
    book.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata["medddpm"] = {"inputs": [], "outputs": ["figures/*.csv"]}
    book.cells = [nbformat.v4.new_markdown_cell("# A title"), nbformat.v4.new_code_cell(DRAWS.strip())]
    nbformat.write(book, folder / "notebooks" / "01_table.ipynb")
    subprocess.run(_program((*TRAIN, "--out", "trained", "--steps", "1")), cwd=folder, check=True, capture_output=True)


def _program(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "medddpm", *words]


class Undisturbed:
    """What each command makes when nobody disturbs it.

    Args:
        source: the folder that `prepared` made.
    """

    def __init__(self, source: Path) -> None:
        self.source, self._known = source, dict[str, dict[str, object]]()

    def of(self, name: str) -> dict[str, object]:
        """The contents of the command's results, by path."""
        if name not in self._known:
            with copied(self.source) as folder:
                subprocess.run(_program(COMMANDS[name].words), cwd=folder, check=True, capture_output=True)
                self._known[name] = results(folder, COMMANDS[name])
        return self._known[name]


@contextlib.contextmanager
def copied(source: Path) -> Iterator[Path]:
    """Within it, there is a copy of a folder."""
    folder = source.with_name("attempt")
    shutil.copytree(source, folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def results(folder: Path, command: Command) -> dict[str, object]:
    """The contents of the results that stand there under their own names."""
    found = [path for path in sorted(folder.glob(command.results)) if not path.name.startswith(MIDDLE)]
    return {str(path.relative_to(folder)): _content(path) for path in found}


def _content(path: Path) -> object:
    if path.suffix == ".safetensors":  # whose header comes in any order; the digest in it is that of the weights
        with safe_open(path, "np") as file:
            return file.metadata()
    if path.suffix != ".pt":
        return path.read_bytes()
    weights = torch.load(path, weights_only=True)["model"]
    return {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


def disturbed(
    name: str, how: signal.Signals, undisturbed: Undisturbed, moment: Callable[[subprocess.Popen[str], Path], None]
) -> int:
    """Sends a command a signal at a moment, as a terminal does to the whole group, then gives the same command again.

    Returns:
        its exit code: 130, or 0 where it was done when the signal came.

    Raises:
        AssertionError: it ended otherwise than by a line and 130, or left something half done, or something was lost.
    """
    command, right = COMMANDS[name], undisturbed.of(name)
    with copied(undisturbed.source) as folder:
        before = _listing(folder)
        process = subprocess.Popen(
            _program(command.words), cwd=folder, start_new_session=True, preexec_fn=interruptible, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        moment(process, folder)
        if process.poll() is None:
            os.killpg(process.pid, how)
        told, said = process.communicate(timeout=120)
        assert process.returncode in (0, 130), f"exit code {process.returncode}: {told}{said}"
        if process.returncode == 130:
            assert len(said.splitlines()) == 1, f"not one line: {said}"
            assert said.startswith("medddpm: "), said
        _all_gone(folder)
        if _listing(folder) == before:  # as if it had not been started
            return process.returncode
        there = results(folder, command)
        if name != "book":  # whose notebooks' own files are what they write; it runs the notebook again
            assert there.items() <= right.items() or name == "train", f"half done: {sorted(there)}"
        again = subprocess.run(_program(command.words), cwd=folder, capture_output=True, text=True)
        done = bool(command.there) and command.there in again.stderr
        assert again.returncode == 0 or (done and there.keys() == right.keys()), f"again: {again.stdout}{again.stderr}"
        found = results(folder, command)
        newest = sorted(right)[-1:] if name == "train" else right  # which of the older ones is kept hangs on the kills
        assert {key: found.get(key) for key in newest} == {key: right[key] for key in newest}, "other results"
        left = [str(path) for path in folder.rglob(".*") if path.name.startswith(MIDDLE)]
        assert done or not left, f"left behind: {left}"
    return process.returncode


def _listing(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*")}


def _all_gone(folder: Path) -> None:
    until = time.monotonic() + GONE
    while found := [place.parent.name for place in Path("/proc").glob("[0-9]*/cwd") if _inside(place, folder)]:
        assert time.monotonic() < until, f"processes run on: {found}"
        time.sleep(0.05)


def _inside(place: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        return Path(os.readlink(place)).is_relative_to(folder)
    return False


def early(chance: random.Random, longest: float) -> Callable[[subprocess.Popen[str], Path], None]:
    """A moment within so many seconds of the command's first line, which has it heed signals."""

    def wait(process: subprocess.Popen[str], _folder: Path) -> None:
        while process.poll() is None and not _heeds(process.pid):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, longest))

    return wait


def _heeds(pid: int) -> bool:
    with contextlib.suppress(OSError):
        caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line[:7] == "SigCgt:")
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def amid_writing(chance: random.Random, command: Command) -> Callable[[subprocess.Popen[str], Path], None]:
    """A moment within some milliseconds of when one of the command's files begins to be written."""
    which, later = chance.randint(1, 3), chance.uniform(0, 0.01)

    def wait(process: subprocess.Popen[str], folder: Path) -> None:
        place, seen, until = folder / Path(command.results).parent, set[str](), time.monotonic() + 120
        before = set(os.listdir(place)) if place.is_dir() else set()
        while process.poll() is None and len(seen) < which and time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError):
                seen |= set(os.listdir(place)) - before
            if len(seen) == 0:
                time.sleep(0.0005)
        time.sleep(later)

    return wait
