"""The commands `medddpm profile` and `medddpm parse`."""

from __future__ import annotations

import argparse

from medddpm.cli.options import (
    MULTIPLE,
    PROFILE_VIEWS,
    SETTINGS,
    Commands,
    Parser,
    add_command,
    refuse_unread,
    without_gz,
)
from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path, several, whole

# parse


def add_parse(commands: Commands[Parser]) -> None:
    """Adds `medddpm parse`."""
    command = add_command(
        commands,
        parse,
        "turn Nsight Compute's CSV into a table of kernels",
        """
        medddpm parse window_raw.csv --details window_details.csv --setting opt1 --out kernels.csv
        medddpm parse step_raw.csv.gz --trace step_trace.csv.gz --setting opt1 --out kernels.csv
        ncu --import run.ncu-rep --page raw --csv --print-metric-instances details > window_raw.csv
        ncu --import run.ncu-rep --page details --csv > window_details.csv     (of a run with --set full)
        """,
    )
    command.add_argument(
        "raw", type=a_path, metavar="ncu_raw.csv", help="ncu's raw page; this and the other tables may be gzipped"
    )
    command.add_argument(
        "--details", type=a_path, metavar="CSV", help="ncu's details page: adds the estimated speedups"
    )
    command.add_argument(
        "--trace", type=a_path, metavar="CSV", help="every launch of the same step: adds counts and times"
    )
    command.add_argument(
        "--out", type=a_path, required=True, metavar="CSV", help="the table; .csv or, when large, .csv.gz"
    )
    command.add_argument("--setting", type=str.upper, default="BASE", help="the setting of the profile (base)")
    command.add_argument(
        "--view",
        choices=["window", "step"],
        help="consecutive launches, or a step's distinct ones (window; with --trace step)",
    )
    command.add_argument("--force", action="store_true", help="replace a table that is there already")


def parse(arguments: argparse.Namespace) -> int:
    """Parses; see `medddpm.measure.profile.parse.parse`."""
    from medddpm.measure import schemas
    from medddpm.measure.profile import parse as profile_parse
    from medddpm.measure.tables import check_table, write_table

    for table in filter(None, (arguments.raw, arguments.details, arguments.trace)):
        # The table, plain or compressed, would overwrite it or its description.
        if without_gz(table) == without_gz(arguments.out):
            raise BadInput(table, "--out would overwrite what is read", "give --out another name")
    check_table(arguments.out, force=arguments.force)
    view = arguments.view or ("step" if arguments.trace else "window")
    parsed = profile_parse.parse(
        arguments.raw, arguments.setting, view, details=arguments.details, trace=arguments.trace
    )
    written = write_table(parsed.table, arguments.out, schemas.KERNELS, profile_parse.origin(parsed, arguments.raw))
    for note in parsed.notes:
        print(f"note: {note}")
    print(f"{written}: {parsed}")
    return 0


# profile


def add_profile(commands: Commands[Parser]) -> None:
    """Adds `medddpm profile`."""
    command = add_command(
        commands,
        profile,
        "profile a training step with Nsight Compute; finished measurements are kept",
        """
        medddpm profile --out profiles                       all settings, both views, once
        medddpm profile --setting opt1 --view window --repeat 3 --out profiles
        medddpm profile --setting fast --out profiles        without CUDA graphs, so that each launch is seen
        medddpm profile --setting base,opt2 --view window --window-start 300 --out profiles
        medddpm profile --setting base,opt2 --python old/bin/python --out profiles    under the PyTorch of `old`
        medddpm profile --dry-run --out profiles             only prints the commands
        """,
        resumes=True,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="folder of the tables")
    command.add_argument(
        "--setting", type=several(SETTINGS), default=SETTINGS, metavar="NAME,…",
        help=f"({','.join(SETTINGS)})",
    )  # fmt: skip
    command.add_argument(
        "--view", type=several(PROFILE_VIEWS), default=PROFILE_VIEWS, metavar="NAME,…",
        help="window: 100 launches near the start, as in the paper, and a trace of two steps from the first launch; "
        "step: a whole step, each distinct launch once, and a trace of it (window,step)",
    )  # fmt: skip
    command.add_argument("--repeat", type=whole(1), default=1, help="runs of each, for the spread (1)")
    command.add_argument("--run", type=whole(1), default=1, help="number of the first run (1)")
    command.add_argument(
        "--details", action="store_true", help="also ncu's estimated speedups: one more run, of 37 passes"
    )
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    command.add_argument("--window-start", type=whole(0), help="launches before the window (10)")
    command.add_argument(
        "--convert-on", choices=["gpu", "cpu"],
        help="where weights become channels-last: gpu, one launch a tensor, as in a user's run; or cpu, before (gpu)",
    )  # fmt: skip
    command.add_argument(
        "--cache-control", choices=["all", "none"], default="all",
        help="what ncu does to the GPU's caches: all, it flushes them before each pass over a launch; none, it leaves "
        "them be, and the tables are named so (all). Clocks are left alone in any case",
    )  # fmt: skip
    command.add_argument("--accumulation", type=whole(1), default=1, help="micro-steps in a step (1)")
    command.add_argument("--size", type=whole(1), default=128, help="side of the volume (128)")
    command.add_argument("--channels", type=whole(32, also=MULTIPLE), default=64, help=f"base width, {MULTIPLE} (64)")
    command.add_argument(
        "--python", metavar="PATH",
        help="the Python that runs the profiled program, for another PyTorch than this one's; the tables are named "
        "for it and their descriptions hold its versions",
    )  # fmt: skip


def profile(arguments: argparse.Namespace) -> int:
    """Profiles; see `medddpm.measure.profile.run`."""
    from medddpm.measure.profile.run import OWN, Program, interpreter, plan
    from medddpm.measure.profile.run import profile as run
    from medddpm.measure.profile.windows import PAPERS_START

    window = "window" in arguments.view
    refuse_unread(
        arguments, ("window_start", window, "with --view window"), ("convert_on", window, "with --view window")
    )
    python = interpreter(arguments.python) if arguments.python else OWN
    program = Program(
        size=arguments.size,
        channels=arguments.channels,
        accumulation=arguments.accumulation,
        convert_on=arguments.convert_on or "gpu",
        window_start=PAPERS_START if arguments.window_start is None else arguments.window_start,
        cache_control=arguments.cache_control,
        torch=python.torch,
    )
    settings = [name.upper() for name in arguments.setting]
    runs = plan(settings, arguments.view, arguments.repeat, arguments.details, program, arguments.run)
    return 1 if run(runs, arguments.out, python=python, dry_run=arguments.dry_run) else 0
