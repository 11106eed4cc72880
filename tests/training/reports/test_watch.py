"""A training that predicts nothing, or whose loss jumps, says so, and its last good checkpoint stays."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from medddpm.checkpoints.files import checkpoints_of
from medddpm.diffusion import GaussianDiffusion
from medddpm.training import trainer as trainer_module
from medddpm.training.config import TrainConfig
from medddpm.training.reports.progress import Report
from medddpm.training.reports.watch import EVERY, PATIENCE, WINDOW, Watch, loss_of_nothing
from medddpm.training.run import train
from medddpm.training.run_folder import save

NOTHING = math.sqrt(2 / math.pi)
WEIGHTS = {"a": torch.ones(2)}


def losses_about(level: float, count: int, seed: int = 0) -> list[float]:
    """Losses that differ as those of random timesteps do, by a factor of ten."""
    return (level * np.exp(np.random.default_rng(seed).normal(0, 0.6, count))).tolist()


def test_a_training_that_learns_is_left_alone() -> None:
    watch = Watch(NOTHING)
    falling = [loss for level in (0.8, 0.4, 0.2, 0.1, 0.05, 0.03, 0.024) for loss in losses_about(level, 300)]
    assert watch.read(falling) == []
    hopping = [loss for level in (0.08, 0.03) * 5 for loss in losses_about(level, 200)]
    assert watch.read([*hopping, 5.0, *losses_about(0.03, 300), *[0.9] * 20, *losses_about(0.03, 300)]) == []


@pytest.mark.parametrize("at_a_time", [1, 10, 77])
def test_a_network_that_predicts_nothing_is_noticed_once_and_its_return_too(at_a_time: int) -> None:
    watch, changes = Watch(NOTHING), []
    losses = [*losses_about(0.03, 1000), *[0.799] * 3000, *losses_about(0.03, 500)]
    for first in range(0, len(losses), at_a_time):
        changes += watch.read(losses[first : first + at_a_time])
    lost, back = changes
    assert 1000 + WINDOW // 2 <= lost.step <= 1000 + WINDOW
    assert f"predicts nothing: the loss stands at {lost.median:.3f} since about step" in lost.problem
    assert "predicting nothing gives 0.798" in lost.problem
    assert lost.before <= 1000
    assert (back.problem, watch.lost) == ("", None)
    assert 4000 + WINDOW // 2 <= back.step <= 4000 + WINDOW


def test_a_loss_that_jumps_tenfold_is_noticed_once() -> None:
    watch = Watch(NOTHING)
    (lost,) = watch.read([*losses_about(0.02, 500), *losses_about(0.4, 500)])
    assert lost.problem.startswith("its loss jumped: it stands at 0.")
    assert watch.lost == lost


def test_a_network_that_never_learned_is_said_after_a_while() -> None:
    watch = Watch(NOTHING)
    assert watch.read([0.799] * (PATIENCE - EVERY)) == []
    (lost,) = watch.read([0.799] * 1000)
    assert (lost.step, lost.before) == (PATIENCE, 0)
    assert "since" not in lost.problem


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, NOTHING), ({"loss": "l2"}, 1.0), ({"offset_noise": 1.0}, NOTHING * math.sqrt(2))],
)
def test_where_the_noise_is_predicted_nothing_is_known_beforehand(volumes, changes: dict, expected: float) -> None:
    assert loss_of_nothing(TrainConfig(**changes), volumes) == pytest.approx(expected, rel=0.02)


def test_of_a_flow_it_is_the_variance_of_noise_and_intensities(volumes) -> None:
    spread = torch.stack([volumes[index][0] for index in range(len(volumes))]).var(correction=0).item()
    flow = TrainConfig(prediction="flow", loss="l2")
    assert loss_of_nothing(flow, volumes) == pytest.approx(1 + spread, rel=0.02)
    assert 0 < loss_of_nothing(TrainConfig(prediction="velocity", weighting="min-snr"), volumes) < 2


def test_the_line_names_the_last_good_checkpoint_once(tmp_path: Path, caplog) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (800, 900, 1030):
        save(tmp_path, {"step": step, "model": WEIGHTS, "ema": WEIGHTS}, keep=9)
    with Report(tmp_path, "x", 0, 9999, shown=False, logged=True, watch=Watch(NOTHING)) as report:
        report.losses(losses_about(0.03, 1000), 1000)
        for step in range(1010, 2000, 10):
            report.losses([0.799] * 10, step)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}: its network predicts nothing: ")
    assert "the training goes on; step-0000900.pt is from before and is kept: start anew from it by --init" in line
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert len(log.Tensors("lost/text_summary")) == 1


def test_a_resumed_run_that_was_lost_is_said_so_again(tmp_path: Path, caplog) -> None:
    watch = Watch(NOTHING)
    watch.read([*losses_about(0.03, 300), *[0.8] * 300])
    with Report(tmp_path, "x", 600, 999, shown=False, logged=False, watch=watch) as report:
        report.losses([0.8] * 100, 700)
    (line,) = caplog.messages
    assert line.endswith("no checkpoint is from before")


@pytest.mark.parametrize(("keep", "every"), [(1, 300), (1, 100), (1, 40), (1, 7), (2, 40), (3, 300)])
def test_a_checkpoint_from_before_is_there_whenever_a_training_is_lost(tmp_path: Path, keep: int, every: int) -> None:
    span = max(every, WINDOW)
    lost_from = 3 * span + 37
    losses = [*losses_about(0.03, lost_from), *[NOTHING] * 3 * span]
    watch, most, lost = Watch(NOTHING), 0, 0
    for step, loss in enumerate(losses, start=1):
        changes = watch.read([loss])
        if step % every == 0:
            save(tmp_path, {"step": step, "model": WEIGHTS, "ema": WEIGHTS}, keep, watch.needed)
        there = [int(path.stem[5:]) for path in checkpoints_of(tmp_path)]
        most, lost = max(most, len(there)), lost + len(changes)
        if step >= 2 * span:
            assert [known for known in there if known <= min(step - WINDOW, lost_from)], f"at step {step}"
        for change in changes:
            assert [known for known in there if change.before - 2 * span <= known <= change.before]
    assert lost == 1
    assert most <= (max(keep, 2) + 1 if every >= WINDOW else keep + 2)


def test_before_a_network_has_learned_no_checkpoint_stays_for_long() -> None:
    watch = Watch(NOTHING)
    watch.read([NOTHING] * 300)
    assert watch.needed([100, 200, 300]) == set()


def test_what_a_training_needs_that_is_lost_or_not() -> None:
    watch = Watch(NOTHING)
    watch.read(losses_about(0.03, 300))
    assert watch.needed([50, 100, 150, 200, 201, 250, 300]) == {200, 201}
    assert watch.needed([300]) == {300}
    watch.read([NOTHING] * 100)
    assert watch.lost
    assert watch.needed([50, 240, 300, 350, 400]) == {240}
    watch.read(losses_about(0.03, 200))
    assert not watch.lost
    assert watch.needed([240, 500, 600]) == {500, 600}


def test_a_run_that_is_lost_keeps_its_last_good_checkpoint(volumes, tmp_path: Path, monkeypatch, caplog) -> None:
    """Losses are replaced from a step on, as if the network had broken there."""

    class Broken(GaussianDiffusion):
        calls = 0

        def loss(self, *tensors: torch.Tensor, **options: object) -> torch.Tensor:
            Broken.calls += 1
            level = 0.02 if Broken.calls <= 120 else 0.8
            return level + 0 * sum(weight.sum() for weight in self.parameters())

    monkeypatch.setattr(trainer_module, "diffusion_of", lambda _config, network: Broken(network))
    config = TrainConfig(
        image_size=8, model_channels=32, channel_mult=(1,), accumulation=1, save_every=50, sample_every=0, keep=1
    )
    train(config, volumes, tmp_path, 250, device="cpu", progress=False)
    assert [int(path.stem[5:]) for path in checkpoints_of(tmp_path)] == [50, 250]
    (line,) = [line for line in caplog.messages if "predicts nothing" in line]
    assert "step-0000050.pt is from before and is kept" in line
