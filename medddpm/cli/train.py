"""The command that trains: train."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, NamedTuple

from medddpm.cli.config import add_config
from medddpm.cli.network import add_network, network
from medddpm.cli.options import (
    DATA,
    RECOMPUTED,
    Commands,
    Parser,
    add_command,
    add_device,
    add_setting,
    option,
    refuse_unread,
    volume_size,
)
from medddpm.cli.recipe import add_recipe, fields
from medddpm.cli.volumes import prepared_volumes
from medddpm.errors import BadInput
from medddpm.fast.reports import is_first, log
from medddpm.runtime.arguments import a_path, whole
from medddpm.runtime.exits import INTERRUPTED

if TYPE_CHECKING:
    from medddpm.data.disk_cache import DiskCache
    from medddpm.training.config import TrainConfig
    from medddpm.training.initial import Initial


class Prepared(NamedTuple):
    """A run's configuration, its volumes, those held out, and the weights that it starts from."""

    config: TrainConfig
    volumes: DiskCache
    held_out: DiskCache | None
    initial: Initial | None


def add_train(commands: Commands[Parser]) -> None:
    """Adds `medddpm train`."""
    command = add_command(
        commands,
        train,
        "train a model, or resume a run",
        """
        medddpm train --phantom --size 64 --steps 2000 --setting opt1 --out runs/head64
        medddpm train --heads 768 --size 64 --steps 8000 --setting fast --recipe ours --out runs/ours
        medddpm train --phantom 512 --size 64 --steps 9000 --setting fast --offset-noise 0.1 --out runs/q
        medddpm train --data my_data --init head64.safetensors --holdout 4 --steps 20000 --out runs/mine
        medddpm train --config run.toml --steps 20000 --out runs/next
        medddpm train --data my_data --steps 50000 --setting opt1 --out runs/mine
        torchrun --nproc-per-node 4 -m medddpm train --data my_data --steps 50000 --out runs/mine
        tensorboard --logdir runs
        """,
        resumes=True,
    )
    data = command.add_mutually_exclusive_group(required=True)
    folder = data.add_argument("--data", type=a_path, metavar="DIR", help=DATA)
    phantom = data.add_argument(
        "--phantom",
        type=whole(1),
        nargs="?",
        const=64,
        metavar="COUNT",
        help="instead of data, COUNT (64) synthetic subjects with the MNI152 anatomy",
    )
    heads = data.add_argument(
        "--heads",
        type=whole(1),
        nargs="?",
        const=64,
        metavar="COUNT",
        help="instead of data, COUNT (64) synthetic subjects that differ as people do: in age, anatomy, scanner and "
        "lesion",
    )
    command.one_of = (folder, phantom, heads)
    command.add_argument(
        "--out", type=a_path, required=True, metavar="RUN", help="the run's folder; resumed if it exists"
    )
    command.add_argument("--steps", type=whole(1), required=True, help="steps in all, including those of a resumed run")
    add_setting(command)
    command.add_argument(
        "--size",
        type=whole(2, 1024),
        nargs="+",
        metavar="N",
        help="H W D of the model, or one side (128; BraTS 192 192 144)",
    )
    command.add_argument(
        "--contrast", choices=["t1", "t2", "flair", "all"],
        help="of the phantom or the heads (t1); all, of the heads alone: T1, T2 and FLAIR as three channels, so that a "
        "sample's are of one brain",
    )  # fmt: skip
    command.add_argument(
        "--scaling",
        choices=["volume", "slice"],
        help="scale the data's intensities by volume, or by slice as published (volume)",
    )
    add_network(command)
    add_recipe(command)
    command.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, help="of initial weights, order, noise and --holdout (0)"
    )
    command.add_argument(
        "--holdout", type=whole(0, 10_000), default=0, metavar="N",
        help="do not train on N volumes, which --seed chooses (of the phantom or the heads N further subjects), but "
        "compute their loss every --sample-every steps from the averaged weights, and sample for the first one's mask "
        "(0)",
    )  # fmt: skip
    command.add_argument(
        "--save-every", type=whole(0), default=1000, help="steps between checkpoints, 0 for only the last (1000)"
    )
    command.add_argument("--sample-every", type=whole(0), default=1000, help="steps between samples, 0 for none (1000)")
    command.add_argument(
        "--keep",
        type=whole(1),
        default=2,
        help="newest checkpoints kept, beside the last one that is known to be good (2)",
    )
    command.add_argument(
        "--cache", type=a_path, metavar="DIR",
        help="folder of prepared volumes, shared by all runs, removable at any time ($MEDDDPM_CACHE, or "
        "~/.cache/medddpm/volumes)",
    )  # fmt: skip
    command.add_argument(
        "--workers", type=whole(0, 256), default=2, help="processes that load volumes ahead, 0 for none (2)"
    )
    command.add_argument(
        "--device-cache", action=argparse.BooleanOptionalAction,
        help="keep all volumes in the device's memory (on a GPU where they fit)",
    )  # fmt: skip
    command.add_argument(
        "--recompute", choices=RECOMPUTED, default="none",
        help="activations that are computed again instead of kept, which saves memory: those of attention, of all "
        "blocks, or of the blocks of so many of the finest levels (none)",
    )  # fmt: skip
    command.add_argument("--profile", action="store_true", help="print where a step waits, once, after the first epoch")
    command.add_argument(
        "--read-every-loss", action="store_true", help="read each loss back, as the published loop does"
    )
    command.add_argument(
        "--gradient-dtype", choices=["fp32", "bf16"], default="fp32",
        help="in which torchrun's processes send each other their gradients (fp32)",
    )  # fmt: skip
    command.add_argument(
        "--bucket-mib", type=whole(0), default=32, metavar="N",
        help="MiB of gradients that torchrun's processes sum at a time while the backward pass goes on; 0 sums all at "
        "once after it (32)",
    )  # fmt: skip
    add_config(command)
    command.add_argument("--no-check", action="store_true", help="do not check the data folder first")
    add_device(command, "no progress bar, but a line a minute")


