"""The command `medddpm window`."""

from __future__ import annotations

import argparse

from medddpm.cli.options import Commands, Parser, add_command
from medddpm.runtime.arguments import a_path, whole


def add_window(commands: Commands[Parser]) -> None:
    """Adds `medddpm window`."""
    command = add_command(
        commands,
        window,
        "say how much of a profiled step a window of its launches holds, and how far its answer is from the step's, "
        "from every start",
        """
        medddpm window profiles --setting base                 launches 10 to 109, as in the paper
        medddpm window profiles --setting base --start 300 --out curve.png
        medddpm window figures/records/H100 --setting opt2 --baseline-setting base
        """,
    )
    add_folder(command)
    command.add_argument("--start", type=whole(0), default=10, help="first launch of the window (10)")
    command.add_argument("--count", type=whole(1), default=100, help="launches of the window (100)")
    add_baseline(command)
    command.add_argument(
        "--out", type=a_path, metavar="FILE",
        help="the ratios from every start: a table (.csv) or a picture (.png, .svg; needs matplotlib)",
    )  # fmt: skip


def add_folder(command: Parser, nargs: str | None = None) -> None:
    """Adds the folder of profiles, and --run."""
    command.add_argument(
        "dir", type=a_path, metavar="DIR", nargs=nargs,
        help="the folder of medddpm profile --out, or a card's records (figures/records/H100)",
    )  # fmt: skip
    if nargs is None:
        command.add_argument("--setting", type=str.lower, metavar="NAME", help="which of several profiles in DIR")
    command.add_argument("--run", type=whole(1), help="number of the profile's run (the first)")


def add_baseline(command: Parser) -> None:
    """Adds the profile that others are divided by."""
    command.add_argument(
        "--baseline", type=a_path, metavar="DIR2", help="divide by this profile (with --baseline-setting: DIR)"
    )
    command.add_argument("--baseline-setting", type=str.lower, metavar="NAME", help="which of several profiles in DIR2")


def window(arguments: argparse.Namespace) -> int:
    """Describes a window; see `medddpm.measure.report.window`."""
    from medddpm.measure.report import starts
    from medddpm.measure.report import window as told
    from medddpm.measure.report.folder import read_profile

    if arguments.out:
        told.check(arguments.out)
    profile = read_profile(arguments.dir, arguments.setting, arguments.run)
    order = starts.ordered(profile)
    starts.check(arguments.start, arguments.count, order)
    print(told.printed(profile, order, arguments.start, arguments.count))
    if arguments.baseline or arguments.baseline_setting:
        base = read_profile(arguments.baseline or arguments.dir, arguments.baseline_setting)
        names = (profile.name, base.name)
        print()
        print(told.printed_against(names, order, starts.ordered(base), arguments.start, arguments.count))
    if arguments.out:
        meta = {**profile.facts, "profile": profile.path.name, "count": arguments.count}
        written = told.write(arguments.out, order, arguments.start, arguments.count, meta)
        print(f"\n{written}: windows of {arguments.count} launches from {len(order.run) - arguments.count + 1} starts")
    print(f"\n{starts.RULE}")
    return 0
