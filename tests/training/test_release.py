"""From a run's folder to a model that travels: three files that agree, and a recommendation that is followed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from medddpm.checkpoints.files import read_checkpoint
from medddpm.cli.main import main
from medddpm.data.phantom import Phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.sampling import recommended, sample_to_files
from medddpm.training.config import TrainConfig
from medddpm.training.release import RECORDED, card_of, release_run, training_record
from medddpm.training.run import train

CONFIG = TrainConfig(
    image_size=64, model_channels=32, channel_mult=(1, 1, 2), accumulation=1, sample_every=0, ema_start=1
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three steps on two phantoms."""
    out = tmp_path_factory.mktemp("with space") / "run"
    train(CONFIG, Phantom(2, (16, 16, 16), "flair"), out, 3, device="cpu", progress=False)
    return out


@pytest.fixture(scope="module")
def released(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("released") / "head-16.safetensors"
    files = release_run(run, out, sampler="ddim", steps=3, held_out=4, about="Three steps.", device="cpu")
    assert [file.name for file in files] == ["head-16.safetensors", "head-16.csv", "head-16.md"]
    return out


def test_the_file_says_what_it_was_trained_on_and_how_to_sample(released: Path) -> None:
    content = read_checkpoint(released)
    training = content["training"]
    assert training["phantom"] == {"contrast": "flair", "seed": 0, "count": 2}
    assert training["learning_rate"] == CONFIG.learning_rate
    assert "sample_every" not in training, "no matter of what was computed"
    assert recommended(content) == content["sampling"] == {"sampler": "ddim", "steps": 3}
    assert recommended({}) == {"sampler": "ddpm", "steps": None}
    assert content["about"] == "Three steps."


def test_it_is_measured_on_subjects_it_never_saw(released: Path) -> None:
    found = read_checkpoint(released)["evaluation"]
    assert (found["seed"], found["count"]) == (1, 4)
    rows = {(row["metric"], row["tissue"]): row for row in found["rows"]}
    brain = rows["dice_reference", "brain"]
    assert brain["low"] <= brain["value"] <= brain["high"] <= 1
    assert rows["dice", "brain"]["value"] < brain["value"], "after three steps"


def test_the_card_tells_the_numbers_of_the_file_and_the_record(released: Path, run: Path) -> None:
    card, record = released.with_suffix(".md").read_text(), pd.read_csv(released.with_suffix(".csv"))
    assert card == card_of(released)
    assert record["step"].tolist() == [1, 2, 3]
    assert f"{released.stat().st_size} bytes in bfloat16" in card
    state = read_checkpoint(released)["ema"]
    parameters = sum(weight.numel() for name, weight in state.items() if name.startswith("denoise_fn."))
    assert f"{parameters} parameters" in card
    assert "| steps | 3 |" in card
    assert "ddim with 3 steps" in card
    assert f"to\n{record['loss'].iloc[-1]:.4f} (over the last" in card
    assert "16×16×16" in card
    assert "2 synthetic subjects (`medddpm.data.phantom`, flair, seed 0)" in card
    headings = re.findall(r"^## (.+)$", card, re.MULTILINE)
    wanted = ["Model Details", "Uses", "Bias, Risks, and Limitations", "How to Get Started with the Model"]
    assert headings == [*wanted, "Training Details", "Evaluation", "Technical Specifications", "Citation"]
    assert "nan" not in card
    assert "None" not in card


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [
        ({}, ("ddim", 3)),
        ({"steps": 2}, ("ddim", 2)),
        ({"sampler": "dpm++", "steps": 3}, ("dpm++", 3)),
        ({"sampler": "dpm++"}, ("dpm++", None)),
    ],
)
def test_what_the_file_recommends_is_what_it_is_drawn_with(
    released: Path, tmp_path: Path, head_folder: Path, monkeypatch: pytest.MonkeyPatch, asked, drawn
) -> None:
    seen = []

    def sample(self: GaussianDiffusion, mask: torch.Tensor, steps: int | None, sampler: str, **_: object):
        seen.append((sampler, steps))
        return torch.zeros_like(mask[:, :1])

    monkeypatch.setattr(GaussianDiffusion, "sample", sample)
    mask = min((head_folder / "mask").iterdir())
    sample_to_files(released, mask, tmp_path / "volume.nii", device="cpu", **asked)
    assert seen == [drawn]


def test_a_long_record_is_thinned_to_means() -> None:
    losses = np.random.default_rng(0).random(2 * RECORDED + 7).astype(np.float32)
    table = training_record(losses)
    assert len(table) <= RECORDED
    assert table["step"].iloc[-1] == len(losses)
    assert table["step"].is_monotonic_increasing
    spans = np.diff(table["step"], prepend=0)
    assert set(spans[:-1]) == {spans[0]}
    assert (table["loss"] * spans).sum() == pytest.approx(losses.sum(), rel=1e-5)


def test_other_people_s_volumes_are_not_measured_and_not_named(
    head_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(CONFIG, VolumeFolder(head_folder, (16, 16, 16)), run, 1, device="cpu", progress=False)
    assert main(["release", str(run), "--out", str(tmp_path / "mine.safetensors"), "-q", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "mine.md")
    content = read_checkpoint(tmp_path / "mine.safetensors")
    assert "evaluation" not in content
    assert content["training"]["volumes"] == 3
    card = (tmp_path / "mine.md").read_text()
    assert "3 volumes of the trainer's own" in card
    assert "phantom_0000" not in card


@pytest.mark.parametrize("arguments", [["nowhere", "--out", "m.safetensors"], [".", "--out", "m.safetensors"]])
def test_a_folder_that_is_no_run_is_said(arguments: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["release", *arguments]) == 1
    assert "no run's folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_to_its_widths(run: Path) -> None:
    volumes = Phantom(2, (16, 16, 16), "flair")
    assert len(train(CONFIG, volumes, run, 3, device="cpu", progress=False)) == 3
    other = TrainConfig(**{**vars(CONFIG), "channel_mult": (1, 2, 2)})
    with pytest.raises(BadInput, match=r"channel_mult \[1, 1, 2\], not \[1, 2, 2\]"):
        train(other, volumes, run, 3, device="cpu", progress=False)
