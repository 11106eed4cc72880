"""What a recipe sets: the learning rate, the average, flips, predictions, and how many volumes make a step."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from helpers.runs import newest
from torch import Tensor

from medddpm.checkpoints.files import checkpoints_of, load_checkpoint, read_checkpoint, save_checkpoint
from medddpm.cli import options
from medddpm.cli.main import main
from medddpm.data.layouts import LAYOUTS
from medddpm.data.masks import one_hot
from medddpm.data.phantom import write_phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.errors import BadArgument, BadInput
from medddpm.schedules import DENSITIES, LOSSES, PREDICTIONS, WEIGHTINGS
from medddpm.training import recipes
from medddpm.training.augmentation import deformed, flipped
from medddpm.training.config import DECAYS, LARGEST_SHARE, TrainConfig
from medddpm.training.rates import average_decay, exponent, learning_rate
from medddpm.training.recipes import RECIPES, fields_of, most_volumes
from medddpm.training.run import train
from medddpm.training.trainer import Trainer

TINY = TrainConfig(
    image_size=8, model_channels=16, norm_groups=8, channel_mult=(1,), sample_every=0, accumulation=1, ema_every=2
)
OURS = replace(
    TINY, batch_size=2, learning_rate=1e-3, warm_up=2, decay="cosine", length=6, ema_share=0.1, flips=True, deform=0.02,
)  # fmt: skip
COMMAND = ["--size", "8", "--channels", "32", "--channel-mult", "1", "--sample-every", "0", "--device", "cpu", "-q"]


def trainer(volumes: VolumeFolder, **changes: object) -> Trainer:
    return Trainer(replace(TINY, **changes), volumes, torch.device("cpu"))


# The learning rate


def test_the_learning_rate_rises_and_falls_as_said() -> None:
    config = TrainConfig(learning_rate=1e-3, warm_up=4, decay="cosine", length=12)
    rates = [learning_rate(config, step) for step in range(12)]
    assert rates[:4] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3])
    assert rates[4:] == pytest.approx([1e-3 * math.cos(math.pi * part / 16) ** 2 for part in range(8)])
    assert learning_rate(config, 12) == pytest.approx(0, abs=1e-12)
    assert {learning_rate(TrainConfig(), step) for step in (0, 10**6)} == {1e-5}
    assert learning_rate(replace(config, decay="none", length=0), 10**6) == 1e-3


def test_each_step_has_its_learning_rate(volumes) -> None:
    """Adam's first step moves every weight by about the learning rate, whatever the gradient."""
    run, last = trainer(volumes, learning_rate=1e-3, warm_up=4), torch.tensor(0.0)
    bias, moved = run.unet.out[2].bias, []
    for _ in range(4):
        last = bias.detach().clone()
        run.train_step()
        moved.append(float((bias.detach() - last).abs()))
    assert moved[0] == pytest.approx(0.25e-3, rel=1e-3)
    assert [group["lr"] for group in run.optimizer.param_groups] == [1e-3]


def test_a_rate_that_a_graph_reads_is_set_in_place(volumes) -> None:
    one, other = trainer(volumes, learning_rate=1e-3, warm_up=4), trainer(volumes, learning_rate=1e-3, warm_up=4)
    (group,) = one.optimizer.param_groups
    group["lr"] = rate = torch.tensor(1.0)
    for _ in range(2):
        one.train_step()
        other.train_step()
    assert group["lr"] is rate
    assert float(rate) == pytest.approx(0.5e-3)
    torch.testing.assert_close(one.unet.out[2].bias, other.unet.out[2].bias, rtol=1e-4, atol=0)


def test_a_run_that_ends_by_its_length_makes_no_step_beyond(volumes, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="steps: the learning rate is 0 from step 6 on, and the run would make 7"):
        train(OURS, volumes, tmp_path, 7, device="cpu", progress=False)
    with pytest.raises(BadArgument, match="length: cosine decay ends nowhere; give the number of the run's steps"):
        train(replace(OURS, length=0), volumes, tmp_path, 1, device="cpu", progress=False)
    assert not list(tmp_path.iterdir())


# The average


