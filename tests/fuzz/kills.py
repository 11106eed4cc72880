"""`python -m fuzz.kills`: a training killed at random moments, resumed each time, ends with the weights it would have.

Each start is killed after a random time, by SIGKILL or by SIGTERM to its whole process group, as batch systems do.
After each kill nothing of it may run on, no traceback may have been printed, and the run must go on; in the end its
weights must equal, to the bit, those of a run that nobody disturbed.

`--early N` and `--writing N` instead send other commands too SIGINT, SIGTERM and SIGHUP (`fuzz.moments`).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fuzz import moments
from medddpm.data.phantom import write_phantom

GONE = 20.0  # seconds after which nothing of a killed training may be left


@dataclass
class Kills:
    """Trainings of one data folder.

    Args:
        folder: for the data and the runs.
        steps: of a training.
        workers: its loading processes.
        chance: when it is killed, and how.
    """

    folder: Path
    steps: int
    workers: int
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    @property
    def data(self) -> Path:
        """The volumes trained on, made when first asked for."""
        if not (self.folder / "data").exists():
            write_phantom(self.folder / "data", 3, (8, 8, 8))
        return self.folder / "data"

    def command(self, out: Path) -> list[str]:
        """The training's."""
        words = [
            "--size",
            "8",
            "--channels",
            "32",
            "--channel-mult",
            "1",
            "2",
            "--accumulation",
            "1",
            "--sample-every",
            "0",
            "--save-every",
            "1",
        ]
        return [sys.executable, "-m", "medddpm", "train", "--data", str(self.data), "--out", str(out), *words,
                "--steps", str(self.steps),
                "--workers", str(self.workers), "--device", "cpu", "-q"]  # fmt: skip

    def disturbed(self, out: Path, kills: int, longest: float) -> None:
        """Trains to the end, killed so often on the way, each time within `longest` seconds of its start."""
        for number in range(kills):
            how = self.chance.choice((signal.SIGKILL, signal.SIGTERM))
            process = subprocess.Popen(
                self.command(out), start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            time.sleep(self.chance.uniform(0.1, longest))
            ended = process.poll() is not None
            if not ended:
                os.killpg(process.pid, how)
            said, _ = process.communicate(timeout=120)
            assert "Traceback" not in said, f"kill {number}: {said}"
            assert not self.left(out), f"kill {number}: processes are left {self.left(out)}"
            if ended:
                assert process.returncode == 0, said
                break
            assert len(said.splitlines()) <= 2, f"kill {number}: {said}"
            self.done[how.name] += 1
        subprocess.run(self.command(out), check=True, capture_output=True)

    def left(self, out: Path) -> str:
        """What still runs of a training, after `GONE` seconds at most."""
        until = time.monotonic() + GONE
        while found := subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True).stdout.strip():
            if time.monotonic() > until:
                return found
            time.sleep(0.1)
        return ""


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Those of a run's last checkpoint."""
    (path,) = sorted((out / "checkpoints").glob("step-*.pt"))[-1:]
    content = torch.load(path, weights_only=True)
    return {f"{kind} {name}": tensor for kind in ("model", "ema") for name, tensor in content[kind].items()}


def at_moments(early: int, writing: int, seed: int) -> int:
    """Prints a row a kill, and how many of each; returns 1 where a command ended otherwise than it should."""
    chance, done, failed = random.Random(seed), Counter[str](), 0
    kinds = [("early", list(moments.COMMANDS), early), ("writing", list(moments.WRITING), writing)]
    with tempfile.TemporaryDirectory(prefix="medddpm-") as name:
        source = Path(name) / "source"
        moments.prepared(source)
        undisturbed = moments.Undisturbed(source)
        for kind, commands, count in kinds:
            met = number = 0
            while met < count:  # those that came when the command was done do not count
                command, how = commands[number % len(commands)], chance.choice(moments.SIGNALS)
                at = moments.amid_writing(chance, moments.COMMANDS[command])
                moment = moments.early(chance, 5) if kind == "early" else at
                number += 1
                try:
                    code = moments.disturbed(command, how, undisturbed, moment)
                    verdict = "one line and 130, nothing lost" if code else "it was done already"
                except AssertionError as error:
                    verdict, code, failed = str(error), 1, failed + 1
                met += code != 0
                done[f"{kind} {command}"] += code != 0
                print(f"{kind:8} {command:8} {how.name:8} {verdict}", flush=True)
    print(f"{sum(done.values())} signals {dict(done)}, {failed} failed; seed {seed}")
    return int(failed > 0)


def main() -> int:
    """Prints a row a training; returns 1 where one of them ended differently."""
    top = argparse.ArgumentParser(prog="python -m fuzz.kills", description=__doc__)
    top.add_argument("--kills", type=int, default=100, help="in all (100)")
    top.add_argument("--each", type=int, default=10, help="of one training (10)")
    top.add_argument("--steps", type=int, default=60, help="of a training (60)")
    top.add_argument("--longest", type=float, default=12.0, help="seconds from a start to its kill, at most (12)")
    top.add_argument("--workers", type=int, default=2, help="loading processes (2)")
    top.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    top.add_argument("--early", type=int, default=0, help="instead, signals within five seconds of a start (0)")
    top.add_argument("--writing", type=int, default=0, help="instead, signals amid writing (0)")
    arguments = top.parse_args()
    if arguments.early or arguments.writing:
        return at_moments(arguments.early, arguments.writing, arguments.seed)
    failed, done = 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="medddpm-") as name:
        folder = Path(name)
        still = Kills(folder, arguments.steps, arguments.workers, random.Random(arguments.seed))
        subprocess.run(still.command(folder / "still"), check=True, capture_output=True)
        right, run = weights(folder / "still"), 0
        while sum(done.values()) < arguments.kills:
            kills = Kills(folder, arguments.steps, arguments.workers, random.Random(arguments.seed + run))
            try:
                kills.disturbed(folder / f"run {run}", arguments.each, arguments.longest)
                found = weights(folder / f"run {run}")
                equal = found.keys() == right.keys() and all(torch.equal(found[key], right[key]) for key in right)
                problem = "" if equal else "other weights"
            except AssertionError as error:
                problem = str(error)
            failed += bool(problem)
            done += kills.done
            print(f"run {run}: {dict(kills.done)}, {problem or 'equal to the bit'}", flush=True)
            run += 1
    seeds = f"{arguments.seed} to {arguments.seed + run - 1}"
    print(f"{sum(done.values())} kills {dict(done)} in {run} trainings, {failed} failed; seeds {seeds}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
