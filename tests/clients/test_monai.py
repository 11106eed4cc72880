"""MONAI's trainer, a bundle and MAISI's networks with `accelerate`: the same losses and outputs as without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.networks import distance
from monai.bundle import ConfigParser
from torch import Tensor, nn

needs_ignite = pytest.mark.skipif(
    not pytest.importorskip("monai.utils").optional_import("ignite.engine")[1],
    reason="ignite is not installed: pip install pytorch-ignite",
)


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "image": torch.randn(1, 1, 8, 8, 8, generator=generator),
            "label": torch.randint(2, (1, 1, 8, 8, 8), generator=generator),
        }
        for _ in range(3)
    ]


CONFIG: dict[str, Any] = {
    "imports": ["$import torch", "$from helpers.monai_data import batches"],
    "device": "$torch.device('cpu')",
    "network_def": {
        "_target_": "DynUNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [8, 16, 32],
    },
    "network": "$@network_def.to(@device)",
    "loss": {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True},
    "optimizer": {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.01},
    "trainer": {
        "_target_": "SupervisedTrainer",
        "device": "@device",
        "max_epochs": 2,
        "train_data_loader": "$@data",
        "network": "@network",
        "optimizer": "@optimizer",
        "loss_function": "@loss",
    },
    "run": ["$@trainer.run()"],
}
ACCELERATED = {"network": {"_target_": "medddpm.accelerate", "model": "$@network_def.to(@device)"}}


def trained(config: dict[str, Any], folder: Path) -> tuple[nn.Module, float]:
    """Runs a bundle's training; returns its network and its last loss."""
    path = folder / "train.json"
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "imports"}))
    parser = ConfigParser()
    parser.read_config(path)
    parser["data"] = batches()
    torch.manual_seed(0)
    network = parser.get_parsed_content("network")
    parser.get_parsed_content("run")
    return network, parser.get_parsed_content("trainer").state.output[0]["loss"]


@needs_ignite
def test_a_bundle_accelerates_its_network_by_its_config(tmp_path: Path) -> None:
    plain, loss = trained(CONFIG, tmp_path)
    fast, fast_loss = trained(CONFIG | ACCELERATED, tmp_path)
    assert not hasattr(plain, "acceleration")
    assert fast.acceleration.replaced
    assert fast_loss == pytest.approx(loss, rel=1e-4)
    for name, value in plain.state_dict().items():
        assert distance(fast.state_dict()[name], value) < 1e-3, name
