"""A run's folder: whose it is, which checkpoints it keeps, and what it refuses to save."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from fuzz.attack import limited
from helpers import forks

from medddpm.checkpoints.files import checkpoints_of
from medddpm.cli.main import main
from medddpm.data.heads import Heads
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.errors import BadInput
from medddpm.runtime.files import named_failures
from medddpm.training import run, run_folder
from medddpm.training.config import FREE, TrainConfig
from medddpm.training.mismatch import NO_OPTION, option
from medddpm.training.network import checkpoint_bytes, unet_for
from medddpm.training.run_folder import check_room_for, claim, locked, newest, read_run, save

WEIGHTS = {"a": torch.ones(2)}


def content(step: int, weights: torch.Tensor | None = None) -> dict[str, object]:
    state = WEIGHTS if weights is None else {"a": weights}
    return {"step": step, "model": state, "ema": state}


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (9_999_999, 10_000_000, 10_000_001):
        save(tmp_path, content(step), keep=2)
    assert [path.name for path in checkpoints_of(tmp_path)] == ["step-10000000.pt", "step-10000001.pt"]


def test_no_checkpoint_goes_before_the_next_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed while it writes, where nothing cleans up behind it."""
    save(tmp_path, content(1), keep=1)
    there: list[str] = []
    monkeypatch.setattr(
        run_folder, "save_checkpoint", lambda *_: there.extend(path.name for path in checkpoints_of(tmp_path))
    )
    save(tmp_path, content(2), keep=1)
    assert there == ["step-0000001.pt"]


def test_what_was_just_written_stays_whatever_lies_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, content(1), keep=1)
    (tmp_path / "checkpoints" / "step-0000009.pt").write_bytes(b"broken")
    save(tmp_path, content(2), keep=1)
    assert newest(tmp_path)[0].name == "step-0000002.pt"
    assert caplog.messages[-1].endswith("set aside as step-0000009.pt.unreadable, going on from step-0000002.pt")
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.unreadable")] == ["step-0000009.pt.unreadable"]


def test_a_run_whose_checkpoints_are_all_broken_does_not_begin_anew(tmp_path: Path) -> None:
    save(tmp_path, content(1), keep=1)
    checkpoints_of(tmp_path)[0].write_bytes(b"broken")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"none of its 1 checkpoints is readable \(step-0000001\.pt\); restore one"):
            newest(tmp_path)
    assert [path.name for path in checkpoints_of(tmp_path)] == ["step-0000001.pt"], "under the name to restore it to"


def test_a_run_whose_checkpoints_were_all_set_aside_does_not_begin_anew(tmp_path: Path) -> None:
    config, volumes = TrainConfig(image_size=8), Phantom(1, (8, 8, 8))
    claim(tmp_path, config, volumes)
    save(tmp_path, content(1), keep=1)
    (path,) = checkpoints_of(tmp_path)
    path.rename(path.with_name("step-0000001.pt.unreadable"))
    with pytest.raises(BadInput, match=r"begun with --seed 0 \(not 1\)"):
        claim(tmp_path, replace(config, seed=1), volumes)
    claim(tmp_path, config, volumes)
    with pytest.raises(BadInput, match=r"none of its 1 checkpoints is readable \(step-0000001\.pt\.unreadable\)"):
        newest(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, value: float) -> None:
    with pytest.raises(BadInput, match=r"at step 1 the .* no longer finite \(a\); .*; no checkpoint was written yet$"):
        save(tmp_path, content(1, torch.tensor([value])), keep=1)
    save(tmp_path, content(1), keep=1)
    with pytest.raises(BadInput, match=r"at step 2 the .* no longer finite \(a\); .* is kept: step-0000001\.pt$"):
        save(tmp_path, content(2, torch.tensor([1.0, value])), keep=1)
    for kind in ("model", "ema"):
        with pytest.raises(BadInput, match="at step 2 the weights are no longer finite"):
            save(tmp_path, content(2) | {kind: {"a": torch.tensor([value])}}, keep=1)
    assert newest(tmp_path)[0].name == "step-0000001.pt"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    save(tmp_path, content(1, torch.arange(1000.0)), keep=1)
    (path,) = checkpoints_of(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(torch.arange(1000.0).numpy().tobytes()[400:440])] ^= 1
    path.write_bytes(whole)
    with pytest.raises(BadInput, match="none of its 1 checkpoints is readable"):
        newest(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"), [("scaling", r"--scaling volume \(not slice\)"), ("voxels", "other data in phantom_0001")]
)
def test_other_data_is_noticed(tmp_path: Path, change: str, said: str) -> None:
    data, out, size = tmp_path / "data", tmp_path / "run", (8, 8, 8)
    write_phantom(data, 2, size)
    config = TrainConfig(image_size=8)
    claim(out, config, VolumeFolder(data, size))
    save(out, content(1), keep=1)
    claim(out, config, VolumeFolder(data, size))
    if change == "voxels":
        other = tmp_path / "other"
        write_phantom(other, 2, size, seed=1)
        (data / "image" / "phantom_0001.nii.gz").write_bytes((other / "image" / "phantom_0001.nii.gz").read_bytes())
    with pytest.raises(BadInput, match=f"begun with {said};"):
        claim(out, config, VolumeFolder(data, size, "slice" if change == "scaling" else "volume"))


