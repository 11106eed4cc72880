"""A run computes what it should, and cutting it anywhere changes nothing, to the last bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from helpers.forks import start
from helpers.ranks import run_ranks
from helpers.runs import newest
from torch import Tensor

from medddpm import switches
from medddpm.checkpoints.files import checkpoints_of, load_checkpoint, read_checkpoint
from medddpm.cli.main import main
from medddpm.data.disk_cache import DiskCache
from medddpm.data.volumes import VolumeFolder
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.training import run as training
from medddpm.training.config import TrainConfig
from medddpm.training.device_cache import DeviceCache, bytes_of
from medddpm.training.run import _fits, train
from medddpm.training.trainer import Trainer

TINY = TrainConfig(  # with attention, as the published one
    image_size=8, model_channels=16, norm_groups=8, channel_mult=(1, 2), save_every=2, sample_every=0, ema_start=4,
    ema_every=2, ema_decay=0.9, keep=2,
)  # fmt: skip
COMMAND = ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--seed", "0", "--sample-every", "0"]
COMMAND += ["--device", "cpu", "--quiet"]
SCRIPT = "import sys; from medddpm.cli.main import main; sys.exit(main(sys.argv[1:]))"


def run(volumes: VolumeFolder, out: Path, steps: int, **changes: object) -> Tensor:
    return train(replace(TINY, **changes), volumes, out, steps, device="cpu", progress=False)


def differences(a: dict, b: dict) -> list[str]:
    """Names of the tensors and numbers that are not the same to the last bit."""
    assert a.keys() == b.keys()
    different = []
    for key in a:
        if isinstance(a[key], dict):
            different += [f"{key}.{name}" for name in differences(a[key], b[key])]
        elif not (torch.equal(a[key], b[key]) if isinstance(a[key], Tensor) else a[key] == b[key]):
            different.append(str(key))
    return different


@pytest.fixture(scope="module")
def uninterrupted(head_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, dict]:
    """The losses of a run of seven steps, and its last checkpoint."""
    torch.set_num_threads(1)  # as in every test: a fixture of a module comes before it is set there
    out = tmp_path_factory.mktemp("whole") / "run"
    return run(VolumeFolder(head_folder, (8, 8, 8)), out, 7), newest(out)


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_last_bit(
    volumes, uninterrupted: tuple[Tensor, dict], tmp_path: Path, cut: int
) -> None:
    """Cut before, at and behind the step where the average parts from the weights."""
    whole, checkpoint = uninterrupted
    run(volumes, tmp_path, cut)
    resumed = run(volumes, tmp_path, 7)
    assert whole.shape == (7,)
    assert torch.equal(whole, resumed)
    assert differences(checkpoint, newest(tmp_path)) == []


def test_cached_volumes_train_the_same_to_the_last_bit(volumes, tmp_path: Path) -> None:
    """Begun with volumes prepared as they are wanted, gone on with where workers have brought all to memory."""
    whole = run(volumes, tmp_path / "whole", 7, batch_size=2)
    run(volumes, tmp_path / "kept", 3, batch_size=2)
    config = replace(TINY, batch_size=2, workers=2)
    assert torch.equal(
        train(config, volumes, tmp_path / "kept", 7, device="cpu", device_cache=True, progress=False), whole
    )
    assert differences(newest(tmp_path / "whole"), newest(tmp_path / "kept")) == []


def test_volumes_that_do_not_fit_the_gpu_are_refused(volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    image, mask = volumes[0]
    size = len(volumes) * (image.nbytes + mask.numel())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * size - 1, 2 * size - 1))
    with pytest.raises(
        BadInput, match=r"--device-cache: 3 volumes take 0\.0 GiB, more than half of what the GPU has free"
    ):
        DeviceCache(volumes, torch.device("cuda", 0))


@pytest.mark.parametrize(("kind", "spare", "fits"), [("cuda", 0, True), ("cuda", -1, False), ("cpu", 0, False)])
def test_prepared_volumes_go_to_a_gpu_where_they_fit(
    volumes, tmp_path: Path, monkeypatch, kind: str, spare: int, fits: bool
) -> None:
    cache = DiskCache(volumes, tmp_path)
    here = SimpleNamespace(device=torch.device(kind), volumes=cache)
    free = 2 * bytes_of(cache) + spare
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    assert _fits(here) is fits
    assert not _fits(SimpleNamespace(device=here.device, volumes=volumes))  # each would have to be prepared first


@pytest.mark.long
def test_volumes_from_disk_and_then_from_the_device_train_the_same(volumes, tmp_path: Path, monkeypatch) -> None:
    """As on a GPU with no option given: prepared, read by two processes for one step, then kept on the device."""
    whole = run(volumes, tmp_path / "plain", 5)
    moved = []
    monkeypatch.setattr(training, "_fits", lambda run: moved.append(run.step) or True)
    cache = DiskCache(volumes, tmp_path / "cache")
    config = replace(TINY, workers=2)
    assert torch.equal(train(config, cache, tmp_path / "kept", 5, device="cpu", progress=False), whole)
    assert moved == [1]
    assert cache.missing() == []
    assert torch.equal(
        train(config, cache, tmp_path / "read", 5, device="cpu", device_cache=False, progress=False), whole
    )
    assert moved == [1]
    assert differences(newest(tmp_path / "plain"), newest(tmp_path / "kept")) == []


def test_a_step_is_the_specified_one(volumes, tmp_path: Path) -> None:
    """Two micro-steps of one volume: half their gradients' sum, then Adam, is one step over both volumes."""
    trainer = Trainer(TINY, volumes, torch.device("cpu"))
    reference = Trainer(replace(TINY, batch_size=2, accumulation=1), volumes, torch.device("cpu"))
    inner, draws, masks = trainer.diffusion.add_noise, [], []
    trainer.unet.register_forward_pre_hook(lambda _net, args: masks.append(args[0][:, 1:]))

    def record(*draw: Tensor) -> Tensor:
        draws.append(draw)
        return inner(*draw)

    trainer.diffusion.add_noise = record  # type: ignore[method-assign]
    trainer.train_step()
    image, t, noise = (torch.cat(parts) for parts in zip(*draws, strict=True))
    loss = reference.diffusion.loss(image, torch.cat(masks), t=t, noise=noise)
    loss.backward()
    reference.optimizer.step()
    assert trainer.read_losses() == pytest.approx([loss.item()], rel=1e-5)
    moved, expected = (model.unet.out[2].weight.detach() for model in (trainer, reference))  # from zero
    assert moved.abs().max().item() == pytest.approx(TINY.learning_rate, rel=1e-3)
    assert (moved - expected).norm() < 0.01 * expected.norm()


