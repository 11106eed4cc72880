"""`study trainings`: arms differ in what they say, results of other calls count, and a toy of it from end to end."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import nibabel
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from medddpm.checkpoints.files import load_checkpoint
from medddpm.checkpoints.released import read_released
from medddpm.data.layouts import JOINT
from medddpm.data.tissues import CONTRASTS
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.measure.machine import MACHINE
from medddpm.measure.store import Store
from medddpm.measure.tables import read_table, write_table
from medddpm.sampling import sample_to_files
from study.brains import trainer
from study.brains.arms import ALL, ARMS, COMPARED, PARTS, Training, planned
from study.brains.packing import pack
from study.brains.samples import read_samples
from study.brains.subjects import HeadName
from study.brains.trainer import RATIOS, clean_errors, drawn, steps_within, windows
from study.brains.training_results import TABLE, collect, key_of, lacking, read_results, summary, take
from study.cli.main import main
from study.cli.trainings import ARMS as NAMES
from study.records import packing
from study.records import schemas_brains as schemas

CPU = torch.device("cpu")
META = dict.fromkeys(MACHINE) | {"gpu": "cpu", "torch": "2", "commit": "abc", "date": "2026-01-01T00:00:00"}


# arms


def test_the_command_names_the_arms_there_are() -> None:
    assert tuple(ARMS) == NAMES


def test_an_arm_alone_differs_from_the_plain_one_in_its_component() -> None:
    plain = dataclasses.asdict(Training("plain").config("BASE", 100))
    for arm, parts in COMPARED.items():
        if parts == (arm,) and arm != "wide":
            config = dataclasses.asdict(Training(arm).config("BASE", 100))
            changed = {name: value for name, value in config.items() if value != plain[name]}
            length = {"length": 100} if arm == "cosine" else {}
            assert changed == {**PARTS[arm], **length}, arm


def test_the_wide_arms_have_twice_the_channels() -> None:
    widths = {arm: Training(arm, channels=8).config("BASE", 1).model_channels for arm in ARMS}
    assert {arm for arm, width in widths.items() if width == 16} == {"wide", "all-wide"}
    assert set(widths.values()) == {8, 16}


def test_a_training_of_all_contrasts_has_joint_heads(tmp_path: Path) -> None:
    (training,) = planned(["plain"], [0], ["all"], side=16, heads=2, held_out=1)
    assert training.layout is JOINT
    assert training.key != Training("plain", side=16, heads=2, held_out=1).key
    trained, held_out = training.volumes(tmp_path)
    assert trained.layout is held_out.layout is JOINT
    assert held_out.names() == ["head all, seed 1, subject 0"]


def test_an_arm_without_a_component_has_all_others() -> None:
    for left_out in ALL:
        assert {left_out, *ARMS[f"all-but-{left_out}"]} == set(ALL)
        assert left_out not in ARMS[f"all-but-{left_out}"]


def test_trainings_pass_through_json_and_have_names_of_their_own() -> None:
    trainings = planned(ARMS, (0, 1), ("t1", "flair"), seconds=30.0) + planned(ARMS, (0,), ("t1",), steps=30)
    assert len({training.key for training in trainings}) == len(trainings) == 5 * len(ARMS)
    for training in trainings:
        assert Training.of(json.loads(json.dumps(training.described()))) == training
    assert [training.seed for training in trainings[: 2 * len(ARMS)]] == 2 * len(ARMS) * [0], "a seed after the other"


@pytest.mark.parametrize("change", [{"arm": "no such"}, {"more": 1}, {"samplings": 3}])
def test_what_describes_no_training_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Training.of({**Training("plain").described(), **change})


# measures


class Silent(nn.Module):
    """Predicts 0."""

    out_channels = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, _t: Tensor) -> Tensor:
        return self.weight * x[:, :1]


def test_errors_are_those_of_the_image_that_the_network_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GaussianDiffusion(Silent())
    images = torch.rand(3, 1, 6, 6, 6, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8
    masks = torch.zeros(3, 2, 6, 6, 6)
    errors = clean_errors(model, images, masks)
    assert list(errors) == list(RATIOS)
    # A network that sees no noise takes x/α = image + ratio · noise for the image.
    assert errors[0.05] == pytest.approx(0.05**2, rel=0.1)
    assert 0.5 < errors[20.0] < 2, "noise, clamped to -1 or 1"
    monkeypatch.setattr(trainer, "BATCH", 2)
    assert clean_errors(model, images, masks) == pytest.approx(errors, rel=1e-5)


def test_a_sample_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, masks = GaussianDiffusion(Silent()), torch.zeros(3, 2, 4, 4, 4)
    samples, seconds, memory = drawn(model, "BASE", masks, ("ddim", 3))
    assert samples.shape == (3, 1, 4, 4, 4)
    assert seconds > 0
    assert memory is None, "of a device"
    assert not torch.equal(samples[0], samples[1])
    monkeypatch.setattr(trainer, "BATCH", 1)
    torch.testing.assert_close(drawn(model, "BASE", masks, ("ddim", 3))[0], samples)


@pytest.mark.gpu
def test_the_memory_of_drawing_is_its_own() -> None:
    device = torch.device("cuda")
    heads = torch.zeros(2**28, device=device)  # a GiB, as a training holds
    model, masks = GaussianDiffusion(Silent()).to(device), torch.zeros(trainer.BATCH, 2, 32, 32, 32, device=device)
    images = trainer.BATCH * 32**3 * 4
    for _ in range(2):
        memory = drawn(model, "BASE", masks, ("ddim", 3))[2]
        assert memory is not None
        assert images < memory < heads.nbytes / 2
    assert heads.device.type == "cuda"


@pytest.mark.gpu
def test_a_training_on_a_gpu_leaves_result_samples_and_weights(tmp_path: Path) -> None:
    training = Training(
        "all-slim", contrast="all", side=16, heads=3, held_out=2, steps=4, drawn=2, samplings=(("dpm++", 2),),
        keeps_weights=True,
    )  # fmt: skip
    result = trainer.work(training, tmp_path, tmp_path / "data", torch.device("cuda"))
    assert "partial" not in result
    assert read_samples(tmp_path / result["samples"][0]["file"], training.size, CONTRASTS)[0].shape[:2] == (2, 3)
    assert read_released(tmp_path / trainer.WEIGHTS)["step"] == 4


@pytest.mark.parametrize("count", [1, 7, 20, 1003])
def test_windows_cover_the_losses(count: int) -> None:
    losses = [float(k) for k in range(count)]
    rows = windows(losses)
    assert len(rows) == min(count, trainer.WINDOWS)
    assert rows[-1]["share"] == 1
    assert sum(row["n"] for row in rows) == count
    assert sum(row["n"] * row["value"] for row in rows) == pytest.approx(sum(losses))


def test_steps_follow_from_the_duration_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow:
        """Takes 40 s for its first step and half a second for each other one."""

        def __init__(self, *_: object) -> None:
            self.unet, self.step = nn.Conv3d(1, 1, 1), 0

        def train_step(self) -> None:
            self.step += 1
            clock[0] += 40.0 if self.step == 1 else 0.5

        def close(self) -> None: ...

    monkeypatch.setattr(trainer, "Trainer", Slow)
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: clock[0])
    config = Training("cosine").config("BASE", trainer.LONG)
    assert steps_within(60.0, config, [], CPU, "BASE") == 120  # type: ignore[arg-type]
    assert steps_within(0.1, config, [], CPU, "BASE") == 1  # type: ignore[arg-type]


# results


def result_of(training: Training, steps: int = 40, at_one: float = 0.01, **known: Any) -> dict[str, Any]:
    errors = [
        {"weights": weights, "share": share, "ratio": ratio, "value": at_one * ratio}
        for weights, share in (("averaged", 0.5), ("averaged", 1.0), ("raw", 1.0))
        for ratio in RATIOS
    ]
    return {
        "training": training.described(), "volumes": 8, "channels": 8, "setting": "BASE", "steps": steps,
        "seconds": 1.5, "losses": [{"share": 0.5, "value": 0.3, "n": 2}, {"share": 1.0, "value": 0.1, "n": 2}],
        "errors": errors, "samples": [{"sampler": "ddim", "evaluations": 2, "seconds": 0.1, "n": 2, "file": "f"}],
        "date": "2026-01-01T00:00:00", "machine": {name: META[name] for name in MACHINE}, "run": {}, **known,
    }  # fmt: skip


def leave(folder: Path, training: Training, **known: Any) -> Path:
    path = folder / f"{key_of(training)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result_of(training, **known)))
    return path


PAIR = [Training("plain"), Training("flow", 1)]


def test_a_result_of_any_commit_counts_and_a_partial_one_does_not(tmp_path: Path) -> None:
    leave(tmp_path, PAIR[0], run={"commit": "another"})
    leave(tmp_path, PAIR[1], partial=True)
    assert lacking(PAIR, tmp_path) == [PAIR[1]]
    under = dataclasses.replace(PAIR[0], setting="OPT1")
    assert lacking([under], tmp_path) == [under]
    other = dataclasses.replace(PAIR[0], heads=5)  # of the same name
    assert lacking([other], tmp_path) == [other]
    assert set(read_results(tmp_path)) == set(PAIR), "a partial one has rows"


def test_a_result_counts_that_was_made_before_trainings_had_settings(tmp_path: Path) -> None:
    path = tmp_path / "plain_t1_64_c32_h768_120s_s0" / trainer.RESULT
    written = result_of(PAIR[0])
    del written["training"]["setting"]
    path.parent.mkdir()
    path.write_text(json.dumps(written))
    assert lacking(PAIR, tmp_path) == [PAIR[1]]
    assert path == tmp_path / f"{key_of(PAIR[0])}.json"


def test_what_is_no_result_is_passed_over(tmp_path: Path) -> None:
    path = leave(tmp_path, PAIR[0])
    for broken in ({"training": {}}, {**result_of(PAIR[0]), "errors": 3}, {}):
        path.write_text(json.dumps(broken))
        assert read_results(tmp_path) == {}


def test_table_and_summary_have_every_result(tmp_path: Path) -> None:
    leave(tmp_path, Training("all"), at_one=0.03)
    leave(tmp_path, Training("plain"), at_one=0.01)
    leave(tmp_path, Training("plain", 1), at_one=0.02, steps=60)
    table = collect(Store(tmp_path, META))
    known = ["arm", "seed", "steps", "metric", "share", "value", "n", "commit"]
    written = read_table(tmp_path / TABLE, schemas.TRAININGS)
    pd.testing.assert_frame_equal(written[known], table[known], check_dtype=False)
    assert len(table) == 3 * (3 * len(RATIOS) + 2 + 1)
    assert set(table["commit"]) == {"abc"}
    head, plain, every = summary(table).splitlines()
    assert plain.split()[:4] == ["plain", "2", "50", "2"]
    assert "0.015 ± 0.005" in plain
    assert every.split()[:3] == ["all", "1", "40"]
    assert head.index("x_0 at 1") == plain.index("0.015 ± 0.005")


def test_the_table_has_the_memory_of_samples_where_it_is_known(tmp_path: Path) -> None:
    for training, known in zip(PAIR, ({}, {"peak_bytes": 3 * 2**30}), strict=True):
        result = result_of(training)
        result["samples"] = [sample | known for sample in result["samples"]]
        leave(tmp_path, training).write_text(json.dumps(result))
    table = collect(Store(tmp_path, META))
    (row,) = table[table["metric"] == "sample_gib"].to_dict("records")
    assert (row["arm"], row["sampler"], row["evaluations"], row["value"]) == ("flow", "ddim", 2, 3.0)


def test_the_summary_names_what_an_arms_trainings_differ_in(tmp_path: Path) -> None:
    for side, setting in ((32, "FAST"), (32, "OPT1"), (64, "FAST")):
        leave(tmp_path, Training("ours", side=side, steps=40, setting=setting), setting=setting)
    leave(tmp_path, Training("plain", steps=40), setting="FAST")
    names = [line.split("  ")[0] for line in summary(collect(Store(tmp_path, META))).splitlines()[1:]]
    assert names == ["plain 64³ FAST", "ours 32³ FAST", "ours 32³ OPT1", "ours 64³ FAST"]
    leave(tmp_path, Training("plain", steps=80), setting="FAST", steps=80)
    names = [line.split("  ")[0] for line in summary(collect(Store(tmp_path, META))).splitlines()[1:]]
    assert names[:3] == ["plain 64³ FAST 40 steps", "plain 64³ FAST 80 steps", "ours 32³ FAST 40 steps"]


def test_an_error_that_grows_between_marks_is_in_the_summary(tmp_path: Path) -> None:
    result = result_of(PAIR[0])
    for error in result["errors"]:
        if (error["weights"], error["share"], error["ratio"]) == ("averaged", 1.0, 1.0):
            error["value"] *= 1.5
    leave(tmp_path, PAIR[0]).write_text(json.dumps(result))
    assert summary(collect(Store(tmp_path, META))).splitlines()[1].split()[-1] == "50"


def store_with(folder: Path) -> Path:
    """Leaves the pair's results, table, and samples of two samplers each."""
    for training in PAIR:
        leave(folder, training)
        for sampling in training.samplings[:2]:
            (folder / training.key / trainer.archive_of(training, sampling)).write_bytes(bytes(3000))
    collect(Store(folder, META))
    return folder


