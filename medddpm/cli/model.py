"""Commands on a model: train, sample, release, check."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from medddpm.cli.options import (
    INTERRUPTED,
    SAMPLERS,
    Commands,
    add_command,
    add_device,
    add_switches,
    complain,
    volume_size,
)
from medddpm.errors import BadInput
from medddpm.runtime.arguments import not_negative, positive, whole

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
    """Trains; see `medddpm.training.trainer.train`."""
    from medddpm.data.phantom import Phantom
    from medddpm.data.volumes import BRATS, VolumeFolder, Volumes, check_folder, find_layout
    from medddpm.training.config import TrainConfig
    from medddpm.training.trainer import train as run

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
    from medddpm.checkpoints import shipped
    from medddpm.sampling import keep_freed_memory, sample_to_files
    from medddpm.switches import SETTINGS
    from medddpm.training.run_folder import checkpoints_of

    checkpoint: Path = arguments.checkpoint or shipped.weights()
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
    """Releases; see `medddpm.training.release.release_run`."""
    from medddpm.sampling import keep_freed_memory
    from medddpm.switches import SETTINGS
    from medddpm.training.release import release_run

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
    """Checks a data folder; see `medddpm.data.checking`."""
    from medddpm.data.volumes import check_folder

    report = check_folder(arguments.folder, progress=not arguments.quiet)
    for problem in report.problems:
        print(problem)
    print(report)
    return 1 if report.problems else 0
