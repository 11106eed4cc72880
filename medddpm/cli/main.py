"""The command `medddpm`. Exit codes: 0 done, 1 the input is bad, 2 the arguments are wrong, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from medddpm import __version__
from medddpm.cli.model import add_check, add_release, add_sample, add_train
from medddpm.cli.options import INTERRUPTED, complain
from medddpm.cli.parity import add_parity
from medddpm.cli.study import add_bench, add_book, add_parse, add_profile
from medddpm.errors import BadInput


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        its exit code. What a user can mend is one line on stderr, never a traceback.
    """
    arguments = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except BadInput as error:
        return complain(str(error))
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `medddpm check … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        problem = (error.strerror or "it cannot be used").lower()
        return complain(str(BadInput(error.filename, problem, "see to it and try again")))
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        return complain("--device: too little memory for this; use a smaller --size or --batch-size, or --device cpu")


def parser() -> argparse.ArgumentParser:
    """The arguments of every command."""
    top = argparse.ArgumentParser(
        prog="medddpm",
        description="Train and sample the 3-D diffusion model of Med-DDPM, and run the book that measures it.",
        epilog="`medddpm COMMAND --help` shows a command's options and examples.",
    )
    top.add_argument("--version", action="version", version=f"medddpm {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_train, add_sample, add_release, add_check, add_profile, add_parse, add_bench, add_parity, add_book):
        add(commands)
    return top


if __name__ == "__main__":
    sys.exit(main())
