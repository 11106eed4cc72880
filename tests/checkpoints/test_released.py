"""A released model: smaller, the same function, and nothing in it that runs; any other file is refused in one line."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from medddpm.checkpoints.files import load_checkpoint, read_checkpoint, save_checkpoint
from medddpm.checkpoints.model_card import MASK_LABELS
from medddpm.checkpoints.released import from_released, to_released, write
from medddpm.data.layouts import LAYOUTS
from medddpm.data.phantom import Phantom
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from medddpm.sampling import sample_to_files
from medddpm.training.config import TrainConfig
from medddpm.training.run import train
from medddpm.training.trainer import Trainer
from medddpm.unet import UNet3D


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of two steps."""
    out = tmp_path_factory.mktemp("with space") / "run"
    config = TrainConfig(
        image_size=16,
        model_channels=32,
        channel_mult=(1, 1, 2),
        accumulation=1,
        sample_every=0,
        ema_start=1,
        learning_rate=1e-2,
    )
    train(config, Phantom(1, (16, 16, 16)), out, 2, device="cpu", progress=False)
    return max((out / "checkpoints").iterdir())


def release(content: Mapping[str, Any], path: Path, about: str = "") -> Path:
    """As `medddpm.training.release` writes the weights."""
    with replacing(path) as temporary:
        write(content, temporary, about=about)
    return path


def outputs(diffusion: GaussianDiffusion) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 16, 16, 16, generator=generator)
    with torch.no_grad():
        return diffusion.denoise_fn(x, torch.tensor([100]))


def test_it_is_the_average_in_half_the_bytes(checkpoint: Path, tmp_path: Path) -> None:
    small = release(read_checkpoint(checkpoint), tmp_path / "small.safetensors", about="two steps")
    original = load_checkpoint(checkpoint)
    diffusion = load_checkpoint(small)
    for released, parameter in zip(diffusion.parameters(), original.parameters(), strict=True):
        assert torch.equal(released, parameter.bfloat16().float())
    assert diffusion.timesteps == original.timesteps
    apart = (outputs(diffusion) - outputs(original)).norm() / outputs(original).norm()
    assert 0 < apart < 2e-2
    parameters = sum(p.numel() for p in original.parameters())
    assert 2 * parameters < small.stat().st_size < 2 * parameters + 64_000


def test_any_reader_sees_what_it_is(checkpoint: Path, tmp_path: Path) -> None:
    path = release(read_checkpoint(checkpoint), tmp_path / "model.safetensors", about="two steps on a phantom")
    with safe_open(path, framework="pt") as file:
        said, names = file.metadata(), set(file.keys())
    unet = UNet3D(**json.loads(said["config"]))
    assert names == set(unet.state_dict())
    assert said["about"] == "two steps on a phantom"
    assert json.loads(said["size"]) == [16, 16, 16]
    assert json.loads(said["step"]) == 2


def test_a_volume_is_drawn_from_it(checkpoint: Path, tmp_path: Path, head_folder: Path) -> None:
    content = read_checkpoint(checkpoint)
    path = release(content, tmp_path / "model.safetensors")
    rounded = from_released(to_released(content["ema"]), len(content["ema"]["betas"]))
    save_checkpoint(tmp_path / "rounded.pt", {**content, "ema": rounded})
    mask = min((head_folder / "mask").iterdir())
    samples = [
        sample_to_files(source, mask, tmp_path / name, sampler="ddim", steps=2, device="cpu")[0].read_bytes()
        for source, name in ((tmp_path / "rounded.pt", "a.nii"), (path, "b.nii"))
    ]
    assert samples[0] == samples[1]


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "medddpm 1", "timesteps": "250"}])
def test_another_s_file_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(BadInput, match="metadata"):
        load_checkpoint(tmp_path / "model.safetensors")


def test_a_damaged_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = release(read_checkpoint(checkpoint), tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadInput, match="damaged"):
        load_checkpoint(path)


def test_a_full_disk_leaves_what_was_there(checkpoint: Path, tmp_path: Path) -> None:
    path = release(read_checkpoint(checkpoint), tmp_path / "model.safetensors")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(BadInput):
            release(read_checkpoint(checkpoint), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_weights_of_another_network_are_named(checkpoint: Path, tmp_path: Path) -> None:
    content = read_checkpoint(checkpoint)
    content["config"] = {**content["config"], "num_res_blocks": 2}
    path = release(content, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="missing"):
        load_checkpoint(path)


def test_training_does_not_go_on_from_it(checkpoint: Path, tmp_path: Path) -> None:
    path = release(read_checkpoint(checkpoint), tmp_path / "model.safetensors")
    config = TrainConfig(image_size=16, model_channels=32, channel_mult=(1, 1, 2))
    trainer = Trainer(config, Phantom(1, (16, 16, 16)), torch.device("cpu"))
    with pytest.raises(BadInput):
        trainer.load(read_checkpoint(path), path)


def test_the_card_knows_every_layout_s_labels() -> None:
    assert set(MASK_LABELS) == {layout.name for layout in LAYOUTS}
