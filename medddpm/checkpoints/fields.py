"""Checks the fields of a model's file beside its weights when the file is read, not when a field is used."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from medddpm.diffusion import SAMPLERS
from medddpm.errors import BadInput
from medddpm.schedules import PREDICTIONS

LARGEST = 4096  # of a configuration's numbers: channels, sides, blocks
LARGEST_VOLUME = 2**30  # voxels
MOST_LEVELS = 16
MOST_TIMESTEPS = 100_000
_NUMBERS = {"image_size", "in_channels", "out_channels", "model_channels", "num_res_blocks", "norm_groups"}
_LISTS = {"channel_mult": 1, "attention_rates": 0}  # and the least of their numbers


def check_fields(content: Mapping[str, Any], names: Iterable[str], path: str | os.PathLike[str]) -> None:
    """Checks those of the fields `names` that a file's content has.

    Raises:
        BadInput: a field has a wrong type or an impossible value; the message names it.
    """
    for name in names:
        if name == "prediction" and isinstance(content.get(name), str) and not _is_prediction(content[name]):
            problem = f"its network predicts {content[name]!r}, which is none of {', '.join(PREDICTIONS)}"
            raise BadInput(path, problem, "read it with the version of medddpm that wrote it")
        if name in content and not _SOUND[name](content[name]):
            raise BadInput(
                path, f"its metadata is damaged: {name} is not what it should be", "give the file as it was first saved"
            )


def whole(value: object, least: int, most: int) -> bool:
    """Returns whether `value` is a whole number of that range; True and False are not."""
    return type(value) is int and least <= value <= most


def is_size(value: object) -> bool:
    """Returns whether `value` is the (H, W, D) of a volume that a computer can hold."""
    sides = value if isinstance(value, list | tuple) else ()
    return len(sides) == 3 and all(whole(side, 2, LARGEST) for side in sides) and math.prod(sides) <= LARGEST_VOLUME


def are_whole(value: object, least: int) -> bool:
    """Returns whether `value` is a list of whole numbers from `least` on, no longer than a network has levels."""
    return (
        isinstance(value, list | tuple) and len(value) <= MOST_LEVELS and all(whole(n, least, LARGEST) for n in value)
    )


def _is_config(value: object) -> bool:
    return isinstance(value, dict) and all(
        whole(number, 1, LARGEST) if name in _NUMBERS else name in _LISTS and are_whole(number, _LISTS[name])
        for name, number in value.items()
    )


def _is_advice(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"sampler", "steps"}:
        return False
    return value["sampler"] in SAMPLERS and whole(value["steps"], 1, MOST_TIMESTEPS)


def _is_prediction(value: object) -> bool:
    return isinstance(value, str) and value in PREDICTIONS


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


_SOUND: dict[str, Callable[[Any], bool]] = {
    "config": _is_config,
    "timesteps": lambda value: whole(value, 1, MOST_TIMESTEPS),
    "prediction": _is_prediction,
    "layout": lambda value: isinstance(value, str),
    "size": is_size,
    "step": lambda value: whole(value, 0, 2**53),
    "training": _is_table,
    "sampling": _is_advice,
    "evaluation": _is_table,
}
