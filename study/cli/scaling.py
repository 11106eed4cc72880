"""The command `python -m study scaling`: one GPU and several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from medddpm.cli.options import SETTINGS, Commands, Parser, add_command
from medddpm.runtime.arguments import several, whole
from study.cli.bench import add_place, add_table, check_place

NETWORKS = ("med-ddpm", "med-ddpm-brats")
SCALED = ("fast", "opt1")
MEASURES = ("step", "sample")


def add_scaling(commands: Commands[Parser]) -> None:
    """Adds `scaling`."""
    command = add_command(
        commands,
        scaling,
        "time training steps, the sum of their gradients and samples on several GPUs, under torchrun; finished rows "
        "are kept",
        """
        python -m study scaling --gpus 1,2 --out scaling.csv
        python -m study scaling --gpus 2 --setting base --sharded --out sharded.csv
        """,
        resumes=True,
    )
    add_table(command)
    command.add_argument(
        "--network", type=several(NETWORKS), default=NETWORKS, metavar="NAME,…", help=f"({','.join(NETWORKS)})"
    )
    command.add_argument(
        "--setting", type=several(SETTINGS), default=SCALED, metavar="NAME,…",
        help=f"{', '.join(SETTINGS)} ({','.join(SCALED)})",
    )  # fmt: skip
    command.add_argument(
        "--measure", type=several(MEASURES), default=MEASURES, metavar="NAME,…",
        help=f"a step is measured with the sum of its gradients ({','.join(MEASURES)})",
    )  # fmt: skip
    command.add_argument(
        "--gpus", type=wholes(1), metavar="N,…",
        help="the numbers of GPUs to measure on (1,2,4,8, as far as this machine has them)",
    )  # fmt: skip
    command.add_argument(
        "--buckets", type=wholes(0), metavar="MIB,…",
        help="in buckets of so many MiB the steps sum their gradients while the backward pass goes on, 0 for all at "
        "once after it (32,0)",
    )  # fmt: skip
    command.add_argument(
        "--sharded", action="store_true",
        help="also steps whose weights, gradients and moments are shared out (FSDP2), under base, opt1",
    )  # fmt: skip
    command.add_argument("--samples", type=whole(1), default=20, help="the most timings of a row (20)")
    command.add_argument("--size", type=whole(8), help="side of the volume (128; med-ddpm-brats 192)")
    add_place(command, 600, "the longest time for a row (600)")


def wholes(least: int) -> Callable[[str], list[int]]:
    """Returns an argument type: whole numbers from `least` on, separated by commas."""

    def read(text: str) -> list[int]:
        return list(dict.fromkeys(map(whole(least), text.split(","))))

    return read


def scaling(arguments: argparse.Namespace) -> int:
    """Measures; see `study.scaling.run`."""
    from study.scaling.cases import BUCKETS, plan
    from study.scaling.cases import MEASURES as MEASURED
    from study.scaling.run import Options, measure_cases, present

    check_place(arguments)
    measured = {*arguments.measure, *(["all-reduce"] if "step" in arguments.measure else [])}
    launches = plan(
        arguments.network,
        [name.upper() for name in arguments.setting],
        present(arguments.gpus, arguments.device),
        [name for name in MEASURED if name in measured],
        side=arguments.size,
        channels=arguments.channels,
        sharded=arguments.sharded,
        buckets=arguments.buckets or BUCKETS,
    )
    if arguments.sharded and all(case.weights == "replicated" for cases in launches for case in cases):
        arguments.wrong("argument --sharded: only of steps under base or opt1, on two GPUs or more")
    options = Options(
        samples=arguments.samples, limit=arguments.seconds, device=arguments.device, again=arguments.again
    )
    return 1 if measure_cases(launches, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0
