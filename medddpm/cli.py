"""The command `medddpm`. Exit codes: 0 done, 1 the input is bad, 2 the arguments are wrong, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from medddpm import __version__
from medddpm.arguments import not_negative, positive, whole
from medddpm.errors import BadInput

SWITCHES = ("base", "opt1", "opt2", "opt12", "fast")
SAMPLERS = ("ddpm", "ddim", "dpm++", "sde-dpm++")
PROFILE_VIEWS = ("window", "step")
INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        its exit code. What a user can mend is one line on stderr, never a traceback.
    """
    arguments = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except BadInput as error:
        return complain(str(error))
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `medddpm check … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        problem = (error.strerror or "it cannot be used").lower()
        return complain(str(BadInput(error.filename, problem, "see to it and try again")))
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        return complain("--device: too little memory for this; use a smaller --size or --batch-size, or --device cpu")


def complain(line: str) -> int:
    """Prints `line` on stderr; returns the exit code of bad input."""
    print(f"medddpm: {line}", file=sys.stderr)
    return 1


def parser() -> argparse.ArgumentParser:
    """The arguments of every command."""
    top = argparse.ArgumentParser(
        prog="medddpm",
        description="Train and sample the 3-D diffusion model of Med-DDPM, and run the book that measures it.",
        epilog="`medddpm COMMAND --help` shows a command's options and examples.",
    )
    top.add_argument("--version", action="version", version=f"medddpm {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_train, add_sample, add_release, add_check, add_profile, add_parse, add_bench, add_book):
        add(commands)
    return top


Commands = argparse._SubParsersAction  # the type that add_subparsers returns has no public name


def add_command(
    commands: Commands[argparse.ArgumentParser], run: Callable[[argparse.Namespace], int], summary: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand named as its function, with examples under its options."""
    command = commands.add_parser(
        run.__name__,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(command=run)
    return command


# train


def add_train(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm train`."""
    command = add_command(
        commands,
        train,
        "train a model, or go on with a run that was cut short",
        """
        medddpm train --phantom --size 64 --steps 2000 --switches opt1 --out runs/head64
        medddpm train --phantom 512 --size 64 --steps 20000 --switches fast --offset-noise 0.1 --resident --out runs/q
        medddpm train --data my_data --steps 50000 --switches opt1 --out runs/mine
        torchrun --nproc-per-node 4 -m medddpm train --data my_data --steps 50000 --out runs/mine
        tensorboard --logdir runs
        """,
    )
    data = command.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=Path, metavar="DIR", help="folder with mask/ image/, or seg/ t1/ t1ce/ t2/ flair/")
    data.add_argument(
        "--phantom",
        type=whole(1),
        nargs="?",
        const=64,
        metavar="COUNT",
        help="no data: COUNT (64) synthetic subjects on the MNI152 anatomy",
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="the run's folder; resumed if it exists"
    )
    command.add_argument("--steps", type=whole(1), required=True, help="steps in all, those of a resumed run included")
    add_switches(command)
    command.add_argument(
        "--size", type=whole(2), nargs="+", metavar="N", help="H W D of the model, or one side (128; BraTS 192 192 144)"
    )
    command.add_argument("--contrast", choices=["t1", "t2", "flair"], default="t1", help="of the phantom (t1)")
    command.add_argument(
        "--scaling",
        choices=["volume", "slice"],
        default="volume",
        help="intensities by volume, or by slice as published",
    )
    command.add_argument("--channels", type=whole(32), default=64, help="base width, a multiple of 32 (64)")
    command.add_argument("--blocks", type=whole(1), help="residual blocks a level (1; BraTS 2)")
    command.add_argument(
        "--channel-mult", type=whole(1), nargs="+", metavar="N", help="each level's width over the base (as published)"
    )
    command.add_argument(
        "--norm-groups", type=whole(1), default=32, metavar="N",
        help="of every norm (32); fewer than --channels where the network is to know a volume's brightness",
    )  # fmt: skip
    command.add_argument("--learning-rate", type=positive, default=1e-5, help="Adam's (1e-5)")
    command.add_argument("--batch-size", type=whole(1), default=1, help="volumes a micro-step and process (1)")
    command.add_argument("--accumulation", type=whole(1), default=2, help="micro-steps a step (2)")
    command.add_argument(
        "--offset-noise", type=not_negative, default=0.0, metavar="X",
        help="deviation of each volume's noise as a whole: 0.1 lets the mask set the brightness of a sample (0)",
    )  # fmt: skip
    command.add_argument(
        "--clip-norm", type=not_negative, default=0.0, metavar="X",
        help="scale a step's gradient down to this norm where it is larger (0: never)",
    )  # fmt: skip
    command.add_argument("--seed", type=whole(0), default=0, help="of weights, order, timesteps and noise (0)")
    command.add_argument(
        "--save-every", type=whole(0), default=1000, help="steps between checkpoints, 0 for the last only"
    )
    command.add_argument("--sample-every", type=whole(0), default=1000, help="steps between samples, 0 for none (1000)")
    command.add_argument("--keep", type=whole(1), default=2, help="checkpoints kept (2)")
    command.add_argument("--workers", type=whole(0), default=0, help="processes that prepare volumes ahead (0)")
    command.add_argument(
        "--resident", action="store_true", help="prepare all volumes first and keep them in the device's memory"
    )
    command.add_argument(
        "--read-every-loss", action="store_true", help="read each loss back, as the published loop does"
    )
    command.add_argument("--no-check", action="store_true", help="do not read the whole data folder first")
    add_device(command)


def train(arguments: argparse.Namespace) -> int:
    """Trains; see `medddpm.training.train`."""
    from medddpm.phantom import Phantom
    from medddpm.runs import TrainConfig, Volumes
    from medddpm.training import train as run
    from medddpm.volumes import BRATS, VolumeFolder, check_folder, find_layout

    brats = False
    if arguments.data:
        if not arguments.no_check and os.environ.get("RANK", "0") == "0":
            report = check_folder(arguments.data, progress=not arguments.quiet)
            for problem in report.problems:
                complain(str(problem))
            if report.problems:
                return 1
        brats = find_layout(arguments.data) == BRATS
    size = volume_size(arguments.size, (192, 192, 144) if brats else (128, 128, 128))
    config = TrainConfig(
        switches=arguments.switches.upper(),
        image_size=size[0],
        model_channels=arguments.channels,
        num_res_blocks=arguments.blocks or (2 if brats else 1),
        channel_mult=arguments.channel_mult,
        norm_groups=arguments.norm_groups,
        learning_rate=arguments.learning_rate,
        batch_size=arguments.batch_size,
        accumulation=arguments.accumulation,
        offset_noise=arguments.offset_noise,
        clip_norm=arguments.clip_norm,
        seed=arguments.seed,
        save_every=arguments.save_every,
        sample_every=arguments.sample_every,
        keep=arguments.keep,
        read_every_loss=arguments.read_every_loss,
        workers=arguments.workers,
    )
    volumes: Volumes = (
        VolumeFolder(arguments.data, size, arguments.scaling)
        if arguments.data
        else Phantom(arguments.phantom, size, arguments.contrast)
    )
    losses = run(
        config, volumes, arguments.out, arguments.steps, device=arguments.device, resident=arguments.resident,
        progress=not arguments.quiet,
    )  # fmt: skip
    done = len(losses) >= arguments.steps
    if os.environ.get("RANK", "0") == "0":
        ending = "" if done else f" of {arguments.steps}; the same command goes on from there"
        print(f"{arguments.out}: {'finished' if done else 'stopped'} at step {len(losses)}{ending}")
    return 0 if done else INTERRUPTED


def volume_size(sides: list[int] | None, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """(H, W, D) of the --size given: none, one side or three."""
    if sides is None:
        return default
    if len(sides) == 1:
        sides = sides * 3
    if len(sides) != 3:
        raise BadInput("--size", f"{len(sides)} numbers", "give one side, or H W D")
    return sides[0], sides[1], sides[2]


# sample


def add_sample(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm sample`."""
    command = add_command(
        commands,
        sample,
        "draw synthetic volumes for a mask",
        """
        medddpm sample --mask mask.nii.gz --out volume.nii.gz             by the model that travels with the package
        medddpm sample --checkpoint runs/head64 --mask mask.nii.gz --out volume.nii.gz
        medddpm sample --checkpoint model_128.pt --mask mask.nii.gz --out volume.nii.gz --sampler dpm++ --steps 25
        medddpm sample --checkpoint brats.pt --mask seg/case_7_seg.nii.gz --out case_7.nii.gz
        medddpm sample --checkpoint runs/head64 --mask mask.nii.gz --out v.nii.gz --switches fast --count 8 --batch 4
        """,
    )
    command.add_argument(
        "--checkpoint",
        type=Path,
        help="a published, own or released (.safetensors) one, or a run's folder; without it, the small model of 64³ "
        "that travels with the package, whose volumes take two cores less than a minute",
    )
    command.add_argument("--mask", type=Path, required=True, help="the labels: any size and orientation")
    command.add_argument("--out", type=Path, required=True, help=".nii or .nii.gz; has the mask's affine and header")
    command.add_argument(
        "--image", type=Path, action="append", default=[],
        help="an image of the case, where a raw BraTS mask needs it and it does not lie beside; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="(what a released model's file recommends; else ddpm)",
    )
    command.add_argument(
        "--steps", type=whole(1), help="network evaluations (as recommended with the sampler; else all; fewer with "
        "all but ddpm)",
    )  # fmt: skip
    command.add_argument("--weights", choices=["ema", "model"], default="ema", help="which of the checkpoint's (ema)")
    command.add_argument("--seed", type=whole(0), default=0, help="of the noise (0); of each further volume one more")
    command.add_argument("--count", type=whole(1), default=1, help="volumes; several are OUT_1.nii.gz, OUT_2 … (1)")
    command.add_argument("--batch", type=whole(1), default=1, help="volumes computed at once (1)")
    add_switches(command)
    add_device(command)


def sample(arguments: argparse.Namespace) -> int:
    """Samples; see `medddpm.sampling.sample_to_files`."""
    from medddpm import models
    from medddpm.runs import checkpoints_of
    from medddpm.sampling import keep_freed_memory, sample_to_files
    from medddpm.switches import SETTINGS

    checkpoint: Path = arguments.checkpoint or models.shipped()
    if checkpoint.is_dir():
        if not (found := checkpoints_of(checkpoint)):
            raise BadInput(checkpoint, "this folder has no checkpoints/step-*.pt", "give a run's folder or a .pt file")
        checkpoint = found[-1]
    keep_freed_memory()
    try:
        files = sample_to_files(
            checkpoint,
            arguments.mask,
            arguments.out,
            images=arguments.image,
            steps=arguments.steps,
            sampler=arguments.sampler,
            weights=arguments.weights,
            seed=arguments.seed,
            count=arguments.count,
            batch=arguments.batch,
            switches=SETTINGS[arguments.switches.upper()],
            device=arguments.device,
            progress=not arguments.quiet,
        )
    except ValueError as error:  # a number of steps that the sampler cannot take
        problem, _, remedy = str(error).partition(": ")
        raise BadInput("--steps", problem, remedy) from None
    print("\n".join(map(str, files)))
    return 0


# release


def add_release(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm release`."""
    command = add_command(
        commands,
        release,
        "write a run's averaged weights in BF16, with its training record and a model card",
        """
        medddpm release runs/head64 --out head64.safetensors           and head64.csv, head64.md
        medddpm release runs/head64 --out head64.safetensors --sampler ddim --steps 25 --held-out 0
        """,
    )
    command.add_argument("run", type=Path, metavar="RUN", help="the --out of `medddpm train`")
    command.add_argument(
        "--out", type=Path, required=True, metavar="NAME.safetensors", help="where the other two go too"
    )
    command.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="sde-dpm++",
        help="what the file recommends (sde-dpm++)",
    )
    command.add_argument("--steps", type=whole(1), default=20, help="as many steps (20)")
    command.add_argument(
        "--held-out", type=whole(0), default=16, metavar="N",
        help="other subjects of the phantom that a run on the phantom is measured on, for the card (16; 0 for none)",
    )  # fmt: skip
    command.add_argument(
        "--about", default="", metavar="TEXT", help="a sentence for the card: trained on what, how long"
    )
    add_switches(command)
    add_device(command)


def release(arguments: argparse.Namespace) -> int:
    """Releases; see `medddpm.releasing.release_run`."""
    from medddpm.releasing import release_run
    from medddpm.sampling import keep_freed_memory
    from medddpm.switches import SETTINGS

    keep_freed_memory()
    files = release_run(
        arguments.run,
        arguments.out,
        sampler=arguments.sampler,
        steps=arguments.steps,
        held_out=arguments.held_out,
        about=arguments.about,
        switches=SETTINGS[arguments.switches.upper()],
        device=arguments.device,
        progress=not arguments.quiet,
    )
    print("\n".join(map(str, files)))
    return 0


# check


def add_check(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm check`."""
    command = add_command(
        commands,
        check,
        "read every volume of a data folder; one line a problem",
        """
        medddpm check my_data
        """,
    )
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="folder with mask/ image/, or seg/ t1/ t1ce/ t2/ flair/"
    )
    command.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def check(arguments: argparse.Namespace) -> int:
    """Checks a data folder; see `medddpm.checking`."""
    from medddpm.volumes import check_folder

    report = check_folder(arguments.folder, progress=not arguments.quiet)
    for problem in report.problems:
        print(problem)
    print(report)
    return 1 if report.problems else 0


# parse


def add_parse(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm parse`."""
    command = add_command(
        commands,
        parse,
        "turn Nsight Compute's CSV into a table of kernels",
        """
        medddpm parse window_raw.csv --details window_details.csv --config opt1 --out kernels.csv
        medddpm parse step_raw.csv.gz --trace step_trace.csv.gz --config opt1 --out kernels.csv
        ncu --import run.ncu-rep --page raw --csv --print-metric-instances details > window_raw.csv
        ncu --import run.ncu-rep --page details --csv > window_details.csv     (of a run with --set full)
        """,
    )
    command.add_argument(
        "raw", type=Path, metavar="ncu_raw.csv", help="ncu's raw page; gzipped or not, as all of these"
    )
    command.add_argument(
        "--details", type=Path, metavar="CSV", help="ncu's details page: brings the estimated speedups"
    )
    command.add_argument(
        "--trace", type=Path, metavar="CSV", help="every launch of the same step: brings counts and times"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="CSV", help="the table; .csv or, when large, .csv.gz"
    )
    command.add_argument("--config", type=str.upper, default="BASE", help="the setting it ran under (base)")
    command.add_argument(
        "--view",
        choices=["window", "step"],
        help="a stretch of launches, or a step's distinct ones (step with --trace)",
    )


def parse(arguments: argparse.Namespace) -> int:
    """Parses; see `medddpm.study.ncu.parse`."""
    from medddpm.study import ncu, records

    for given in filter(None, (arguments.raw, arguments.details, arguments.trace)):
        # The table, plain or compressed, would take its place or its description's.
        if _without_gz(given) == _without_gz(arguments.out):
            raise BadInput(given, "--out would overwrite what is read", "give --out another name")
    view = arguments.view or ("step" if arguments.trace else "window")
    parsed = ncu.parse(arguments.raw, arguments.config, view, details=arguments.details, trace=arguments.trace)
    written = records.write(parsed.table, arguments.out, records.KERNELS, ncu.origin(parsed, arguments.raw))
    for note in parsed.notes:
        print(f"note: {note}")
    print(f"{written}: {parsed}")
    return 0


def _without_gz(path: Path) -> str:
    return str(path.resolve()).removesuffix(".gz")


# profile


def add_profile(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm profile`."""
    command = add_command(
        commands,
        profile,
        "profile a training step with Nsight Compute; what is there already is left alone",
        """
        medddpm profile --out profiles                       all settings, both views, once
        medddpm profile --switches opt1 --view window --repeat 3 --out profiles
        medddpm profile --switches fast --out profiles       without CUDA graphs, so that each launch is seen
        medddpm profile --switches base,opt2 --view window --window-start 300 --out profiles
        medddpm profile --dry-run --out profiles             only prints the commands
        """,
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the tables")
    command.add_argument(
        "--switches", type=several(SWITCHES), default=SWITCHES, metavar="NAME,…", help=f"({','.join(SWITCHES)})"
    )
    command.add_argument(
        "--view", type=several(PROFILE_VIEWS), default=PROFILE_VIEWS, metavar="NAME,…",
        help="window: 100 launches from near the start, as the paper has it, and a trace of two steps from the first "
        "launch on; step: a whole step, each distinct launch once, and a trace of it (window,step)",
    )  # fmt: skip
    command.add_argument("--repeat", type=whole(1), default=1, help="runs of each, for the spread (1)")
    command.add_argument("--run", type=whole(1), default=1, help="number of the first, to go on counting (1)")
    command.add_argument("--details", action="store_true", help="also ncu's estimated speedups: a run more, 37 passes")
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    command.add_argument("--window-start", type=whole(0), default=10, help="launches before the window (10)")
    command.add_argument(
        "--convert-on", choices=["gpu", "cpu"], default="gpu",
        help="where weights go into channels-last: gpu, a launch a tensor, as in a user's run; or cpu, before (gpu)",
    )  # fmt: skip
    command.add_argument("--accumulation", type=whole(1), default=1, help="micro-steps of a step (1)")
    command.add_argument("--size", type=whole(1), default=128, help="side of the volume (128)")
    command.add_argument("--channels", type=whole(1), default=64, help="base width of the network (64)")


def several(names: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument's type: some of `names`, divided by commas."""

    def parse(text: str) -> list[str]:
        chosen = [word.strip().lower() for word in text.split(",")]
        if unknown := [word for word in chosen if word not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return list(dict.fromkeys(chosen))

    return parse


def profile(arguments: argparse.Namespace) -> int:
    """Profiles; see `medddpm.study.profiling`."""
    from medddpm.study.profiling import Program, plan
    from medddpm.study.profiling import profile as run

    program = Program(
        size=arguments.size,
        channels=arguments.channels,
        accumulation=arguments.accumulation,
        convert_on=arguments.convert_on,
        window_start=arguments.window_start,
    )
    settings = [name.upper() for name in arguments.switches]
    measurements = plan(settings, arguments.view, arguments.repeat, arguments.details, program, arguments.run)
    return 1 if run(measurements, arguments.out, dry_run=arguments.dry_run) else 0


# bench


def add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm bench`."""
    command = add_command(
        commands,
        bench,
        "time training steps, forward passes and samples, a setting a process; what is there already is left alone",
        """
        medddpm bench --out bench.csv                                          base, opt1, opt2, opt12 and fast
        medddpm bench --ladder --bandwidth --out bench.csv                     every change from base to fast
        medddpm bench --switches fast --measure sample --batch 4 --out bench.csv
        medddpm bench --network nnunet-plain,monai-unet --out bench.csv        others' networks, ordinary tools and fast
        medddpm bench --switches base,fast --size 16 --channels 32 --samples 3 --device cpu --out toy.csv
        """,
    )
    command.add_argument("--out", type=Path, required=True, metavar="CSV", help="the table; its rows lie in NAME.rows")
    command.add_argument(
        "--switches", type=bench_settings, metavar="NAME,…",
        help="base, opt1, opt2, opt12, autocast, autocast-channels-last, norm, upsampling, residual, edges, attention, "
        "casts, convolution, fused-adam, fast, compile, compile-channels-last, fast-eager, fast-tf32 "
        "(base,opt1,opt2,opt12,fast; of others' networks opt1, all of autocast and compile, fast-eager and fast)",
    )  # fmt: skip
    command.add_argument("--ladder", action="store_true", help="of med-ddpm all of these")
    command.add_argument(
        "--network", type=bench_networks, default=["med-ddpm"], metavar="NAME,…",
        help="med-ddpm, monai-diffusion, monai-diffusion-attention, monai-unet, monai-dynunet, nnunet-plain, "
        "nnunet-residual, med-ddpm-brats (med-ddpm)",
    )  # fmt: skip
    measures = ("step", "forward", "sample")
    command.add_argument(
        "--measure", type=several(measures), default=measures, metavar="NAME,…", help=f"({','.join(measures)})"
    )
    command.add_argument("--samples", type=whole(1), default=20, help="of a step and a forward pass (20)")
    command.add_argument(
        "--all-samples", action="store_true", help="whole volumes under every setting, not base and fast alone"
    )
    command.add_argument("--bandwidth", action="store_true", help="also DRAM bytes by Nsight Compute: a process more")
    command.add_argument("--size", type=whole(8), help="side of the volume (128; med-ddpm-brats 192)")
    command.add_argument("--batch", type=whole(1), help="volumes a step (1; segmentation networks 2)")
    command.add_argument("--channels", type=whole(32), default=64, help="base width (64)")
    command.add_argument("--again", action="store_true", help="also what is there already")
    command.add_argument("--seconds", type=whole(1), default=420, help="a row that takes longer is given up (420)")
    command.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")


def bench_networks(text: str) -> list[str]:
    """An argument's type: names of networks, divided by commas."""
    from medddpm.study.bench_networks import NETWORKS  # not before it is asked for: it takes seconds to import

    return several(list(NETWORKS))(text)


def bench_settings(text: str) -> list[str]:
    """An argument's type: names of the bench's settings, divided by commas."""
    from medddpm.study.bench_rungs import BY_SLUG

    return several(list(BY_SLUG))(text)


def bench(arguments: argparse.Namespace) -> int:
    """Measures; see `medddpm.study.bench`."""
    from medddpm.processes import pick_device
    from medddpm.study.bench import Options, plan
    from medddpm.study.bench import bench as run

    if _without_gz(arguments.out).rpartition(".")[2] != "csv":
        raise BadInput(arguments.out, "a table's name ends in .csv", "name it so")
    pick_device(arguments.device)
    jobs = plan(
        arguments.network,
        arguments.switches,
        arguments.measure,
        ladder=arguments.ladder,
        all_samples=arguments.all_samples,
        side=arguments.size,
        batch=arguments.batch,
        channels=arguments.channels,
    )
    options = Options(
        samples=arguments.samples,
        bandwidth=arguments.bandwidth,
        again=arguments.again,
        seconds=arguments.seconds,
        device=arguments.device,
    )
    return 1 if run(jobs, arguments.out, options, command=sys.argv, dry_run=arguments.dry_run) else 0


# book


def add_book(commands: Commands[argparse.ArgumentParser]) -> None:
    """`medddpm book`."""
    command = add_command(
        commands,
        book,
        "run the notebooks in order; what is up to date is left alone",
        """
        medddpm book
        medddpm book --only 05
        medddpm book --from 04 --force
        medddpm book --measure            (on a GPU: records anew, and draws what it recorded)
        """,
    )
    command.add_argument("--only", metavar="NN", help="one notebook, by number or name")
    command.add_argument("--from", dest="start", metavar="NN", help="this notebook and those after it")
    command.add_argument(
        "--measure", action="store_true", help="measure on this machine's GPU instead of replaying records"
    )
    command.add_argument("--force", action="store_true", help="run also what is up to date")
    command.add_argument("--refresh", action="store_true", help="write the executed notebooks back to notebooks/")


def book(arguments: argparse.Namespace) -> int:
    """Runs the book; see `medddpm.study.book`."""
    from medddpm.study.book import find_root, run_book

    return run_book(
        find_root(),
        only=arguments.only,
        start=arguments.start,
        measure=arguments.measure,
        force=arguments.force,
        refresh=arguments.refresh,
    )


def add_switches(command: argparse.ArgumentParser) -> None:
    """The settings, by the names of `medddpm.switches.SETTINGS`."""
    command.add_argument(
        "--switches",
        default="base",
        type=str.lower,
        choices=SWITCHES,
        help="base: float32; opt1: TF32; opt2: channels-last-3D; opt12: both; fast: the same network in BF16, with "
        "fused kernels and CUDA graphs, its weights and loss in float32; where the kernels cannot run (no Triton, or "
        "less than compute capability 8.0) all in float32, which it says (base)",
    )


def add_device(command: argparse.ArgumentParser) -> None:
    """What `train` and `sample` share."""
    command.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


if __name__ == "__main__":
    sys.exit(main())
