"""Recipes: how a training goes, by name, and what follows from that on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig

RECIPES: dict[str, dict[str, Any]] = {
    "published": {},
    "ours": {
        "volumes_a_step": 8,
        "learning_rate": 2e-4,
        "warm_up": 200,
        "decay": "cosine",
        "ema_share": 0.1,
        "prediction": "flow",
        "loss": "l2",
        "flips": True,
    },
}
"""For each recipe, the `OPTIONS` that differ from `TrainConfig`'s defaults, which are the published recipe.

Ours trained the shipped model (`checkpoints.shipped`), whose samples pass for heads after 338 seconds on an H200."""

OPTIONS = (
    "volumes_a_step", "batch_size", "accumulation", "learning_rate", "warm_up", "decay", "ema_share", "prediction",
    "loss", "weighting", "density", "flips", "deform", "offset_noise", "clip_norm",
)  # fmt: skip
"""The options of which a recipe is made: fields of `TrainConfig`, and the volumes in a step of all processes."""

ACTIVATION_BYTES = {False: 160, True: 56}
"""Bytes that a training step takes per voxel and channel of the base width, without and with the fast path.

The peaks at 128³ with 64 channels on an H200, 19.2 and 6.5 GiB (bench records), divided by 128³ · 64 and rounded up.
"""
MOST_NAMED = 20  # sizes of a batch in a message
MOST_OF_GPU = 0.8  # of its memory that a batch is planned to take; a choice


def fields_of(
    recipe: str,
    chosen: Mapping[str, Any],
    *,
    steps: int,
    processes: int = 1,
    most: Callable[[], int] = lambda: 1,
) -> dict[str, Any]:
    """Returns the fields of a `TrainConfig` under a recipe, of which single options may be chosen otherwise.

    Args:
        recipe: of `RECIPES`.
        chosen: of `OPTIONS`; None stands for the recipe's value.
        steps: of the run, in all.
        processes: that train together.
        most: returns how many volumes this machine takes at once; asked only where nothing else says.

    Raises:
        BadInput: the volumes of a step cannot be divided as the options say.
    """
    fields = RECIPES[recipe] | {name: value for name, value in chosen.items() if value is not None}
    volumes, parts = fields.pop("volumes_a_step", None), (fields.get("batch_size"), fields.get("accumulation"))
    if chosen.get("volumes_a_step") or (volumes and None in parts):  # else both parts say what a step is
        fields["batch_size"], fields["accumulation"] = _divided(volumes, processes, *parts, most)
    if fields.get("decay", TrainConfig.decay) != "none":
        fields["length"] = steps
    return fields


def most_volumes(device: torch.device, activations: int, fast: bool) -> int:
    """Returns how many volumes a step is estimated to hold at once; one on a CPU, which gains nothing by more.

    Args:
        device: of the training.
        activations: voxels of a volume times the network's base width.
        fast: whether the fast path computes.
    """
    if device.type != "cuda":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(1, int(MOST_OF_GPU * memory / (ACTIVATION_BYTES[fast] * activations)))


def _divided(
    volumes: int, processes: int, batch_size: int | None, accumulation: int | None, most: Callable[[], int]
) -> tuple[int, int]:
    """Returns the volumes of a micro-step and the micro-steps of a step, in each process."""
    if volumes % processes:
        problem = f"{processes} processes cannot share {volumes} volumes"
        raise BadInput("--volumes-a-step", problem, f"give a multiple of {processes}")
    each = volumes // processes
    sizes = [size for size in range(1, each + 1) if each % size == 0]
    if batch_size is None:
        limit = each // accumulation if accumulation else most()
        batch_size = max(size for size in sizes if size <= max(limit, 1))
    micro_steps = accumulation or each // batch_size
    if batch_size * micro_steps != each:
        problem = f"{micro_steps or 1} micro-steps of {batch_size} are not the {each} volumes of a step"
        raise BadInput("--batch-size", problem, f"choose one of {', '.join(map(str, sizes[:MOST_NAMED]))}")
    return batch_size, micro_steps
