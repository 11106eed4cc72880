"""`python -m fuzz`, which `make fuzz` calls: broken files for as long as it is told; what breaks a reader is kept.

Each family takes its turn in a process of its own, so that a reader that dies takes nothing with it. A failure is
shrunk and filed under tests/fuzz/cases/FAMILY/, where `make test` finds it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.attack import Broken, attack, keep
from fuzz.families import all_names, families


def main() -> int:
    """Returns the number of families that failed, at most 1."""
    top = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    top.add_argument("--seconds", type=float, default=120, help="in all (120)")
    top.add_argument("--mutants", type=int, default=2000, help="of a family in one turn (2000)")
    top.add_argument("--seed", type=int, default=0, help="of the first turn; each turn adds one (0)")
    top.add_argument("--family", choices=all_names(), action="append", help="only this one; may be repeated")
    arguments = top.parse_args()
    names, turn, until = arguments.family or list(all_names()), arguments.seed, time.monotonic() + arguments.seconds
    tried, refused, failed = dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    fork = multiprocessing.get_context("fork")
    while time.monotonic() < until:
        for name in names:
            if time.monotonic() >= until or failed[name]:
                continue
            queue = fork.SimpleQueue()
            process = fork.Process(target=_turn, args=(name, turn, arguments.mutants, queue))
            process.start()
            process.join()
            counts = queue.get() if not queue.empty() else (0, 0, 1)
            tried[name] += counts[0]
            refused[name] += counts[1]
            failed[name] += counts[2]
            print(f"seed {turn}, {name}: {counts[0]} tried, {counts[1]} refused, {counts[2]} failed", flush=True)
        turn += 1
        if all(failed.values()):
            break
    print(f"\n{'family':20} {'tried':>8} {'refused':>8} {'failed':>7}   seeds {arguments.seed} to {turn - 1}")
    for name in names:
        print(f"{name:20} {tried[name]:8} {refused[name]:8} {failed[name]:7}")
    print(f"{'all':20} {sum(tried.values()):8} {sum(refused.values()):8} {sum(failed.values()):7}")
    return int(any(failed.values()))


def _turn(name: str, turn: int, mutants: int, queue: multiprocessing.queues.SimpleQueue[tuple[int, int, int]]) -> None:
    counts, last = [0, 0], [b""]
    with tempfile.TemporaryDirectory(prefix="medddpm-") as folder:
        family = families(Path(folder))[name]

        @seed(turn)
        @settings(
            max_examples=mutants, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        )  # fmt: skip
        @given(st.data())
        def tried(data: st.DataObject) -> None:
            last[0] = data.draw(family.broken)
            counts[0] += 1
            counts[1] += attack(family, last[0], Path(folder)) != "read"

        try:
            tried()
        except Broken as error:
            print(f"{error}\n  kept: {keep(family, last[0])}", flush=True)
            queue.put((counts[0], counts[1], 1))
        else:
            queue.put((counts[0], counts[1], 0))


if __name__ == "__main__":
    sys.exit(main())
