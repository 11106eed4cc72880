"""MONAI's trainer, a bundle and MAISI's networks with `accelerate`: the same losses and outputs as without it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import recordings
from helpers.networks import alive, distance, dynamic
from helpers.pages import page_block
from monai.apps.generation.maisi.networks.autoencoderkl_maisi import AutoencoderKlMaisi
from monai.apps.generation.maisi.networks.diffusion_model_unet_maisi import DiffusionModelUNetMaisi
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.inferers import sliding_window_inference
from torch import Tensor, nn

from medddpm.fast.patch import accelerate, restore

IGNITE = "ignite is not installed: pip install pytorch-ignite"


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "image": torch.randn(1, 1, 8, 8, 8, generator=generator),
            "label": torch.randint(2, (1, 1, 8, 8, 8), generator=generator),
        }
        for _ in range(3)
    ]


BUNDLE: dict[str, Any] = {
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
        "train_data_loader": "@data",
        "network": "@network",
        "optimizer": "@optimizer",
        "loss_function": "@loss",
    },
    "run": ["$@trainer.run()"],
}


def trained(folder: Path, **changes: Any) -> ConfigParser:
    """A bundle's training after its end; `changes` are to the config's file."""
    path = folder / "train.json"
    path.write_text(json.dumps({"imports": ["$import torch"], **BUNDLE, **changes}))
    parser = ConfigParser()
    parser.read_config(path)
    parser["data"] = batches()
    torch.manual_seed(0)
    parser.get_parsed_content("run")
    return parser


def last_loss(parser: ConfigParser) -> float:
    return parser.get_parsed_content("trainer").state.output[0]["loss"]


def test_a_bundle_accelerates_its_network_by_its_config(tmp_path: Path) -> None:
    pytest.importorskip("ignite", reason=IGNITE)
    plain, fast = trained(tmp_path), trained(tmp_path, **json.loads(f"{{{page_block('site/clients.md', 'json')}}}"))
    network = fast.get_parsed_content("network")
    assert not hasattr(plain.get_parsed_content("network"), "acceleration")
    assert network.acceleration.replaced
    assert last_loss(fast) == pytest.approx(last_loss(plain), rel=1e-4)
    for name, value in plain.get_parsed_content("network").state_dict().items():
        assert distance(network.state_dict()[name], value) < 1e-3, name


def test_a_supervised_trainer_takes_an_accelerated_network() -> None:
    pytest.importorskip("ignite", reason=IGNITE)
    torch.manual_seed(0)
    names = {"loader": batches()}
    exec(page_block("site/clients.md", "python", "SupervisedTrainer"), names)
    network, state = names["network"], names["trainer"].optimizer.state
    assert network.acceleration.replaced
    for name, parameter in network.named_parameters():
        assert state[parameter]["exp_avg"].abs().sum() > 0, name


def test_an_optimizer_from_before_trains_the_accelerated_network() -> None:
    network = dynamic()
    before = list(network.parameters())
    assert [id(parameter) for parameter in accelerate(network, report=None).parameters()] == list(map(id, before))


def diffusion() -> nn.Module:
    return DiffusionModelUNetMaisi(
        spatial_dims=3, in_channels=4, out_channels=4, num_res_blocks=1, num_channels=(16, 16, 32),
        attention_levels=(False, False, True), norm_num_groups=8, num_head_channels=8, num_class_embeds=8,
        include_spacing_input=True, include_top_region_index_input=True, include_bottom_region_index_input=True,
        resblock_updown=True, include_fc=True,
    )  # fmt: skip


def autoencoder() -> nn.Module:
    return AutoencoderKlMaisi(
        spatial_dims=3, in_channels=1, out_channels=1, num_res_blocks=(1, 1), num_channels=(8, 16),
        attention_levels=(False, False), latent_channels=4, norm_num_groups=4, num_splits=2, dim_split=1,
    )  # fmt: skip


def test_maisis_diffusion_network_computes_the_same() -> None:
    torch.manual_seed(0)
    network = alive(diffusion())
    index, spacing = torch.rand(2, 4), torch.rand(2, 3)
    given = {
        "x": torch.randn(2, 4, 8, 8, 8),
        "timesteps": torch.tensor([3, 700]),
        "class_labels": torch.tensor([1, 2]),
        "top_region_index_tensor": index,
        "bottom_region_index_tensor": index,
        "spacing_tensor": spacing,
    }
    plain = network(**given)
    gradients = torch.autograd.grad(plain.square().sum(), list(network.parameters()))
    accelerate(network, report=None)
    assert {what for _, _, what in network.acceleration.replaced} >= {"convolution", "norm"}
    fast = network(**given)
    assert distance(fast, plain) < 1e-4
    found = torch.autograd.grad(fast.square().sum(), list(network.parameters()))
    # A bias before a group norm of one channel a group has the gradient zero, of which rounding leaves something.
    least = 1e-3 * max(gradient.norm() for gradient in gradients)
    assert all((a - b).norm() <= 1e-3 * max(b.norm(), least) for a, b in zip(found, gradients, strict=True))


def test_maisis_autoencoder_computes_the_same_in_whole_and_in_parts() -> None:
    torch.manual_seed(0)
    network = alive(autoencoder()).eval()
    image, latent = torch.randn(1, 1, 16, 16, 16), torch.randn(1, 4, 8, 8, 8)

    def results() -> list[Tensor]:
        with torch.no_grad():
            _, *moments = network(image)  # what is drawn from these is as channels-last in memory as they are
            return [*moments, *network.encode(image), network.decode_stage_2_outputs(latent)]

    plain = results()
    accelerate(network, report=None)
    assert network.acceleration.replaced
    assert max(distance(a, b) for a, b in zip(results(), plain, strict=True)) < 1e-4
    restore(network)
    assert all(torch.equal(a, b) for a, b in zip(results(), plain, strict=True))


def test_sliding_windows_give_the_volume_that_they_give_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed, too; the last batch of windows is smaller than those before."""
    recordings.stand_in(monkeypatch)
    torch.manual_seed(0)
    plain = dynamic().eval()
    fast = accelerate(copy.deepcopy(plain), report=None)
    x = MetaTensor(torch.randn(1, 1, 16, 16, 16), meta={"subject": 7})
    with torch.no_grad():
        found, expected = (sliding_window_inference(x, (8, 8, 8), 5, each, overlap=0.5) for each in (fast, plain))
    assert type(found) is type(expected) is MetaTensor
    assert found.meta == expected.meta
    assert distance(found.as_tensor(), expected.as_tensor()) < 1e-5
    assert fast.acceleration.graphs.replays
