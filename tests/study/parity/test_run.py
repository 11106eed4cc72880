"""The parity runs: what is planned, that settings see the same, that a stopped run goes on, and what is kept."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.repository import ROOT
from torch import Tensor, nn

from medddpm.checkpoints import shipped
from medddpm.checkpoints.files import load_checkpoint, save_checkpoint
from medddpm.data.layouts import BRATS
from medddpm.data.phantom import write_phantom
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.measure import harness, programs, tables
from medddpm.measure.store import ONE_RUN, Store
from medddpm.measure.tables import meta_path, read_meta
from medddpm.switches import SETTINGS
from medddpm.training.trainer import Trainer
from medddpm.unet import UNet3D
from study.cli.main import main
from study.parity import evaluate, plans, results, worker
from study.parity import run as parity_run
from study.parity import subjects as parity_subjects
from study.parity import training as parity_training
from study.parity.checking import check_runs
from study.parity.plans import FULL, SAMPLERS, SamplerSteps, TrainingRun, planned, training_run
from study.parity.subjects import prepare
from study.parity.training import held_out_losses, trained
from study.records import schemas

CPU = torch.device("cpu")
META = {"gpu": "cpu", "driver": None, "cudnn": None, "torch": "2", "commit": "abc", "date": "2026-01-01T00:00:00"}


def tiny(setting: str = "OPT1", seed: int = 0, **changes: object) -> TrainingRun:
    known = {
        "size": (8, 8, 8), "contrast": "t1", "steps": 6, "model_channels": 32, "channel_mult": (1, 2),
        "held_out": 2, "subjects": 3, "samplers": (SamplerSteps("dpm++", 2),), "watch": 2, "watched": (2, 3),
    }  # fmt: skip
    return training_run("short", setting, seed, **{**known, **changes})  # type: ignore[arg-type]


TINY = tiny()


# plans


def test_every_plan_has_runs_of_keys_of_their_own(tmp_path: Path) -> None:
    for name, plan in plans.PLANS.items():
        runs = plan()
        keys = [replace(run, checkpoint="f" if run.checkpoint is not None else None).key for run in runs]
        assert len(set(keys)) == len(keys) > 0, name
        assert all(run.plan == name and run.setting in SETTINGS for run in runs)
        assert all(run.config.accumulation == 1 and run.config.image_size == run.size[0] for run in runs)


def test_the_plans_make_every_run_of_the_record_by_its_name() -> None:
    """Slices, tables and figures find runs by these names."""
    recorded = read_meta(ROOT / "figures" / "records" / "H200" / "quality.csv")["runs"]
    made = {run.key: run for plan in plans.PLANS.values() for run in plan()}
    assert set(recorded) <= set(made)
    for key, known in recorded.items():
        run = made[key]
        if run.checkpoint is None:
            assert (known["steps_wanted"], known["learning_rate"]) == (run.steps, run.config.learning_rate), key
            for name in ("offset_noise", "clip_norm", "ema_decay", "norm_groups"):  # the first runs lack some
                assert known.get(name, getattr(run.config, name)) == getattr(run.config, name), key


def test_a_pair_of_settings_is_complete_before_the_next_seed_begins() -> None:
    runs = plans.short()
    pairs = [(run.setting, run.config.seed) for run in runs]
    assert pairs == [(setting, seed) for seed in range(6) for setting in ("OPT1", "FAST")]
    one, two = runs[:2]
    assert replace(one, config=replace(one.config, setting="FAST")) == two, "a pair differs in more than its setting"


def test_the_runs_with_offset_noise_are_the_short_ones_but_for_how_they_are_trained() -> None:
    training = ("offset_noise", "norm_groups", "clip_norm", "batch_size", "ema_decay")
    for run, other in zip(plans.short(seeds=range(12)), plans.offset(), strict=True):
        own = {name: getattr(run.config, name) for name in training}
        assert replace(other, plan="short", config=replace(other.config, **own)) == run
        assert (run.config.offset_noise, run.config.clip_norm, run.config.batch_size) == (0.0, 0.0, 1)
        assert (other.config.offset_noise, other.config.clip_norm, other.config.batch_size) == (0.1, 1.0, 4)
        assert run.key != other.key


def test_fp32_joins_pairs_like_those_with_offset_noise_but_smaller() -> None:
    runs = plans.fp32()
    pairs = [run for run in runs if run.setting != "BASE"]
    for small, other in zip(pairs, plans.offset(), strict=True):
        config = replace(other.config, image_size=32)
        assert replace(other, plan="fp32", size=(32, 32, 32), config=config) == small
    triples = [runs[first : first + 3] for first in range(0, len(runs), 3)]
    assert len(triples) == 12
    for seed, (opt1, fast, base) in enumerate(triples):
        assert [run.setting for run in (opt1, fast, base)] == ["OPT1", "FAST", "BASE"]
        assert opt1.config.seed == seed
        for run in (fast, base):
            assert replace(run, config=replace(run.config, setting="OPT1")) == opt1
    assert plans.fp32(["BASE"]) == [base for _, _, base in triples]


def test_the_clipped_run_begins_as_the_long_one() -> None:
    (run,), longer = plans.clipped(), plans.long()[0]
    assert (run.setting, run.config.clip_norm, longer.config.clip_norm) == ("FAST", 1.0, 0.0)
    own = {name: getattr(run.config, name) for name in ("clip_norm", "ema_decay")}
    same = {name: getattr(run, name) for name in ("plan", "steps", "snapshots")}
    assert replace(longer, **same, config=replace(longer.config, **own, ema_start=run.config.ema_start)) == run


def test_the_papers_settings_share_a_seed() -> None:
    runs = plans.paper()
    assert [run.setting for run in runs if run.config.seed == 0] == list(SETTINGS)
    assert [run.setting for run in runs if run.config.seed] == ["OPT1", "FAST"] * 2


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for run in (TINY, plans.brats()[0], tiny(channel_mult=(1, 2))):
        run.write(tmp_path / "spec.json")
        assert TrainingRun.of(json.loads((tmp_path / "spec.json").read_text())) == run


def test_what_is_asked_for_takes_the_place_of_a_plans_own() -> None:
    (run,) = planned(["short"], settings=["FAST"], seeds=[3], steps=9, model_channels=64, subjects=None)
    assert (run.setting, run.config.seed, run.steps, run.config.model_channels) == ("FAST", 3, 9, 64)
    assert (run.subjects, run.config.ema_start) == (128, 2)
    with pytest.raises(BadInput, match="no model to draw from"):
        planned(["samplers"])
    with pytest.raises(BadInput, match="no case to train on"):
        planned(["brats"])
    with pytest.raises(
        BadInput, match=r"s,brats: .* to draw from and .* to train on; give --checkpoint F and .*--data"
    ):
        planned(["samplers", "brats"])


def test_the_average_remembers_a_part_of_the_run_at_most_what_is_published() -> None:
    short, long = tiny(steps=1000).config, tiny(steps=10**6).config
    assert short.ema_decay ** (0.05 * 1000 / short.ema_every) == pytest.approx(0.5, abs=0.01)
    twice = tiny(steps=1000, memory=0.1).config
    assert twice.ema_decay ** (0.1 * 1000 / twice.ema_every) == pytest.approx(0.5, abs=0.01)
    assert (long.ema_decay, long.ema_start) == (0.995, 2000)
    assert short.ema_start == 250


# subjects


def test_prepared_subjects_are_the_phantoms_to_the_last_bit(tmp_path: Path) -> None:
    run = replace(TINY, size=(8, 10, 12), contrast="t2", subjects=2, held_out=3)
    prepare([run, run], tmp_path)
    subjects = parity_subjects.volumes_of(run, tmp_path)
    for kept, phantom in zip(subjects, parity_subjects.phantoms(run), strict=True):
        assert kept.missing() == []  # type: ignore[attr-defined]
        assert kept.names() == phantom.names()
        for index in range(len(phantom)):
            for ours, theirs in zip(kept[index], phantom[index], strict=True):
                assert torch.equal(ours, theirs)


def test_no_held_out_subject_is_trained_on(tmp_path: Path) -> None:
    trained_on, held_out = parity_subjects.volumes_of(TINY, tmp_path)
    assert not set(trained_on.names()) & set(held_out.names())
    assert not any(torch.equal(a[0], b[0]) for a in map(trained_on.__getitem__, range(3)) for b in [held_out[0]])


# the same for every setting


def draws(setting: str, volumes: Volumes) -> list[tuple[Tensor, ...]]:
    """Image, timestep, noise and mask of each of four steps."""
    trainer = Trainer(tiny(setting).config, volumes, CPU)
    inner, seen, masks = trainer.diffusion.add_noise, [], []

    def record(image: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        seen.append((image.clone(), t.clone(), noise.clone()))
        return inner(image, t, noise)

    trainer.diffusion.add_noise = record  # type: ignore[method-assign]
    load = trainer._load
    trainer._load = lambda last: masks.append(load(last)) or masks[-1]  # type: ignore[method-assign, func-returns-value]
    with SETTINGS[setting].on(trainer.unet):
        for _ in range(4):
            trainer.train_step()
    return [(*draw, mask) for draw, (_, mask) in zip(seen, masks, strict=True)]


@pytest.mark.long
def test_every_setting_is_shown_the_same_volumes_timesteps_and_noise(tmp_path: Path) -> None:
    volumes, _ = parity_subjects.volumes_of(TINY, tmp_path)
    base = draws("BASE", volumes)
    assert len({int(t) for _, t, _, _ in base}) > 1
    for setting in list(SETTINGS)[1:]:
        for ours, theirs in zip(draws(setting, volumes), base, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), setting


def test_weights_start_alike_and_the_first_loss_says_so(tmp_path: Path) -> None:
    losses = {}
    for setting in SETTINGS:
        volumes, held_out = parity_subjects.volumes_of(TINY, tmp_path / "data")
        run = tiny(setting, steps=1)
        _, reached = trained(run, volumes, held_out, tmp_path / setting, CPU)
        losses[setting] = reached.losses[0]
    assert max(losses.values()) - min(losses.values()) < 1e-5 * losses["BASE"], losses


def test_held_out_losses_draw_the_same_each_time_and_in_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes, held_out = parity_subjects.volumes_of(TINY, tmp_path)
    diffusion = Trainer(TINY.config, volumes, CPU).diffusion
    first = held_out_losses(TINY, diffusion, held_out)
    assert first.shape == (2,)
    assert torch.equal(first, held_out_losses(TINY, diffusion, held_out))
    alone = held_out_losses(replace(TINY, watched=(1, 3)), diffusion, held_out)
    with monkeypatch.context() as patched:
        patched.setattr(parity_training.math, "prod", lambda _: 2**30)  # so large that each timestep goes by itself
        torch.testing.assert_close(held_out_losses(TINY, diffusion, held_out), first, rtol=1e-4, atol=0)
    torch.testing.assert_close(alone, first[:1])


# training


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    volumes, held_out = parity_subjects.volumes_of(TINY, tmp_path / "data")
    whole, reached = trained(TINY, volumes, held_out, tmp_path / "whole", CPU)
    assert (reached.step, reached.stopped, sorted(reached.held_out)) == (6, False, [2, 4, 6])
    kept: list[int] = []

    def stop(_diffusion: object, step: int) -> None:
        kept.append(step)
        signal.raise_signal(signal.SIGTERM)

    _, cut = trained(TINY, volumes, held_out, tmp_path / "cut", CPU, keep=stop)
    assert cut.stopped
    assert kept == [2]
    assert cut.step < 6
    resumed, again = trained(TINY, volumes, held_out, tmp_path / "cut", CPU)
    assert again.losses == reached.losses
    assert {step: again.held_out[step] for step in (2, 4, 6)} == reached.held_out
    assert again.timed == 6
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_loss_that_is_no_number_is_named(tmp_path: Path) -> None:
    volumes, held_out = parity_subjects.volumes_of(TINY, tmp_path / "data")
    run = tiny(learning_rate=1e30)
    with pytest.raises(BadInput, match=r"the loss is no longer a number at step \d; lower --learning-rate"):
        trained(run, volumes, held_out, tmp_path / "run", CPU)


def test_a_curve_has_every_loss_once() -> None:
    reached = worker.Reached(step=1000, losses=list(range(1000)), held_out={500: 0.5})
    rows = worker.curve(reached, 1000)
    windows = [row for row in rows if row["part"] == "training"]
    assert len(windows) == worker.WINDOWS
    assert sum(row["steps"] for row in windows) == 1000
    assert (windows[0]["step"], windows[0]["loss"]) == (5, 2.0)
    assert rows[-1] == {"part": "held-out", "step": 500, "steps": 1, "loss": 0.5}


# a run evaluated


@pytest.mark.long
def test_a_run_is_trained_evaluated_and_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "QUICK", SamplerSteps("dpm++", 3))
    # A network for 8³ has no attention over all voxels, which would take most of the time.
    run = tiny(size=(16, 16, 16), image_size=8, steps=2, held_out=4, watch=1, snapshots=1, watched=(1, 2))
    folder = tmp_path / "out" / run.key
    folder.mkdir(parents=True)
    run.write(folder / "spec.json")
    words = [str(folder), "--data", str(tmp_path / "data"), "--device", "cpu"]
    assert worker.main(words) == 0
    store = Store(tmp_path / "out", META)
    store.stamp(results.key_of(run))
    table = results.collect(store, tmp_path / "tables")
    kept = results.read(tmp_path / "tables")
    assert kept is not None
    metrics = set(table["metric"])
    assert {
        "held_out_loss",
        "brightness_kept",
        "seconds_a_volume",
        "ms_a_step",
        "psnr",
        "diversity",
        "frechet",
        "dice",
    } <= metrics
    drawn = table[table["metric"] == "psnr"].iloc[0]
    assert (drawn["sampler"], drawn["sampler_steps"], drawn["n"], drawn["step"]) == ("dpm++", 2, 4, 2)
    assert drawn["low"] < drawn["value"] < drawn["high"]
    assert set(kept.loss["part"]) == {"training", "held-out"}
    for kind, count in (("sample", 9), ("truth", 9), ("mask", 9), ("watch", 4)):
        assert sum(name.startswith(f"{kind}/") for name in kept.slices) == count, kind
    assert all(plane.shape == (16, 16) for plane in kept.slices.values())
    assert parity_run.finished(store, run)
    assert not parity_run.finished(store, replace(run, config=replace(run.config, learning_rate=1.0)))
    assert not parity_run.finished(Store(store.folder, {**META, "commit": "other"}), run)
    assert "evaluating, at step 2" in capfd.readouterr().out


def test_a_damaged_data_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(plans.brats()[0], data=str(tmp_path / "none")).write(tmp_path / "spec.json")
    assert worker.main([str(tmp_path), "--data", str(tmp_path / "data"), "--device", "cpu"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


class OneCase:
    """A four-modality case: tissue in the left half only, a bright tumour in it."""

    layout = BRATS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        labels = torch.zeros(16, 16, 16)
        labels[2:14, 2:14, 1:8] = 4
        labels[5:10, 5:10, 2:6] = 2
        noise = 0.02 * torch.randn(4, 16, 16, 16, generator=torch.Generator().manual_seed(0))
        image = torch.where(labels == 0, -1.0, torch.where(labels == 2, 0.8, 0.0)) + noise * (labels > 0)
        return image.clamp(-1, 1), torch.stack([labels == label for label in BRATS.labels]).float()

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("follows", [True, False])
def test_a_model_that_only_remembers_its_case_is_found_out(monkeypatch: pytest.MonkeyPatch, follows: bool) -> None:
    case = OneCase()
    remembered, mask = case[0]

    def draw(run: TrainingRun, _diffusion: object, masks: Tensor, by: SamplerSteps) -> tuple[Tensor, list[float]]:
        turned = follows and not torch.equal(masks[0], mask)
        return (remembered.flip(-1) if turned else remembered)[None].repeat(len(masks), 1, 1, 1, 1), [1.0, 2.0]

    monkeypatch.setattr(evaluate, "draw", draw)
    monkeypatch.setattr(evaluate, "held_out_losses", lambda *_: torch.tensor([0.5]))
    monkeypatch.setattr(evaluate, "brightness_kept", lambda *_: 1.0)
    run = replace(plans.brats()[0], size=(16, 16, 16), held_out=4, batch=2)
    model = SimpleNamespace(betas=torch.zeros(1))
    rows, slices = evaluate.evaluate_run(run, model, case, resamples=10)  # type: ignore[arg-type]
    found = {(row["metric"], row["tissue"], row["channel"]): row["value"] for row in rows}
    assert found["dice", "brain", "all"] > 0.95
    assert found["psnr", "all", "t1"] > 60
    assert found["seconds_a_volume", "all", "all"] == 0.75
    for tissue in ("brain", "lesion"):
        assert (found["dice_mirrored", tissue, "all"] > 0.9) == follows, found
    assert any(name.startswith("mirrored-sample/") for name in slices)


class Known(nn.Module):
    """A network that knows the image of its subject, or one that knows the noise and believes what is left."""

    out_channels = 1

    def __init__(self, known: Tensor, image: bool) -> None:
        super().__init__()
        self.known, self.image = known, image

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if not self.image:
            return self.known
        schedule = GaussianDiffusion(nn.Identity())
        share, spread = schedule.sqrt_alphas_cumprod[t], schedule.sqrt_one_minus_alphas_cumprod[t]
        return (x[:, :1] - share * self.known) / spread


@pytest.mark.parametrize(("image", "kept"), [(True, 0.0), (False, 1.0)])
def test_how_much_of_a_shift_a_model_believes_is_measured(tmp_path: Path, image: bool, kept: float) -> None:
    run = tiny("BASE")
    _, held_out = parity_subjects.volumes_of(run, tmp_path / "data")
    known = held_out[0][0][None] if image else torch.randn(held_out[0][0][None].shape)
    found = evaluate.brightness_kept(run, GaussianDiffusion(Known(known, image)), held_out)
    assert found == pytest.approx(kept, abs=1e-3)


# the queue

PLAYED = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
spec = json.loads((folder / "spec.json").read_text())
(folder / "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
seed = spec["config"]["seed"]
if seed == 7:
    print("it went wrong\\nout of luck: try another seed", file=sys.stderr)
    sys.exit(1)
if seed == 8:
    time.sleep(60)
if seed == 9:
    print("a notice", flush=True)
    os.kill(os.getpid(), 9)
import numpy
numpy.savez(folder / "slices.npz")
row = {"sampler": None, "sampler_steps": None, "metric": "held_out_loss", "channel": "all", "tissue": "all",
       "value": 0.5, "low": 0.4, "high": 0.6, "n": 4}
result = {"spec": spec, "step": spec["steps"], "training_s": 1, "evaluation_s": 1, "quality": [row], "loss": []}
(folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in place of a run's program."""
    script = tmp_path / "played.py"
    script.write_text(textwrap.dedent(PLAYED))

    def command(folder: Path, data: Path, device: str) -> list[str]:
        return [sys.executable, str(script), str(folder)]

    monkeypatch.setattr(parity_run, "worker_command", command)
    return script


