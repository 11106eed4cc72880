"""Trains the segmenter that judges, and keeps it with its description in a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from medddpm.checkpoints.released import digest, read_tensors
from medddpm.data.grid import Size
from medddpm.data.tissues import Contrast
from medddpm.errors import BadInput
from medddpm.quality.tissues import WIDTH, mean_dice, network_for, segment, train_segmenter
from medddpm.runtime.files import replacing
from study.brains.subjects import SEGMENTER, TEST, Subjects, subjects

FORMAT = "medddpm segmenter 1"
LARGEST = 2**24  # bytes of a file that travels


@dataclass(frozen=True)
class Description:
    """What a segmenter was trained on.

    Args:
        contrasts: its channels, in order.
        size: (H, W, D).
        width: of its network.
        heads: trained on, the first of `seed`.
        seed: of the heads.
        steps: of the optimizer.
        tested: held-out heads, the first of `test_seed`.
        test_seed: of those.
        dice: mean Dice on them by tissue, with its interval over heads.
    """

    contrasts: tuple[Contrast, ...]
    size: Size
    width: int
    heads: int
    seed: int
    steps: int
    tested: int
    test_seed: int
    dice: dict[str, dict[str, float | None]]


def train(
    contrasts: Sequence[Contrast],
    size: Size,
    device: torch.device,
    test: Subjects,
    *,
    heads: int,
    steps: int,
    width: int = WIDTH,
    batch: int = 4,
) -> tuple[nn.Module, Description]:
    """Trains a segmenter on heads of seed `SEGMENTER`, and tests it on others.

    Args:
        contrasts: the channels.
        size: (H, W, D), multiples of 8.
        device: trains.
        test: the first heads of seed `TEST`, under those contrasts and of that size.
        heads: to train on.
        steps: of the optimizer.
        width: of the network.
        batch: volumes a step.

    Returns:
        the network and its description.
    """
    known = subjects(heads, size, contrasts, SEGMENTER)
    network = train_segmenter(
        known.images.to(device), known.tissues.to(device), steps=steps, width=width, batch=batch
    )  # fmt: skip
    network.half().float()  # as a file has the weights, so that what is measured now and later is one network
    dice = dice_of(network, test)
    return network, Description(tuple(contrasts), size, width, heads, SEGMENTER, steps, len(test.names), TEST, dice)


def dice_of(network: nn.Module, test: Subjects) -> dict[str, dict[str, float | None]]:
    """Returns a segmenter's mean Dice on heads by tissue: value, low, high; None where there is no interval."""
    dice = mean_dice(segment(network, test.images).labels, test.tissues)
    return {
        tissue: {key: value if value == value else None for key, value in vars(estimate).items()}
        for tissue, estimate in dice.items()
    }


def write(network: nn.Module, description: Description, path: Path) -> None:
    """Writes a segmenter: weights in float16, and its description as JSON metadata.

    Raises:
        BadInput: it would have more than 16 MiB.
    """
    weights = {name: tensor.detach().half().cpu().contiguous() for name, tensor in network.state_dict().items()}
    if sum(tensor.nbytes for tensor in weights.values()) > LARGEST:
        raise BadInput(path, "it would have more than 16 MiB", "train a narrower segmenter")
    metadata = {"format": FORMAT, "digest": digest(weights), "description": json.dumps(asdict(description))}
    with replacing(path) as temporary:
        save_file(weights, temporary, metadata)


def read(path: Path) -> tuple[nn.Module, Description]:
    """Reads a segmenter onto the CPU.

    Raises:
        BadInput: the file is damaged, or no segmenter.
    """
    metadata, weights = read_tensors(path)
    try:
        if metadata.get("format") != FORMAT:
            raise ValueError
        fields = json.loads(metadata["description"])
        description = Description(**{**fields, **{name: tuple(fields[name]) for name in ("contrasts", "size")}})
        network = network_for(len(description.contrasts), description.width)
        network.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise BadInput(path, "it is no segmenter", "give a file that `study judge` wrote") from None
    return network.eval(), description
