"""The commands `medddpm profile` and `medddpm parse`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext

from medddpm.cli.compare import STEP_TOOLS, TOOLS
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
        "turn Nsight Compute's CSV or report into a table of kernels",
        """
        medddpm parse window_raw.csv --details window_details.csv --setting opt1 --out kernels.csv
        medddpm parse step_raw.csv.gz --trace step_trace.csv.gz --setting opt1 --out kernels.csv
        medddpm parse run.ncu-rep --out kernels.csv     with ncu, or pip install 'medddpm[ncu]'
        ncu --import run.ncu-rep --page raw --csv --print-metric-instances details > window_raw.csv
        ncu --import run.ncu-rep --page details --csv > window_details.csv     (of a run with --set full)
        """,
    )
    command.add_argument(
        "raw", type=a_path, metavar="ncu_raw.csv",
        help="ncu's raw page; this and the other tables may be gzipped. Or its report, run.ncu-rep",
    )  # fmt: skip
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
    from medddpm.measure.profile import ncu_rep
    from medddpm.measure.profile import parse as profile_parse
    from medddpm.measure.tables import check_table, write_table

    is_report = arguments.raw.suffix in ncu_rep.SUFFIXES
    refuse_unread(arguments, ("details", not is_report, "with a raw page; a report has its rules itself"))
    for table in filter(None, (None if is_report else arguments.raw, arguments.details, arguments.trace)):
        # The table, plain or compressed, would overwrite it or its description.
        if without_gz(table) == without_gz(arguments.out):
            raise BadInput(table, "--out would overwrite what is read", "give --out another name")
    check_table(arguments.out, force=arguments.force)
    view = arguments.view or ("step" if arguments.trace else "window")
    with ncu_rep.pages(arguments.raw) if is_report else nullcontext((arguments.raw, arguments.details)) as (raw, rules):
        parsed = profile_parse.parse(raw, arguments.setting, view, details=rules, trace=arguments.trace)
        meta = {**profile_parse.origin(parsed, raw), "parsed_from": arguments.raw.name}
    written = write_table(parsed.table, arguments.out, schemas.KERNELS, meta)
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
        "profile a training step with Nsight Compute: your own, any program's or the published network's; finished "
        "measurements are kept",
        """
        medddpm profile my_step.py --out profiles            my_step.py: def build(): return model, loss_fn, batch
        medddpm profile my_step.py:small --tool accelerate --out profiles
        medddpm profile --out profiles -- python train.py --lr 1e-4    your program as it is, some steps long
        medddpm profile --no-counters --out profiles -- torchrun --nproc-per-node 2 train.py
        medddpm profile --setting base,opt1,opt2,opt12,fast --out profiles    the published network, both views
        medddpm profile --setting opt1 --view window --repeat 3 --out profiles
        medddpm profile --setting fast --out profiles        without CUDA graphs, so that each launch is seen
        medddpm profile --setting base,opt2 --view window --window-start 300 --out profiles
        medddpm profile --setting base,opt2 --python old/bin/python --out profiles    under the PyTorch of `old`
        medddpm profile --dry-run --out profiles             only prints the commands
        """,
        resumes=True,
    )
    command.expand = _program_apart
    command.add_argument(
        "file", nargs="?", metavar="FILE[:FUNCTION]",
        help="Python whose function build (or FUNCTION) returns your network, loss_fn and one batch, as `medddpm "
        "compare` takes it; or give `-- COMMAND` at the end, your program as you start it. Without either the "
        "published network is profiled",
    )  # fmt: skip
    command.add_argument("--out", type=a_path, required=True, metavar="DIR", help="folder of the tables")
    command.add_argument("--repeat", type=whole(1), default=1, help="runs of each, for the spread (1)")
    command.add_argument("--run", type=whole(1), default=1, help="number of the first run (1)")
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    _add_any_program(command)
    _add_published(command)


def _add_any_program(command: Parser) -> None:
    group = command.add_argument_group(
        "your own step or program",
        "A step is told by `with medddpm.measure.step():` in the program, by an NVTX range, or else\n"
        "by the calls of its optimizers: it is then what happens between two of them. The program runs\n"
        "twice: for a trace, and, where counters are open, under Nsight Compute. After the profiled\n"
        "step it is ended, as by sys.exit(0).",
    )
    group.add_argument(
        "--tool", type=str.lower, choices=(*TOOLS, *STEP_TOOLS), metavar="NAME",
        help="run FILE's step under a tool of `medddpm compare` (pytorch: as it is)",
    )  # fmt: skip
    group.add_argument("--warmup", type=whole(0), help="steps before the first that is timed or counted (3)")
    group.add_argument("--nvtx", metavar="NAME", help="the range of torch.cuda.nvtx in the program that is a step")
    group.add_argument("--to-the-end", action="store_true", help="let the program run on after the profiled step")
    group.add_argument(
        "--no-counters", action="store_true", help="only the trace: times, launches and phases, without Nsight Compute"
    )
    group.add_argument(
        "--seconds", type=whole(1), metavar="N",
        help="time for the counters, about a second a distinct launch; those counted by then are kept",
    )  # fmt: skip


def _add_published(command: Parser) -> None:
    group = command.add_argument_group("the published network")
    group.add_argument(
        "--setting", type=several(SETTINGS), metavar="NAME,…", help=f"({','.join(SETTINGS)})"
    )  # fmt: skip
    group.add_argument(
        "--view", type=several(PROFILE_VIEWS), metavar="NAME,…",
        help="window: 100 launches near the start, as in the paper, and a trace of two steps from the first launch; "
        "step: a whole step, each distinct launch once, and a trace of it (window,step)",
    )  # fmt: skip
    group.add_argument(
        "--details", action="store_true", help="also ncu's estimated speedups: one more run, of 37 passes"
    )
    group.add_argument("--window-start", type=whole(0), help="launches before the window (10)")
    group.add_argument(
        "--convert-on", choices=["gpu", "cpu"],
        help="where weights become channels-last: gpu, one launch a tensor, as in a user's run; or cpu, before (gpu)",
    )  # fmt: skip
    group.add_argument(
        "--cache-control", choices=["all", "none"],
        help="what ncu does to the GPU's caches: all, it flushes them before each pass over a launch; none, it leaves "
        "them be, and the tables are named so (all). Clocks are left alone in any case",
    )  # fmt: skip
    group.add_argument("--accumulation", type=whole(1), help="micro-steps in a step (1)")
    group.add_argument("--size", type=whole(1), help="side of the volume (128)")
    group.add_argument("--channels", type=whole(32, also=MULTIPLE), help=f"base width, {MULTIPLE} (64)")
    group.add_argument(
        "--python", metavar="PATH",
        help="the Python that runs the profiled program, for another PyTorch than this one's; the tables are named "
        "for it and their descriptions hold its versions",
    )  # fmt: skip


ANY_PROGRAM = ("warmup", "nvtx", "to_the_end", "no_counters", "seconds")
PUBLISHED = (
    "setting", "view", "details", "window_start", "convert_on", "cache_control", "accumulation", "size", "channels",
    "python",
)  # fmt: skip


def _program_apart(command: Parser, words: Sequence[str]) -> list[str]:
    """Takes the words after -- out of the command line: a program's own, which are not to be read as options."""
    before = list(words[: words.index("--")]) if "--" in words else list(words)
    command.set_defaults(program=list(words[len(before) + 1 :]) if "--" in words else None)
    return before


