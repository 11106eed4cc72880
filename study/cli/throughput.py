"""The commands `python -m study throughput` and `endurance`: whole trainings, and how busy they keep a GPU."""

from __future__ import annotations

import argparse
import sys

from medddpm.cli.options import Commands, Parser, add_command
from medddpm.runtime.arguments import several, whole
from study.cli.bench import add_place, add_table, check_place


def add_throughput(commands: Commands[Parser]) -> None:
    """Adds `throughput`."""
    command = add_command(
        commands,
        throughput,
        "time whole trainings, each with one thing changed: loading, memory, precision; finished rows are kept",
        """
        python -m study throughput --out throughput.csv
        python -m study throughput --lever fast,base --out throughput.csv
        """,
        resumes=True,
    )
    add_table(command)
    command.add_argument(
        "--lever", type=throughput_levers, metavar="NAME,…", help="names in `study.throughput.levers` (all)"
    )
    command.add_argument("--size", type=whole(8), default=128, help="side of the volume (128; of BraTS 192)")
    add_place(command, 600, "the longest time for a row (600)")


def add_endurance(commands: Commands[Parser]) -> None:
    """Adds `endurance`."""
    command = add_command(
        commands,
        endurance,
        "watch one default training: GPU busy and memory, a row each ten seconds",
        """
        python -m study endurance --steps 20000 --size 64 --out endurance.csv
        """,
    )
    add_table(command)
    command.add_argument("--steps", type=whole(1), required=True, help="of the training")
    command.add_argument(
        "--files",
        action="store_true",
        help="train from a folder of .nii.gz, which is written first (the synthetic subjects)",
    )
    command.add_argument("--size", type=whole(8), default=128, help="side of the volume (128)")
    add_place(command, 600, "after which the training is ended (600)")


def throughput_levers(text: str) -> list[str]:
    """Reads names of throughput's levers, separated by commas; an argument type."""
    from study.throughput.levers import BY_KEY

    return several(list(BY_KEY))(text)


def throughput(arguments: argparse.Namespace) -> int:
    """Measures; see `study.throughput.run`."""
    from study.throughput.levers import BY_KEY
    from study.throughput.run import Options, measure_levers

    check_place(arguments)
    options = Options(
        side=arguments.size, channels=arguments.channels, limit=arguments.seconds, device=arguments.device,
        again=arguments.again,
    )  # fmt: skip
    levers = [BY_KEY[name] for name in arguments.lever or BY_KEY]
    return 1 if measure_levers(levers, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


def endurance(arguments: argparse.Namespace) -> int:
    """Watches; see `study.throughput.endurance`."""
    from study.throughput.endurance import Options, watch

    check_place(arguments)
    options = Options(
        arguments.steps, side=arguments.size, channels=arguments.channels, seconds=arguments.seconds,
        device=arguments.device, again=arguments.again, files=arguments.files,
    )  # fmt: skip
    return watch(arguments.out, options, command=sys.argv, dry_run=arguments.dry_run)
