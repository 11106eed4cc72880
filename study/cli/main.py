"""The command `python -m study`. Exit codes are those of `medddpm`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from medddpm.cli.main import run
from medddpm.cli.options import Parser
from study.cli.bench import add_bench, add_coverage
from study.cli.book import add_book
from study.cli.convnext import add_convnext
from study.cli.judge import add_judge
from study.cli.numbers import add_numbers
from study.cli.parity import add_parity
from study.cli.scaling import add_scaling
from study.cli.throughput import add_endurance, add_throughput
from study.cli.trainings import add_trainings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command of the book; returns its exit code."""
    return run(parser, sys.argv[1:] if argv is None else argv)


def parser() -> Parser:
    """Returns the arguments of every command."""
    top = Parser(
        prog="python -m study",
        description="Run the book, and measure what it records.",
        epilog="`python -m study COMMAND --help` shows a command's options and examples.",
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    times = (add_bench, add_coverage, add_throughput, add_endurance, add_scaling)
    for add in (add_book, add_numbers, *times, add_parity, add_trainings, add_judge, add_convnext):
        add(commands)
    return top
