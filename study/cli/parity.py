"""The command `python -m study parity`: does a setting cost quality?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from medddpm.cli.options import MULTIPLE, SAMPLERS, SETTINGS, Commands, Parser, add_command, refuse_unread
from medddpm.runtime.arguments import a_path, positive, several, whole

if TYPE_CHECKING:
    from study.parity.plans import SamplerSteps

PLANS = (
    "short",
    "offset",
    "fp32",
    "paper",
    "long",
    "clipped",
    "contrasts",
    "samplers",
    "redrawn",
    "redrawn_fp32",
    "brats",
)

TRAINING = ("seeds", "size", "channels", "steps", "learning_rate")
"""Options that a plan which draws from a checkpoint does not read."""


def add_parity(commands: Commands[Parser]) -> None:
    """Adds `parity`."""
    command = add_command(
        commands,
        parity,
        "train models under several settings and seeds, and evaluate what they draw; what is there already is left "
        "alone, and what was cut short goes on",
        """
        python -m study parity --plan short --out runs/parity                         OPT1 and FAST from six seeds each
        python -m study parity --plan long,contrasts --out runs/parity --tables figures/records/H200
        python -m study parity --plan samplers --checkpoint runs/parity/long_fast_flair_128_c64_s0 --out runs/parity
        python -m study parity --plan fp32 --out runs/parity                          OPT1 and FAST against FP32, at 32³
        python -m study parity --plan redrawn_fp32 --checkpoint runs/parity/fp32_base_… --out runs/parity
        python -m study parity --plan brats --data my_case --out runs/parity
        python -m study parity --plan short --seeds 0 --size 16 --steps 5 --samplers dpm++:2 --device cpu --out toy
        """,
        resumes=True,
    )
    command.add_argument("--plan", type=several(PLANS), required=True, metavar="NAME,…", help=", ".join(PLANS))
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="gets a folder for each run")
    command.add_argument("--tables", type=a_path, metavar="DIR", help="gets quality.csv, loss.csv and slices (--out)")
    command.add_argument("--gpus", type=whole(1), metavar="N", help="use at most N GPUs, one run on each (all)")
    command.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="(auto: GPUs where there are any; CUDA_VISIBLE_DEVICES names those to use)",
    )  # fmt: skip
    command.add_argument("--data", type=a_path, metavar="DIR", help="a BraTS case, for the plan brats")
    command.add_argument(
        "--checkpoint",
        type=a_path,
        metavar="F",
        help="file or run's folder, for samplers, redrawn and redrawn_fp32",
    )
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    changes = command.add_argument_group("in place of the plans' own")
    changes.add_argument("--settings", type=several(SETTINGS), metavar="NAME,…", help=", ".join(SETTINGS))
    changes.add_argument("--seeds", type=seeds, metavar="N,…", help="of weights, order, timesteps and noise")
    changes.add_argument("--size", type=whole(8), metavar="N", help="side of the volume")
    changes.add_argument("--channels", type=whole(32, also=MULTIPLE), metavar="N", help=f"base width, {MULTIPLE}")
    changes.add_argument("--steps", type=whole(1), metavar="N", help="of training")
    changes.add_argument("--learning-rate", type=positive, metavar="X", help="Adam's")
    changes.add_argument("--subjects", type=whole(1), metavar="N", help="trained on")
    changes.add_argument("--held-out", type=whole(1), metavar="N", help="subjects evaluated on")
    changes.add_argument("--samplers", type=samplers, metavar="NAME:STEPS,…", help="ddpm:250, ddim:10, dpm++:25 …")


def parity(arguments: argparse.Namespace) -> int:
    """Trains and evaluates; see `study.parity.run`."""
    from study.parity.plans import BRATS, cube, planned
    from study.parity.plans import PLANS as EVERY_PLAN
    from study.parity.run import parity as run
    from study.parity.run import trained_checkpoint

    kinds = [run for name in arguments.plan for run in EVERY_PLAN[name]()]
    draws, trains = (any((run.checkpoint is not None) == ready for run in kinds) for ready in (True, False))
    of_brats, of_phantom = (any((run.contrast == BRATS) == is_brats for run in kinds) for is_brats in (True, False))
    refuse_unread(
        arguments,
        ("checkpoint", draws, "with the plans samplers, redrawn and redrawn_fp32"),
        ("data", of_brats, "with the plan brats"),
        ("gpus", arguments.device != "cpu", "on GPUs"),
        *((name, trains, "with a plan that trains") for name in TRAINING),
        ("subjects", trains and of_phantom, "with a plan that trains on the phantom"),
    )
    runs = planned(
        arguments.plan,
        settings=None if arguments.settings is None else [name.upper() for name in arguments.settings],
        seeds=arguments.seeds,
        data=arguments.data,
        checkpoint=None if arguments.checkpoint is None else trained_checkpoint(arguments.checkpoint),
        size=None if arguments.size is None else cube(arguments.size),
        model_channels=arguments.channels,
        steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        subjects=arguments.subjects,
        held_out=arguments.held_out,
        samplers=arguments.samplers,
    )
    failed = run(
        runs, arguments.out, arguments.tables, command=sys.argv, gpus=arguments.gpus, device=arguments.device,
        dry_run=arguments.dry_run,
    )  # fmt: skip
    return 1 if failed else 0


def seeds(text: str) -> list[int]:
    """Reads an argument: numbers, separated by commas."""
    return [whole(0)(word) for word in text.split(",")]


def samplers(text: str) -> tuple[SamplerSteps, ...]:
    """Reads an argument: samplers and their steps, as in `ddpm:250,dpm++:25`."""
    from study.parity.plans import FULL, SamplerSteps

    chosen = []
    for word in text.split(","):
        name, _, steps = word.partition(":")
        if name not in SAMPLERS or not steps or (name == FULL.sampler and steps != str(FULL.steps)):
            raise argparse.ArgumentTypeError(f"{word!r} is no sampler and its steps: ddpm:250, ddim:10, dpm++:25 …")
        chosen.append(SamplerSteps(name, whole(1, FULL.steps)(steps)))
    return tuple(dict.fromkeys(chosen))
