"""A network that a user has changed somewhere is, accelerated, the changed network: some changes of some networks.

`tests/changed_networks.py` tries all.
"""

from __future__ import annotations

import changed_networks
import pytest
from helpers.changes import CHANGES, Case, faults, prepared
from helpers.more_networks import HEAVY
from helpers.networks import NETWORKS, block, volume
from torch import nn

from medddpm.fast import forward


@pytest.mark.parametrize(
    ("name", "some"),
    [
        *((name, 3) for name in ("UNet3D", *NETWORKS)),
        *(pytest.param(name, 12, marks=pytest.mark.long) for name in changed_networks.NAMES if name not in HEAVY),
    ],
)
def test_a_network_with_one_module_changed(name: str, some: int) -> None:
    found = {str(case): fault for case, fault in faults(name, some)}
    assert len(found) == some
    assert not {case: fault for case, fault in found.items() if fault}


def test_every_change_can_be_made_somewhere() -> None:
    network, given = prepared("UNet, plain")
    paths = [path for path, _ in network.named_modules() if path]
    for change in CHANGES:
        assert any(Case("UNet", path, change, True).fault(network, given) == "" for path in paths), change.__name__


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of stand-ins that see no hooks."""
    monkeypatch.setattr(forward, "hooked", lambda module: False)
    fault = Case("block", "0.1", CHANGES[0], False).fault(nn.Sequential(block()), (volume(1, 3, 4, 4, 4),))
    assert fault is not None
    assert fault.endswith("away")
    assert changed_networks.main("UNet4D") == 2
    assert "no network UNet4D; there are UNet3D, " in capsys.readouterr().out
