"""The command `python -m study book`."""

from __future__ import annotations

import argparse

from medddpm.cli.options import Commands, Parser, add_command


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
        """,
        resumes=True,
    )
    command.add_argument("--only", metavar="NN", help="one notebook, by number or name")
    command.add_argument("--from", dest="start", metavar="NN", help="this notebook and all later ones")
    command.add_argument(
        "--measure", action="store_true", help="measure on this machine's GPU instead of replaying records"
    )
    command.add_argument("--force", action="store_true", help="also run notebooks that are up to date")
    command.add_argument("--refresh", action="store_true", help="write the executed notebooks back to notebooks/")


def book(arguments: argparse.Namespace) -> int:
    """Runs the book; see `study.book`."""
    from study.book import find_root, run_book

    return run_book(
        find_root(),
        only=arguments.only,
        start=arguments.start,
        measure=arguments.measure,
        force=arguments.force,
        refresh=arguments.refresh,
    )
