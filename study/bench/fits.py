"""Checks a network's sides and widths by its shapes alone, before minutes are spent on measuring."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch

from medddpm.errors import BadInput
from study.bench.networks import NETWORKS, Problem, planned

SIDE, WIDTH, PUBLISHED = 8, 32, 64
TRIED = 16  # multiples of `SIDE` or `WIDTH` to either side of the number given


def check_fits(places: Iterable[tuple[str, int, int]]) -> None:
    """Checks that each network takes volumes of its side at its base width.

    A network whose package is missing is passed over; its process will report it.

    Args:
        places: names out of `NETWORKS`, the volumes' side in voxels and the base width.

    Raises:
        BadInput: one does not; names the option and the nearest numbers that all of the networks take.
    """
    every = list(dict.fromkeys(places))
    refused = next((place for place in every if not fits(*place)), None)
    if refused is None:
        return
    name, side, width = refused
    names = [name, *(candidate for candidate, its_side, _ in every if its_side == side and candidate != name)]
    if not fits(name, side, PUBLISHED):
        taken = _nearest(side, SIDE, lambda candidate: all(fits(network, candidate, PUBLISHED) for network in names))
        raise BadInput("--size", f"{name} takes no volume of side {side}", f"give {taken}")
    taken = _nearest(width, WIDTH, lambda candidate: all(fits(network, side, candidate) for network in names))
    raise BadInput("--channels", f"{name} takes no base width of {width}", f"give {taken}")


def fits(name: str, side: int, width: int) -> bool:
    """Returns whether a network takes volumes of that side at that base width; true if its package is missing."""
    network, device = NETWORKS[name], torch.device("meta")
    try:
        problem = Problem(network, side, 1, device)
        with torch.no_grad():
            problem.loss(planned(network, side, width), *problem.inputs)
    except BadInput:
        return True
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):  # each in its own way
        return False
    return True


def _nearest(number: int, step: int, taken: Callable[[int], bool]) -> str:
    """Returns the nearest multiples of `step` below and above that are taken, in words."""
    below = range((number - 1) // step * step, 0, -step)
    above = itertools.count((number // step + 1) * step, step)
    nearest = [next(filter(taken, itertools.islice(multiples, TRIED)), None) for multiples in (below, above)]
    return " or ".join(str(number) for number in nearest if number is not None) or "another"
