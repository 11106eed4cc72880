"""The command `python -m study recipe`: which component of a training makes samples better."""

from __future__ import annotations

import argparse
import math
import sys

from medddpm.cli.options import Commands, Parser, add_command, refuse_unread
from medddpm.runtime.arguments import a_path, not_negative, positive, several, whole
from study.cli.judge import CONTRASTS
from study.cli.parity import samplers, seeds

ARMS = (
    "plain", "cosine", "ema", "flips", "deform", "offset", "clip", "min-snr", "l2", "velocity", "flow", "wide",
    "one-volume", "velocity-l1", "flow-l1", "flow-density", "all", "all-but-cosine", "all-but-ema", "all-but-flips",
    "all-but-flow", "all-velocity", "all-deform", "all-density", "all-wide", "all-fast-rate",
)  # fmt: skip
"""The names in `study.brains.arms.ARMS`, which imports PyTorch."""


def add_recipe(commands: Commands[Parser]) -> None:
    """Adds `recipe`."""
    command = add_command(
        commands,
        recipe,
        "train each component of the recipe by itself against a plain training, and what they make together, for equal "
        "times; measure and sample each; trainings with a result are not repeated",
        """
        python -m study recipe --out runs/recipe                                      all arms, two seeds, each 2 min
        python -m study recipe --arms plain,flow,all --seeds 0 --minutes 14 --pack lease.tar --out runs/recipe
        python -m study recipe --results lease.tar --minutes 14 --pack next.tar --out runs/again     what is missing
        python -m study recipe --results lease.tar --results next.tar --minutes 0 --out runs/recipe  the table alone
        python -m study recipe --arms all --seeds 0 --seconds 900 --drawn 24 --keep-weights --out runs/model
        python -m study recipe --arms plain,flow --seeds 0 --size 16 --channels 8 --heads 3 --held-out 2 --steps 4 \\
            --samplers ddim:2 --device cpu --out toy
        """,
        resumes=True,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="gets heads, results and the table")
    command.add_argument(
        "--arms", type=several(ARMS), default=list(ARMS), metavar="NAME,…", help=f"{', '.join(ARMS)} (all of these)"
    )
    command.add_argument("--seeds", type=seeds, default=[0, 1], metavar="N,…", help="a training each (0,1)")
    command.add_argument(
        "--contrasts", type=several((*CONTRASTS, "all")), default=["t1"], metavar="NAME,…",
        help=f"{', '.join(CONTRASTS)}; all for a model of the three at once; a training each (t1)",
    )  # fmt: skip
    length = command.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, metavar="X",
        help="of each training, whose steps the machine's speed then sets, and with them the cosine's end (120)",
    )  # fmt: skip
    length.add_argument("--steps", type=whole(1), metavar="N", help="of each training, however long they take")
    command.add_argument("--size", type=whole(8, 512, "a multiple of 8"), default=64, help="side of the volume (64)")
    command.add_argument(
        "--channels", type=whole(8, 512, "a multiple of 8"), default=32, metavar="N",
        help="base width; the wide arms have twice as many (32)",
    )  # fmt: skip
    command.add_argument("--heads", type=whole(1), default=768, metavar="N", help="trained on (768)")
    command.add_argument("--held-out", type=whole(1), default=32, metavar="N", help="heads to measure on (32)")
    command.add_argument(
        "--drawn", type=whole(1), metavar="N", help="samples, for the masks of the first held-out heads (16)"
    )
    command.add_argument(
        "--samplers", type=samplers, metavar="NAME:STEPS,…", help="draw them (dpm++:20,ddim:50,ddim:20)"
    )
    command.add_argument(
        "--keep-weights", action="store_true", help="leave each training's averaged weights as a released model"
    )
    command.add_argument(
        "--minutes", type=not_negative, metavar="X",
        help="begin no training that would not end in so many minutes; 0 makes the table of what is there",
    )  # fmt: skip
    command.add_argument(
        "--pack", type=a_path, metavar="FILE.tar",
        help="also pack table, results and samples, in up to 4 files of 15 MiB: FILE.tar, FILE.2.tar …",
    )  # fmt: skip
    command.add_argument(
        "--results", type=a_path, action="append", default=[], metavar="PATH",
        help="a FILE.tar, or a folder of such or of results, whose trainings are not repeated; may be repeated",
    )  # fmt: skip
    command.add_argument("--gpus", type=whole(1), metavar="N", help="use at most N GPUs, a training on each (all)")
    command.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="(auto: GPUs where there are any; CUDA_VISIBLE_DEVICES names those to use)",
    )  # fmt: skip
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")


def recipe(arguments: argparse.Namespace) -> int:
    """Trains the arms; see `study.brains.recipe`."""
    from study.brains.arms import SAMPLINGS, Training, planned
    from study.brains.recipe import recipe as run

    refuse_unread(arguments, ("gpus", arguments.device != "cpu", "on GPUs"))
    if (arguments.drawn or 1) > arguments.held_out:
        arguments.wrong(f"argument --drawn: {arguments.drawn} masks of {arguments.held_out} held-out heads")
    trainings = planned(
        arguments.arms, arguments.seeds, arguments.contrasts, side=arguments.size, channels=arguments.channels,
        heads=arguments.heads, held_out=arguments.held_out, seconds=arguments.seconds or Training.seconds,
        steps=arguments.steps or 0, drawn=arguments.drawn or min(Training.drawn, arguments.held_out),
        keeps_weights=arguments.keep_weights,
        samplings=SAMPLINGS if arguments.samplers is None else tuple(map(tuple, arguments.samplers)),
    )  # fmt: skip
    failed = run(
        trainings, arguments.out, command=sys.argv, results=arguments.results, packed=arguments.pack,
        minutes=math.inf if arguments.minutes is None else arguments.minutes, gpus=arguments.gpus,
        device=arguments.device, dry_run=arguments.dry_run,
    )  # fmt: skip
    return 1 if failed else 0
