"""The command that reads a data folder: check."""

from __future__ import annotations

import argparse

from medddpm.cli.options import DATA, Commands, Parser, add_command
from medddpm.runtime.arguments import a_path


def add_check(commands: Commands[Parser]) -> None:
    """Adds `medddpm check`."""
    command = add_command(
        commands,
        check,
        "read every volume of a data folder and print a line for each problem",
        """
        medddpm check my_data
        medddpm check pairs.csv --list
        """,
    )
    command.add_argument("folder", type=a_path, metavar="DIR", help=DATA)
    command.add_argument("--list", action="store_true", help="print the files of each case too")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def check(arguments: argparse.Namespace) -> int:
    """Checks a data folder; see `medddpm.data.checking`."""
    from medddpm.data.checking import check_folder

    report = check_folder(arguments.folder, progress=not arguments.quiet)
    for line in report.pairs() if arguments.list else ():
        print(line)
    for problem in report.problems:
        print(problem)
    for note in report.notes:
        print(f"note: {note}")
    print(report)
    return 1 if report.problems else 0
