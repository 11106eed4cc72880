"""What the commands share: their options, their messages, their exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from medddpm.errors import BadInput

SWITCHES = ("base", "opt1", "opt2", "opt12", "fast")
SAMPLERS = ("ddpm", "ddim", "dpm++", "sde-dpm++")
PROFILE_VIEWS = ("window", "step")
INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C ended


def complain(line: str) -> int:
    """Prints `line` on stderr; returns the exit code of bad input."""
    print(f"medddpm: {line}", file=sys.stderr)
    return 1


Commands = argparse._SubParsersAction  # the type that add_subparsers returns has no public name


def add_command(
    commands: Commands[argparse.ArgumentParser], run: Callable[[argparse.Namespace], int], summary: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand named as its function, with examples under its options."""
    command = commands.add_parser(
        run.__name__,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    return command


def volume_size(sides: list[int] | None, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """(H, W, D) of the --size given: none, one side or three."""
    if sides is None:
        return default
    if len(sides) == 1:
        sides = sides * 3
    if len(sides) != 3:
        raise BadInput("--size", f"{len(sides)} numbers", "give one side, or H W D")
    return sides[0], sides[1], sides[2]


def add_switches(command: argparse.ArgumentParser) -> None:
    """The settings, by the names of `medddpm.switches.SETTINGS`."""
    command.add_argument(
        "--switches",
        default="base",
        type=str.lower,
        choices=SWITCHES,
        help="base: float32; opt1: TF32; opt2: channels-last-3D; opt12: both; fast: the same network in BF16, with "
        "fused kernels and CUDA graphs, its weights and loss in float32; where the kernels cannot run (no Triton, or "
        "less than compute capability 8.0) all in float32, which it says (base)",
    )


def add_device(command: argparse.ArgumentParser) -> None:
    """What `train` and `sample` share."""
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