def test_all_that_differs_is_named_at_once_as_it_was_typed(tmp_path: Path) -> None:
    config = TrainConfig(image_size=8, model_channels=32, workers=0)
    claim(tmp_path, config, Phantom(2, (8, 8, 8)))
    save(tmp_path, content(1), keep=1)
    other = replace(
        config, setting="OPT1", image_size=16, model_channels=64, num_res_blocks=2, channel_mult=(1, 2),
        learning_rate=1e-3, accumulation=3, ema_decay=0.5, workers=2,
    )  # fmt: skip
    with pytest.raises(BadInput) as refused:
        claim(tmp_path, other, Phantom(4, (16, 16, 8), "flair"))
    assert refused.value.problem == (
        "its run was begun with --setting base (not opt1), --channels 32 (not 64), --blocks 1 (not 2), "
        "--channel-mult as published (not 1 2), --learning-rate 1e-05 (not 0.001), --accumulation 2 (not 3), "
        "ema_decay 0.995 (not 0.5), --size 8 (not 16 16 8), --phantom 2 (not 4), --contrast t1 (not flair)"
    )
    with pytest.raises(BadInput, match=r"begun with --phantom \(not --heads\);"):
        claim(tmp_path, config, Heads(2, (8, 8, 8)))
    write_phantom(tmp_path / "data", 2, (8, 8, 8))
    with pytest.raises(BadInput, match="begun with other files;"):
        claim(tmp_path, config, VolumeFolder(tmp_path / "data", (8, 8, 8)))


def test_an_option_that_is_named_is_one_of_the_command(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {option(key) for key in {*asdict(TrainConfig()), "size"} - FREE - NO_OPTION} <= options


def test_a_start_that_failed_does_not_keep_the_folder(tmp_path: Path) -> None:
    write_phantom(tmp_path / "data", 1, (8, 8, 8))
    volumes = VolumeFolder(tmp_path / "data", (8, 8, 8))
    claim(tmp_path / "run", TrainConfig(image_size=8, seed=1), volumes)
    claim(tmp_path / "run", TrainConfig(image_size=8, seed=2), volumes)


@pytest.mark.parametrize(("folder", "sample_every"), [("checkpoints", 0), ("samples", 1)])
def test_what_cannot_be_saved_later_is_known_before_the_first_step(
    tmp_path: Path, folder: str, sample_every: int
) -> None:
    (tmp_path / folder).write_text("in its place")
    with pytest.raises(BadInput, match=f"{folder}/step: a file stands where its folder should be"):
        claim(tmp_path, TrainConfig(image_size=8, sample_every=sample_every), Phantom(1, (8, 8, 8)))
    assert (tmp_path / folder).read_text() == "in its place"


def test_a_checkpoint_that_is_set_aside_takes_no_other_s_place(tmp_path: Path) -> None:
    save(tmp_path, content(1), keep=9)
    for damage in (b"once", b"twice"):
        (tmp_path / "checkpoints" / "step-0000002.pt").write_bytes(damage)
        assert newest(tmp_path)[0].name == "step-0000001.pt"
    aside = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*.unreadable*")}
    assert aside == {"step-0000002.pt.unreadable": b"once", "step-0000002.pt.unreadable-2": b"twice"}


def test_of_two_trainings_at_once_one_ends_in_a_line(tmp_path: Path) -> None:
    write_phantom(tmp_path / "data", 1, (8, 8, 8))
    words = ["medddpm", "train", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    words += ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--accumulation", "1", "-q"]
    words += ["--sample-every", "0", "--save-every", "0", "--steps", "100000", "--device", "cpu"]
    with forks.two_at_once(words, tmp_path) as (refused, complaint, going):
        assert refused.exitcode == 1
        (line,) = complaint.splitlines()
        assert f"process {going.pid} is training there" in line
        assert going.is_alive()


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from medddpm.training.run_folder import locked
with locked(Path({str(tmp_path)!r})):
    pass
"""
    with locked(tmp_path):
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"process {os.getpid()} is training there" in ended.stderr
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_killed_training_s_processes_may_outlive_it(tmp_path: Path) -> None:
    script = f"""
import os, signal, time
from pathlib import Path
from medddpm.training.run_folder import locked
with locked(Path({str(tmp_path)!r})):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)  # as a loading process, which has the lock too
    Path({str(tmp_path / ".writing-ended")!r}).touch()
    os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert not (tmp_path / ".writing-ended").exists()
    with locked(tmp_path):
        assert (tmp_path / ".writing-ended").exists()


def test_checkpoints_without_a_record_are_a_run_that_lost_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-0000001.pt").write_bytes(b"")
    with pytest.raises(BadInput, match=r"it has checkpoints but no run\.json; restore that file"), locked(tmp_path):
        pass


def test_a_full_disk_is_named_with_the_file() -> None:
    """/dev/full takes no byte."""
    refused = pytest.raises(BadInput, match=r"/lock: no room left to write it; free some space")
    with refused, named_failures(Path("/lock")), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("setting", "NONSENSE"), ("setting", "base"), ("setting", 5), ("recompute", "everything"), ("recompute", 1),
        ("gradient_dtype", "fp8"), ("accumulation", True), ("accumulation", 0), ("batch_size", 1.0),
        ("learning_rate", -1e-5), ("learning_rate", float("nan")), ("learning_rate", 10**400), ("ema_decay", 1.5),
        ("seed", -1), ("seed", 2**70), ("image_size", 2**40), ("norm_groups", 0), ("channel_mult", []),
        ("channel_mult", [1] * 100), ("channel_mult", [True]), ("size", [8, 8]), ("size", [4096] * 3),
        ("size", [8, 8, True]), ("layout", "head"), ("volumes", []), ("volumes", [5]), ("data", "abc"),
        ("processes", 0), ("keep", None), ("read_every_loss", 1), ("bucket_mib", -1),
    ],
)  # fmt: skip
def test_every_field_of_run_json_is_checked(tmp_path: Path, name: str, value: object) -> None:
    claim(tmp_path, TrainConfig(image_size=8), Phantom(1, (8, 8, 8)))
    record = tmp_path / "run.json"
    known = json.loads(record.read_text())
    assert read_run(tmp_path) == known
    record.write_text(json.dumps({**known, name: value}))
    with pytest.raises(BadInput, match=rf"run\.json: it is damaged: {name} is not what it should be"):
        read_run(tmp_path)


