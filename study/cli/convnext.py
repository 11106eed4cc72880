"""The command `python -m study convnext`, for the operators and kernels of the CUDA report."""

from __future__ import annotations

import argparse
import sys

from medddpm.cli.options import Commands, Parser, add_command, refuse_unread
from medddpm.runtime.arguments import a_path, several, whole

PARTS = ("operators", "kernels", "transfers", "training", "counters")


def add_convnext(commands: Commands[Parser]) -> None:
    """Adds `convnext`."""
    command = add_command(
        commands,
        convnext,
        "measure the CUDA report's operators, its kernels in numba-cuda and what libraries make of them",
        """
        python -m study convnext --out runs/convnext                 everything, training on scikit-learn's digits
        python -m study convnext --part kernels,counters --out runs/convnext
        python -m study convnext --part training --data cifar-10-batches-bin --steps 20000 --out runs/cifar
        python -m study convnext --part operators --device cpu --out runs/cpu
        python -m study convnext --dry-run --out runs/convnext       only prints the commands
        """,
        resumes=True,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="folder of the tables")
    command.add_argument(
        "--part", type=several(PARTS), default=PARTS, metavar="NAME,…",
        help="operators: Tables I to III; kernels: every version timed; transfers: Table IV; training: the network on "
        f"small images; counters: every version under ncu ({','.join(PARTS)})",
    )  # fmt: skip
    command.add_argument("--data", type=a_path, metavar="DIR", help="CIFAR-10's binary files (scikit-learn's digits)")
    command.add_argument("--steps", type=whole(1), help="of the training (2000)")
    command.add_argument("--again", action="store_true", help="measure anew what is there already")
    command.add_argument("--seconds", type=whole(1), default=600, help="after which a part is given up (600)")
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")
    command.add_argument(
        "--toy", action="store_true", help="the smallest sizes, which numba's simulator computes on a CPU in a minute"
    )
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")


def convnext(arguments: argparse.Namespace) -> int:
    """Measures; see `study.convnext.run`."""
    from study.convnext.run import Options, measure

    trained = "training" in arguments.part
    refuse_unread(arguments, ("data", trained, "with the part training"), ("steps", trained, "with the part training"))
    options = Options(
        steps=arguments.steps or 2000,
        data=arguments.data,
        again=arguments.again,
        seconds=arguments.seconds,
        device=arguments.device,
        toy=arguments.toy,
    )
    command = ["medddpm", *sys.argv[1:]]
    return 1 if measure(arguments.part, arguments.out, options, command=command, dry_run=arguments.dry_run) else 0