def test_the_average_is_the_weights_until_it_starts_and_then_follows(volumes) -> None:
    trainer = Trainer(TINY, volumes, torch.device("cpu"))
    weight = trainer.unet.out[2].bias
    biases = []
    for _ in range(7):
        trainer.train_step()
        biases.append((weight.item(), trainer.averaged.denoise_fn.out[2].bias.item()))
    for current, average in biases[:4]:
        assert average == current
    fourth, sixth = biases[3][0], biases[5][0]
    assert biases[4][1] == fourth  # step 5 is none of every second
    assert biases[5][1] == biases[6][1] == pytest.approx(0.9 * fourth + 0.1 * sixth, rel=1e-5)


def test_every_epoch_shows_every_volume_once_in_an_order_of_its_own(volumes) -> None:
    trainer = Trainer(replace(TINY, batch_size=3, accumulation=1), volumes, torch.device("cpu"))
    order = trainer._order()
    epochs = [next(order) for _ in range(8)]
    assert all(sorted(epoch) == [0, 1, 2] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_seeds_differ_and_settings_share_their_start(volumes, tmp_path: Path) -> None:
    base, other = run(volumes, tmp_path / "a", 2), run(volumes, tmp_path / "b", 2, seed=1)
    layout = run(volumes, tmp_path / "c", 2, setting="OPT12")
    assert not torch.equal(base, other)
    torch.testing.assert_close(base, layout, rtol=1e-4, atol=1e-5)


def sample_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 250 timesteps of a sample would take most of a test's time."""
    monkeypatch.setattr(GaussianDiffusion, "sample", partialmethod(GaussianDiffusion.sample, steps=10, sampler="ddim"))


@pytest.mark.long
def test_the_fast_path_trains_as_base_does(volumes, tmp_path: Path, monkeypatch, caplog) -> None:
    """Without its kernels it computes in float32, and says so in one line; also when it is cut and resumed.

    Samples are drawn from the weights themselves and, behind `ema_start`, from their average, while it is on.
    """
    monkeypatch.setattr(switches, "_said", set())
    sample_in_few_steps(monkeypatch)
    changes = {"learning_rate": 1e-3, "ema_start": 3}
    base = run(volumes, tmp_path / "base", 4, **changes)
    fast = run(volumes, tmp_path / "fast", 4, setting="FAST", sample_every=2, **changes)
    torch.testing.assert_close(fast, base, rtol=0, atol=1e-4)
    run(volumes, tmp_path / "cut", 2, setting="FAST", **changes)
    assert torch.equal(run(volumes, tmp_path / "cut", 4, setting="FAST", **changes), fast)
    assert differences(newest(tmp_path / "fast"), newest(tmp_path / "cut")) == []
    assert newest(tmp_path / "fast")["model"].keys() == newest(tmp_path / "base")["model"].keys()
    assert len(list((tmp_path / "fast" / "samples").iterdir())) == 2
    said = [line for line in caplog.messages if "FAST" in line]
    assert len(said) == 1
    assert "in float32" in said[0]


def test_the_run_leaves_a_log_a_sample_and_a_model_that_can_be_loaded(volumes, tmp_path: Path, monkeypatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sample_in_few_steps(monkeypatch)
    losses = run(volumes, tmp_path, 3, sample_every=3)
    run(volumes, tmp_path, 4, sample_every=3)
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert [event.step for event in log.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.value for event in log.Scalars("loss")][:3] == losses.tolist()
    written = nibabel.load(tmp_path / "samples" / "step-0000003.nii.gz")
    np.testing.assert_array_equal(written.affine, volumes.reference(0).affine)
    assert np.isfinite(written.get_fdata()).all()
    assert [path.name for path in checkpoints_of(tmp_path)] == ["step-0000003.pt", "step-0000004.pt"]
    assert load_checkpoint(checkpoints_of(tmp_path)[-1]).denoise_fn.config["image_size"] == 8


@pytest.mark.long
def test_killed_five_times_it_ends_with_the_same_weights(volumes, head_folder: Path, tmp_path: Path) -> None:
    out, dice = tmp_path / "killed run", random.Random(0)
    words = ["train", "--data", str(head_folder), "--out", str(out), *COMMAND, "--save-every", "1", "--no-check"]
    began, kills, longest = 0, 0, 1.5
    while kills < 5 or not checkpoints_of(out):
        printed = (tmp_path / f"{kills}.out", tmp_path / f"{kills}.err")
        process = start(SCRIPT, [*words, "--steps", "100000"], os.environ, *printed)
        while not (out / "run.json").exists() or (out / "run.json").stat().st_mtime_ns == began:
            assert process.is_alive(), printed[1].read_text()
            time.sleep(0.01)
        began = (out / "run.json").stat().st_mtime_ns
        time.sleep(dice.uniform(0.1, longest))  # while it trains, or writes, or reads the last checkpoint
        if not checkpoints_of(out):
            longest *= 1.5  # a slow machine needs longer for its first step
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    steps = int(checkpoints_of(out)[-1].stem.removeprefix("step-")) + 2
    assert main([*words, "--steps", str(steps)]) == 0
    run(volumes, tmp_path / "undisturbed", steps, ema_start=2000, ema_every=10, ema_decay=0.995)
    assert differences(newest(tmp_path / "undisturbed"), newest(out)) == []
    assert not list(out.rglob(".writing-*"))


@pytest.mark.parametrize(("sent", "workers"), [(signal.SIGINT, "0"), (signal.SIGTERM, "2")])
def test_a_signal_ends_it_after_the_step_in_hand_with_a_checkpoint(
    head_folder: Path, tmp_path: Path, sent: signal.Signals, workers: str
) -> None:
    """As Ctrl-C and a batch system send it: to the process and to those that load its volumes."""
    out = tmp_path / "run"
    words = ["train", "--data", str(head_folder), "--out", str(out)]
    words += [*COMMAND, "--steps", "100000", "--save-every", "0", "--workers", workers]
    files = (tmp_path / "printed", tmp_path / "complaint")
    process = start(f"import os; os.setsid(); {SCRIPT}", words, os.environ, *files)
    while not (out / "tensorboard").exists():
        assert process.is_alive(), files[1].read_text()
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, sent)
    process.join(60)
    assert process.exitcode == 130
    printed, complaint = (file.read_text() for file in files)
    assert "Traceback" not in complaint
    assert complaint.count("stopping after this step") == 1
    step = newest(out)["step"]
    assert f"stopped at step {step} of 100000" in printed


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(count=2))])
def test_two_processes_compute_what_one_does(head_folder: Path, tmp_path: Path, device: str) -> None:
    """Two of one micro-step against one of two: the same draws, so the same gradients but for rounding.

    Through Gloo on the CPU, through NCCL on two GPUs. What torchrun itself does is of test_faults.py.
    """

    def words(out: str, accumulation: int) -> list[str]:
        arguments = ["train", "--data", str(head_folder), "--out", str(tmp_path / out), *COMMAND]
        return [*arguments, "--steps", "3", "--accumulation", str(accumulation), "--no-check", "--device", device]

    assert main(words("one", 2)) == 0
    for ended in run_ranks(2, SCRIPT, *words("two", 1)):
        assert ended.returncode == 0, ended.stderr
    one, two = newest(tmp_path / "one"), newest(tmp_path / "two")
    torch.testing.assert_close(one["losses"], two["losses"], rtol=1e-4, atol=0)
    name = "denoise_fn.out.2.weight"
    assert one["model"][name].abs().max() > 1e-5  # it starts at zero
    assert (one["model"][name] - two["model"][name]).norm() < 0.01 * one["model"][name].norm()