def test_every_field_that_is_written_is_one_that_is_checked(tmp_path: Path) -> None:
    claim(tmp_path, TrainConfig(image_size=8), Phantom(1, (8, 8, 8)))
    for name in json.loads((tmp_path / "run.json").read_text()):
        test_every_field_of_run_json_is_checked(tmp_path / name, name, {"no": "such value"})


def test_micro_steps_of_a_damaged_record_are_not_counted_one_by_one(tmp_path: Path) -> None:
    config, volumes = TrainConfig(image_size=8), Phantom(1, (8, 8, 8))
    claim(tmp_path, config, volumes)
    save(tmp_path, content(1), keep=1)
    known = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**known, "accumulation": 3**30}))
    with limited(), pytest.raises(BadInput, match=r"start one of 1, 3, 9, 27, 81, 243, 729 processes"):
        claim(tmp_path, replace(config, accumulation=3**30), volumes, processes=2)


@pytest.mark.parametrize("kind", ["FIFO", "device", "large"])
def test_a_run_json_that_does_not_end_is_named(tmp_path: Path, kind: str) -> None:
    claim(tmp_path, TrainConfig(image_size=8), Phantom(1, (8, 8, 8)))
    save(tmp_path, content(1), keep=1)
    (record := tmp_path / "run.json").unlink()
    if kind == "FIFO":
        os.mkfifo(record)
    elif kind == "device":
        record.symlink_to("/dev/zero")
    else:
        with open(record, "wb") as stream:
            stream.truncate(2**33)
    said = (
        "it has 8589934592 bytes, and a file of this kind at most 33554432" if kind == "large" else f"a {kind} stands"
    )
    for reads in (read_run, lambda out: claim(out, TrainConfig(image_size=8), Phantom(1, (8, 8, 8)))):
        with limited(), pytest.raises(BadInput, match=rf"run\.json: {said}"):
            reads(tmp_path)


def test_a_fifo_in_the_place_of_a_new_run_json_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with limited(), pytest.raises(BadInput, match=r"run\.json: a FIFO stands there"):
        claim(tmp_path, TrainConfig(image_size=8), Phantom(1, (8, 8, 8)))
    assert (tmp_path / "run.json").is_fifo()


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2 * size, size, size))


