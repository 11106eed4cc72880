"""The options of `medddpm train` that make up a recipe."""

from __future__ import annotations

import argparse
from typing import Any

from medddpm.cli.options import DECAYS, DENSITIES, LOSSES, PREDICTIONS, RECIPES, WEIGHTINGS
from medddpm.runtime.arguments import not_negative, positive, up_to, whole


def add_recipe(command: argparse.ArgumentParser) -> None:
    """Adds --recipe and the options of which a recipe is made; None stands for the recipe's value."""
    command.add_argument(
        "--recipe", choices=RECIPES, default="published",
        help="the values of the options below that are not given, which their help has in brackets (published)",
    )  # fmt: skip
    command.add_argument(
        "--volumes-a-step", type=whole(1, 10_000), metavar="N",
        help="volumes in a step of all processes; --accumulation follows from --batch-size, by default the largest "
        "that the GPU is estimated to hold (as --batch-size and --accumulation say; ours 8)",
    )  # fmt: skip
    command.add_argument("--batch-size", type=whole(1, 1024), help="volumes in a micro-step of a process (1)")
    command.add_argument("--accumulation", type=whole(1, 10_000), help="micro-steps in a step (2)")
    command.add_argument("--learning-rate", type=positive, help="Adam's (1e-5; ours 2e-4)")
    command.add_argument(
        "--warm-up", type=whole(0), metavar="N", help="steps over which the learning rate rises to that (0; ours 200)"
    )
    command.add_argument(
        "--decay", choices=DECAYS,
        help="cosine: the learning rate falls to 0 at --steps, which a resumed run may then not change (none; ours "
        "cosine)",
    )  # fmt: skip
    command.add_argument(
        "--ema-share", type=up_to(0.28), metavar="X",
        help="width of the average of the weights as a share of the steps made; 0: decay 0.995 every 10 steps (0; ours "
        "0.1)",
    )  # fmt: skip
    command.add_argument(
        "--prediction", choices=PREDICTIONS,
        help="what the network predicts: the noise; the velocity, with zero terminal SNR; or the flow, on straight "
        "lines from noise to image (noise; ours flow)",
    )  # fmt: skip
    command.add_argument("--loss", choices=LOSSES, help="mean absolute or mean squared error of that (l1; ours l2)")
    command.add_argument(
        "--weighting", choices=WEIGHTINGS,
        help="of the timesteps in the loss; min-snr: by the signal-to-noise ratio, up to 5, of the error of the image "
        "(none)",
    )  # fmt: skip
    command.add_argument(
        "--density",
        choices=DENSITIES,
        help="of the timesteps that are drawn; logit-normal: more of the middle (uniform)",
    )
    command.add_argument(
        "--flips", action=argparse.BooleanOptionalAction,
        help="mirror volumes between left and right at random, each with its mask (no; ours yes)",
    )  # fmt: skip
    command.add_argument(
        "--deform", type=up_to(0.05), metavar="X",
        help="bend volumes at random, each with its mask, by points that move by X of a side, standard deviation; that "
        "blurs their finest detail (0)",
    )  # fmt: skip
    command.add_argument(
        "--offset-noise", type=not_negative, metavar="X",
        help="standard deviation of each volume's noise as a whole: with 0.1 the mask sets a sample's brightness (0)",
    )  # fmt: skip
    command.add_argument(
        "--clip-norm", type=not_negative, metavar="X",
        help="scale a step's gradient down to this norm if it is larger (0: never)",
    )  # fmt: skip


def fields(arguments: argparse.Namespace, activations: int) -> dict[str, Any]:
    """Returns the fields of the configuration that the recipe and the options it is made of set.

    Args:
        arguments: the command's.
        activations: voxels of a volume times the network's base width.
    """
    from medddpm.runtime.processes import pick_device
    from medddpm.runtime.ranks import share
    from medddpm.training.recipes import OPTIONS, fields_of, most_volumes

    fast, device = arguments.setting == "fast", pick_device(arguments.device)
    return fields_of(
        arguments.recipe,
        {name: getattr(arguments, name) for name in OPTIONS},
        steps=arguments.steps,
        processes=share()[1],
        most=lambda: most_volumes(device, activations, fast),
    )
