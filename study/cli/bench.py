"""The commands `python -m study bench` and `coverage`: the time of each setting, and the share accelerated."""

from __future__ import annotations

import argparse
import sys

from medddpm.cli.options import MULTIPLE, Commands, Parser, add_command, refuse_unread, without_gz
from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path, several, whole

MEASURES = ("step", "forward", "sample")


def add_bench(commands: Commands[Parser]) -> None:
    """Adds `bench`."""
    command = add_command(
        commands,
        bench,
        "time training steps, forward passes and samples, each setting in its own process; finished rows are kept",
        """
        python -m study bench --out bench.csv                                  base, opt1, opt2, opt12 and fast
        python -m study bench --ladder --out bench.csv                         every change from base to fast
        python -m study bench --opponents --measure step --out bench.csv       also PyTorch's own tools at their best
        python -m study bench --setting fast --measure sample --batch 4 --out bench.csv
        python -m study bench --network nnunet-plain,monai-unet --out bench.csv    others' networks, tools and fast
        python -m study bench --network monai-unet --measure step --rounds 2 --out bench.csv   its rows by turns, twice
        python -m study bench --measure step --setting base,fast --size 16 --channels 32 --device cpu --out toy.csv
        """,
        resumes=True,
    )
    add_table(command)
    command.add_argument(
        "--setting", type=bench_settings, metavar="NAME,…",
        help="which settings to time. The paper's: base, opt1, opt2, opt12. From opt12 to fast, each with one change "
        "more: autocast-channels-last, graph, norm, upsampling, residual, edges, attention, casts, fast. The fast path "
        "otherwise: fast-eager has no CUDA graph, fast-tf32 has TF32 instead of BF16, accelerate and graphed-step are "
        "called from an ordinary training loop, accelerate-portable and graphed-step-portable (and casts, beside fast) "
        "do without the kernels of one generation of cards, fast-compile and fast-reduce-overhead are under "
        "torch.compile. The "
        "ordinary tools, PyTorch's own: pytorch, cudnn-benchmark, autocast, autocast-benchmark, compile, "
        "compile-benchmark, reduce-overhead, max-autotune, and in the other memory layout autocast-channels-last, "
        "compile-channels-last, autocast-benchmark-channels-last, compile-benchmark-channels-last, "
        "reduce-overhead-channels-last, max-autotune-channels-last. A compiled step that its user captures as one "
        "graph, as graphed-step does: compile-graph, max-autotune-graph, compile-graph-channels-last, "
        "max-autotune-graph-channels-last. A forward pass with weights in BF16: bf16-weights, bf16-reduce-overhead, "
        "bf16-max-autotune, bf16-weights-channels-last, bf16-reduce-overhead-channels-last, "
        "bf16-max-autotune-channels-last. Without this option: for med-ddpm the paper's and fast; for med-ddpm-brats "
        "base and fast; for other people's networks opt1, fast, fast-eager, accelerate, graphed-step, the ordinary "
        "tools, the captured steps and, of a forward pass, those with weights in BF16",
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
    add_network(command, "med-ddpm")
    command.add_argument(
        "--measure", type=several(MEASURES), default=MEASURES, metavar="NAME,…",
        help=f"samples only of med-ddpm ({','.join(MEASURES)})",
    )  # fmt: skip
    command.add_argument(
        "--samples", type=whole(1), default=20,
        help="the fewest timings of a step or a forward pass (20); on a GPU timing goes on for at least three seconds, "
        "after three more in which the clocks settle at the power limit",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=whole(1), default=1, metavar="N",
        help="measure all rows of a network N times, one row after another, and join each row's samples: a host or a "
        "card is faster at one minute than at another (1)",
    )  # fmt: skip
    command.add_argument(
        "--all-samples", action="store_true", help="draw volumes under every setting, not only base and fast"
    )
    command.add_argument("--size", type=whole(8), help="side of the volume (128; med-ddpm-brats 192)")
    command.add_argument("--batch", type=whole(1), help="volumes in a step (1; segmentation networks 2)")
    add_place(command, 1800, "the longest time for a row (1800, as a search by max-autotune takes minutes)")


def add_coverage(commands: Commands[Parser]) -> None:
    """Adds `coverage`."""
    command = add_command(
        commands,
        coverage,
        "record one accelerated step of each of other people's networks, by what is launched; finished rows are kept",
        """
        python -m study coverage --out coverage.csv
        python -m study coverage --network monai-unet --out coverage.csv
        """,
        resumes=True,
    )
    add_table(command)
    add_network(command, "all of other people's")
    command.add_argument("--size", type=whole(8), help="side of the volume (128; med-ddpm-brats 192)")
    add_place(command, None)


def add_table(command: argparse.ArgumentParser) -> None:
    """Adds --out, --again and --dry-run."""
    command.add_argument("--out", type=a_path, required=True, metavar="CSV", help="the table; its rows go to NAME.rows")
    command.add_argument("--again", action="store_true", help="measure finished rows again")
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")


def add_network(command: argparse.ArgumentParser, default: str) -> None:
    """Adds --network, of which `default` names the networks that are measured without it."""
    command.add_argument(
        "--network", type=bench_networks, metavar="NAME,…",
        help="med-ddpm, monai-diffusion, monai-diffusion-attention, monai-unet, monai-dynunet, nnunet-plain, "
        "nnunet-residual, nnunet-plain-deep, monai-dynunet-deep, monai-segresnet, monai-unet-batch, monai-autoencoder, "
        "monai-unetr, monai-swinunetr, monai-mednext, monai-segresnet-ds, monai-vnet, monai-attention-unet, "
        "monai-basic-unet, monai-basic-unetplusplus, monai-dynunet-residual, monai-highresnet, monai-resnet, "
        "monai-densenet, monai-voxelmorph, monai-discriminator, monai-controlnet, torchvision-video, "
        f"maisi-autoencoder, maisi-diffusion, med-ddpm-brats ({default})",
    )  # fmt: skip


def add_place(command: argparse.ArgumentParser, seconds: int | None, limit: str = "") -> None:
    """Adds --channels, --device and, where `seconds` has its default, --seconds with its help, `limit`."""
    command.add_argument("--channels", type=whole(32, also=MULTIPLE), default=64, help=f"base width, {MULTIPLE} (64)")
    if seconds is not None:
        command.add_argument("--seconds", type=whole(1), default=seconds, help=limit)
    command.add_argument(
        "--device", default="auto",
        help="auto (the GPU; a machine without one is refused), cpu (for a small --size), cuda, cuda:1 …",
    )  # fmt: skip


def bench_networks(text: str) -> list[str]:
    """Reads names of networks, separated by commas; an argument type."""
    from study.bench.networks import NETWORKS  # takes seconds to import

    return several(list(NETWORKS))(text)


def bench_settings(text: str) -> list[str]:
    """Reads names of the bench's settings, separated by commas; an argument type."""
    from study.bench.settings import BY_SLUG

    return several(list(BY_SLUG))(text)


def check_place(arguments: argparse.Namespace) -> None:
    """Checks that a table's name ends in .csv, and that a measurement on a CPU was asked for.

    Raises:
        BadInput: it does not, or it was not.
    """
    from medddpm.runtime.processes import pick_device

    if without_gz(arguments.out).rpartition(".")[2] != "csv":
        raise BadInput(arguments.out, "a table's name ends in .csv", "give it that suffix")
    if not arguments.dry_run and pick_device(arguments.device).type == "cpu" and arguments.device == "auto":
        # The default sizes would fill a host's memory and take hours: a CPU has to be asked for by --device.
        remedy = "run it on a machine with one, see the commands by --dry-run, or give --device cpu and a small --size"
        raise BadInput(arguments.command.__name__, "PyTorch finds no NVIDIA GPU here", remedy)


def bench(arguments: argparse.Namespace) -> int:
    """Measures; see `study.bench.run`."""
    from study.bench.run import Options, measure_rows, plan

    check_place(arguments)
    networks, measures = arguments.network or ["med-ddpm"], arguments.measure
    draws_samples = "med-ddpm" in networks and "sample" in measures
    ours = any(name.startswith("med-ddpm") for name in networks)
    refuse_unread(
        arguments,
        ("ladder", "med-ddpm" in networks and arguments.setting is None, "of med-ddpm, without --setting"),
        ("opponents", ours and arguments.setting is None, "of med-ddpm and med-ddpm-brats, without --setting"),
        ("all_samples", draws_samples and arguments.setting is None, "with samples of med-ddpm, without --setting"),
    )
    rows = plan(
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
    if unmeasured := [name for name in networks if name not in {row.case.network for row in rows}]:
        arguments.wrong(f"argument --measure: nothing of {', '.join(unmeasured)}: only med-ddpm draws samples")
    options = Options(
        samples=arguments.samples,
        again=arguments.again,
        seconds=arguments.seconds,
        device=arguments.device,
        rounds=arguments.rounds,
    )
    return 1 if measure_rows(rows, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


def coverage(arguments: argparse.Namespace) -> int:
    """Records the launches of accelerated steps; see `study.bench.coverage`."""
    from study.bench.coverage import measure
    from study.bench.networks import NETWORKS

    check_place(arguments)
    names = arguments.network or [network.name for network in NETWORKS.values() if not network.ours]
    place = {"device": arguments.device, "side": arguments.size, "width": arguments.channels}
    how = {"again": arguments.again, "dry_run": arguments.dry_run}
    return 1 if measure(names, arguments.out, command=sys.argv, **place, **how) else 0
