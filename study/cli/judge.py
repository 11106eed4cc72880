"""The command `python -m study judge`: whether samples are brains."""

from __future__ import annotations

import argparse
import sys

from medddpm.cli.options import Commands, Parser, add_command, refuse_unread
from medddpm.runtime.arguments import a_path, several, whole

CONTRASTS = ("t1", "t2", "flair")


def add_judge(commands: Commands[Parser]) -> None:
    """Adds `judge`."""
    command = add_command(
        commands,
        judge,
        "judge samples against held-out heads: tissues, surfaces, contrasts, textures, copies, and what they are good "
        "for; without samples, make the segmenter and the ranges that judge",
        """
        python -m study judge --contrasts t1 --out judge                              the segmenter and the ranges
        python -m study judge --contrasts t1 --segmenter judge/segmenter.safetensors --ranges judge/ranges.json \\
            --samples ours.npz --samples shipped.npz --use-steps 1500 --out judged
        python -m study judge --size 16 --heads 6 --held-out 5 --trained 4 --steps 3 --device cpu --out toy
        """,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="gets files and tables")
    command.add_argument(
        "--samples", type=a_path, action="append", default=[], metavar="F",
        help="a set: NAME.npz with images, seed and subject, or a folder of head-SEED-SUBJECT.nii.gz; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--contrasts", type=several(CONTRASTS), default=["t1"], metavar="NAME,…", help="the channels, in order (t1)"
    )
    command.add_argument("--size", type=whole(16, also="a multiple of 8"), default=64, help="side of the volume (64)")
    command.add_argument("--segmenter", type=a_path, metavar="F", help="of an earlier call; otherwise one is trained")
    command.add_argument("--ranges", type=a_path, metavar="F", help="of an earlier call; otherwise they are made")
    command.add_argument("--heads", type=whole(1), metavar="N", help="the segmenter is trained on (512)")
    command.add_argument("--steps", type=whole(1), metavar="N", help="of the segmenter's training (3000)")
    command.add_argument("--width", type=whole(8, also="a multiple of 8"), default=16, help="of its network (16)")
    command.add_argument("--held-out", type=whole(2), default=128, metavar="N", help="heads of the ranges (128)")
    command.add_argument(
        "--trained", type=whole(2), default=768, metavar="N",
        help="heads of seed 0 that the samples' model was trained on, among which copies are looked for (768)",
    )  # fmt: skip
    command.add_argument(
        "--use-steps", type=whole(1), metavar="N",
        help="also train segmenters on samples, on heads and on both, this many steps each",
    )  # fmt: skip
    command.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(auto: a GPU if there is)")


def judge(arguments: argparse.Namespace) -> int:
    """Judges; see `study.brains.judge`."""
    from study.brains.judge import Options
    from study.brains.judge import judge as run

    trains = arguments.segmenter is None
    refuse_unread(
        arguments,
        ("heads", trains, "without --segmenter"),
        ("steps", trains, "without --segmenter"),
        ("use_steps", bool(arguments.samples), "with --samples"),
    )
    options = Options(
        samples=tuple(arguments.samples), contrasts=tuple(arguments.contrasts), side=arguments.size,
        segmenter=arguments.segmenter, ranges=arguments.ranges, heads=arguments.heads or Options.heads,
        steps=arguments.steps or Options.steps, width=arguments.width, held_out=arguments.held_out,
        trained=arguments.trained, use_steps=arguments.use_steps or 0, device=arguments.device,
    )  # fmt: skip
    run(options, arguments.out, sys.argv)
    return 0
