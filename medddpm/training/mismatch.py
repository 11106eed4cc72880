"""What a run was begun with and is not gone on with, in the words of `medddpm train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from medddpm.data.phantom import contrast_and_seed
from medddpm.data.volumes import Scaling
from medddpm.training.config import FREE

OPTIONS = {"size": "--size", "model_channels": "--channels", "num_res_blocks": "--blocks"}
"""The options that are named otherwise than what run.json calls them."""
NO_OPTION = {"image_size", "ema_decay", "ema_every", "ema_start", "layout", "processes"}
"""What no option says: named as in run.json."""


def differences(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """A phrase for each difference, as "--channels 32 (not 64)"; none where the run goes on.

    Args:
        known: the contents of run.json.
        wanted: the same of the run that is asked for.
    """
    changed = [key for key in wanted if key not in FREE and known[key] != wanted[key]]
    # The option --size says both, and other files have other data.
    implied = {"image_size"} if "size" in changed else set[str]()
    implied |= {"data"} if "volumes" in changed else set()
    found = []
    for key in changed:
        if key == "volumes":
            found += _of_names(known[key], wanted[key])
        elif key == "data" and key not in implied:
            found += _of_digests(known[key], wanted[key], wanted["volumes"])
        elif key not in implied:
            found.append(_phrase(option(key), _shown(key, known[key]), _shown(key, wanted[key])))
    return found


def option(key: str) -> str:
    """The option of `medddpm train` that sets what run.json calls `key`; the key itself where there is none."""
    return key if key in NO_OPTION else OPTIONS.get(key, f"--{key.replace('_', '-')}")


def _phrase(name: str, was: object, now: object) -> str:
    return f"{name} {was} (not {now})"


def _shown(key: str, value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "as published"
    if isinstance(value, list):
        return " ".join(map(str, value[:1] if key == "size" and len(set(value)) == 1 else value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if key == "setting" else str(value)


def _of_names(was: Sequence[str], now: Sequence[str]) -> list[str]:
    begun, given = contrast_and_seed(was), contrast_and_seed(now)
    if not begun or not given or begun[1] != given[1]:
        return ["other files"]
    kinds = (("--phantom", len(was), len(now)), ("--contrast", begun[0], given[0]))
    return [_phrase(*kind) for kind in kinds if kind[1] != kind[2]]


def _of_digests(was: Sequence[str], now: Sequence[str], names: Sequence[str]) -> list[str]:
    """`VolumeFolder.digests` begin with the scaling."""
    (begun, *_), (given, *_) = was[0].split(" ", 1), now[0].split(" ", 1)
    scaled = begun != given and {begun, given} <= set(get_args(Scaling))
    pairs = zip(names, was, now, strict=False)
    other = next((name for name, a, b in pairs if a.removeprefix(begun) != b.removeprefix(given)), None)
    if other is None and not scaled:
        other = next(iter(names), "its volumes")
    return [
        *([_phrase("--scaling", begun, given)] if scaled else []),
        *([f"other data in {other}"] if other is not None else []),
    ]
