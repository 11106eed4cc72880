"""Compares a run's configuration with that of a resumed run, in the words of `medddpm train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from medddpm.data.synthetic import origin_of
from medddpm.data.volumes import Scaling
from medddpm.training.config import FREE

OPTIONS = {"size": "--size", "model_channels": "--channels", "num_res_blocks": "--blocks", "length": "--steps"}
"""The options whose names differ from those in run.json."""
NO_OPTION = {"image_size", "ema_decay", "ema_every", "ema_start", "layout", "processes"}
"""The entries of run.json that no option sets."""


def differences(known: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """Returns a phrase for each difference, as "--channels 32 (not 64)"; none if the run can be resumed.

    Args:
        known: the contents of run.json.
        requested: the contents that the resumed run would write.
    """
    changed = [key for key in requested if key not in FREE and known[key] != requested[key]]
    # The option --size says both, and other files have other data.
    implied = {"image_size"} if "size" in changed else set[str]()
    implied |= {"data"} if "volumes" in changed else set()
    implied |= {"length"} if "decay" in changed else set()
    implied |= {"held_out"} if len(changed) > 1 else set()
    if {"holdout", "seed"} & {*changed} and "held_out" in changed and not origin_of(requested["volumes"]):
        implied |= {"volumes", "data"}  # of a folder's volumes, those that are left
    phrases = []
    for key in changed:
        if key == "volumes" and key not in implied:
            phrases += _of_names(known[key], requested[key])
        elif key == "data" and key not in implied:
            phrases += _of_digests(known[key], requested[key], requested["volumes"])
        elif key == "held_out" and key not in implied:
            phrases.append("other held-out volumes")
        elif key not in implied:
            phrases.append(_phrase_of(key, known[key], requested[key]))
    return phrases


def option(key: str) -> str:
    """Returns the option of `medddpm train` that sets the entry `key` of run.json; the key itself if there is none."""
    return key if key in NO_OPTION else OPTIONS.get(key, f"--{key.replace('_', '-')}")


def _phrase_of(key: str, was: object, now: object) -> str:
    if isinstance(was, bool):
        name = option(key)
        return _phrase(name, "on", "off") if was else _phrase(name, "off", "on")
    return _phrase(option(key), _shown(key, was), _shown(key, now))


def _phrase(name: str, was: object, now: object) -> str:
    return f"{name} {was} (not {now})"


def _shown(key: str, value: Any) -> str:
    """Returns a value as a user types it."""
    if value is None:
        return "as published"
    if isinstance(value, list):
        return " ".join(map(str, value[:1] if key == "size" and len(set(value)) == 1 else value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if key == "setting" else str(value) or "none"


def _of_names(was: Sequence[str], now: Sequence[str]) -> list[str]:
    was_origin, now_origin = origin_of(was), origin_of(now)
    if not was_origin or not now_origin or was_origin.seed != now_origin.seed:
        return ["other files"]
    if was_origin.kind != now_origin.kind:
        return [f"--{was_origin.key} (not --{now_origin.key})"]
    kinds = ((option(was_origin.key), len(was), len(now)), ("--contrast", was_origin.contrast, now_origin.contrast))
    return [_phrase(*kind) for kind in kinds if kind[1] != kind[2]]


def _of_digests(was: Sequence[str], now: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns phrases for changed volumes; `VolumeFolder.digests` begin with the scaling."""
    (old_scaling, *_), (new_scaling, *_) = was[0].split(" ", 1), now[0].split(" ", 1)
    scaled = old_scaling != new_scaling and {old_scaling, new_scaling} <= set(get_args(Scaling))
    pairs = zip(names, was, now, strict=False)
    other = next((name for name, a, b in pairs if a.removeprefix(old_scaling) != b.removeprefix(new_scaling)), None)
    if other is None and not scaled:
        other = next(iter(names), "its volumes")
    return [
        *([_phrase("--scaling", old_scaling, new_scaling)] if scaled else []),
        *([f"other data in {other}"] if other is not None else []),
    ]
