"""The command `medddpm report`."""

from __future__ import annotations

import argparse

from medddpm.cli.options import Commands, Parser, add_command
from medddpm.cli.window import add_baseline, add_folder
from medddpm.errors import BadInput, printable
from medddpm.runtime.arguments import a_path

MOST = 8  # profiles of one page


def add_report(commands: Commands[Parser]) -> None:
    """Adds `medddpm report`."""
    command = add_command(
        commands,
        report,
        "make one HTML page of profiles: what bounds the step, its kernels, and profiles side by side",
        """
        medddpm report profiles --out report.html
        medddpm report figures/records/H100 --setting fast --out fast.html
        medddpm report before after --out change.html          the second divided by the first
        medddpm report figures/records/H100 --setting opt1,fast --baseline-setting base --out settings.html
        """,
    )
    add_folder(command, nargs="+")
    command.add_argument(
        "--setting", metavar="NAME,…", type=lambda text: text.lower().split(","),
        help="which of several profiles in each DIR; several are shown side by side",
    )  # fmt: skip
    add_baseline(command)
    command.add_argument("--out", type=a_path, required=True, metavar="HTML", help="the page, one file")


def report(arguments: argparse.Namespace) -> int:
    """Makes a page; see `medddpm.measure.report.page.report`."""
    from medddpm.measure.report.folder import read_profile
    from medddpm.measure.report.page.report import check_report, write_report

    check_report(arguments.out)
    chosen = [(folder, name) for folder in arguments.dir for name in arguments.setting or [None]]
    if len(chosen) > MOST:
        raise BadInput(arguments.out, f"a page of {len(chosen)} profiles", f"give at most {MOST}")
    profiles = [read_profile(folder, name, arguments.run) for folder, name in chosen]
    if arguments.baseline or arguments.baseline_setting:
        base = read_profile(arguments.baseline or arguments.dir[0], arguments.baseline_setting)
        profiles = [base, *(profile for profile in profiles if profile.path != base.path)]
    written = write_report(profiles, arguments.out)
    shares = [f"{printable(profile.name)}, {profile.known():.0%} with counters" for profile in profiles]
    print(f"{written}: {', '.join(shares)}")
    return 0
