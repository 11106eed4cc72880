"""The check of MONAI's own network tests, on a checkout of three tests."""

from __future__ import annotations

from pathlib import Path

import monai_networks
import pytest

TESTS = """
import unittest
import torch
from monai.networks.nets import BasicUNet, Discriminator

class TestNetworks(unittest.TestCase):
    def test_runs(self):
        assert Discriminator((1, 8, 8, 8), (4,), (2,))(torch.ones(1, 1, 8, 8, 8)).shape == (1, 1)

    def test_fails_anyway(self):
        raise AssertionError

    def test_of_a_plain_forward(self):
        net = BasicUNet(spatial_dims=3)
        assert not any("forward" in vars(module) for module in net.modules())
"""


@pytest.mark.long
def test_what_fails_only_when_accelerated_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins that take seconds to load and do nothing here
    folder = tmp_path / "tests" / "networks" / "nets"
    folder.mkdir(parents=True)
    (folder / "test_networks.py").write_text(TESTS)
    assert monai_networks.main(tmp_path) == 1
    counts, *names = capsys.readouterr().out.splitlines()
    assert counts == "3 tests; 1 fail without the fast path; 1 fail only on it"
    assert [name.rpartition(".")[2] for name in names] == ["test_of_a_plain_forward"]
    assert monai_networks.main(tmp_path / "elsewhere") == 2
