"""The command `python -m study numbers`."""

from __future__ import annotations

import argparse

from medddpm.cli.options import Commands, Parser, add_command


def add_numbers(commands: Commands[Parser]) -> None:
    """Adds `numbers`."""
    add_command(
        commands,
        numbers,
        "write the numbers of README, of the site's pages and of the summary as the records have them",
        """
        python -m study numbers
        """,
    )


def numbers(_arguments: argparse.Namespace) -> int:
    """Writes the numbers; see `study.numbers.markers`."""
    from study.book import find_root
    from study.numbers.markers import write_pages

    root = find_root()
    for path in write_pages(root):
        print(f"{path.relative_to(root)}: numbers changed")
    return 0
