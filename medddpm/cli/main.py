"""The command `medddpm`. Exit codes: 0 done, 1 the input is bad, 2 the arguments are wrong, 130 interrupted."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from medddpm import __version__
from medddpm.cli.check import add_check
from medddpm.cli.compare import add_compare
from medddpm.cli.options import SHELLS, Parser, PrintCompletion, complain
from medddpm.cli.profile import add_parse, add_profile
from medddpm.cli.release import add_release
from medddpm.cli.report import add_report
from medddpm.cli.sample import add_sample
from medddpm.cli.train import add_train
from medddpm.cli.window import add_window
from medddpm.errors import BadArgument, BadInput
from medddpm.fast.reports import is_first, log, silence
from medddpm.runtime.exits import INTERRUPTED
from medddpm.runtime.signals import ended_by_sigterm

NO_MEMORY = ("out of memory", "can't allocate memory")  # PyTorch's words for a GPU and for the host
EXTRAS = dict.fromkeys(("train", "sample", "release", "check"), "train")
EXTRAS |= dict.fromkeys(("compare", "window", "report"), "measure")
"""What brings a command's packages, as in `pip install 'medddpm[train]'`; the other commands need [book]."""

MOVED = ("bench", "parity", "convnext", "book")
"""Former commands that are the book's now: `python -m study`, from a clone of its repository."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command of `medddpm`; returns its exit code, as `run` does."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in MOVED:
        complain(f"{words[0]} belongs to the book now; in a clone of its repository: python -m study {words[0]}")
        return 2
    return run(parser, words)


def run(parser: Callable[[], Parser], words: Sequence[str]) -> int:
    """Runs the command that the words name.

    Args:
        parser: makes the parser. Its namespaces have `command`, the function to run, and `resumes`, whether the same
            command resumes after an interruption.
        words: a command and its arguments.

    Returns:
        its exit code. Whatever the user can correct is one line on stderr, never a traceback.
    """
    arguments = argparse.Namespace()
    open_streams()
    try:
        with plain_lines(), ended_by_sigterm():
            _check_working_folder()
            arguments = parser().parse_args(words)
            command: Callable[[argparse.Namespace], int] = arguments.command
            code = command(arguments)
        sys.stdout.flush()  # a full disk shows here, not when the interpreter has ended
        return code
    except BadInput as error:
        return complain(str(error.option if isinstance(error, BadArgument) else error))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in {"medddpm", "study"}:
            raise
        extra = "completion" if error.name == "shtab" else EXTRAS.get(words[0], "book")
        if error.name == "pandas" and words[0] in ("profile", "parse"):  # all that a program of one's own needs
            extra = "measure"
        return complain(f"{words[0]} needs {error.name}; pip install 'medddpm[{extra}]'")
    except KeyboardInterrupt as interrupt:
        if is_first():
            complain(str(interrupt) or f"interrupted{_how_to_go_on(arguments, words)}")
        return INTERRUPTED
    except BrokenPipeError:  # `medddpm check … | head`
        silence(sys.stdout)
        return 0
    except OSError as error:  # with no file's name where a library's own thread or stream met it
        name = error.filename if isinstance(error.filename, str | bytes) else "a file, or what is printed"
        problem = (error.strerror or "it cannot be used").lower()
        if error.filename is None:
            silence(sys.stdout)  # what it still holds cannot be written either
        return complain(str(BadInput(os.fsdecode(name), problem, "correct it and try again")))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error).lower() for words in NO_MEMORY):
            raise
        return complain("--device: too little memory for this; use a smaller volume, model or batch")


def _check_working_folder() -> None:
    """Refuses a working folder that was removed, before any import: PyTorch's libraries would end the process there.

    Raises:
        BadInput: it was removed.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise BadInput("the working folder", "it was removed", "change to one that is there, by cd") from None


def _how_to_go_on(arguments: argparse.Namespace, words: Sequence[str]) -> str:
    """Returns the end of a line that says how to resume after an interruption."""
    if not getattr(arguments, "resumes", False):
        return ""
    anew = next((word for word in ("--again", "--force") if word in words), "")
    return f"; {f'without {anew} ' if anew else ''}the same command goes on where it was"


def open_streams() -> None:
    """Makes stdout and stderr writable, even if a shell closed one (`2>&-`) or it cannot write every character."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parser() -> Parser:
    """Builds the parser of all commands."""
    top = Parser(
        prog="medddpm",
        description="Train and sample the 3-D diffusion model of Med-DDPM; compare tools on your own network; profile.",
        epilog="`medddpm COMMAND --help` shows a command's options and examples.",
    )
    top.add_argument("--version", action="version", version=f"medddpm {__version__}")
    top.add_argument(
        "--print-completion", action=PrintCompletion, choices=SHELLS, metavar="SHELL",
        help=f"print what makes {', '.join(SHELLS[:-1])} or {SHELLS[-1]} complete this command's words: "
        'eval "$(medddpm --print-completion bash)" in ~/.bashrc',
    )  # fmt: skip
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    own = (add_compare, add_profile, add_parse, add_window, add_report)
    for add in (add_train, add_sample, add_release, add_check, *own):
        add(commands)
    return top


@contextlib.contextmanager
def plain_lines() -> Iterator[None]:
    """Prints the package's reports and warnings as plain lines, `medddpm: …`, and silences nibabel and papermill.

    nibabel logs each oddity of a header; `medddpm.data.nifti` refuses, in a line, those that matter. papermill logs a
    dead kernel before it raises the error, and also when an interrupted book ends the kernel itself.
    """
    for name in ("nibabel.global", "papermill"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
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
