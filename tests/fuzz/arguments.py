"""Strange command lines: good ones with words replaced, left out, doubled and put in."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.profiles import Launch, write_profile
from hypothesis import strategies as st

from medddpm.cli.main import main
from medddpm.data.phantom import write_phantom
from medddpm.errors import BadInput

LONGEST_MESSAGE = 5  # lines on stderr of a command that refuses: `check` and `train` name several faults of a folder
TOY = ("--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--accumulation", "1", "--sample-every", "0")
WORDS = (
    "", "0", "-1", "1e400", "nan", "-inf", "9" * 400, str(2**63), str(2**64), str(10**30), "0x10", "1_000", "1,2", "٣",
    "--", "-", "-q", "--help", "--version", "--force", "--device", "meta", "cuda:99", "cpu:7", "--setting", "fast",
    "FAST", "base,base", "nosuch", "--workers", "--steps", "--batch", "--count", "--seed", "--view", "--trace",
    "--data", "--phantom", "/nonexistent/a", "/dev/null", "/dev/full", "/proc/self/mem", ".", "..", "a/b", "a" * 5000,
    "\x1b[2J", "\udcff", "\u202e", "é.nii.gz", "x.nii.gz", "x.csv", "x.safetensors",
)  # fmt: skip
"""What may stand anywhere. No number among them asks for hours of honest work."""


@dataclass(frozen=True)
class Command:
    """A good command line.

    Args:
        words: what may be broken.
        kept: what stands at the end whatever happens before it, so that no mutant trains or measures for long.
    """

    words: Sequence[str]
    kept: Sequence[str] = ()


def commands(released: str, raw: str) -> list[Command]:
    """A good command line of each kind; file names are those that `prepared` makes."""
    train = [*TOY, "--steps", "1", "--batch-size", "1", "--blocks", "1", "--device", "cpu", "-q"]
    return [
        Command(["train", "--phantom", "1", "--out", "run", "--learning-rate", "1e-4", "--keep", "1"], train),
        Command(["train", "--data", "data", "--out", "run", "--scaling", "slice"], train),
        Command(["sample", "--checkpoint", released, "--mask", "data/mask/phantom_0000.nii.gz", "--out", "s.nii.gz"],
                ["--steps", "1", "--sampler", "ddim", "--count", "1", "--batch", "1", "--device", "cpu", "-q"]),
        Command(["release", "trained", "--out", "r.safetensors", "--held-out", "0", "--about", "a", "--license", "mit"],
                ["--held-out", "0", "--device", "cpu", "-q"]),
        Command(["check", "data"], ["-q"]),
        Command(["parse", raw, "--out", "kernels.csv", "--setting", "opt1", "--view", "window"]),
        Command(["profile", "--out", "profiles", "--setting", "base,fast", "--view", "step", "--repeat", "1"],
                ["--repeat", "1", "--dry-run"]),
        Command(["window", "profile", "--setting", "own", "--start", "1", "--count", "2", "--out", "w.csv"]),
        Command(["report", "profile", "--setting", "own", "--baseline-setting", "own", "--out", "r.html"]),
        Command(["profile", "step.py:build", "--tool", "accelerate", "--warmup", "1", "--out", "p", "--no-counters"],
                ["--dry-run"]),
        Command(["profile", "--out", "p", "--nvtx", "step", "--dry-run", "--to-the-end", "--", "true", "--lr", "1"]),
        Command(["compare", "step.py:build", "--out", "c", "--tools", "pytorch,tf32", "--samples", "3", "--infer"],
                ["--dry-run"]),
        Command(["bench", "--out", "b.csv", "--setting", "base", "--samples", "3"], ["--dry-run", "--device", "cpu"]),
        Command(["book", "--only", "nosuch"], ["--only", "nosuch"]),
    ]  # fmt: skip


@st.composite
def broken_commands(draw: st.DrawFn, good: Sequence[Command]) -> bytes:
    """One of `good`, its words broken one to four times, as a JSON list."""
    chosen = draw(st.sampled_from(good))
    words = list(chosen.words)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(1, len(words))) if len(words) > 1 else 1
        match draw(st.sampled_from(("replace", "remove", "double", "insert", "swap"))):
            case "replace":
                words[at : at + 1] = [draw(st.sampled_from(WORDS))]
            case "remove":
                del words[at : at + 1]
            case "double":
                words[at:at] = words[at : at + 2]
            case "insert":
                words.insert(at, draw(st.sampled_from(WORDS)))
            case "swap":
                words[at : at + 2] = reversed(words[at : at + 2])
    return json.dumps([*words, *chosen.kept]).encode()


def run_command(path: Path) -> None:
    """Runs the command line in the file at `path`, in a folder of its own with the data it may read.

    Raises:
        BadInput: the command refused, in few lines and by its own exit code.
        AssertionError: it ended in any other way.
    """
    words = json.loads(path.read_bytes())
    told, said, code = io.StringIO(), io.StringIO(), 0
    with _inside(path.parent), contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
    lines = said.getvalue().splitlines()
    assert code in (0, 1, 2), f"exit code {code} of {words!r:.300}: {lines}"
    if code == 1 and words[0] == "check" and told.getvalue():
        raise BadInput("check", "problems, told on stdout as asked", "mend them")
    if code == 1:
        assert 1 <= len(lines) <= LONGEST_MESSAGE, f"{len(lines)} lines from {words!r:.300}: {lines[:9]}"
        assert all(line.startswith("medddpm: ") for line in lines), f"{words!r:.300}: {lines}"
        raise BadInput("command", " ".join(lines)[:500], "say it otherwise")
    if code == 2:
        raise BadInput("command", "wrong arguments", "see --help")


@functools.cache
def good() -> Path:
    """A folder with what the good command lines read, made once: ``data`` and a run, ``trained``."""
    folder = Path(tempfile.mkdtemp(prefix="medddpm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_phantom(folder / "data", 1, (8, 8, 8))
    (folder / "step.py").write_text("def build():\n    return model, loss_fn, batch\n")
    write_profile(folder / "profile", [Launch(), Launch("my_sum", 20.0, "backward")] * 2)
    train = ["train", "--phantom", "1", "--out", str(folder / "trained"), *TOY, "--steps", "1", "--device", "cpu", "-q"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(train) == 0
    return folder


@contextlib.contextmanager
def _inside(parent: Path) -> Iterator[None]:
    """In a new folder, two levels deep, since a mutant may write to the one above; with a phantom of one subject."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name) / "here"
        folder.mkdir()
        os.chdir(folder)
        try:
            shutil.copytree(good(), ".", dirs_exist_ok=True)
            yield
        finally:
            os.chdir(before)
