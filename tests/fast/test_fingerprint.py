"""The short key of a network sees whatever of it is changed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from medddpm.fast.replay.fingerprint import Fingerprint


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.wave = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.scales, self.settings, self.offset = [1.0, 2.0], {"power": 2, "root": 3}, 0.0


CHANGES: dict[str, Callable[[Held], Any]] = {
    "an attribute": lambda network: setattr(network, "power", 3),
    "a part's attribute": lambda network: setattr(network.norm, "eps", 1e-3),
    "the mode": lambda network: network.eval(),
    "a list": lambda network: network.scales.append(3.0),
    "a dict": lambda network: network.settings.update(power=3),
    "a dict's order": lambda network: network.settings.update(power=network.settings.pop("power")),
    "another parameter": lambda network: setattr(network.first, "weight", nn.Parameter(network.first.weight.data)),
    "a parameter's memory": lambda network: setattr(network.first.weight, "data", network.first.weight.data.clone()),
    "a parameter's order": lambda network: setattr(network.first.weight, "data", network.first.weight.data.t()),
    "a parameter's dtype": lambda network: setattr(
        network.first.weight, "data", network.first.weight.data.view(torch.int32)
    ),
    "a frozen parameter": lambda network: network.first.weight.requires_grad_(False),
    "a parameter less": lambda network: network.first.register_parameter("bias", None),
    "a first buffer": lambda network: network.first.register_buffer("mask", torch.ones(4)),
    "another buffer": lambda network: setattr(network.norm, "running_mean", torch.zeros(4)),
    "parts in another order": lambda network: network._modules.update(first=network._modules.pop("first")),
    "a conjugate": lambda network: setattr(network.wave, "data", network.wave.data.conj()),
    "a part more": lambda network: setattr(network.first, "after", nn.Identity()),
    "another part": lambda network: setattr(network, "first", nn.Linear(4, 4)),
    "a hook": lambda network: network.first.register_forward_hook(lambda *_: None),
    "a hook written into its table": lambda network: network.first._forward_hooks.update({7: print}),
}
EQUAL: dict[str, tuple[Callable[[Held], Any], Callable[[Held], Any]]] = {
    "a dict": (
        lambda network: setattr(network, "settings", {"power": 2, "root": 3}),
        lambda network: network.settings.update(power=3),
    ),
    "a list": (lambda network: setattr(network, "scales", [1.0, 2.0]), lambda network: network.scales.append(3.0)),
    "a table of hooks": (
        lambda network: setattr(network.first, "_forward_hooks", OrderedDict()),
        lambda network: network.first.register_forward_hook(lambda *_: None),
    ),
    "the table of parts": (
        lambda network: setattr(network, "_modules", dict(network._modules)),
        lambda network: setattr(network, "first", nn.Linear(4, 4)),
    ),
    "a table of parameters": (
        lambda network: setattr(network.first, "_parameters", OrderedDict(network.first._parameters)),
        lambda network: network.first._parameters.move_to_end("weight"),  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("asked", [0, 1, 3])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_whenever_it_comes(change: Callable[[Held], Any], asked: int) -> None:
    network = Held()
    network.first.weight.requires_grad_(change is not CHANGES["a parameter's dtype"])  # integers have no gradient
    fingerprint = Fingerprint(network)
    assert all(fingerprint.holds() for _ in range(asked))
    change(network)
    assert not fingerprint.holds()
    assert not fingerprint.holds()


@pytest.mark.parametrize(("renew", "change"), EQUAL.values(), ids=EQUAL)
def test_a_change_within_what_is_merely_equal_is_seen(
    renew: Callable[[Held], Any], change: Callable[[Held], Any]
) -> None:
    network = Held()
    fingerprint = Fingerprint(network)
    renew(network)
    assert all(fingerprint.holds() for _ in range(3))
    change(network)
    assert not fingerprint.holds()


def test_tables_of_other_kinds_are_read_each_time() -> None:
    network = Held()
    network.first._parameters = OrderedDict(network.first._parameters)
    fingerprint = Fingerprint(network)
    assert fingerprint.holds()
    network.first._parameters.move_to_end("weight")  # type: ignore[attr-defined]
    assert not fingerprint.holds()


def test_a_parameter_that_was_replaced_is_let_go() -> None:
    network = Held()
    fingerprint, old = Fingerprint(network), weakref.ref(network.first.weight)
    assert fingerprint.holds()
    network.first.weight = nn.Parameter(torch.ones(4, 4))
    assert old() is None
