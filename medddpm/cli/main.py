"""The command `medddpm`. Exit codes: 0 done, 1 the input is bad, 2 the arguments are wrong, 130 interrupted."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from medddpm import __version__
from medddpm.cli.model import add_check, add_release, add_sample, add_train
from medddpm.cli.options import INTERRUPTED, complain
from medddpm.cli.parity import add_parity
from medddpm.cli.study import add_bench, add_book, add_parse, add_profile
from medddpm.errors import BadInput
from medddpm.runtime.reports import log

ON_A_MODEL = ("train", "sample", "release", "check")
"""The commands whose packages `pip install 'medddpm[train]'` brings; the others need [book]."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        its exit code. Whatever the user can correct is one line on stderr, never a traceback.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with plain_lines():
            arguments = parser().parse_args(words)
            command: Callable[[argparse.Namespace], int] = arguments.command
            return command(arguments)
    except BadInput as error:
        return complain(str(error))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("medddpm"):
            raise
        extra = "train" if words[0] in ON_A_MODEL else "book"
        return complain(f"{words[0]} needs {error.name}; pip install 'medddpm[{extra}]'")
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
        return complain(str(BadInput(error.filename, problem, "correct it and try again")))
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


@contextlib.contextmanager
def plain_lines() -> Iterator[None]:
    """Within it, the package's reports and warnings are plain lines, `medddpm: …`."""
    package, handler = str(Path(__file__).parents[1]), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("medddpm: %(message)s"))

    def plain(message: Warning | str, category: type[Warning], filename: str, *place: Any) -> None:
        if filename.startswith(package):
            log.warning(str(message))
        else:
            show(message, category, filename, *place)

    log.addHandler(handler)
    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.showwarning = plain  # type: ignore[assignment]
        try:
            yield
        finally:
            log.removeHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
