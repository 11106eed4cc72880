"""The command `python -m study trainings`: the queue of trainings that take a card for minutes."""

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
    "all-but-flow", "all-velocity", "all-deform", "all-density", "all-wide", "all-fast-rate", "all-slim", "ours",
    "published",
)  # fmt: skip
"""The names in `study.brains.arms.ARMS`, which imports PyTorch."""

PLANS = ("recipe", "models", "equivalence")
"""The names in `study.brains.plans.PLANS`."""


def add_trainings(commands: Commands[Parser]) -> None:
    """Adds `trainings`."""
    command = add_command(
        commands,
        trainings,
        "make the trainings of a plan that have no result, one a card, as far as time allows; measure and sample each. "
        "recipe: each component of the recipe by itself against a plain training, for equal times; models: those that "
        "are shown; equivalence: pairs that differ in their setting alone, for equal steps",
        """
        python -m study trainings --out runs/recipe                            all arms, two seeds, two minutes each
        python -m study trainings --arms plain,flow,all --seeds 0 --minutes 14 --pack lease.tar --out runs/recipe
        python -m study trainings --results lease.tar --minutes 14 --pack next.tar --out runs/again  what is missing
        python -m study trainings --results lease.tar --minutes 0 --out runs/recipe       table and progress alone
        python -m study trainings --plan models --minutes 28 --pack models.tar --out runs/models
        python -m study trainings --plan equivalence --seeds 0,1,2 --minutes 15 --pack pairs.tar --out runs/pairs
        python -m study trainings --arms all --seeds 0 --seconds 900 --samplers dpm++:5,dpm++:10,ddim:10 --out runs/few
        python -m study trainings --arms plain,flow --seeds 0 --size 16 --channels 8 --heads 3 --held-out 2 \\
            --steps 4 --samplers ddim:2 --device cpu --out toy
        """,
        resumes=True,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="gets heads, results and the table")
    command.add_argument("--plan", choices=PLANS, default="recipe", help="(recipe)")
    command.add_argument(
        "--arms", type=several(ARMS), metavar="NAME,…",
        help=f"of the plan recipe: {', '.join(ARMS)} (all but the last three)",
    )  # fmt: skip
    command.add_argument(
        "--contrasts", type=several((*CONTRASTS, "all")), metavar="NAME,…",
        help=f"of the plan recipe: {', '.join(CONTRASTS)}; all for a model of the three at once; a training each (t1)",
    )  # fmt: skip
    changes = command.add_argument_group("in place of the plan's own, which are those of recipe where none is said")
    changes.add_argument(
        "--seeds", type=seeds, metavar="N,…", help="a training each (recipe: 0,1; models: 0; equivalence: 0 to 5)"
    )
    length = changes.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, metavar="X",
        help="of each training, whose steps the machine's speed then sets, and with them the cosine's end (recipe: "
        "120; models: 600, at 128³ 1080)",
    )  # fmt: skip
    length.add_argument(
        "--steps",
        type=whole(1),
        metavar="N",
        help="of each training, however long they take (equivalence: 500 to 6000)",
    )
    changes.add_argument(
        "--size", type=whole(8, 512, "a multiple of 8"), metavar="N",
        help="side of the volume (64; models: 64, 128; equivalence: 32 to 128)",
    )  # fmt: skip
    changes.add_argument(
        "--channels", type=whole(8, 512, "a multiple of 8"), metavar="N",
        help="base width; the wide arms have twice as many (32; models: 32, 64)",
    )  # fmt: skip
    changes.add_argument("--heads", type=whole(1), metavar="N", help="trained on (768)")
    changes.add_argument("--held-out", type=whole(1), metavar="N", help="heads to measure on (32)")
    changes.add_argument(
        "--drawn", type=whole(1), metavar="N",
        help="samples, for the masks of the first held-out heads (16; models, equivalence: 24, at 128³ 8)",
    )  # fmt: skip
    changes.add_argument(
        "--samplers", type=samplers, metavar="NAME:STEPS,…",
        help="draw them (dpm++:20,ddim:50,ddim:20; equivalence: dpm++:20)",
    )  # fmt: skip
    changes.add_argument(
        "--keep-weights", action="store_true",
        help="leave each training's averaged weights as a released model (models: where they take less than 16 MiB)",
    )  # fmt: skip
    command.add_argument(
        "--minutes", type=not_negative, metavar="X",
        help="begin no training that would not end in so many minutes; 0 makes the table of what is there and says how "
        "far the plan has come",
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


def trainings(arguments: argparse.Namespace) -> int:
    """Makes the trainings of a plan; see `study.brains.trainings`."""
    from study.brains.arms import Training
    from study.brains.plans import trainings_of
    from study.brains.trainings import make

    refuse_unread(
        arguments,
        ("gpus", arguments.device != "cpu", "on GPUs"),
        ("arms", arguments.plan == "recipe", "with the plan recipe"),
        ("contrasts", arguments.plan == "recipe", "with the plan recipe"),
        ("seconds", arguments.plan != "equivalence", "with the plans recipe and models"),
    )
    held_out = arguments.held_out or Training.held_out
    if (arguments.drawn or 1) > held_out:
        arguments.wrong(f"argument --drawn: {arguments.drawn} masks of {held_out} held-out heads")
    chosen = trainings_of(
        arguments.plan, arms=arguments.arms, contrasts=arguments.contrasts, seeds=arguments.seeds, side=arguments.size,
        channels=arguments.channels, heads=arguments.heads, held_out=arguments.held_out, seconds=arguments.seconds,
        steps=arguments.steps, drawn=arguments.drawn, keeps_weights=arguments.keep_weights or None,
        samplings=None if arguments.samplers is None else tuple(map(tuple, arguments.samplers)),
    )  # fmt: skip
    failed = make(
        chosen, arguments.out, command=sys.argv, results=arguments.results, packed=arguments.pack,
        minutes=math.inf if arguments.minutes is None else arguments.minutes, gpus=arguments.gpus,
        device=arguments.device, dry_run=arguments.dry_run,
    )  # fmt: skip
    return 1 if failed else 0