def profile(arguments: argparse.Namespace) -> int:
    """Profiles; see `medddpm.measure.profile.run` and `medddpm.measure.profile.program.any_program`."""
    if arguments.program is not None and not arguments.program:
        arguments.wrong("a command is missing after --, as: -- python train.py")
    if arguments.program is not None and arguments.file is not None:
        arguments.wrong("give either FILE or a command after --")
    given = arguments.program is not None or arguments.file is not None
    refuse_unread(
        arguments,
        ("tool", arguments.file is not None, "with FILE"),
        ("nvtx", arguments.program is not None, "with a command after --"),
        *((name, given, "with FILE or a command after --") for name in ANY_PROGRAM),
        *((name, not given, "of the published network") for name in PUBLISHED),
        ("seconds", not arguments.no_counters, "without --no-counters"),
    )
    return _profile_any(arguments) if given else _profile_published(arguments)


def _profile_any(arguments: argparse.Namespace) -> int:
    from medddpm.measure.profile.program import any_program

    options = {
        "warmup": 3 if arguments.warmup is None else arguments.warmup,
        "nvtx": arguments.nvtx or "",
        "to_the_end": arguments.to_the_end,
    }
    if arguments.file is None:
        program = any_program.any_program(arguments.program, **options)
    else:
        from medddpm.measure.step_file import step_file

        program = any_program.step_program(step_file(arguments.file), arguments.tool or TOOLS[0], **options)
    numbers = range(arguments.run, arguments.run + arguments.repeat)
    failed = any_program.profile(
        program,
        arguments.out,
        numbers=numbers,
        with_counters=not arguments.no_counters,
        seconds=arguments.seconds or math.inf,
        dry_run=arguments.dry_run,
    )
    return 1 if failed else 0


def _profile_published(arguments: argparse.Namespace) -> int:
    from medddpm.measure.profile.run import OWN, Program, interpreter, plan
    from medddpm.measure.profile.run import profile as run
    from medddpm.measure.profile.windows import PAPERS_START

    settings, views = arguments.setting or SETTINGS, arguments.view or PROFILE_VIEWS
    window = "window" in views
    refuse_unread(
        arguments, ("window_start", window, "with --view window"), ("convert_on", window, "with --view window")
    )
    python = interpreter(arguments.python) if arguments.python else OWN
    program = Program(
        size=arguments.size or 128,
        channels=arguments.channels or 64,
        accumulation=arguments.accumulation or 1,
        convert_on=arguments.convert_on or "gpu",
        window_start=PAPERS_START if arguments.window_start is None else arguments.window_start,
        cache_control=arguments.cache_control or "all",
        torch=python.torch,
    )
    runs = plan([n.upper() for n in settings], views, arguments.repeat, arguments.details, program, arguments.run)
    return 1 if run(runs, arguments.out, python=python, dry_run=arguments.dry_run) else 0
