"""Held-out volumes are not trained on; their loss and a sample are in the log, and the table of losses has all."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from medddpm.cli.main import main
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadArgument, BadInput
from medddpm.training.config import TrainConfig
from medddpm.training.holdout import TIMES, held_out_loss, parted
from medddpm.training.release import training_of
from medddpm.training.reports.loss_table import LossTable
from medddpm.training.reports.progress import Report
from medddpm.training.run import train
from medddpm.training.trainer import Trainer

TINY = TrainConfig(
    image_size=8, model_channels=16, norm_groups=8, channel_mult=(1, 2), accumulation=1, save_every=2, sample_every=2,
    ema_start=3, ema_every=1, holdout=1,
)  # fmt: skip
COMMAND = ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--device", "cpu", "--quiet"]


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GaussianDiffusion, "sample", partialmethod(GaussianDiffusion.sample, steps=2, sampler="ddim"))


def rows(out: Path) -> list[tuple[int, str, float]]:
    header, *lines = (out / "losses.csv").read_text().splitlines()
    assert header == "step,part,loss"
    return [(int(step), part, float(loss)) for step, part, loss in (line.split(",") for line in lines)]


def trained(volumes: VolumeFolder, out: Path, steps: int, **changes: object) -> torch.Tensor:
    held_out, rest = volumes.part([0]), volumes.part([1, 2])
    config = replace(TINY, **changes)
    return train(config, rest, out, steps, held_out=held_out, device="cpu", progress=False)


def test_the_seed_chooses_the_same_volumes_each_time_and_more_of_them_hold_the_fewer() -> None:
    trained_on, held_out = parted(20, 5, 3)
    assert sorted([*trained_on, *held_out]) == list(range(20))
    assert trained_on == sorted(trained_on)
    assert parted(20, 5, 3) == (trained_on, held_out)
    assert parted(20, 5, 4) != (trained_on, held_out)
    assert set(held_out) < set(parted(20, 6, 3)[1])
    with pytest.raises(BadInput, match="--holdout: of 3 volumes, 3 cannot be held out; give at most 2"):
        parted(3, 3, 0)


def test_their_loss_is_that_of_the_averaged_weights_at_fixed_noise(volumes) -> None:
    trainer = Trainer(TINY, volumes, torch.device("cpu"))
    with torch.no_grad():
        trainer.unet.out[2].bias.fill_(0.5)
        trainer.ema.denoise_fn.out[2].bias.fill_(0.1)
    first = held_out_loss(trainer, volumes)
    torch.rand(1)
    assert held_out_loss(trainer, volumes) == first
    trainer.step = TINY.ema_start  # from there on the average is another network than the weights
    assert held_out_loss(trainer, volumes) < first
    # A network whose output is a constant c has E|ε - c|, whatever the timesteps: 0.798 + 0.1² · 0.399 for 0.1.
    assert held_out_loss(trainer, volumes) == pytest.approx(0.802, rel=0.02)


def test_timesteps_follow_the_density(volumes, monkeypatch) -> None:
    seen: list[int] = []
    loss = GaussianDiffusion.loss
    monkeypatch.setattr(GaussianDiffusion, "loss", lambda *a, t, **k: seen.append(t.item()) or loss(*a, t=t, **k))
    for density in ("uniform", "logit-normal"):
        held_out_loss(Trainer(replace(TINY, density=density), volumes, torch.device("cpu")), volumes.part([0]))
    uniform, normal = seen[:TIMES], seen[TIMES:]
    assert uniform == [15, 46, 78, 109, 140, 171, 203, 234]
    assert normal[0] > 30
    assert normal == sorted(normal)
    assert normal[-1] < 220


def test_the_table_and_the_log_have_both_losses_and_a_sample_for_the_first_mask(volumes, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = trained(volumes, tmp_path, 4)
    (two, part, mean), (_, held, value), (four, _, later), _ = rows(tmp_path)
    assert (two, part, held, four) == (2, "training", "held-out", 4)
    assert (mean, later) == (
        pytest.approx(losses[:2].mean().item(), rel=1e-4),
        pytest.approx(losses[2:].mean().item(), rel=1e-4),
    )
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert [event.step for event in log.Scalars("held_out_loss")] == [2, 4]
    assert log.Scalars("held_out_loss")[0].value == pytest.approx(value, rel=1e-4)
    assert [event.step for event in log.Images("sample")] == [2, 4]
    written = nibabel.load(tmp_path / "samples" / "step-0000002.nii.gz")
    np.testing.assert_array_equal(written.affine, volumes.reference(0).affine)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["volumes"] == volumes.names()[1:]
    assert (record["holdout"], record["held_out"]) == (1, volumes.names()[:1])
    assert "held_out" not in training_of(tmp_path), "a released model names no volumes"


def test_a_resumed_run_goes_on_with_the_table(volumes, tmp_path: Path) -> None:
    trained(volumes, tmp_path / "whole", 6, sample_every=1)
    trained(volumes, tmp_path / "cut", 4, sample_every=1)
    table = tmp_path / "cut" / "losses.csv"
    table.write_text(table.read_text() + "5,training,0.7\n5,held-out,0.7\n6,trai")  # of steps after the checkpoint
    trained(volumes, tmp_path / "cut", 6, sample_every=1)
    assert table.read_text() == (tmp_path / "whole" / "losses.csv").read_text()
    assert [step for step, _, _ in rows(tmp_path / "cut")] == [step for step in range(1, 7) for _ in range(2)]


def test_without_held_out_volumes_there_is_the_training_loss_at_each_checkpoint(volumes, tmp_path: Path) -> None:
    train(replace(TINY, holdout=0, sample_every=0), volumes, tmp_path, 3, device="cpu", progress=False)
    assert [(step, part) for step, part, _ in rows(tmp_path)] == [(2, "training"), (3, "training")]
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize("text", ["a,b\n1,2\n", None])
def test_a_table_that_cannot_be_written_costs_no_training(tmp_path: Path, caplog, text: str | None) -> None:
    if text:
        (tmp_path / "losses.csv").write_text(text)
    else:
        (tmp_path / "losses.csv").mkdir()
    with Report(tmp_path, "x", 0, 9, shown=False, logged=True) as report:
        report.losses([0.5], 1)
        report.interim([0.5], 1, 0.4)
    (line,) = caplog.messages
    assert line.endswith("the training goes on without this table")
    assert text is None or (tmp_path / "losses.csv").read_text() == text


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    table = LossTable(tmp_path, 0)
    table.add(5, "training", 1 / 3)
    assert (tmp_path / "losses.csv").read_text() == "step,part,loss\n5,training,0.333333\n"
    table.add(7, "lost", float("nan"))
    assert LossTable(tmp_path, 7).step == 5
    assert (tmp_path / "losses.csv").read_text() == "step,part,loss\n5,training,0.333333\n7,lost,nan\n"
    assert LossTable(tmp_path, 4).step == 0
    assert (tmp_path / "losses.csv").read_text() == "step,part,loss\n"


def test_another_number_is_another_run(tmp_path: Path, capsys) -> None:
    write_phantom(tmp_path / "data", 4, (8, 8, 8))
    words = ["train", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), *COMMAND, "--sample-every", "0"]
    assert main([*words, "--steps", "1", "--holdout", "1"]) == 0
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["volumes"]) == 3
    capsys.readouterr()
    assert main([*words, "--steps", "2", "--holdout", "2"]) == 1
    assert "its run was begun with --holdout 1 (not 2); resume" in capsys.readouterr().err
    assert main([*words, "--steps", "2"]) == 1
    assert "its run was begun with --holdout 1 (not 0); resume" in capsys.readouterr().err
    assert main([*words, "--steps", "2", "--holdout", "1", "--seed", "5"]) == 1
    assert "its run was begun with --seed 0 (not 5); resume" in capsys.readouterr().err
    assert main([*words, "--steps", "2", "--holdout", "1"]) == 0
    assert main([*words, "--steps", "2", "--holdout", "4"]) == 1
    assert "--holdout: of 4 volumes, 4 cannot be held out; give at most 3" in capsys.readouterr().err


def test_of_synthetic_subjects_further_ones_are_held_out(tmp_path: Path) -> None:
    words = ["train", "--phantom", "2", "--out", str(tmp_path), *COMMAND, "--sample-every", "1", "--steps", "1"]
    assert main([*words, "--holdout", "2"]) == 0
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["volumes"] == Phantom(2, (8, 8, 8)).names()
    assert record["held_out"] == Phantom(2, (8, 8, 8), seed=1).names()
    assert [part for _, part, _ in rows(tmp_path)] == ["training", "held-out"]


def test_held_out_volumes_are_as_many_as_said(volumes, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="held_out: there are 0 volumes, and the configuration's holdout is 1"):
        train(TINY, volumes, tmp_path, 1, device="cpu", progress=False)