def test_results_are_taken_from_tars_and_folders(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store")
    assert pack(read_results(store), store, tmp_path / "tars" / "lease.tar") == []
    with tarfile.open(tmp_path / "tars" / "lease.tar") as archive:
        names = archive.getnames()
    assert names[:2] == [TABLE, "trainings.meta.json"]
    assert len(names) == 2 + 2 + 4
    for number, source in enumerate((tmp_path / "tars" / "lease.tar", tmp_path / "tars", store)):
        assert take(source, tmp_path / str(number)) == 2
        assert lacking(PAIR, tmp_path / str(number)) == []
        assert take(source, tmp_path / str(number)) == 0


def test_a_whole_result_takes_the_place_of_a_partial_one(tmp_path: Path) -> None:
    leave(tmp_path / "there", PAIR[0], partial=True)
    leave(tmp_path / "whole", PAIR[0])
    assert take(tmp_path / "whole", tmp_path / "there") == 1
    assert take(tmp_path / "there", tmp_path / "whole") == 0
    assert lacking(PAIR[:1], tmp_path / "there") == []


def test_a_tar_writes_nowhere_else(tmp_path: Path) -> None:
    content = json.dumps(result_of(PAIR[0])).encode()
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        for name in ("../../outside/result.json", "/outside/result.json"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    assert take(tmp_path / "odd.tar", tmp_path / "store") == 1
    there = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert there == ["odd.tar", f"store/{key_of(PAIR[0])}.json"]


@pytest.mark.parametrize("content", [b"", b"some words", bytes(10240)])
def test_a_tar_without_results_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease.tar").write_bytes(content)
    with pytest.raises(BadInput, match=r"lease\.tar"):
        take(tmp_path / "lease.tar", tmp_path / "store")


def test_tars_are_small_and_hold_what_matters_first(tmp_path: Path, monkeypatch, capsys) -> None:
    store = store_with(tmp_path / "store")
    largest = max(path.stat().st_size for path in store.rglob("*") if path.is_file())
    monkeypatch.setattr(packing, "PART", largest + packing.END + 2 * packing.BLOCK)
    monkeypatch.setattr(packing, "PARTS", 4)
    left_out = pack(read_results(store), store, tmp_path / "lease.tar")
    tars = sorted(tmp_path.glob("*.tar"))
    assert 1 < len(tars) <= 4
    assert all(path.stat().st_size <= packing.PART for path in tars)
    packed = []
    for path in tars:
        with tarfile.open(path) as archive:
            packed += archive.getnames()
    assert {TABLE, *(f"{key_of(training)}.json" for training in PAIR)} <= set(packed)
    assert len(packed) + len(left_out) == 8
    assert left_out == [] or "no room for" in capsys.readouterr().err


# the command

TOY = [
    "--size", "16", "--channels", "8", "--heads", "3", "--held-out", "2", "--drawn", "2",
    "--samplers", "ddim:2,dpm++:2",
    "--device", "cpu",
]  # fmt: skip


def test_a_dry_run_prints_a_command_a_training(tmp_path: Path, capsys) -> None:
    assert main(["trainings", *TOY, "--arms", "plain,all", "--dry-run", "--out", str(tmp_path / "o")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("python -m study.brains.trainer ") for line in lines)
    assert not (tmp_path / "o").exists()


def test_a_call_without_time_trains_nothing(tmp_path: Path, capsys) -> None:
    store = store_with(tmp_path / "store")
    command = ["trainings", "--arms", "plain,cosine", "--seeds", "0", "--minutes", "0", "--device", "cpu"]
    assert main([*command, "--results", str(store), "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().out
    assert "trainings: 2, 1 without a result" in said
    assert "1 of 2 trainings have results" in said
    assert f"{Training('cosine').key}: left for a later call" in said
    assert set(read_table(tmp_path / "o" / TABLE, schemas.TRAININGS)["arm"]) == {"plain", "flow"}
    assert not (tmp_path / "o" / "data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--channels", "12"], "--channels: 12 is no multiple of 8"),
        (["--size", "20"], "--size: 20×20×20 cannot be halved often enough"),
        (["--pack", "lease.zip"], "lease.zip: its name does not end in .tar"),
        (["--results", "nowhere.tar"], "nowhere.tar: it cannot be read as a tar of results"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(words, said, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trainings", "--out", "o", "--device", "cpu", "--minutes", "0", *words]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_two_arms_from_heads_to_samples(tmp_path: Path, capsys) -> None:
    arms = ["trainings", *TOY, "--arms", "plain,all", "--seeds", "0", "--steps", "12"]
    out = tmp_path / "o"
    assert main([*arms, "--keep-weights", "--pack", str(tmp_path / "lease.tar"), "--out", str(out)]) == 0
    table = read_table(out / TABLE, schemas.TRAININGS)
    assert set(table["arm"]) == {"plain", "all"}
    assert set(table["steps"]) == {12}
    errors = table[table["metric"] == "clean_error"]
    assert set(errors["share"]) == {0.25, 0.5, 0.75, 1.0}
    assert errors.groupby(["arm", "weights", "share"]).size().eq(len(RATIOS)).all()
    assert set(table[table["metric"] == "sample_s"]["sampler"]) == {"ddim", "dpm++"}
    for training in read_results(out):
        folder = out / training.key
        for sampling in training.samplings:
            images, names = read_samples(folder / trainer.archive_of(training, sampling), (16, 16, 16), ("t1",))
            assert images.shape == (2, 1, 16, 16, 16)
            assert names == (HeadName(1, 0), HeadName(1, 1))
            assert torch.equal(images * trainer.LEVELS, (images * trainer.LEVELS).round())
        model = load_checkpoint(folder / trainer.WEIGHTS)
        assert model.prediction == ("flow" if training.arm == "all" else "noise")
        released = read_released(folder / trainer.WEIGHTS)
        assert released["training"]["heads"] == {"contrast": "t1", "seed": 0, "count": 3}
        assert released["sampling"] == {"sampler": "ddim", "steps": 2}
    capsys.readouterr()
    again = [*arms, "--keep-weights", "--results", str(tmp_path / "lease.tar"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    said = capsys.readouterr().out
    assert "2 results taken" in said
    assert "trainings: 2, 0 without a result" in said
    assert read_table(tmp_path / "again" / TABLE, schemas.TRAININGS).equals(table)
    changed = table.assign(value=table["value"] + 1)
    write_table(changed, tmp_path / "again" / TABLE, schemas.TRAININGS, META)
    assert main(again) == 0
    assert read_table(tmp_path / "again" / TABLE, schemas.TRAININGS).equals(table), "made anew from the results"


@pytest.mark.long
def test_a_joint_training_leaves_a_model_of_three_contrasts(tmp_path: Path) -> None:
    words = ["--contrasts", "all", "--arms", "flow", "--seeds", "0", "--steps", "2", "--keep-weights"]
    assert main(["trainings", *TOY, *words, "--out", str(tmp_path / "o")]) == 0
    assert set(read_table(tmp_path / "o" / TABLE, schemas.TRAININGS)["contrast"]) == {"all"}
    (training,) = read_results(tmp_path / "o")
    folder = tmp_path / "o" / training.key
    images, names = read_samples(folder / f"{training.key}.ddim2.npz", (16, 16, 16), ("t1", "t2", "flair"))
    assert images.shape == (2, 3, 16, 16, 16)
    assert names == (HeadName(1, 0), HeadName(1, 1))
    model = folder / trainer.WEIGHTS
    assert read_released(model)["training"]["heads"] == {"contrast": "all", "seed": 0, "count": 3}
    reference = training.volumes(tmp_path / "o" / "data")[1].reference(0)
    nibabel.save(reference, tmp_path / "mask.nii.gz")
    files = sample_to_files(model, tmp_path / "mask.nii.gz", tmp_path / "v.nii.gz", device="cpu")
    assert [file.name for file in files] == ["v_t1.nii.gz", "v_t2.nii.gz", "v_flair.nii.gz"]


@pytest.mark.long
def test_a_second_training_of_a_seed_gives_the_first_ones_errors(tmp_path: Path) -> None:
    training = Training(
        "cosine", side=16, channels=8, heads=3, held_out=2, steps=5, drawn=1, samplings=(("ddim", 2),)
    )  # fmt: skip
    first, second = (trainer.work(training, tmp_path / name, tmp_path / "data", CPU) for name in "ab")
    assert first["errors"] == second["errors"]
    assert first["losses"] == second["losses"]
    averaged, raw = (
        [e["value"] for e in first["errors"] if (e["weights"], e["share"]) == (weights, 1.0)]
        for weights in ("averaged", "raw")
    )
    assert averaged == raw, "the published average equals the weights for 2 000 steps"