def queue(
    tmp_path: Path, runs: list[TrainingRun], gpus: tuple[str | None, ...] = (None,), tables: Path | None = None
) -> tuple[int, Store]:
    write = functools.partial(results.collect, tables=tables or tmp_path / "tables")
    store = Store(tmp_path / "out", META, write=write)
    return parity_run.train(runs, store, "cpu", gpus), store


def test_runs_are_spread_over_the_gpus_and_done_once(
    tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tiny(seed=seed) for seed in range(4)]
    assert queue(tmp_path, runs, ("3", "5"))[0] == 0
    assert {(tmp_path / "out" / run.key / "gpu").read_text() for run in runs} == {"3", "5"}
    first = capsys.readouterr().out
    assert first.count("begun on GPU") == 4
    assert "held-out loss 0.5000" in first
    assert queue(tmp_path, runs, ("3", "5"))[0] == 0
    again = capsys.readouterr().out
    assert again.count("there already") == 4
    assert "begun" not in again
    assert len(results.read(tmp_path / "tables").quality) == 4  # type: ignore[union-attr]


def test_a_run_of_another_kind_in_its_place_is_done_anew(tmp_path: Path, played: Path) -> None:
    run = tiny(seed=1)
    queue(tmp_path, [run])
    other = replace(run, watched=(1, 1))
    assert other.key == run.key
    _, store = queue(tmp_path, [other])
    assert parity_run.finished(store, other)
    assert not parity_run.finished(store, run)


