"""The command `medddpm sample`: volumes for masks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medddpm.cli.options import SAMPLERS, Commands, Parser, add_command, add_device, add_setting
from medddpm.fast.reports import silence
from medddpm.runtime.arguments import a_path, whole


def add_sample(commands: Commands[Parser]) -> None:
    """Adds `medddpm sample`."""
    command = add_command(
        commands,
        sample,
        "draw synthetic volumes for a mask, or for many",
        """
        medddpm sample --mask mask.nii.gz --out head.nii.gz      head_t1, head_t2, head_flair by the shipped model
        medddpm sample --mask seg/BraTS2021_00000_seg.nii.gz --image t1/BraTS2021_00000_t1.nii.gz --out head.nii.gz
        medddpm sample --checkpoint runs/head64 --mask mask.nii.gz --out volume.nii.gz
        medddpm sample --checkpoint model_128.pt --mask mask.nii.gz --out volume.nii.gz --sampler sde-dpm++ --steps 50
        medddpm sample --checkpoint brats.pt --mask seg/case_7_seg.nii.gz --out case_7.nii.gz    case_7_t1.nii.gz …
        medddpm sample --checkpoint runs/head64 --mask mask.nii.gz --out v.nii.gz --setting fast --count 8 --batch 4
        medddpm sample --checkpoint runs/head64 --mask my_data/mask --out drawn --batch 4      a volume for each mask
        torchrun --nproc-per-node 4 -m medddpm sample --mask mask.nii.gz --out v.nii.gz --setting fast --count 1000
        """,
        resumes=True,
    )
    command.add_argument(
        "--checkpoint",
        type=a_path,
        help="published, your own or released (.safetensors), or a run's folder (the small model of 64³ shipped "
        "with the package, which draws a volume on two cores in less than a minute)",
    )
    command.add_argument(
        "--mask", type=a_path, required=True, metavar="MASK|DIR|CSV",
        help="the labels, in any size and orientation (the shipped model takes brain 1 and lesion 2, or BraTS's); or a "
        "folder of such files; or a CSV with a column mask and, if need be, image (or t1, t1ce, t2, flair), out and "
        "seed, its masks and images relative to its own folder",
    )  # fmt: skip
    command.add_argument(
        "--out", type=a_path, required=True,
        help=".nii or .nii.gz; gets the mask's affine and header. A model of several contrasts, as the shipped one, "
        "writes OUT_t1.nii.gz, OUT_t2.nii.gz and OUT_flair.nii.gz instead, a BraTS model also OUT_t1ce.nii.gz. For a "
        "folder or a CSV: a folder, where each volume has its mask's name, case_7.nii.gz that of case_7_seg.nii.gz",
    )  # fmt: skip
    command.add_argument(
        "--image", type=a_path, action="append", default=[],
        help="an image of the case, for a raw BraTS mask that does not lie beside its images; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--sampler",
        choices=SAMPLERS,
        help="(as a released model's file recommends; else ddpm)",
    )
    command.add_argument(
        "--steps", type=whole(1), help="network evaluations (as recommended with the sampler; else all timesteps, "
        "which ddpm needs)",
    )  # fmt: skip
    command.add_argument(
        "--weights", choices=["ema", "model"], default="ema", help="the checkpoint's average or its weights (ema)"
    )
    command.add_argument(
        "--seed",
        type=whole(0, 2**63 - 1),
        default=0,
        help="of the noise, the same for every mask, as if it were drawn alone; each further volume of a mask takes "
        "the next (0)",
    )
    command.add_argument(
        "--count",
        type=whole(1, 100_000),
        default=1,
        help="volumes of each mask; several are OUT_1.nii.gz, OUT_2.nii.gz … (1); after an "
        "interruption the same command draws those that are missing",
    )
    command.add_argument(
        "--batch", type=whole(1, 1024), default=1, help="volumes computed at once, also of several masks (1)"
    )
    command.add_argument("--force", action="store_true", help="draw anew, and replace samples that are there already")
    add_setting(command)
    add_device(command)


def sample(arguments: argparse.Namespace) -> int:
    """Samples; see `medddpm.sampling.sample_to_files`."""
    from medddpm.checkpoints import shipped
    from medddpm.sampling import keep_freed_memory, sample_to_files
    from medddpm.switches import SETTINGS

    keep_freed_memory()
    sample_to_files(
        arguments.checkpoint or shipped.weights(),
        arguments.mask,
        arguments.out,
        images=arguments.image,
        steps=arguments.steps,
        sampler=arguments.sampler,
        weights=arguments.weights,
        seed=arguments.seed,
        count=arguments.count,
        batch=arguments.batch,
        setting=SETTINGS[arguments.setting.upper()],
        device=arguments.device,
        progress=not arguments.quiet,
        force=arguments.force,
        on_file=_print_path,
    )
    return 0


def _print_path(file: Path) -> None:
    """Prints a finished file's path; the reader of the lines may stop before the last one."""
    try:
        print(file, flush=True)
    except BrokenPipeError:
        silence(sys.stdout)
