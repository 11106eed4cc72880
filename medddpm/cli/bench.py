"""The command `medddpm bench`: how fast is each setting, and what keeps a GPU busy?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from medddpm.cli.options import (
    MULTIPLE,
    SETTINGS,
    Commands,
    Parser,
    add_command,
    add_renamed,
    option,
    refuse_unread,
    without_gz,
)
from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path, several, whole

MEASURES = ("step", "forward", "sample")
INSTEAD = ("coverage", "throughput", "endurance", "scaling")
"""The modes of `medddpm bench` beside its own, which times settings."""

READ = {
    "": ("setting", "ladder", "opponents", "network", "measure", "samples", "all_samples", "batch", "seconds",
         "rounds"),
    "coverage": ("network",),
    "throughput": ("seconds",),
    "endurance": ("files", "seconds"),
    "scaling": ("setting", "network", "gpus", "buckets", "sharded", "measure", "samples", "seconds"),
}  # fmt: skip
"""The options that not every mode reads, by mode. None has a default of its own, so that those given are known."""


def add_bench(commands: Commands[Parser]) -> None:
    """`medddpm bench`."""
    command = add_command(
        commands,
        bench,
        "time training steps, forward passes and samples, each setting in its own process; finished rows are kept",
        """
        medddpm bench --out bench.csv                                          base, opt1, opt2, opt12 and fast
        medddpm bench --ladder --out bench.csv                                 every change from base to fast
        medddpm bench --opponents --measure step --out bench.csv               also PyTorch's own tools at their best
        medddpm bench --setting fast --measure sample --batch 4 --out bench.csv
        medddpm bench --network nnunet-plain,monai-unet --out bench.csv        others' networks, ordinary tools and fast
        medddpm bench --measure step --setting base,fast --size 16 --channels 32 --samples 3 --device cpu --out toy.csv
        medddpm bench --coverage --out coverage.csv                  which share of others' networks is accelerated
        medddpm bench --throughput --out throughput.csv              whole trainings: loading, memory, precision
        medddpm bench --endurance 20000 --size 64 --out endurance.csv   is the GPU kept busy, and does memory grow?
        medddpm bench --scaling --gpus 1,2 --out scaling.csv         one GPU and several, under torchrun
        """,
    )
    command.add_argument("--out", type=a_path, required=True, metavar="CSV", help="the table; its rows go to NAME.rows")
    add_renamed(
        command, "--setting", "--switches", type=bench_settings, metavar="NAME,…",
        help="which settings to time. The paper's: base, opt1, opt2, opt12. From opt12 to fast, each with one change "
        "more: autocast-channels-last, graph, norm, upsampling, residual, edges, attention, casts, fast. The fast path "
        "otherwise: fast-eager has no CUDA graph, fast-tf32 has TF32 instead of BF16, accelerate and graphed-step are "
        "called from an ordinary training loop, fast-compile and fast-reduce-overhead are under torch.compile. The "
        "ordinary tools, PyTorch's own: pytorch, cudnn-benchmark, autocast, autocast-benchmark, compile, "
        "compile-benchmark, reduce-overhead, max-autotune, and in the other memory layout autocast-channels-last, "
        "compile-channels-last, autocast-benchmark-channels-last, compile-benchmark-channels-last, "
        "reduce-overhead-channels-last, max-autotune-channels-last. A compiled step that its user captures as one "
        "graph, as graphed-step does: compile-graph, max-autotune-graph, compile-graph-channels-last, "
        "max-autotune-graph-channels-last. Without this option: for med-ddpm the paper's and fast; for med-ddpm-brats "
        "base and fast; for other people's networks opt1, fast, fast-eager, accelerate, graphed-step, the ordinary "
        "tools and the captured steps",
    )  # fmt: skip
    command.add_argument(
        "--ladder",
        action="store_true",
        help="for med-ddpm: every change from base to fast, and what it is compared with",
    )
    command.add_argument(
        "--opponents", action="store_true",
        help="for med-ddpm and med-ddpm-brats: also the ordinary tools and the captured steps that --setting lists, "
        "fast-eager, accelerate and graphed-step. Other people's networks are timed with these anyway. Tools that "
        "search for the fastest kernels, by cudnn.benchmark or max-autotune, take minutes",
    )  # fmt: skip
    command.add_argument(
        "--network", type=bench_networks, metavar="NAME,…",
        help="med-ddpm, monai-diffusion, monai-diffusion-attention, monai-unet, monai-dynunet, nnunet-plain, "
        "nnunet-residual, nnunet-plain-deep, monai-dynunet-deep, monai-segresnet, monai-unet-batch, monai-autoencoder, "
        "monai-unetr, monai-swinunetr, monai-mednext, monai-segresnet-ds, monai-vnet, monai-attention-unet, "
        "monai-basic-unet, maisi-autoencoder, maisi-diffusion, med-ddpm-brats (med-ddpm; for --coverage all others')",
    )  # fmt: skip
    instead = command.add_mutually_exclusive_group()
    instead.add_argument(
        "--coverage", action="store_true",
        help="time nothing: record one accelerated step of each network, by what is launched",
    )  # fmt: skip
    instead.add_argument(
        "--throughput", type=throughput_levers, nargs="?", const=[], metavar="NAME,…",
        help="time trainings, each with one thing changed: all of `medddpm.study.throughput.levers`, or those named",
    )  # fmt: skip
    instead.add_argument(
        "--endurance", type=whole(1), metavar="STEPS",
        help="watch one default training of so many steps, of --seconds at most: GPU busy, memory, a row each ten "
        "seconds",
    )  # fmt: skip
    command.add_argument(
        "--files",
        action="store_true",
        help="with --endurance: train from a folder of .nii.gz, which is written first (the synthetic subjects)",
    )
    instead.add_argument(
        "--scaling", action="store_true",
        help="time training steps, the sum of their gradients and samples on several GPUs: med-ddpm and "
        "med-ddpm-brats under fast and opt1, or what --network, --setting and --measure name",
    )  # fmt: skip
    command.add_argument(
        "--gpus", type=wholes(1), metavar="N,…",
        help="with --scaling: the numbers of GPUs to measure on (1,2,4,8, as far as this machine has them)",
    )  # fmt: skip
    command.add_argument(
        "--buckets", type=wholes(0), metavar="MIB,…",
        help="with --scaling: in buckets of so many MiB the steps sum their gradients while the backward pass goes on, "
        "0 for all at once after it (32,0)",
    )  # fmt: skip
    command.add_argument(
        "--sharded", action="store_true",
        help="with --scaling: also steps whose weights, gradients and moments are shared out (FSDP2), under base, opt1",
    )  # fmt: skip
    command.add_argument(
        "--measure", type=several(MEASURES), metavar="NAME,…",
        help=f"samples only of med-ddpm, with --scaling also of med-ddpm-brats ({','.join(MEASURES)})",
    )  # fmt: skip
    command.add_argument(
        "--samples", type=whole(1),
        help="the fewest timings of a step or a forward pass (20); on a GPU timing goes on for at least three seconds, "
        "after three more in which the clocks settle at the power limit",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=whole(1), metavar="N",
        help="measure all rows N times, one row after another, and join each row's samples: for steps that wait for "
        "the host, which is faster at one minute than at another (1)",
    )  # fmt: skip
    command.add_argument(
        "--all-samples", action="store_true", help="draw volumes under every setting, not only base and fast"
    )
    command.add_argument("--size", type=whole(8), help="side of the volume (128; med-ddpm-brats 192)")
    command.add_argument("--batch", type=whole(1), help="volumes in a step (1; segmentation networks 2)")
    command.add_argument("--channels", type=whole(32, also=MULTIPLE), default=64, help=f"base width, {MULTIPLE} (64)")
    command.add_argument("--again", action="store_true", help="measure finished rows again")
    command.add_argument(
        "--seconds", type=whole(1), help="the longest time for a row (1800, as a search by max-autotune takes minutes; "
        "with --throughput, --endurance and --scaling 600)",
    )  # fmt: skip
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    command.add_argument(
        "--device", default="auto",
        help="auto (the GPU; a machine without one is refused), cpu (for a small --size), cuda, cuda:1 …",
    )  # fmt: skip


def bench_networks(text: str) -> list[str]:
    """An argument type: names of networks, separated by commas."""
    from medddpm.study.bench.networks import NETWORKS  # takes seconds to import

    return several(list(NETWORKS))(text)


def bench_settings(text: str) -> list[str]:
    """An argument type: names of the bench's settings, separated by commas."""
    from medddpm.study.bench.settings import BY_SLUG

    return several(list(BY_SLUG))(text)