# What a user can cause


def test_another_runs_folder_is_refused(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path, 1)
    with pytest.raises(BadInput, match=r"begun with --learning-rate 1e-05 \(not 0\.1\)"):
        run(volumes, tmp_path, 2, learning_rate=0.1)
    with pytest.raises(BadInput, match=r"begun with --setting base \(not opt1\)"):
        run(volumes, tmp_path, 2, setting="OPT1")
    run(volumes, tmp_path, 2, save_every=1, keep=5)


def test_a_larger_gradient_is_scaled_down_and_a_smaller_one_left_alone(volumes, tmp_path, monkeypatch) -> None:
    norms: list[float] = []
    stepped = torch.optim.Adam.step

    def watched(optimizer: torch.optim.Adam, *args: Any, **kwargs: Any) -> Any:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.stack([g.double().norm() for g in gradients]).norm()))
        return stepped(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    run(volumes, tmp_path / "free", 2)
    free, norms[:] = list(norms), []
    run(volumes, tmp_path / "loose", 2, clip_norm=2 * max(free))
    assert norms == free
    norms.clear()
    run(volumes, tmp_path / "tight", 2, clip_norm=min(free) / 10)
    assert norms == pytest.approx([min(free) / 10] * len(free), rel=1e-3)


def test_a_run_of_an_earlier_version_goes_on(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path, 1)
    record = tmp_path / "run.json"
    earlier = json.loads(record.read_text())
    del earlier["offset_noise"]
    earlier["switches"] = earlier.pop("setting")
    record.write_text(json.dumps(earlier))
    with pytest.raises(BadInput, match=r"begun with --setting base \(not opt1\)"):
        run(volumes, tmp_path, 2, setting="OPT1")
    with pytest.raises(BadInput, match=r"begun with --offset-noise 0 \(not 0\.1\)"):
        run(volumes, tmp_path, 2, offset_noise=0.1)
    assert len(run(volumes, tmp_path, 2)) == 2
    assert json.loads(record.read_text())["setting"] == "BASE"


def test_other_volumes_are_refused(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path, 1)
    volumes.cases = volumes.cases[:2]
    with pytest.raises(BadInput, match="volumes"):
        run(volumes, tmp_path, 2)


def test_a_folder_that_holds_something_else_is_left_alone(volumes, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(BadInput, match="no run of medddpm"):
        run(volumes, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_run_record_is_named(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path, 1)
    (tmp_path / "run.json").write_text('{"setting": "BA')
    with pytest.raises(BadInput, match=r"run\.json: it is damaged"):
        run(volumes, tmp_path, 2)


def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(volumes, tmp_path: Path, caplog) -> None:
    whole = run(volumes, tmp_path, 4)
    last = checkpoints_of(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:1000])
    assert torch.equal(run(volumes, tmp_path, 4), whole)
    assert "step-0000004.pt: it is damaged" in caplog.text
    assert newest(tmp_path)["step"] == 4


def test_a_checkpoint_of_another_configuration_is_refused(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path / "a", 1)
    run(volumes, tmp_path / "b", 1, num_res_blocks=2)
    checkpoints_of(tmp_path / "a")[-1].write_bytes(checkpoints_of(tmp_path / "b")[-1].read_bytes())
    with pytest.raises(BadInput, match="do not fit the network"):
        run(volumes, tmp_path / "a", 2)


def test_a_loss_that_is_no_number_ends_it_and_keeps_the_last_checkpoint(volumes, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the weights are no longer finite"):
        run(volumes, tmp_path, 50, learning_rate=1e30, save_every=1, keep=99)
    checkpoints = checkpoints_of(tmp_path)
    assert checkpoints
    assert all(read_checkpoint(path)["losses"].isfinite().all() for path in checkpoints)


def test_a_disk_that_fills_up_keeps_the_last_good_checkpoint(volumes, head_folder: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk."""
    out = tmp_path / "run"
    whole = run(volumes, out, 2, model_channels=32, norm_groups=32, ema_start=2000, ema_every=10, ema_decay=0.995)
    size = checkpoints_of(out)[-1].stat().st_size
    words = ["train", "--data", str(head_folder), "--out", str(out), *COMMAND]
    words += ["--steps", "4", "--save-every", "2", "--no-check"]
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}))"
    complaint = tmp_path / "complaint"
    process = start(f"{limit}; {SCRIPT}", words, os.environ, tmp_path / "printed", complaint)
    process.join(60)
    assert process.exitcode == 1
    assert "no room left" in complaint.read_text()
    assert "Traceback" not in complaint.read_text()
    assert [path.name for path in out.rglob("*.pt")] == ["step-0000002.pt"]
    assert not list(out.rglob(".writing-*"))
    assert main(words) == 0
    assert torch.equal(newest(out)["losses"][:2], whole)


def test_the_runs_record_says_what_it_is_made_of(volumes, tmp_path: Path) -> None:
    run(volumes, tmp_path, 1)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["learning_rate"] == 1e-5
    assert record["volumes"] == volumes.names()
    assert record["size"] == [8, 8, 8]
