"""The command `medddpm compare`."""

from __future__ import annotations

import argparse
import sys

from medddpm.cli.options import Commands, Parser, add_command
from medddpm.runtime.arguments import a_path, several, whole

TOOLS = (
    "pytorch", "tf32", "cudnn-benchmark", "channels-last", "autocast-benchmark", "autocast-benchmark-channels-last",
    "compile-benchmark", "compile-benchmark-channels-last", "reduce-overhead", "reduce-overhead-channels-last",
    "max-autotune", "max-autotune-channels-last", "accelerate",
)  # fmt: skip
STEP_TOOLS = ("graphed-step",)
INFER_TOOLS = (
    "bf16-weights", "bf16-weights-channels-last", "bf16-reduce-overhead", "bf16-reduce-overhead-channels-last",
    "bf16-max-autotune", "bf16-max-autotune-channels-last",
)  # fmt: skip


def add_compare(commands: Commands[Parser]) -> None:
    """Adds `medddpm compare`."""
    command = add_command(
        commands,
        compare,
        "time your own network's training step under PyTorch's tools and this package's, each with its error; "
        "finished rows are kept",
        """
        medddpm compare my_step.py --out compared              my_step.py: def build(): return model, loss_fn, batch
        medddpm compare my_step.py:small --infer --out infer   the forward pass of what the function small returns
        medddpm compare my_step.py --tools pytorch,autocast-benchmark,accelerate --out compared
        medddpm compare my_step.py --device cpu --samples 5 --out on_cpu
        medddpm compare my_step.py --dry-run --out compared    only prints the commands
        """,
        resumes=True,
    )
    command.add_argument(
        "file", metavar="FILE[:FUNCTION]",
        help="Python whose function build (or FUNCTION) returns your network, loss_fn(model, *batch), which returns "
        "the loss, and one batch: what graphed_step takes. It runs in processes of its own, as `python FILE` would. "
        "Network and batch are moved to the device",
    )  # fmt: skip
    command.add_argument(
        "--out", type=a_path, required=True, metavar="DIR",
        help="folder of compare.csv, compare.png and lines.py, the lines for your own program",
    )  # fmt: skip
    command.add_argument(
        "--infer", action="store_true",
        help="time the network's first call in loss_fn, in evaluation mode and without gradients, not a training step",
    )  # fmt: skip
    command.add_argument(
        "--tools", type=several([*TOOLS, *STEP_TOOLS, *INFER_TOOLS]), metavar="NAME,…",
        help=f"which to compare: {', '.join(TOOLS)}, {', '.join(STEP_TOOLS)}; with --infer not the last one, but "
        f"{', '.join(INFER_TOOLS)} (all; max-autotune searches for minutes)",
    )  # fmt: skip
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")
    command.add_argument(
        "--samples", type=whole(1), default=20,
        help="the fewest timings (20); on a GPU timing goes on for at least three seconds, after three more in which "
        "the clocks settle",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=whole(1), default=1, metavar="N",
        help="measure all rows N times, one after another, and join each row's samples (1)",
    )  # fmt: skip
    command.add_argument("--seconds", type=whole(1), default=1800, help="the longest time for a row (1800)")
    command.add_argument("--again", action="store_true", help="measure finished rows again")
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")


def compare(arguments: argparse.Namespace) -> int:
    """Compares; see `medddpm.measure.compare.run`."""
    from medddpm.measure.compare import run
    from medddpm.measure.step_file import step_file

    other = STEP_TOOLS if arguments.infer else INFER_TOOLS
    if wrong := [name for name in arguments.tools or () if name in other]:
        arguments.wrong(f"argument --tools: {wrong[0]}: only {'without' if arguments.infer else 'with'} --infer")
    options = run.Options(
        measure="forward" if arguments.infer else "step",
        tools=arguments.tools,
        samples=arguments.samples,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        device=arguments.device,
        again=arguments.again,
    )
    file = step_file(arguments.file)
    return 1 if run.compare(file, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0