def wholes(least: int) -> Callable[[str], list[int]]:
    """An argument type: whole numbers from `least` on, separated by commas."""

    def read(text: str) -> list[int]:
        return list(dict.fromkeys(map(whole(least), text.split(","))))

    return read


def throughput_levers(text: str) -> list[str]:
    """An argument type: names of throughput's levers, separated by commas."""
    from medddpm.study.throughput.levers import BY_KEY

    return several(list(BY_KEY))(text)


def bench(arguments: argparse.Namespace) -> int:
    """Measures; see `medddpm.study.bench.run`."""
    from medddpm.runtime.processes import pick_device
    from medddpm.study.bench.run import Options, measure_rows, plan

    if without_gz(arguments.out).rpartition(".")[2] != "csv":
        raise BadInput(arguments.out, "a table's name ends in .csv", "give it that suffix")
    _refuse_unread(arguments)
    if not arguments.dry_run and pick_device(arguments.device).type == "cpu" and arguments.device == "auto":
        # The default sizes would fill a host's memory and take hours there: nobody gets them by leaving --device out.
        remedy = "run it on a machine with one, see the commands by --dry-run, or give --device cpu and a small --size"
        raise BadInput("bench", "PyTorch finds no NVIDIA GPU here", remedy)
    mode = _mode(arguments)
    arguments.samples = arguments.samples or 20
    arguments.seconds = arguments.seconds or (600 if mode else Options.seconds)
    if mode:
        measure = {"coverage": _coverage, "throughput": _throughput, "endurance": _endurance, "scaling": _scaling}[mode]
        return measure(arguments)
    networks, measures = arguments.network or ["med-ddpm"], arguments.measure or MEASURES
    drawn = "med-ddpm" in networks and "sample" in measures
    ours = any(name.startswith("med-ddpm") for name in networks)
    refuse_unread(
        arguments,
        ("ladder", "med-ddpm" in networks and arguments.setting is None, "of med-ddpm, without --setting"),
        ("opponents", ours and arguments.setting is None, "of med-ddpm and med-ddpm-brats, without --setting"),
        ("all_samples", drawn and arguments.setting is None, "with samples of med-ddpm, without --setting"),
    )
    jobs = plan(
        networks,
        arguments.setting,
        measures,
        ladder=arguments.ladder,
        opponents=arguments.opponents,
        all_samples=arguments.all_samples,
        side=arguments.size,
        batch=arguments.batch,
        channels=arguments.channels,
    )
    if unmeasured := [name for name in networks if name not in {job.case.network for job in jobs}]:
        arguments.wrong(f"argument --measure: nothing of {', '.join(unmeasured)}: only med-ddpm draws samples")
    options = Options(
        samples=arguments.samples,
        again=arguments.again,
        seconds=arguments.seconds,
        device=arguments.device,
        rounds=arguments.rounds or 1,
    )
    return 1 if measure_rows(jobs, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


def _mode(arguments: argparse.Namespace) -> str:
    """The one of `INSTEAD` that was asked for; empty for the bench's own."""
    return next((name for name in INSTEAD if getattr(arguments, name) not in (None, False)), "")


def _refuse_unread(arguments: argparse.Namespace) -> None:
    """Ends the command, as a wrong argument does, where an option is given that its mode does not read."""
    mode = _mode(arguments)
    for given in dict.fromkeys(name for names in READ.values() for name in names):
        if given in READ[mode] or getattr(arguments, given) in (None, False):
            continue
        readers = [name for name in READ if given in READ[name]]
        where = f"not with {option(mode)}" if "" in readers else f"only with {' or '.join(map(option, readers))}"
        arguments.wrong(f"argument {option(given)}: {where}")


def _throughput(arguments: argparse.Namespace) -> int:
    from medddpm.study.throughput.levers import BY_KEY
    from medddpm.study.throughput.run import Options, measure_levers

    options = Options(
        side=arguments.size or 128, channels=arguments.channels, limit=arguments.seconds, device=arguments.device,
        again=arguments.again,
    )  # fmt: skip
    levers = [BY_KEY[name] for name in arguments.throughput or BY_KEY]
    return 1 if measure_levers(levers, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


def _endurance(arguments: argparse.Namespace) -> int:
    from medddpm.study.throughput.endurance import Options, watch

    options = Options(
        arguments.endurance, side=arguments.size or 128, channels=arguments.channels, seconds=arguments.seconds,
        device=arguments.device, again=arguments.again, files=arguments.files,
    )  # fmt: skip
    watch(arguments.out, options, command=sys.argv, dry_run=arguments.dry_run)
    return 0


def _scaling(arguments: argparse.Namespace) -> int:
    from medddpm.study.scaling.cases import BUCKETS, NETWORKS, plan
    from medddpm.study.scaling.cases import MEASURES as MEASURED
    from medddpm.study.scaling.cases import SETTINGS as SCALED
    from medddpm.study.scaling.run import Options, measure_cases, present

    for name, given, allowed in (("network", arguments.network, NETWORKS), ("setting", arguments.setting, SETTINGS)):
        if unknown := [word for word in given or () if word not in allowed]:
            raise BadInput(option(name), f"{unknown[0]} is not measured with --scaling", f"give {', '.join(allowed)}")
    if unmeasured := [name for name in arguments.measure or () if name not in MEASURED]:
        arguments.wrong(f"argument --measure: {unmeasured[0]} is not measured with --scaling")
    asked = arguments.measure or MEASURED
    measured = {*asked, *(["all-reduce"] if "step" in asked else [])}
    launches = plan(
        arguments.network or NETWORKS,
        [name.upper() for name in arguments.setting or SCALED],
        present(arguments.gpus, arguments.device),
        [name for name in MEASURED if name in measured],
        side=arguments.size,
        channels=arguments.channels,
        sharded=arguments.sharded,
        buckets=arguments.buckets or BUCKETS,
    )
    if arguments.sharded and all(case.weights == "replicated" for cases in launches for case in cases):
        arguments.wrong("argument --sharded: only of steps under base or opt1, on two GPUs or more")
    options = Options(
        samples=arguments.samples, limit=arguments.seconds, device=arguments.device, again=arguments.again
    )
    return 1 if measure_cases(launches, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


def _coverage(arguments: argparse.Namespace) -> int:
    from medddpm.study.bench.coverage import measure
    from medddpm.study.bench.networks import NETWORKS

    names = arguments.network or [network.name for network in NETWORKS.values() if not network.ours]
    place = {"device": arguments.device, "side": arguments.size, "width": arguments.channels}
    how = {"again": arguments.again, "dry_run": arguments.dry_run}
    failed = measure(names, arguments.out, command=sys.argv, **place, **how)
    return 1 if failed else 0
