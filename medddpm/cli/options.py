"""The options and messages that the commands share."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path

SETTINGS = ("base", "opt1", "opt2", "opt12", "fast")
SAMPLERS = ("ddpm", "ddim", "dpm++", "sde-dpm++")
RECOMPUTED = ("none", "attention", "1", "2", "3", "4", "5", "all")
RECIPES = ("published", "ours")
PREDICTIONS = ("noise", "velocity", "flow")
LOSSES = ("l1", "l2")
WEIGHTINGS = ("none", "min-snr")
DENSITIES = ("uniform", "logit-normal")
DECAYS = ("none", "cosine")
PROFILE_VIEWS = ("window", "step")
SHELLS = ("bash", "zsh", "tcsh")
MULTIPLE = "a multiple of 32"
"""The requirement on --channels: the norms have 32 groups, unless --norm-groups says otherwise."""
DATA = (
    "folder with mask/ image/, or seg/ t1/ t1ce/ t2/ flair/; BraTS's, BIDS's, nnU-Net's or the Decathlon's; or a CSV "
    "of pairs (mask,image or mask,t1,t1ce,t2,flair)"
)
"""The help of `train --data` and of `check`."""


def complain(line: str) -> int:
    """Prints `line` on stderr; returns the exit code of bad input."""
    print(f"medddpm: {line}", file=sys.stderr)
    return 1


class Parser(argparse.ArgumentParser):
    """A parser that names all missing options at once, and suggests a known word for an unknown one.

    argparse reports a missing one of several options only once all other options are given, and unknown options last.

    Attributes:
        one_of: options of which one is required.
        expand: returns the words that are parsed in place of the command line's.
    """

    one_of: Sequence[argparse.Action] = ()
    expand: Callable[[Parser, Sequence[str]], list[str]] | None = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses as argparse does; stores the words and the values for `error`, and ends at an unknown word."""
        self._read = namespace or argparse.Namespace()
        self._words = list(sys.argv[1:] if args is None else args)
        words = self.expand(self, self._words) if self.expand else self._words
        arguments, unknown = super().parse_known_args(words, self._read)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return arguments, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints as argparse does, but raises an error if the help cannot be printed, as on a full disk."""
        if file is not None and file is sys.stdout:
            print(message, end="", file=file, flush=True)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Ends as argparse does; names `one_of` among the required options if none of them is given."""
        if "required: " in message:
            if self.one_of and all(getattr(self._read, action.dest, None) is None for action in self.one_of):
                message += ", " + " or ".join(action.option_strings[0] for action in self.one_of)
            options = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            known = list(self._option_string_actions)
            unknown = [word for word in options if not any(name.startswith(word) for name in known)]
            if unknown:
                message += f"; unrecognized: {' '.join(unknown)}{self._meant(unknown)}"
        elif match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message):
            message += _suggested(match[1], [name.strip("' ") for name in match[2].split(",")])
        super().error(message)

    def _options(self) -> list[str]:
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [name for action in shown for name in action.option_strings]

    def _meant(self, words: Sequence[str]) -> str:
        return _suggested(next((w for w in words if w.startswith("-")), words[0]).partition("=")[0], self._options())


def _suggested(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {close[0]}?" if close else ""


class PrintCompletion(argparse.Action):
    """An option that prints a shell's completion of all commands and options, and ends; paths complete as files."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, shell: Any, _option: str | None = None
    ) -> None:
        """Prints the completion.

        Raises:
            ModuleNotFoundError: shtab, which writes it, is not installed.
        """
        import shtab

        _complete_paths(parser, shtab.FILE)
        print(shtab.complete(parser, shell), flush=True)
        parser.exit()


def _complete_paths(parser: argparse.ArgumentParser, as_file: Any) -> None:
    for action in parser._actions:
        if action.type is a_path:
            action.complete = as_file  # type: ignore[attr-defined]
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            _complete_paths(command, as_file)


Commands = argparse._SubParsersAction  # the type that add_subparsers returns has no public name


def add_command(
    commands: Commands[Parser],
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: str,
    resumes: bool = False,
) -> Parser:
    """Adds a subcommand named as its function, with examples under its options.

    Args:
        commands: the parsers to add it to.
        run: runs it; returns the exit code.
        summary: its line in the list of commands.
        examples: a line each.
        resumes: whether the same command resumes after an interruption.
    """
    command = commands.add_parser(
        run.__name__,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # `wrong` ends the command where only several options together are at fault.
    command.set_defaults(command=run, resumes=resumes, wrong=command.error)
    return command


def refuse_unread(arguments: argparse.Namespace, *rules: tuple[str, bool, str]) -> None:
    """Ends the command, as a wrong argument does, if an option would have no effect.

    Args:
        arguments: None or False stands for an absent option.
        rules: for each option its name, whether it is read, and the rest of "only …" for the message.
    """
    for name, read, where in rules:
        value = getattr(arguments, name)
        if value is not None and value is not False and not read:  # 0 is a value
            arguments.wrong(f"argument {option(name)}: only {where}")


def option(name: str) -> str:
    """Returns an option as a user types it, from its name in the arguments."""
    return f"--{name.replace('_', '-')}"


def volume_size(sides: list[int] | None, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns (H, W, D) from the values of --size: none, one side or three."""
    if sides is None:
        return default
    if len(sides) == 1:
        sides = sides * 3
    if len(sides) != 3:
        raise BadInput("--size", f"{len(sides)} numbers", "give one side, or H W D")
    return sides[0], sides[1], sides[2]


def without_gz(path: Path) -> str:
    """Returns a table's absolute path without the suffix .gz."""
    return str(path.resolve()).removesuffix(".gz")


def add_setting(command: argparse.ArgumentParser) -> None:
    """Adds --setting: a name in `medddpm.switches.SETTINGS`."""
    command.add_argument(
        "--setting",
        default="base",
        type=str.lower,
        choices=SETTINGS,
        help="base: float32; opt1: TF32; opt2: channels-last-3D; opt12: both; fast: the same network in BF16, with "
        "fused kernels and CUDA graphs, its weights and loss in float32; where the kernels cannot run (no Triton, or "
        "compute capability below 8.0) it computes in float32 and reports that (base)",
    )


def add_device(command: argparse.ArgumentParser, quiet: str = "no progress bar") -> None:
    """Adds --device and --quiet, of which `quiet` is the help."""
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")
    command.add_argument("-q", "--quiet", action="store_true", help=quiet)