def test_a_failed_run_is_a_line_and_the_others_go_on(
    tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, store = queue(tmp_path, [tiny(seed=seed) for seed in (7, 9, 1)])
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"medddpm: [1/3] {tiny(seed=7).key}: out of luck: try another seed",
        f"medddpm: [2/3] {tiny(seed=9).key}: killed by signal 9, SIGKILL (out of memory?); use a smaller --size",
    ]
    assert failed == 2
    assert list(store.failed) == [tiny(seed=7).key, tiny(seed=9).key]
    assert f"{tiny(seed=1).key}: step 6" in said.out


def test_a_training_that_began_in_an_earlier_call_is_not_called_part_of_this_one(
    tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its 16 s and an evaluation of 90 s are no parts of 97 s."""
    for seed, begun, said in ((1, False, ""), (2, True, r" \(with earlier calls\)")):
        run = tiny(seed=seed)
        if begun:
            (tmp_path / "out" / run.key).mkdir()
            (tmp_path / "out" / run.key / "watch.json").touch()
        queue(tmp_path, [run])
        line = capsys.readouterr().out.splitlines()[-1]
        assert re.search(rf", training \d+ s{said}, evaluation \d+ s; this call \(\d+ s\)$", line), line


@pytest.mark.parametrize("text", ["", "[", "[1]", "{}", '{"held_out": {"x": 1}, "seconds": 1, "timed": 1}'])
def test_a_damaged_history_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "watch.json").write_text(text)
    with pytest.raises(BadInput, match=r"watch\.json: it is damaged"):
        parity_training._read(tmp_path / "watch.json", 3)


def test_an_interrupted_queue_leaves_no_process(tmp_path: Path, played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    start = programs.start

    def note(*how: Any) -> Any:
        begun.append(start(*how))
        return begun[-1]

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "start", note)
    monkeypatch.setattr(harness.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue(tmp_path, [tiny(seed=8)])
    assert [process.poll() is not None for process in begun] == [True]


def test_a_run_that_outlives_a_killed_queue_keeps_others_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "out", META)
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    with store.alone(), open(tmp_path / "log.txt", "wb") as log:
        process = programs.start(waits, subprocess.DEVNULL, log, os.environ)
    with pytest.raises(BadInput, match="is measuring there"), store.alone():
        pass
    process.kill()
    process.wait()
    with store.alone():
        pass


# the command


def test_the_commands_are_printed_and_nothing_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "short,paper", "--out", str(tmp_path / "out"), "--dry-run", "--device", "cpu"]
    assert main(["parity", *words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 21
    assert all("-m study.parity.worker" in line for line in printed)
    assert not (tmp_path / "out").exists()


def test_what_a_dry_run_prints_can_be_typed(
    tmp_path: Path, played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In place of the run's program the script of the queue's tests is run, which reads what the run is."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    instead = shlex.join([sys.executable, str(played)])
    python.write_text(f'#!/bin/sh\n[ "$2" = study.parity.worker ] && exec {instead} "$3"\n')
    python.chmod(0o755)
    monkeypatch.undo()  # the commands are the package's own
    out, runs = tmp_path / "an out's folder", planned(["short"], settings=["FAST"], seeds=[0, 1])
    assert parity_run.parity(runs, out, command=[], dry_run=True) == 0
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-e"], input=capsys.readouterr().out, text=True, check=True, env=environment)
    for run in runs:
        assert TrainingRun.of(json.loads((out / run.key / "result.json").read_text())["spec"]) == run


def test_the_command_runs_the_plans_and_says_what_failed(
    tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["parity", "--plan", "short", "--settings", "fast", "--out", str(tmp_path / "out"), "--device", "cpu"]
    words += ["--size", "16", "--steps", "1", "--subjects", "1", "--held-out", "1"]
    words += ["--tables", str(tmp_path / "tables")]
    assert main([*words, "--seeds", "0,1"]) == 0
    assert "tables/quality.csv: 2 runs, 2 rows" in capsys.readouterr().out
    assert main([*words, "--seeds", "7"]) == 1
    assert capsys.readouterr().err.count("out of luck") == 1


def test_what_another_process_measures_is_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even its subjects are drawn."""
    with Store(tmp_path, {}).alone():
        assert main(["parity", "--plan", "short", "--out", str(tmp_path), "--device", "cpu"]) == 1
    said = f"process {os.getpid()} is measuring there; wait for it, or choose another --out"
    assert capsys.readouterr().err == f"medddpm: {tmp_path}: {said}\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plan", "brats"], "no case to train on"),
        (["--plan", "samplers"], "no model to draw from"),
        (["--plan", "samplers", "--checkpoint", "{tmp}"], "this folder has no checkpoints"),
        (["--plan", "samplers", "--checkpoint", "{tmp}/none.pt"], "no such checkpoint"),
        (["--plan", "brats", "--data", "{tmp}/none"], "none: "),
        (["--plan", "brats", "--data", "{tmp}/heads"], "no case of the plan brats is there"),
        (["--plan", "short", "--size", "8"], "8 × 8 × 8 is too small to compare"),
        (["--plan", "short", "--size", "20"], "20×20×20 cannot be halved often enough"),
        (["--plan", "short", "--channels", "33"], "--channels: 33 is no multiple of 32, the groups of each norm"),
        (["--plan", "short", "--tables", "{tmp}/theirs"], "a file stands there that this command did not write"),
        (["--plan", "short", "--tables", "{tmp}/a_file"], "a file stands where its folder should be"),
        (["--plan", "redrawn", "--samplers", "ddim:9", "--out", "{tmp}/a_file"], "a file stands where its folder"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """And before any work: no subject is drawn, no run begun."""
    (tmp_path / "a_file").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "quality.csv").write_text("patient,age\n")
    write_phantom(tmp_path / "heads", 1, (16, 16, 16))
    given = [word.replace("{tmp}", str(tmp_path)) for word in words]
    assert main(["parity", "--out", str(tmp_path / "out"), "--device", "cpu", *given]) == 1
    said_first = capsys.readouterr()
    assert said_first.out == ""
    error = said_first.err
    assert error.startswith("medddpm: ")
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "out" / "data").exists()
    assert (tmp_path / "theirs" / "quality.csv").read_text() == "patient,age\n"