def train(arguments: argparse.Namespace) -> int:
    """Trains; see `medddpm.training.run.train`."""
    from medddpm.runtime.processes import pick_device
    from medddpm.runtime.ranks import Ranks, joined, share
    from medddpm.training.config import TrainConfig
    from medddpm.training.run import train as run

    has_data = bool(arguments.data)
    refuse_unread(
        arguments,
        ("contrast", not has_data, "with --phantom or --heads"),
        ("scaling", has_data, "with --data"),
        ("no_check", has_data, "with --data"),
    )
    if arguments.contrast == "all" and not arguments.heads:
        arguments.wrong("argument --contrast: all only with --heads")
    for name in ("gradient_dtype", "bucket_mib"):
        if getattr(arguments, name) != getattr(TrainConfig, name) and share()[1] == 1:
            log.warning("%s: a single process sends no gradients; it counts once torchrun starts several", option(name))
    prepared, problem = None, None
    with joined(pick_device(arguments.device)):
        ranks = Ranks()
        # All processes read the same folder: its problem is printed once, whichever process meets it.
        with ranks.unhurried("check"):  # the first one reads every volume
            try:
                prepared = _configuration(arguments)
            except BadInput as error:
                problem = error
        if ranks.told(prepared is None and problem is None):
            return 1
        ranks.agree(problem)
        assert prepared is not None  # else there is a problem, which ends all
        config, volumes, held_out, initial = prepared
        losses = run(
            config, volumes, arguments.out, arguments.steps, held_out=held_out, initial=initial,
            device=arguments.device, device_cache=arguments.device_cache, bars=not arguments.quiet,
            profile=arguments.profile,
        )  # fmt: skip
    if is_first():
        print(f"{arguments.out}: {_outcome(len(losses), arguments.steps)}")
    return 0 if len(losses) >= arguments.steps else INTERRUPTED


def _configuration(arguments: argparse.Namespace) -> Prepared | None:
    """Returns what the run needs; None as `prepared_volumes`."""
    from medddpm.data.layouts import BRATS
    from medddpm.data.readers import find_layout
    from medddpm.training.config import TrainConfig

    brats = bool(arguments.data) and find_layout(arguments.data) == BRATS
    size = volume_size(arguments.size, (192, 192, 144) if brats else (128, 128, 128))
    volumes = prepared_volumes(arguments, size)
    if volumes is None:
        return None
    network_fields, initial = network(arguments, size, volumes[0].layout)
    channels = network_fields.get("model_channels", TrainConfig.model_channels)
    config = TrainConfig(
        **(fields(arguments, math.prod(size) * channels) | network_fields),
        setting=arguments.setting.upper(),
        seed=arguments.seed,
        holdout=arguments.holdout,
        save_every=arguments.save_every,
        sample_every=arguments.sample_every,
        keep=arguments.keep,
        read_every_loss=arguments.read_every_loss,
        workers=arguments.workers,
        recompute=arguments.recompute,
        gradient_dtype=arguments.gradient_dtype,
        bucket_mib=arguments.bucket_mib,
    )
    return Prepared(config, *volumes, initial)


def _outcome(step: int, steps: int) -> str:
    """Returns the last line of a training of `steps` steps that ended at `step`."""
    if step > steps:
        return f"already at step {step}, beyond --steps {steps}; give more than {step} to train on"
    if step == steps:
        return f"finished at step {step}"
    return f"stopped at step {step} of {steps}; the same command resumes it"
