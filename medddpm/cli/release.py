"""The command that writes a run's released model: release."""

from __future__ import annotations

import argparse
import re

from medddpm.cli.options import SAMPLERS, Commands, Parser, add_command, add_device, add_setting
from medddpm.runtime.arguments import a_path, whole


def add_release(commands: Commands[Parser]) -> None:
    """Adds `medddpm release`."""
    command = add_command(
        commands,
        release,
        "write a run's averaged weights in BF16, its training record and a model card",
        """
        medddpm release runs/head64 --out head64.safetensors           and head64.csv, head64.md
        medddpm release runs/head64 --out head64.safetensors --sampler ddim --steps 25 --held-out 0
        medddpm release runs/mine --out mine.safetensors --license cc-by-4.0 --author 'A. Reader'
        """,
    )
    command.add_argument("run", type=a_path, metavar="RUN", help="the --out of `medddpm train`")
    command.add_argument(
        "--out",
        type=a_path,
        required=True,
        metavar="NAME.safetensors",
        help="the weights; NAME.csv and NAME.md go beside them",
    )
    command.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="sde-dpm++",
        help="the sampler that the file recommends (sde-dpm++)",
    )
    command.add_argument("--steps", type=whole(1), help="its number of steps (20; of ddpm all timesteps)")
    command.add_argument(
        "--held-out", type=whole(0, 10_000), metavar="N",
        help="for the card, measure a run on the phantom or on heads on N other subjects (16; 0 for none)",
    )  # fmt: skip
    command.add_argument(
        "--about", default="", metavar="TEXT", help="a sentence for the card: trained on what, and how long"
    )
    command.add_argument(
        "--license", type=_license, default="", metavar="ID",
        help="for the card, the weights' licence as Hugging Face names it: apache-2.0, cc-by-4.0, other … (not said)",
    )  # fmt: skip
    command.add_argument("--author", default="", metavar="NAME", help="for the card, who trained it (not said)")
    command.add_argument("--force", action="store_true", help="replace a released model that is there already")
    add_setting(command)
    add_device(command)


def _license(text: str) -> str:
    if not re.fullmatch(r"([a-z0-9][a-z0-9.+-]*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no licence's identifier: apache-2.0, cc-by-4.0, other …")
    return text


def release(arguments: argparse.Namespace) -> int:
    """Releases; see `medddpm.training.release.release_run`."""
    from medddpm.checkpoints.model_card import Terms
    from medddpm.sampling import keep_freed_memory
    from medddpm.switches import SETTINGS
    from medddpm.training.release import release_run

    if arguments.held_out == 0 and arguments.setting != "base":
        arguments.wrong("argument --setting: only where --held-out measures")
    keep_freed_memory()
    files = release_run(
        arguments.run,
        arguments.out,
        sampler=arguments.sampler,
        steps=arguments.steps,
        held_out=arguments.held_out,
        about=arguments.about,
        terms=Terms(arguments.license, arguments.author),
        setting=SETTINGS[arguments.setting.upper()],
        device=arguments.device,
        progress=not arguments.quiet,
        force=arguments.force,
    )
    print("\n".join(map(str, files)))
    return 0