def test_a_gpu_that_is_not_there_is_said_before_any_work(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["parity", "--plan", "short", "--out", str(tmp_path / "out"), "--device", "cuda"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("medddpm: --device: there is no cuda here")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_held_to_its_plan_before_any_work(tmp_path: Path) -> None:
    other = tmp_path / "short.pt"
    network = UNet3D(16, 12, 4, 32, channel_mult=(1, 2))
    content = {"config": network.config, "size": (16, 16, 16)}
    diffusion = GaussianDiffusion(network, 20)
    save_checkpoint(other, {**content, "step": 1, "ema": diffusion.state_dict()})
    (run,) = planned(["samplers"], checkpoint=other)
    with pytest.raises(BadInput, match="makes 4 channels of 12, 1 of 3 are wanted"):
        check_runs([run], tmp_path / "out", tmp_path / "data")
    diffusion = GaussianDiffusion(UNet3D(16, 3, 1, 32, channel_mult=(1, 2)), 20)
    content["config"] = diffusion.denoise_fn.config  # type: ignore[assignment]
    save_checkpoint(other, {**content, "step": 1, "ema": diffusion.state_dict()})
    (run,) = planned(["samplers"], checkpoint=other, samplers=(SamplerSteps("ddim", 20), SamplerSteps("dpm++", 21)))
    with pytest.raises(BadInput, match=r"its model has 20 steps, and dpm\+\+ is to take 21"):
        check_runs([run], tmp_path / "out", tmp_path / "data")
    check_runs([replace(run, samplers=run.samplers[:1])], tmp_path / "out", tmp_path / "data")


@pytest.mark.long
def test_a_run_that_was_begun_otherwise_keeps_its_result(tmp_path: Path) -> None:
    run = tiny(size=(16, 16, 16), steps=1)
    folder, data = tmp_path / "out" / run.key, tmp_path / "data"
    volumes, held_out = parity_subjects.volumes_of(run, data)
    trained(run, volumes, held_out, folder, CPU)
    (folder / results.RESULT).write_text("hours of work")
    check_runs([run], tmp_path / "out", data)
    with pytest.raises(BadInput, match="its run was begun with --learning-rate"):
        parity_run.parity([tiny(size=(16, 16, 16), steps=1, learning_rate=0.5)], tmp_path / "out", command=[])
    assert (folder / results.RESULT).read_text() == "hours of work"


@pytest.mark.parametrize(
    "words",
    [
        ["--plan", "tall"],
        ["--plan", "short", "--samplers", "ddpm:10"],
        ["--plan", "short", "--gpus", "0"],
        ["--plan", "short", "--samplers", "ddim:300"],
        ["--plan", "short", "--samplers", "ddim:0"],
        ["--plan", "short", "--device", "cuda:1"],
    ],
)
def test_wrong_arguments_end_with_2(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["parity", *words, "--out", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is no" in said or "invalid choice: 'cuda:1'" in said


def test_the_command_knows_every_plan_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    from study.cli import parity

    assert list(plans.PLANS) == list(parity.PLANS)
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--help"])
    assert ended.value.code == 0
    assert "examples:\n  python -m study parity" in capsys.readouterr().out


def test_samplers_are_described_by_what_was_trained_and_how(tmp_path: Path) -> None:
    run = tiny(contrast="t2", steps=1, norm_groups=8, offset_noise=0.1, clip_norm=0.5)
    volumes, held_out = parity_subjects.volumes_of(run, tmp_path / "data")
    folder = tmp_path / run.key
    trained(run, volumes, held_out, folder, CPU)
    (drawn,) = planned(["samplers"], checkpoint=parity_run.trained_checkpoint(folder), size=(64, 64, 64))
    assert drawn.samplers == SAMPLERS
    assert (drawn.size, drawn.config.model_channels, drawn.contrast, drawn.steps) == ((8, 8, 8), 32, "t2", 0)
    assert (drawn.config.norm_groups, drawn.config.offset_noise, drawn.config.clip_norm) == (8, 0.1, 0.5)


def test_a_model_of_three_contrasts_is_no_phantom_s(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"config": {}, "size": [8, 8, 8], "training": {"heads": {"contrast": "all", "seed": 0, "count": 2}}}
    monkeypatch.setattr(plans, "read_checkpoint", lambda _path: content)
    with pytest.raises(BadInput, match=r"joint\.safetensors: it draws three contrasts at once, and a phantom has one"):
        planned(["redrawn"], checkpoint=Path("joint.safetensors"))


def test_the_shipped_model_is_redrawn_and_described_as_on_its_card() -> None:
    (run,) = planned(["redrawn"], settings=["OPT1"])
    assert Path(str(run.checkpoint)) == shipped.weights()
    assert (run.setting, run.contrast, run.size, run.steps) == ("OPT1", "flair", (64, 64, 64), 0)
    assert run.samplers == (FULL,)
    config = run.config
    assert (config.norm_groups, config.offset_noise, config.batch_size, config.learning_rate) == (8, 0.1, 4, 3e-4)
    assert run.held_out == 16, "the card's own held-out subjects"


@pytest.mark.long
def test_a_model_of_fp32_weights_is_redrawn_with_every_subjects_slices(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(plans.shipped, "weights", lambda: pytest.fail("the shipped model is not asked for"))
        with pytest.raises(BadInput, match="no model to draw from"):
            planned(["redrawn_fp32"])
    run = tiny("BASE", contrast="flair", steps=1, size=(16, 16, 16), image_size=8)  # no attention over all voxels
    volumes, held_out = parity_subjects.volumes_of(run, tmp_path / "data")
    folder = tmp_path / run.key
    trained(run, volumes, held_out, folder, CPU)
    drawn = planned(["redrawn_fp32"], checkpoint=parity_run.trained_checkpoint(folder))
    assert [each.setting for each in drawn] == list(SETTINGS)
    assert {(each.plan, each.shown, each.held_out) for each in drawn} == {("redrawn_fp32", 16, 16)}
    assert not {each.key for each in drawn} & {each.key for each in plans.redrawn()}
    one = replace(drawn[0], held_out=2, shown=1, samplers=(SamplerSteps("dpm++", 2),), watched=(1, 2))
    model = load_checkpoint(str(one.checkpoint))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in model.parameters()), (
        "not BF16's numbers"
    )
    _, held_out = parity_subjects.volumes_of(one, tmp_path / "data")
    for shown in (1, 2):
        _, slices = evaluate.evaluate_run(replace(one, shown=shown), model, held_out, resamples=10)
        subjects = {name.split("/")[4] for name in slices if name.startswith("sample/")}
        assert subjects == {str(index) for index in range(shown)}


# what is kept


def test_tables_of_two_calls_are_joined_by_run(tmp_path: Path, played: Path) -> None:
    target = tmp_path / "records"
    queue(tmp_path, [tiny(seed=seed) for seed in (0, 1)], tables=target)
    before = read_meta(target / results.QUALITY)
    before["runs"][tiny(seed=0).key]["shared"] = True  # as in records of before
    meta_path(target / results.QUALITY).write_text(json.dumps(before))
    queue(tmp_path / "later", [tiny(seed=1, learning_rate=5.0), tiny(seed=2)], tables=target)
    kept = results.read(target)
    assert kept is not None
    assert kept.quality["seed"].tolist() == [0, 1, 2]
    runs = list(kept.meta["runs"].values())
    assert [run["learning_rate"] for run in runs] == [1e-4, 5.0, 1e-4]
    assert [run.get("shared") for run in runs] == [True, None, None]
    assert all(run[name] == META[name] for run in runs for name in ONE_RUN)


def test_what_is_broken_is_named(tmp_path: Path, played: Path) -> None:
    assert results.read(tmp_path) is None
    queue(tmp_path, [TINY])
    (tmp_path / "tables" / results.SLICES).write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"quality_slices\.npz: is missing or damaged"):
        results.read(tmp_path / "tables")


@pytest.mark.parametrize("name", [results.QUALITY, results.LOSS, results.SLICES])
def test_a_damaged_table_is_named_with_a_remedy_that_works(tmp_path: Path, played: Path, name: str) -> None:
    (_, store), folder = queue(tmp_path, [TINY]), tmp_path / "tables"
    whole = results.read(folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    with pytest.raises(BadInput) as told:
        results.check_tables(folder)
    assert told.value.path == str(folder / name)
    assert told.value.remedy == f"restore it, or remove {folder / results.QUALITY} and run the same again"
    (folder / results.QUALITY).unlink()
    results.check_tables(folder)
    results.collect(store, folder)
    anew = results.read(folder)
    assert anew.quality.equals(whole.quality)  # type: ignore[union-attr]
    assert anew.loss.equals(whole.loss)  # type: ignore[union-attr]
    assert anew.slices.keys() == whole.slices.keys()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [results.QUALITY, results.LOSS, results.SLICES])
def test_a_file_of_somebody_elses_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(BadInput, match="a file stands there that this command did not write"):
        results.check_tables(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("left", [0, 100, -10])
def test_slices_that_were_cut_short_are_named(tmp_path: Path, left: int) -> None:
    path = tmp_path / "slices.npz"
    np.savez_compressed(path, **{"sample/a": np.arange(900, dtype=np.uint8).reshape(30, 30)})
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(BadInput, match=r"slices\.npz: is missing or damaged"):
        results.read_slices(path, "remove it")


def test_a_table_that_grew_past_the_limit_keeps_its_rows(tmp_path: Path, played: Path, monkeypatch) -> None:
    queue(tmp_path, [TINY])
    monkeypatch.setattr(tables, "GZIP_ABOVE", 10)
    for seed in (1, 2):
        queue(tmp_path / str(seed), [tiny(seed=seed)], tables=tmp_path / "tables")
    kept = results.read(tmp_path / "tables")
    assert kept is not None
    assert kept.quality["seed"].tolist() == [0, 1, 2]


def test_the_schemas_hold_what_a_run_leaves() -> None:
    kept = results.QualityRecord()
    assert list(kept.quality.columns) == list(schemas.QUALITY.columns)
    assert list(kept.loss.columns) == list(schemas.LOSS.columns)
    assert not len(kept.of("short"))
    assert np.dtype("int64") == kept.quality["n"].dtype
