"""The command `python -m study book`."""

from __future__ import annotations

import argparse
import math

from medddpm.cli.options import Commands, Parser, add_command, refuse_unread
from medddpm.runtime.arguments import a_path, not_negative


def add_book(commands: Commands[Parser]) -> None:
    """Adds `book`."""
    command = add_command(
        commands,
        book,
        "run the notebooks in order, except those that are up to date",
        """
        python -m study book
        python -m study book --only 05
        python -m study book --from 04 --force
        python -m study book --measure            (on a GPU: measures anew, and draws what it measured)
        python -m study book --measure --minutes 25 --pack first.tar     on a lent GPU: as far as time allows
        python -m study book --measure --minutes 25 --results first.tar --pack second.tar      on the next one
        """,
        resumes=True,
    )
    command.add_argument("--only", metavar="NN", help="one notebook, by number or name")
    command.add_argument("--from", dest="start", metavar="NN", help="this notebook and all later ones")
    command.add_argument(
        "--measure", action="store_true", help="measure on this machine's GPU instead of replaying records"
    )
    command.add_argument(
        "--minutes", type=not_negative, metavar="X",
        help="with --measure: begin nothing that would not end in so many minutes, and run only the notebooks that "
        "measure; says what is lacking",
    )  # fmt: skip
    command.add_argument(
        "--pack", type=a_path, metavar="FILE.tar",
        help="with --measure: also pack results and new records, in up to 4 files of 15 MiB: FILE.tar, FILE.2.tar …",
    )  # fmt: skip
    command.add_argument(
        "--results", type=a_path, action="append", metavar="PATH",
        help="with --measure: a FILE.tar, or a folder of such, where this goes on, at the same commit and on a card of "
        "the same kind; may be repeated",
    )  # fmt: skip
    command.add_argument("--force", action="store_true", help="also run notebooks that are up to date")
    command.add_argument("--refresh", action="store_true", help="write the executed notebooks back to notebooks/")


def book(arguments: argparse.Namespace) -> int:
    """Runs the book; see `study.book` and, of a lent machine's, `study.measuring`."""
    from study.book import find_root, run_book

    measure = (arguments.measure and not arguments.force and not arguments.refresh, "with --measure alone")
    refuse_unread(arguments, ("minutes", *measure), ("pack", *measure), ("results", *measure))
    if arguments.minutes is not None or arguments.pack is not None or arguments.results:
        from study.measuring import measure_book

        return measure_book(
            find_root(),
            only=arguments.only,
            start=arguments.start,
            minutes=math.inf if arguments.minutes is None else arguments.minutes,
            packed=arguments.pack,
            results=arguments.results or [],
        )
    return run_book(
        find_root(),
        only=arguments.only,
        start=arguments.start,
        measure=arguments.measure,
        force=arguments.force,
        refresh=arguments.refresh,
    )