def test_the_average_has_the_width_that_is_said() -> None:
    """Karras et al. 2024 name 16.97 and 6.94 for widths of 0.05 and 0.1; a profile's mean and deviation are summed."""
    assert exponent(0.05) == pytest.approx(16.97, abs=0.005)
    assert exponent(0.1) == pytest.approx(6.94, abs=0.005)
    for every, share in itertools.product((1, 10), (0.05, 0.2)):
        config, steps = TrainConfig(ema_share=share, ema_every=every), 4000
        weights = np.zeros(steps // every)  # of the weights at each update, in the average at the end
        for update in range(len(weights)):
            left = average_decay(config, every * (update + 1))
            weights *= left
            weights[update] = 1 - left
        time = (np.arange(len(weights)) + 0.5) / len(weights)
        assert weights.sum() == pytest.approx(1)
        mean = (weights * time).sum()
        assert math.sqrt((weights * (time - mean) ** 2).sum()) == pytest.approx(share, rel=0.01)


def test_the_average_by_share_starts_with_the_weights_and_follows(volumes) -> None:
    run = trainer(volumes, ema_share=0.2, learning_rate=1e-3)
    weight, seen = run.unet.out[2].bias, []
    for _ in range(4):
        run.train_step()
        seen.append((weight.item(), run.averaged.denoise_fn.out[2].bias.item()))
    assert seen[0][0] == seen[0][1]
    assert seen[1][0] == seen[1][1] == seen[2][1]
    left = 0.5 ** (exponent(0.2) + 1)
    assert seen[3][1] == pytest.approx(left * seen[1][0] + (1 - left) * seen[3][0], rel=1e-5)


@pytest.mark.parametrize("share", [0.2801, 1e-300, -0.1])
def test_a_share_that_no_average_has_is_refused(share: float, volumes) -> None:
    with pytest.raises(BadArgument, match="there is no average of width") as e:
        trainer(volumes, ema_share=share)
    assert str(e.value.option).startswith("--ema-share: ")
    assert exponent(LARGEST_SHARE) > 0


# Flips


def test_a_flip_mirrors_some_volumes_with_their_masks() -> None:
    image, mask = torch.rand(64, 1, 3, 4, 5), torch.rand(64, 2, 3, 4, 5)
    changed, masks = flipped(image, mask, -1, torch.Generator().manual_seed(0))
    mirrored = [i for i in range(64) if torch.equal(changed[i], image[i].flip(-1))]
    assert 20 < len(mirrored) < 44
    for i in range(64):
        whole = image[i].flip(-1), mask[i].flip(-1)
        expected = whole if i in mirrored else (image[i], mask[i])
        assert torch.equal(changed[i], expected[0])
        assert torch.equal(masks[i], expected[1])


def test_a_deformed_volume_and_its_mask_stay_together() -> None:
    """A ball, bright in the image and labelled in the mask, whose border moves by some voxels."""
    axes = torch.meshgrid(*3 * [torch.arange(24.0)], indexing="ij")
    far = sum((axis - 11.5) ** 2 for axis in axes)
    inside = (far < 60).float() * 2 - 1
    image, mask = inside.expand(8, 1, 24, 24, 24), inside.expand(8, 2, 24, 24, 24)
    bent, labels = deformed(image, mask, 0.05, torch.Generator().manual_seed(0))
    assert set(labels.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(labels[:, 0], labels[:, 1])
    edge = bent.abs() < 0.9  # where the image lies between voxels
    assert ((bent[:, 0] > 0) == (labels[:, 0] > 0))[~edge[:, 0]].all()
    moved = (labels[:, 0] != mask[:, 0]).flatten(1).sum(1)
    assert moved.min() > 50
    assert len(set(moved.tolist())) > 1
    assert (bent[:, 0, 0, 0] + 1).abs().max() < 1e-6, "outside is what the border was"


def test_a_deformation_is_as_large_as_said_and_smooth() -> None:
    """Seen on ramps, whose values are the places they are taken from."""
    side, share = 32, 0.03
    ramps = torch.stack(torch.meshgrid(*3 * [torch.arange(float(side))], indexing="ij"))
    image = ramps.expand(64, 3, side, side, side)
    shift = deformed(image, image, share, torch.Generator().manual_seed(1))[0] - image
    inner = shift[..., 6:-6, 6:-6, 6:-6]
    # Between control points the mean of squares of linear weights, 2/3 along each axis, is left of the variance.
    assert float(inner.std()) == pytest.approx(share * side * (2 / 3) ** 1.5, rel=0.1)
    for dim in (-1, -2, -3):
        assert inner.diff(dim=dim).abs().max() < 0.9, "no place is taken twice"
    assert torch.equal(deformed(image[:1], image[:1], 0.0, torch.Generator())[1], image[:1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_flipped_dimension_is_left_and_right(layout) -> None:
    """A label on one side of an array whose first axis goes from left to right, through the package's own reader."""
    labels = np.zeros((8, 10, 12), np.uint8)
    labels[:3] = 1
    assert nibabel.orientations.axcodes2ornt(layout.axes)[0, 0] == 0, "the array's first axis"
    condition = one_hot(labels, layout)
    sides = condition[0].flip(layout.left_right)
    assert torch.equal(sides, one_hot(labels[::-1].copy(), layout)[0])
    assert not torch.equal(sides, condition[0])


def test_a_step_trains_on_flipped_volumes_and_their_masks(volumes) -> None:
    run, seen = trainer(volumes, flips=True, batch_size=3), list[tuple[Tensor, Tensor]]()
    inner = run.diffusion.loss

    def note(image: Tensor, mask: Tensor, **how: torch.Generator) -> Tensor:
        seen.append((image, mask))
        return inner(image, mask, **how)

    run.diffusion.loss = note  # type: ignore[method-assign]
    for _ in range(4):
        run.train_step()
    known = [volumes[i] for i in range(3)]
    as_is = mirrored = 0
    for image, mask in ((i, m) for images, masks in seen for i, m in zip(images, masks, strict=True)):
        as_is += any(torch.equal(image, i) and torch.equal(mask, m) for i, m in known)
        mirrored += any(torch.equal(image, i.flip(-1)) and torch.equal(mask, m.flip(-1)) for i, m in known)
    assert as_is + mirrored == 12
    assert min(as_is, mirrored) > 0


# Runs


def same(a: dict, b: dict) -> bool:
    assert a.keys() == b.keys()
    return all(
        same(a[key], b[key]) if isinstance(a[key], dict)
        else torch.equal(a[key], b[key]) if isinstance(a[key], Tensor) else a[key] == b[key]
        for key in a
    )  # fmt: skip


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_resumed_run_of_ours_equals_an_uninterrupted_one_to_the_last_bit(volumes, tmp_path, prediction: str) -> None:
    config = replace(OURS, prediction=prediction, weighting="min-snr", loss="l2", density="logit-normal")
    whole = train(config, volumes, tmp_path / "whole", 6, device="cpu", progress=False)
    for steps in (1, 3, 6):
        resumed = train(config, volumes, tmp_path / "cut", steps, device="cpu", progress=False)
    assert torch.equal(whole, resumed)
    assert same(newest(tmp_path / "whole"), newest(tmp_path / "cut"))
    assert newest(tmp_path / "whole")["prediction"] == prediction
    assert load_checkpoint(tmp_path / "whole").prediction == prediction


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_prediction_is_learned(volumes, prediction: str) -> None:
    run = trainer(volumes, prediction=prediction, loss="l2", learning_rate=3e-3, batch_size=3)
    for _ in range(40):
        run.train_step()
    losses = run.read_losses()
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_another_length_or_recipe_is_another_run(head_folder: Path, tmp_path: Path, capsys) -> None:
    words = ["train", "--data", str(head_folder), "--out", str(tmp_path), "--no-check", *COMMAND]
    assert main([*words, "--recipe", "ours", "--steps", "1", "--save-every", "1"]) == 0
    capsys.readouterr()
    assert main([*words, "--recipe", "ours", "--steps", "2"]) == 1
    assert "its run was begun with --steps 1 (not 2); resume" in capsys.readouterr().err
    assert main([*words, "--steps", "1"]) == 1
    said = capsys.readouterr().err
    for difference in (
        "--learning-rate 0.0002 (not 1e-05)", "--warm-up 200 (not 0)", "--decay cosine (not none)",
        "--accumulation 8 (not 2)", "--ema-share 0.1 (not 0)", "--flips on (not off)",
        "--prediction flow (not noise)", "--loss l2 (not l1)",
    ):  # fmt: skip
        assert difference in said
    assert "--steps" not in said
    assert main([*words, "--recipe", "ours", "--no-flips", "--prediction", "noise", "--steps", "1"]) == 1
    assert "--prediction flow (not noise), --flips on (not off)" in capsys.readouterr().err


def test_another_runs_prediction_is_not_resumed_from(volumes, tmp_path: Path) -> None:
    for name, prediction in (("a", "noise"), ("b", "flow")):
        train(replace(TINY, prediction=prediction), volumes, tmp_path / name, 1, device="cpu", progress=False)
    checkpoints_of(tmp_path / "a")[-1].write_bytes(checkpoints_of(tmp_path / "b")[-1].read_bytes())
    with pytest.raises(BadInput, match="its network was trained to predict the flow, not the noise"):
        train(TINY, volumes, tmp_path / "a", 2, device="cpu", progress=False)


def test_a_flow_is_trained_sampled_and_released(tmp_path: Path, capsys) -> None:
    """From the command alone, with no sampler named; the file and the card say what it predicts."""
    write_phantom(tmp_path / "data", 2, (8, 8, 8))
    run, mask = tmp_path / "run", str(tmp_path / "data" / "mask" / "phantom_0000.nii.gz")
    words = ["train", "--data", str(tmp_path / "data"), "--out", str(run), *COMMAND, "--recipe", "ours", "--steps", "2"]
    assert main([*words, "--weighting", "min-snr", "--density", "logit-normal"]) == 0
    drawn = ["sample", "--mask", mask, "--device", "cpu", "-q", "--steps", "3"]
    assert main([*drawn, "--checkpoint", str(run), "--out", str(tmp_path / "a.nii")]) == 0
    released = tmp_path / "flow.safetensors"
    assert main(["release", str(run), "--out", str(released), "--device", "cpu", "-q"]) == 0
    content = read_checkpoint(released)
    assert content["prediction"] == content["training"]["prediction"] == "flow"
    assert load_checkpoint(released).prediction == "flow"
    assert main([*drawn, "--checkpoint", str(released), "--out", str(tmp_path / "b.nii")]) == 0
    card = released.with_suffix(".md").read_text()
    for words_ in (
        "rectified flow, predicts noise minus image",
        "Mean squared error of the predicted flow, weighted by min-SNR, at timesteps of logit-normal density, Adam",
        "| learning rate | 0.0002, reached after 200 steps, then along a cosine to 0 at step 2 |",
        "a power function of width 0.1 of the steps, every 10 steps", "| flips | left and right, at random |",
    ):  # fmt: skip
        assert words_ in card
    capsys.readouterr()
    assert main([*drawn, "--checkpoint", str(released), "--out", str(tmp_path / "c.nii"), "--sampler", "ddpm"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--sampler: the network predicts a flow, and ddpm's posterior is that of another schedule" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [("image", "its network predicts 'image', which is none of noise, velocity, flow"), (5, "its metadata is damaged")],
)
def test_a_file_with_another_prediction_is_refused(volumes, tmp_path: Path, value: object, said: str, capsys) -> None:
    train(TINY, volumes, tmp_path / "run", 1, device="cpu", progress=False)
    content = newest(tmp_path / "run")
    save_checkpoint(tmp_path / "model.pt", {**content, "prediction": value})
    drawn = [
        "sample",
        "--checkpoint",
        str(tmp_path / "model.pt"),
        "--mask",
        str(tmp_path),
        "--out",
        str(tmp_path / "v"),
    ]
    write_phantom(tmp_path, 1, (8, 8, 8))
    drawn[4] = str(tmp_path / "mask" / "phantom_0000.nii.gz")
    assert main([*drawn[:-1], str(tmp_path / "v.nii"), "--device", "cpu"]) == 1
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    del content["prediction"]
    save_checkpoint(tmp_path / "old.pt", content)
    assert load_checkpoint(tmp_path / "old.pt").prediction == "noise"


# Recipes


def test_the_published_recipe_is_the_defaults() -> None:
    nothing = dict.fromkeys(recipes.OPTIONS)
    assert fields_of("published", nothing, steps=9) == {}
    ours = TrainConfig(**fields_of("ours", nothing, steps=9, most=lambda: 8))
    assert (ours.batch_size, ours.accumulation, ours.length) == (8, 1, 9)
    changed = {name for name, value in asdict(ours).items() if value != asdict(TrainConfig())[name]}
    assert changed == set(RECIPES["ours"]) - {"volumes_a_step"} | {"batch_size", "accumulation", "length"}


def test_each_component_is_an_option_of_its_own() -> None:
    """As a table needs that changes one at a time."""
    nothing = dict.fromkeys(recipes.OPTIONS)
    alone = fields_of("published", {**nothing, "warm_up": 10, "ema_share": 0.05}, steps=9)
    assert alone == {"warm_up": 10, "ema_share": 0.05}
    chosen = {**nothing, "decay": "none", "flips": False, "prediction": "velocity", "learning_rate": 2e-4}
    without = fields_of("ours", chosen, steps=9, most=lambda: 8)
    assert without.items() >= {key: value for key, value in chosen.items() if value is not None}.items()
    assert "length" not in without


@pytest.mark.parametrize(
    ("chosen", "processes", "most", "expected"),
    [
        ({}, 1, 8, (8, 1)), ({}, 1, 100, (8, 1)), ({}, 1, 5, (4, 2)), ({}, 1, 1, (1, 8)), ({}, 4, 8, (2, 1)),
        ({"batch_size": 2}, 1, 8, (2, 4)), ({"batch_size": 2}, 2, 8, (2, 2)), ({"accumulation": 4}, 1, 8, (2, 4)),
        ({"batch_size": 3, "accumulation": 5}, 1, 8, (3, 5)), ({"volumes_a_step": 6}, 1, 4, (3, 2)),
        ({"volumes_a_step": 6, "batch_size": 2, "accumulation": 3}, 1, 4, (2, 3)),
    ],
)  # fmt: skip
def test_a_steps_volumes_are_divided(chosen: dict, processes: int, most: int, expected: tuple[int, int]) -> None:
    fields = fields_of("ours", chosen, steps=9, processes=processes, most=lambda: most)
    assert (fields["batch_size"], fields["accumulation"]) == expected


@pytest.mark.parametrize(
    ("chosen", "processes", "said"),
    [
        ({"batch_size": 3}, 1, "--batch-size: 2 micro-steps of 3 are not the 8 volumes of a step; choose one of 1, 2"),
        ({"batch_size": 16}, 1, "--batch-size: 1 micro-steps of 16 are not the 8 volumes"),
        ({"accumulation": 3}, 1, "--batch-size: 3 micro-steps of 2 are not the 8 volumes"),
        ({"volumes_a_step": 8, "batch_size": 2, "accumulation": 2}, 1, "--batch-size: 2 micro-steps of 2 are not"),
        ({}, 3, "--volumes-a-step: 3 processes cannot share 8 volumes; give a multiple of 3"),
    ],
)  # fmt: skip
def test_volumes_that_cannot_be_divided_are_refused(chosen: dict, processes: int, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        fields_of("ours", chosen, steps=9, processes=processes, most=lambda: 8)
    assert str(refused.value).startswith(said)


def test_a_gpu_takes_as_many_volumes_as_its_memory_is_estimated_to_hold(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    gpu, published = torch.device("cuda"), 128**3 * 64
    assert most_volumes(torch.device("cpu"), published, fast=True) == 1
    assert most_volumes(gpu, published, fast=False) == 3  # of 19.2 GiB each
    assert most_volumes(gpu, published, fast=True) == 9
    assert most_volumes(gpu, 64**3 * 64, fast=True) > 64
    assert most_volumes(gpu, 1024**3 * 64, fast=True) == 1


def test_the_options_to_choose_from_are_all_there_are() -> None:
    """The command names them without importing PyTorch."""
    assert tuple(RECIPES) == options.RECIPES
    assert (PREDICTIONS, LOSSES) == (options.PREDICTIONS, options.LOSSES)
    assert (WEIGHTINGS, DENSITIES, DECAYS) == (options.WEIGHTINGS, options.DENSITIES, options.DECAYS)


def test_run_json_holds_the_recipe(head_folder: Path, tmp_path: Path) -> None:
    words = ["train", "--data", str(head_folder), "--out", str(tmp_path), "--no-check", *COMMAND]
    assert main([*words, "--recipe", "ours", "--volumes-a-step", "2", "--steps", "1"]) == 0
    record = json.loads((tmp_path / "run.json").read_text())
    expected = {**RECIPES["ours"], "batch_size": 1, "accumulation": 2, "length": 1}
    del expected["volumes_a_step"]
    assert record.items() >= expected.items()