@pytest.mark.parametrize(
    ("there", "first", "steps", "every", "keep", "count"),
    [
        (0, 0, 5000, 1000, 2, 3),  # two that are kept, and one that is written before the oldest goes
        (0, 0, 5000, 1000, 1, 3),  # the newest is not yet known to be good: the one before it stays
        (0, 0, 5000, 1000, 3, 4),
        (0, 0, 2000, 1000, 2, 2),
        (0, 0, 1500, 1000, 2, 2),
        (0, 0, 5000, 0, 2, 1),
        (1, 1000, 5000, 1000, 2, 2),
        (2, 2000, 5000, 1000, 2, 1),
        (2, 2500, 2600, 1000, 2, 1),
        (2, 2000, 2000, 1000, 2, 0),
        (5, 5000, 9000, 1000, 2, 1),  # --keep was larger before
    ],
)
def test_room_is_needed_for_the_checkpoints_that_are_there_at_once(
    tmp_path: Path, monkeypatch, there: int, first: int, steps: int, every: int, keep: int, count: int
) -> None:
    for number in range(there):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / f"step-{number + 1:07d}.pt").touch()
    config = TrainConfig(save_every=every, keep=keep)
    free(monkeypatch, count * 2**20)
    check_room_for(tmp_path, 2**20, config, first, steps)
    free(monkeypatch, count * 2**20 - 1)
    if count:
        with pytest.raises(BadInput, match=f"no room for {count} checkpoint"):
            check_room_for(tmp_path, 2**20, config, first, steps)


NARROW = TrainConfig(image_size=8, model_channels=32, norm_groups=8, channel_mult=(1,))


def test_a_full_disk_is_said_before_the_first_step(head_folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "run"
    size = checkpoint_bytes(unet_for(NARROW, Phantom(1, (8, 8, 8))))
    words = ["train", "--data", str(head_folder), "--out", str(out), "--size", "8", "--steps", "1", "--device", "cpu"]
    words += ["--channel-mult", "1", "--sample-every", "0", "--cache", str(tmp_path / "cache"), "--no-check"]
    free(monkeypatch, size - 1)
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"medddpm: {out}: no room for 1 checkpoint: {size / 2**20:.1f} MiB, and ")
    assert line.endswith("are free; free some space, give a smaller --keep, or choose another folder")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("*.safetensors"))
    free(monkeypatch, 2**40)
    assert main(words) == 0
    line, *_ = capsys.readouterr().err.splitlines()
    assert line == (
        f"medddpm: {out}: a network of 32 channels, its norms of 8 groups, {size / 16e6:.1f} million weights; "
        f"a checkpoint takes up to {size / 2**20:.1f} MiB"
    )
    (path,) = checkpoints_of(out)
    # Up to step 2000 the average is the weights, which are stored once.
    assert path.stat().st_size == pytest.approx(size * 3 / 4, rel=0.05)


@pytest.mark.parametrize(
    ("size", "options", "width"),
    [
        ("8", [], (32, 8)),
        ("56", [], (32, 8)),
        ("64", [], (64, 32)),
        ("8", ["--channels", "64"], (64, 32)),
        ("8", ["--channels", "32"], (32, 32)),
        ("8", ["--norm-groups", "4"], (32, 4)),
    ],
)
def test_small_volumes_have_a_narrow_network(
    tmp_path: Path, monkeypatch, size: str, options: list[str], width: tuple[int, int]
) -> None:
    assert configured(monkeypatch, tmp_path / "run", "--size", size, *options) == width


@pytest.mark.parametrize("known", [{}, {"model_channels": 64, "norm_groups": 32}])
def test_a_run_begun_with_the_published_width_goes_on_with_it(tmp_path: Path, monkeypatch, known) -> None:
    """Before, every --size had it by default; versions before that had no other, and did not say so."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-0000001.pt").touch()
    record = {"size": [8, 8, 8], "layout": "whole head", "volumes": ["a"], **known}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert configured(monkeypatch, tmp_path, "--size", "8") == (64, 32)
    (tmp_path / "run.json").write_text(json.dumps({**record, "model_channels": 32, "norm_groups": 8}))
    assert configured(monkeypatch, tmp_path, "--size", "8") == (32, 8)


def configured(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> tuple[int, int]:
    """The width and the groups that `medddpm train` would train with."""
    begun: list[TrainConfig] = []
    monkeypatch.setattr(run, "train", lambda config, *how, **more: begun.append(config) or [0.0])
    command = ["train", "--phantom", "1", "--out", str(out), "--steps", "1", "--device", "cpu", "-q", *words]
    assert main(command) == 0
    return begun[0].model_channels, begun[0].norm_groups
