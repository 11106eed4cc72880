"""Plans of trainings: what differs inside a pair, what comes first, what fits the time of a lease."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from medddpm.measure import harness
from medddpm.measure.machine import MACHINE
from medddpm.measure.store import Store
from medddpm.training.config import TrainConfig
from medddpm.training.network import check_network
from medddpm.training.recipes import fields_of
from study.brains import trainer, trainings
from study.brains.arms import Training
from study.brains.plans import PLANS, SLOWER, expected, models, pairs, progress, trainings_of
from study.brains.settings import AUTOCAST, CHOICES, computing
from study.brains.training_results import key_of
from study.cli.main import main
from study.cli.trainings import PLANS as NAMES
from study.records.packing import END, PART

RECORDS = Path(__file__).parents[3] / "figures" / "records" / "H200"
LEASE, QUARTER = 20 * 60, 15 * 60  # s


# settings


class Doubling(nn.Module):
    """A convolution whose result says in which precision it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 1, 1, bias=False)
        self.dtype: torch.dtype | None = None

    def forward(self, x: torch.Tensor, _t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        self.dtype = result.dtype
        return result


def test_autocast_computes_in_bf16_and_returns_float32_to_a_loss_and_a_sampler() -> None:
    network, x, t = Doubling(), torch.full((1, 1, 2, 2, 2), 1 / 3), torch.zeros(1)
    with torch.no_grad():
        exact = network(x, t)
        with computing(AUTOCAST, network):
            with computing(AUTOCAST, network):
                network(x, t)
            rounded = network(x, t)
            assert (network.dtype, rounded.dtype) == (torch.bfloat16, torch.float32)
        assert not torch.equal(rounded, exact)
        assert torch.equal(network(x, t), exact)
    assert "forward" not in vars(network), "as it was"


@pytest.mark.parametrize("setting", CHOICES)
def test_a_training_may_name_any_setting(setting: str) -> None:
    training = Training("ours", setting=setting)
    assert training.key == f"{Training('ours').key}_{setting.lower()}"
    assert Training.of(training.described()) == training
    assert training.config(setting, 9).setting == ("OPT1" if setting == AUTOCAST else setting)
    with pytest.raises(ValueError, match="no setting"):
        Training.of({**training.described(), "setting": "SLOW"})


def test_the_recipes_are_those_of_the_command() -> None:
    network = {"setting": "FAST", "image_size": 32, "model_channels": 32, "norm_groups": 8, "seed": 5}
    for recipe in ("ours", "published"):
        told = TrainConfig(**network, save_every=0, sample_every=0, **fields_of(recipe, {}, steps=70, most=lambda: 8))
        assert Training(recipe, 5, side=32, setting="FAST").config("FAST", 70) == told
    published = Training("published").config("BASE", 70)
    defaults = TrainConfig(norm_groups=8, model_channels=32, image_size=64, save_every=0, sample_every=0)
    assert published == defaults, "the published recipe is that of the defaults"


# plans


def test_the_command_names_the_plans_there_are() -> None:
    assert tuple(PLANS) == NAMES


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_has_no_training_twice_and_seeds_one_after_the_other(plan: str) -> None:
    trainings = trainings_of(plan, seeds=(3, 1))
    assert len({training.key for training in trainings}) == len(trainings)
    assert [seed for seed, _ in itertools.groupby(training.seed for training in trainings)] == [3, 1]
    assert trainings_of(plan, heads=5, held_out=2)[-1].drawn == 2, "masks there are"


@pytest.mark.parametrize("plan", PLANS)
def test_every_training_fits_a_lease_of_one_card(plan: str) -> None:
    for training in trainings_of(plan):
        assert expected(training) < LEASE, training.key
        check_network(training.config("BASE", 1), training.layout, training.size)


def test_every_training_of_a_pair_fits_a_spare_quarter_of_an_hour() -> None:
    for training in trainings_of("equivalence"):
        assert expected(training) < QUARTER, training.key


def test_a_pair_differs_in_its_setting_alone_and_makes_equal_steps() -> None:
    trainings = trainings_of("equivalence", seeds=(0, 1))
    every = pairs(trainings)
    for first, other in every:
        assert dataclasses.replace(first, setting=other.setting) == other
        assert first.steps > 0
        configs = [dataclasses.asdict(each.config(each.setting, each.steps)) for each in (first, other)]
        assert {name for name in configs[0] if configs[0][name] != configs[1][name]} == {"setting"}
    assert {training for pair in every for training in pair} == set(trainings), "none is alone"
    asked = {(first.arm, first.side, frozenset((first.setting, other.setting))) for first, other in every}
    assert asked >= {
        ("ours", 64, frozenset(("FAST", "OPT1"))), ("ours", 64, frozenset(("FAST", AUTOCAST))),
        ("ours", 32, frozenset(("BASE", "OPT1"))), ("ours", 32, frozenset(("BASE", "OPT2"))),
        ("ours", 32, frozenset(("BASE", "FAST"))), ("ours", 128, frozenset(("FAST", "OPT1"))),
        ("published", 32, frozenset(("BASE", "FAST"))),
    }  # fmt: skip


def test_progress_counts_pairs_of_which_both_are_there() -> None:
    trainings = trainings_of("equivalence", seeds=(0, 7))
    ours = [training for training in trainings if (training.arm, training.side) == ("ours", 64)]
    fast, autocast, opt1, later_fast, *_ = ours
    assert (fast.setting, autocast.setting, opt1.setting, later_fast.seed) == ("FAST", AUTOCAST, "OPT1", 7)
    waiting = [training for training in trainings if training not in (fast, opt1, later_fast)]
    first, second, *lines = progress(trainings, waiting).splitlines()
    assert first.startswith(f"3 of {len(trainings)} trainings have results; the others should take ")
    assert second == f"1 of {len(pairs(trainings))} pairs are complete"
    assert "  ours t1 64³ 4500 steps: FAST and OPT1: 1 of 2, seeds 0" in lines
    assert "  ours t1 64³ 4500 steps: FAST and autocast: 0 of 2" in lines
    assert progress(trainings_of("recipe"), []) == f"{len(trainings_of('recipe'))} of 52 trainings have results"


def test_weights_are_kept_where_they_fit_into_a_tar() -> None:
    for training in models():
        network = check_network(training.config("BASE", 1), training.layout, training.size)()
        numbers = sum(parameter.numel() for parameter in network.parameters())
        assert training.keeps_weights == (2 * numbers + END < PART), training.key


# time


def test_the_expected_time_rests_on_the_records() -> None:
    bench = pd.read_csv(RECORDS / "bench.csv")
    steps = bench[(bench["network"] == "med-ddpm") & (bench["measure"] == "step") & (bench["size"] == "128x128x128")]
    ms = steps.groupby("setting")["median_ms"].median()
    for setting, factor in SLOWER.items():
        assert ms[setting] / ms["FAST"] == pytest.approx(factor, rel=0.02), setting
    assert set(SLOWER) == set(CHOICES)


def test_a_training_that_makes_more_is_expected_to_take_longer() -> None:
    training = Training("ours", steps=1000, setting="OPT1")
    longer = ({"steps": 2000}, {"side": 128}, {"channels": 64}, {"setting": "BASE"}, {"drawn": 24}, {"held_out": 64})
    for change in longer:
        assert expected(dataclasses.replace(training, **change)) > expected(training), change
    a, b = (Training("plain", seconds=seconds) for seconds in (100.0, 960.0))
    assert expected(b) - expected(a) == pytest.approx(860.0)


def test_a_call_goes_on_to_the_shorter_trainings_that_still_fit(tmp_path: Path, capsys) -> None:
    some = trainings_of("equivalence", seeds=(0,))[2:5]
    short = some[2]
    assert expected(short) < 300 < min(map(expected, some[:2]))
    leave = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{}')"
    jobs = [
        dataclasses.replace(
            trainings._job(training, tmp_path, "cpu"),
            command=(sys.executable, "-c", leave, str(tmp_path / f"{key_of(training)}.json")),
            describe=lambda _: "made",
        )
        for training in some
    ]
    for training in some:
        (tmp_path / training.key).mkdir()
    assert harness.run(jobs, Store(tmp_path, dict.fromkeys(MACHINE)), device="cpu", seconds=300.0) == 0
    assert [path.parent.name for path in tmp_path.glob(f"*/{trainer.RESULT}")] == [short.key]
    assert capsys.readouterr().out.count("left for a later call") == 2


# the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plan", "models", "--arms", "plain"], "--arms: only with the plan recipe"),
        (["--plan", "equivalence", "--contrasts", "t2"], "--contrasts: only with the plan recipe"),
        (["--plan", "equivalence", "--seconds", "9"], "--seconds: only with the plans recipe and models"),
        (["--plan", "models", "--held-out", "4", "--drawn", "5"], "--drawn: 5 masks of 4 held-out heads"),
    ],
)
def test_what_a_plan_does_not_read_is_a_wrong_argument(words, said, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["trainings", "--out", str(tmp_path / "o"), *words])
    assert stopped.value.code == 2
    assert f"argument {said}" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_call_without_time_says_how_far_the_pairs_are(tmp_path: Path, capsys) -> None:
    command = ["trainings", "--plan", "equivalence", "--seeds", "0", "--minutes", "0", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "0 of 13 trainings have results" in said
    assert "0 of 9 pairs are complete" in said


@pytest.mark.long
def test_a_toy_of_a_pair_differs_by_rounding_alone(tmp_path: Path) -> None:
    kind = {"side": 16, "channels": 8, "heads": 2, "held_out": 1, "steps": 3, "drawn": 1, "samplings": (("ddim", 2),)}
    cpu = torch.device("cpu")
    base, autocast = (
        trainer.work(Training("one-volume", setting=setting, **kind), tmp_path / setting, tmp_path / "data", cpu)
        for setting in ("BASE", AUTOCAST)
    )
    assert [base["setting"], autocast["setting"]] == ["BASE", AUTOCAST]
    assert base["samples"][0]["peak_bytes"] is None
    exact, rounded = ([window["value"] for window in result["losses"]] for result in (base, autocast))
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=1e-3)
