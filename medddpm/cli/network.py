"""The network that `train` trains, from its options, a file or an earlier run."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from medddpm.cli.options import MULTIPLE
from medddpm.errors import BadInput
from medddpm.runtime.arguments import a_path, whole

if TYPE_CHECKING:
    from medddpm.data.layouts import Layout
    from medddpm.training.initial import Initial

SMALLEST_PUBLISHED = 64
"""Side of the smallest volumes for which a network of 64 channels was published."""
NARROW, NARROW_GROUPS = 32, 8
"""Base width, and groups of each norm, of the network for smaller volumes: a quarter of the weights."""


def add_network(command: argparse.ArgumentParser) -> None:
    """Adds the options of a network, and --init; None stands for the default, which the help tells."""
    command.add_argument(
        "--channels",
        type=whole(32, 4096, f"{MULTIPLE} or of --norm-groups"),
        help=f"base width, {MULTIPLE} or of --norm-groups (64, as published; {NARROW} where every side of --size is "
        f"below {SMALLEST_PUBLISHED}, for which 64 would write checkpoints of 400 MB)",
    )
    command.add_argument("--blocks", type=whole(1, 64), help="residual blocks in a level (1; BraTS 2)")
    command.add_argument(
        "--channel-mult",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="each level's width divided by the base (as published)",
    )
    command.add_argument(
        "--norm-groups", type=whole(1, 4096), metavar="N",
        help="into how many groups each group norm divides its channels (32, as published; "
        f"{NARROW_GROUPS} of a small --size without --channels); --channels has to be a "
        "multiple. A norm whose groups are single channels removes a volume's brightness, so that the network hardly "
        "learns it: with --channels 32 give 8",
    )  # fmt: skip
    command.add_argument(
        "--init", type=a_path, metavar="FILE",
        help="start from the averaged weights of a released or published model, a checkpoint or a run's folder, whose "
        "network and --prediction it takes over; the optimizer begins anew, at step 0 (random weights)",
    )  # fmt: skip


def network(
    arguments: argparse.Namespace, size: tuple[int, int, int], layout: Layout
) -> tuple[dict[str, Any], Initial | None]:
    """Returns the fields of the configuration that describe the network, and the weights of --init.

    The defaults are in the help of their options. A run that began with the published width, also under a version that
    had no other, resumes with it; one that began from a file resumes with that network, without --init too.

    Raises:
        BadInput: the file of --init is damaged, or has another network than the other options say.
    """
    from medddpm.data.layouts import BRATS
    from medddpm.training.config import TrainConfig
    from medddpm.training.initial import NETWORK, read_initial

    chosen = {
        "model_channels": arguments.channels,
        "num_res_blocks": arguments.blocks,
        "channel_mult": arguments.channel_mult,
        "norm_groups": arguments.norm_groups,
        "prediction": arguments.prediction,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    known = _of_earlier(arguments)
    if arguments.init:
        initial = read_initial(arguments.init)
        return initial.fields(layout, chosen), initial
    if known.get("init"):
        return {name: known[name] for name in (*NETWORK, "prediction", "init")} | given, None
    published = TrainConfig.model_channels
    fields = {"image_size": size[0], "num_res_blocks": 2 if layout == BRATS else 1} | given
    began_wide = known and known.get("model_channels", published) == published
    if arguments.channels is None and max(size) < SMALLEST_PUBLISHED and not began_wide:
        fields = {"model_channels": NARROW, "norm_groups": NARROW_GROUPS} | fields
    return fields, None


def _of_earlier(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the contents of run.json if the run has a checkpoint; a problem is reported when it is resumed."""
    from medddpm.checkpoints.files import checkpoints_of
    from medddpm.training.run_folder import read_run

    with contextlib.suppress(BadInput):
        if checkpoints_of(arguments.out):
            return read_run(arguments.out)
    return {}
