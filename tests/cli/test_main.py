"""The command from outside: exit codes, one line for what a user can mend, and volumes that other programs can read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import nibabel
import numpy as np
import pytest
import torch
from helpers import forks
from helpers.repository import ROOT

from medddpm import diffusion, unet
from medddpm.checkpoints.files import checkpoints_of
from medddpm.cli.main import main, plain_lines
from medddpm.cli.options import RECOMPUTED, SAMPLERS, SHELLS
from medddpm.data import checking
from medddpm.data.phantom import write_phantom
from medddpm.fast.reports import log

TINY = ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--sample-every", "0"]
TINY += ["--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def trained(head_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: two steps on the phantom."""
    out = tmp_path_factory.mktemp("runs") / "a run"
    assert main(["train", "--data", str(head_folder), "--out", str(out), "--steps", "2", *TINY]) == 0
    return out


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the line that the command printed on stderr, and checks that it is one and no traceback."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("medddpm: ")
    return lines[0]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"]])
def test_help_that_cannot_be_printed_does_not_end_in_silence(words: list[str], monkeypatch, capsys) -> None:
    with open(os.devnull, "w") as full:
        monkeypatch.setattr(sys, "stdout", mock.Mock(wraps=full, write=mock.Mock(side_effect=OSError(28, "Full"))))
        assert main(words) == 1
    assert "what is printed: full; correct it and try again" in complaint(capsys)


@pytest.mark.parametrize(
    "words", ["check data", "parse a --out b", "compare a.py --out c", "profile --out p", "window p"]
)
def test_a_working_folder_that_was_removed_is_said(words: str, tmp_path: Path) -> None:
    """Before PyTorch is imported, which would end the process there."""
    (tmp_path / "gone").mkdir()
    script = "import os; os.rmdir(os.getcwd()); from medddpm.__main__ import run; run()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *words.split()]
    done = subprocess.run(command, cwd=tmp_path / "gone", env=environment, capture_output=True, text=True)
    said = "medddpm: the working folder: it was removed; change to one that is there, by cd\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_train_says_where_it_is_and_goes_on_from_there(trained: Path, head_folder: Path, capsys) -> None:
    assert main(["train", "--data", str(head_folder), "--out", str(trained), "--steps", "3", *TINY]) == 0
    assert "finished at step 3" in capsys.readouterr().out
    assert [path.name for path in checkpoints_of(trained)] == ["step-0000002.pt", "step-0000003.pt"]
    assert main(["train", "--data", str(head_folder), "--out", str(trained), "--steps", "1", *TINY]) == 0
    said = f"{trained}: already at step 3, beyond --steps 1; give more than 3 to train on\n"
    assert capsys.readouterr().out == said


def test_train_takes_the_phantom_and_every_setting(tmp_path: Path) -> None:
    for setting in ("opt1", "OPT12", "fast"):
        out = tmp_path / setting
        assert main(["train", "--phantom", "1", "--setting", setting, "--out", str(out), "--steps", "1", *TINY]) == 0
        assert checkpoints_of(out)


def test_train_and_release_take_heads(tmp_path: Path, capsys) -> None:
    run, released = tmp_path / "run", tmp_path / "r.safetensors"
    command = ["train", "--heads", "2", "--contrast", "flair", "--out", str(run), "--steps", "1", *TINY]
    command[command.index("--size") + 1] = "16"
    assert main(command) == 0
    names = ["head flair, seed 0, subject 0", "head flair, seed 0, subject 1"]
    assert json.loads((run / "run.json").read_text())["volumes"] == names
    assert main(["train", "--phantom", "2", *command[3:]]) == 1
    assert "--heads (not --phantom)" in complaint(capsys)
    assert main(["train", "--heads", "1", *command[3:]]) == 1
    assert "--heads 2 (not 1)" in complaint(capsys)
    release = ["release", str(run), "--out", str(released), "--steps", "2", "--held-out", "2"]
    assert main([*release, "--device", "cpu", "-q"]) == 0
    card = released.with_suffix(".md").read_text()
    assert "2 synthetic subjects (`medddpm.data.heads`, flair, seed 0)" in card
    assert "FLAIR heads" in card
    assert "phantom" not in card


def test_the_kinds_of_data_exclude_each_other(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--phantom", "2", "--heads", "2", "--out", "run", "--steps", "1"])
    assert ended.value.code == 2
    assert "--heads: not allowed with argument --phantom" in capsys.readouterr().err


def test_a_folder_is_checked_and_prepared_once(head_folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """A second run on the same volumes reads none of them; one whose content has changed is checked again."""
    data = tmp_path / "data"
    shutil.copytree(head_folder, data)
    command = ["train", "--data", str(data), "--cache", str(tmp_path / "cache"), "--steps", "1", *TINY]
    checked = []
    check = checking.check_folder
    monkeypatch.setattr(checking, "check_folder", lambda *how, **also: checked.append(how) or check(*how, **also))
    for name, times in (("a", 1), ("b", 1)):
        assert main([*command, "--out", str(tmp_path / name)]) == 0
        assert len(checked) == times
    (data / "mask" / "phantom_0001.nii.gz").write_bytes(b"damaged")
    assert main([*command, "--out", str(tmp_path / "c")]) == 1
    assert "mask/phantom_0001.nii.gz" in complaint(capsys)


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "SAR"])
def test_a_sample_lies_on_its_masks_grid(trained: Path, tmp_path: Path, orientation: str, capsys) -> None:
    """Any size and orientation; nibabel opens it, with the mask's affine; the same seed draws the same volume."""
    write_phantom(tmp_path, 1, (20, 16, 12), seed=4)
    mask = nibabel.load(tmp_path / "mask" / "phantom_0000.nii.gz")
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(mask.affine), nibabel.orientations.axcodes2ornt(tuple(orientation))
    )
    turned = mask.as_reoriented(turn)
    turned.header.set_xyzt_units("mm")
    nibabel.save(turned, tmp_path / "mask.nii.gz")
    command = ["sample", "--checkpoint", str(trained), "--mask", str(tmp_path / "mask.nii.gz"), "--device", "cpu", "-q"]
    for name in ("a.nii.gz", "b.nii"):
        out = tmp_path / name
        assert main([*command, "--out", str(out), "--sampler", "ddim", "--steps", "3"]) == 0
        assert capsys.readouterr().out.strip() == str(out)
    first, second = nibabel.load(tmp_path / "a.nii.gz"), nibabel.load(tmp_path / "b.nii")
    np.testing.assert_allclose(first.affine, turned.affine)
    assert first.shape == turned.shape
    assert nibabel.aff2axcodes(first.affine) == tuple(orientation)
    assert first.header.get_xyzt_units()[0] == "mm"
    assert first.get_data_dtype() == np.float32
    values = first.get_fdata()
    assert values.min() >= 0
    assert values.max() <= 1
    assert values.std() > 0.01
    np.testing.assert_array_equal(values, second.get_fdata())


def test_several_volumes_are_numbered_and_each_is_that_of_its_seed(
    trained: Path, head_folder: Path, tmp_path: Path, capsys
) -> None:
    """In batches of two and alone; under the fast path too, which draws the same noise."""
    mask = str(head_folder / "mask" / "phantom_0000.nii.gz")
    command = ["sample", "--checkpoint", str(trained), "--mask", mask, "--device", "cpu", "-q"]
    command += ["--sampler", "dpm++", "--steps", "3"]
    several = [*command, "--count", "3", "--batch", "2", "--seed", "5", "--out"]
    assert main([*several, str(tmp_path / "v.nii.gz")]) == 0
    files = [tmp_path / f"v_{number}.nii.gz" for number in (1, 2, 3)]
    assert capsys.readouterr().out.split("\n")[:-1] == list(map(str, files))
    assert main([*several, str(tmp_path / "fast.nii"), "--setting", "fast"]) == 0
    volumes = [nibabel.load(file).get_fdata() for file in files]
    for number, volume in enumerate(volumes):
        assert main([*command, "--seed", str(5 + number), "--out", str(tmp_path / "one.nii"), "--force"]) == 0
        np.testing.assert_allclose(nibabel.load(tmp_path / "one.nii").get_fdata(), volume, atol=1e-5)
        np.testing.assert_allclose(nibabel.load(tmp_path / f"fast_{number + 1}.nii").get_fdata(), volume, atol=1e-4)
    assert np.abs(volumes[0] - volumes[1]).max() > 0.1
    assert np.abs(volumes[1] - volumes[2]).max() > 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_sample_says_what_is_kept_and_how_to_go_on(
    trained: Path, head_folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    printed = tmp_path_factory.mktemp("printed")
    mask, out = head_folder / "mask" / "phantom_0000.nii.gz", tmp_path / "v.nii.gz"
    words = ["--checkpoint", trained, "--mask", mask, "--out", out, "--count", "2000", "--device", "cpu", "-q"]
    command = ["medddpm", "sample", *map(str, words), "--sampler", "ddim", "--steps", "1"]
    heeding = "from helpers.interruptible import interruptible; interruptible()"
    files = (printed / "out", printed / "err")
    drawing = forks.start(f"{heeding}; {forks.MODULE}", command, os.environ, *files)
    while not (tmp_path / "v_2.nii.gz").exists() and drawing.is_alive():
        time.sleep(0.02)
    os.kill(drawing.pid, number)
    drawing.join(60)
    (line,) = files[1].read_text().splitlines()
    assert drawing.exitcode == 130
    whole = len(list(tmp_path.glob("v_*.nii.gz")))
    assert whole - len(files[0].read_text().splitlines()) in (0, 1)  # a volume is whole before its line is printed
    assert line == (
        f"medddpm: {out}: interrupted, and {whole} of 2000 volumes are kept; the same command draws what is missing"
    )
    assert not list(tmp_path.glob(".*"))


def test_every_mask_of_a_folder_is_a_line(trained: Path, head_folder: Path, tmp_path: Path, capsys) -> None:
    words = [
        "sample",
        "--checkpoint",
        str(trained),
        "--mask",
        str(head_folder / "mask"),
        "--out",
        str(tmp_path / "out"),
    ]
    words += ["--sampler", "ddim", "--steps", "1", "--device", "cpu", "--batch", "2", "-q"]
    assert main(words) == 0
    files = [tmp_path / "out" / mask.name for mask in sorted((head_folder / "mask").iterdir())]
    assert capsys.readouterr().out.splitlines() == list(map(str, files))
    assert len(files) == 3
    assert all(nibabel.load(file).shape == (16, 16, 16) for file in files)
    assert main([*words, "--image", str(files[0])]) == 1
    assert "--image: it would be every mask's" in complaint(capsys)


def test_all_is_drawn_though_nobody_reads_the_lines(
    trained: Path, head_folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """As `medddpm sample … | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [
        "sample",
        "--checkpoint",
        str(trained),
        "--mask",
        str(head_folder / "mask"),
        "--out",
        str(tmp_path / "out"),
    ]
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([*words, "--sampler", "ddim", "--steps", "1", "--device", "cpu", "-q"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 3


@pytest.mark.long
def test_four_modalities_train_and_sample_from_the_real_case(spec: Path, tmp_path: Path, capsys) -> None:
    """The BraTS case from its folder to four volumes with its affine; tiny, since two cores must do it."""
    data = spec.parent / "data" / "brats2021"
    size = ["--size", "16", "16", "8", "--channels", "32", "--blocks", "1", "--sample-every", "0", "-q"]
    run = tmp_path / "run"
    assert main(["train", "--data", str(data), "--out", str(run), "--steps", "1", *size, "--device", "cpu"]) == 0
    mask = next((data / "seg").iterdir())
    command = ["sample", "--checkpoint", str(run), "--mask", str(mask), "--out", str(tmp_path / "case.nii.gz"), "-q"]
    assert main([*command, "--sampler", "dpm++", "--steps", "2", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'case.nii.gz'}: a file for each of t1, t1ce, t2, flair, case_t1.nii.gz and so on" in said.err
    written = [Path(line) for line in said.out.strip().splitlines()[1:]]
    assert [path.name for path in written] == [f"case_{name}.nii.gz" for name in ("t1", "t1ce", "t2", "flair")]
    for path in written:
        np.testing.assert_allclose(nibabel.load(path).affine, nibabel.load(mask).affine)
        assert nibabel.load(path).shape == nibabel.load(mask).shape


def test_check_passes_a_sound_folder(head_folder: Path, capsys) -> None:
    assert main(["check", str(head_folder), "-q"]) == 0
    assert "3 cases (16x16x16), 0 problems" in capsys.readouterr().out


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """Three cases: one truncated, one with a stray label, one without its mask."""
    write_phantom(tmp_path, 3, (12, 12, 12))
    image = tmp_path / "image" / "phantom_0000.nii.gz"
    image.write_bytes(image.read_bytes()[:-100])
    mask = tmp_path / "mask" / "phantom_0001.nii.gz"
    labels = nibabel.load(mask)
    nibabel.save(nibabel.Nifti1Image(np.full(labels.shape, 7, np.uint8), labels.affine), mask)
    (tmp_path / "mask" / "phantom_0002.nii.gz").unlink()
    return tmp_path


def test_check_names_every_problem_on_a_line_of_its_own(spoilt: Path, capsys) -> None:
    assert main(["check", str(spoilt), "-q"]) == 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 4
    named = [line for line in lines[:3] if ": " in line and "; " in line]
    assert [sum(f"phantom_000{i}.nii.gz" in line for line in named) for i in range(3)] == [1, 1, 1]
    assert lines[3].endswith("3 problems")


def test_no_training_starts_on_a_spoilt_folder(spoilt: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["train", "--data", str(spoilt), "--out", str(out), "--steps", "1", *TINY]) == 1
    assert capsys.readouterr().err.count("medddpm: ") == 3
    assert not out.exists()


TRAIN = ["train", "--out", "run", "--steps", "1", "-q", "--phantom", "1"]
SAMPLE = ["sample", "--mask", "mask.nii.gz", "--out"]
BAD = {
    "no folder": (["train", "--data", "nowhere", "--out", "run", "--steps", "1"], "no such folder"),
    "two sides": ([*TRAIN, "--size", "8", "8"], "--size: 2 numbers"),
    "an odd side": ([*TRAIN, "--size", "9"], "multiples of 8"),
    "a width": ([*TRAIN, "--size", "8", "--channels", "40"], "--channels: 40 is no multiple of 32, the groups of each"),
    "groups": ([*TRAIN, "--size", "8", "--norm-groups", "5"], "choose a multiple of 5, or another --norm-groups"),
    "an absurd width": ([*TRAIN, "--size", "8", "--channel-mult", "999999999"], "bytes than can be counted"),
    "a device": ([*TRAIN, "--size", "8", "--device", "abacus"], "no abacus here"),
    "a file as run": ([*TRAIN, "--size", "8", "--out", __file__], "test_main.py"),
    "no checkpoint": ([*SAMPLE, "v.nii", "--checkpoint", "no.pt"], "no such checkpoint"),
    "an empty run": ([*SAMPLE, "v.nii", "--checkpoint", "."], "no checkpoints"),
    "a picture": ([*SAMPLE, "v.png", "--checkpoint", "no.pt"], "not a NIfTI name"),
    "no step": (["compare", "no.py", "--out", "o"], "no.py: there is no such file; give a file with `def build()"),
    "a folder of ncu's": (["parse", ".", "--out", "k.csv"], ".: a folder stands there; give ncu's raw page as CSV"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_1(command, message, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    assert message in complaint(capsys)
    assert not list(tmp_path.rglob("*.pt"))


UNREAD = {
    "contrast of data": ([*TRAIN[:-2], "--data", "d", "--contrast", "t1"],
                         "--contrast: only with --phantom or --heads"),
    "scaling of the phantom": ([*TRAIN, "--scaling", "volume"], "--scaling: only with --data"),
    "no check of the phantom": ([*TRAIN, "--no-check"], "--no-check: only with --data"),
    "setting of nothing": (["release", "r", "--out", "r.safetensors", "--held-out", "0", "--setting", "fast"],
                           "--setting: only where --held-out measures"),
    "window of a step": (["profile", "--out", "p", "--dry-run", "--view", "step", "--window-start", "10"],
                         "--window-start: only with --view window"),
    "no warm-up of the published network": (["profile", "--out", "p", "--dry-run", "--warmup", "0"],
                                            "--warmup: only with FILE or a command after --"),
    "layout of a step": (["profile", "--out", "p", "--dry-run", "--view", "step", "--convert-on", "gpu"],
                         "--convert-on: only with --view window"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "said"), UNREAD.values(), ids=UNREAD)
def test_an_option_without_an_effect_is_a_wrong_argument(
    command: list[str], said: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"medddpm {command[0]}: error: argument {said}"
    assert list(tmp_path.iterdir()) == []


def test_what_only_the_files_show_to_have_no_effect_is_said(trained: Path, head_folder: Path, tmp_path, capsys) -> None:
    mask = str(head_folder / "mask" / "phantom_0000.nii.gz")
    sampled = [
        "sample",
        "--checkpoint",
        str(trained),
        "--mask",
        mask,
        "--image",
        mask,
        "--out",
        str(tmp_path / "v.nii"),
    ]
    assert main(sampled) == 1
    assert "medddpm: --image: only a BraTS mask needs one" in complaint(capsys)
    released = ["release", str(trained), "--out", str(tmp_path / "r.safetensors"), "--device", "cpu", "-q"]
    assert main([*released, "--held-out", "2"]) == 1
    assert "medddpm: --held-out: the run was not trained on the phantom" in complaint(capsys)
    assert list(tmp_path.iterdir()) == []
    assert main(released) == 0
    out = ["--steps", "1", "--out", str(tmp_path / "run"), *TINY]
    assert main(["train", "--phantom", "1", "--gradient-dtype", "bf16", "--bucket-mib", "0", *out]) == 0
    said = capsys.readouterr().err
    for name in ("--gradient-dtype", "--bucket-mib"):
        assert f"{name}: a single process sends no gradients" in said


def test_steps_a_sampler_cannot_take_are_said(trained: Path, head_folder: Path, tmp_path: Path, capsys) -> None:
    mask = str(head_folder / "mask" / "phantom_0000.nii.gz")
    command = ["sample", "--checkpoint", str(trained), "--mask", mask, "--out", str(tmp_path / "v.nii.gz")]
    assert main([*command, "--steps", "10", "--device", "cpu"]) == 1
    assert complaint(capsys) == "medddpm: --steps: ddpm takes all 250 steps, not 10; for fewer choose another sampler"


@pytest.mark.parametrize(
    ("rank", "said"),
    [(None, "RANK is not set"), ("two", "RANK is 'two', no number"), ("2", "RANK is '2', no number"), ("0", "MASTER_")],
)
def test_one_of_several_processes_that_does_not_know_its_number_does_nothing(
    trained: Path, head_folder: Path, tmp_path: Path, monkeypatch, rank: str | None, said: str, capsys
) -> None:
    """By itself it would draw only its share of the volumes, and say that it is done."""
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    mask = str(head_folder / "mask" / "phantom_0000.nii.gz")
    sampled = ["sample", "--checkpoint", str(trained), "--mask", mask, "--out", str(tmp_path / "v.nii"), "--count", "2"]
    training = ["train", "--data", str(head_folder), "--out", str(tmp_path / "run"), "--steps", "1", *TINY]
    for command in (training,) if rank == "0" else (training, sampled):
        assert main(command) == 1
        line = complaint(capsys)
        assert line.startswith("medddpm: WORLD_SIZE: it is 2")
        assert said in line
        assert line.endswith("; unset it, or start with torchrun")
    assert not list(tmp_path.iterdir())


SOUND = {"size": [8, 8, 8], "layout": "whole head", "volumes": ["a"]}
DAMAGED = {
    "empty": b"",
    "a list": b"[]",
    "cut short": b'{"seed": ',
    "deep": b"[" * 9000,
    "not UTF-8": b'{"setting": "\xff"}',
    "a foreign object": b"{}",
    **{f"no {name}": {**SOUND, name: ...} for name in SOUND},
    **{f"{name} {value}": {**SOUND, name: value} for name, value in (
        ("setting", 5), ("size", "x"), ("size", [8, 8]), ("volumes", None), ("volumes", []), ("layout", "ribs"),
        ("accumulation", 0), ("batch_size", True), ("channel_mult", 5), ("learning_rate", "1"), ("processes", None),
        ("data", {}), ("seed", -1), ("seed", None), ("clip_norm", float("nan")),
    )},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_run_is_neither_released_nor_resumed(
    trained: Path, head_folder: Path, tmp_path: Path, damage: bytes | dict, capsys
) -> None:
    run, out = tmp_path / "run", tmp_path / "r.safetensors"
    shutil.copytree(trained, run)
    if isinstance(damage, dict):
        damage = json.dumps({name: value for name, value in damage.items() if value is not ...}).encode()
    (run / "run.json").write_bytes(damage)
    resumed = ["train", "--data", str(head_folder), "--out", str(run), "--steps", "3", *TINY]
    for command in (["release", str(run), "--out", str(out), "--held-out", "0", "--device", "cpu", "-q"], resumed):
        assert main(command) == 1
        assert f"{run / 'run.json'}: it is damaged: " in complaint(capsys)
    assert not out.exists()
    assert (run / "run.json").read_bytes() == damage


def test_a_bad_mask_is_named_and_not_the_steps(trained: Path, spoilt: Path, capsys) -> None:
    mask = spoilt / "mask" / "phantom_0001.nii.gz"
    assert main(["sample", "--checkpoint", str(trained), "--mask", str(mask), "--out", str(spoilt / "v.nii")]) == 1
    assert complaint(capsys).startswith(f"medddpm: {mask}: ")


def test_reports_and_warnings_are_plain_lines_of_the_first_process(monkeypatch, capsys) -> None:
    with plain_lines():
        log.warning("a report")
        warnings.warn_explicit("a warning", RuntimeWarning, diffusion.__file__, 1)
        monkeypatch.setenv("RANK", "1")
        log.warning("the same from the second process")
    assert capsys.readouterr().err.splitlines() == ["medddpm: a report", "medddpm: a warning"]


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["frobnicate"],
        ["train"],
        ["train", "--phantom", "--out", "r", "--steps", "many"],
        ["sample", "--mask", "m.nii"],
    ],
)
def test_wrong_arguments_exit_2(command: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "usage: medddpm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["train"], "--out, --steps, --data or --phantom or --heads"),
        (["train", "--steps", "1"], "--out, --data or --phantom or --heads"),
        (["train", "--phantom", "--steps", "1"], "--out"),
        (["train", "--data", "d"], "--out, --steps"),
        (["sample"], "--mask, --out"),
        ([], "COMMAND"),
    ],
)
def test_all_that_is_missing_is_named_at_once(command: list[str], missing: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(command)
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: the following arguments are required: {missing}")


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("train --phantom 2 --out x --stps 5", "required: --steps; unrecognized: --stps; did you mean --steps?"),
        ("train --phantom 2 --out x --steps 5 --stps=5", "unrecognized arguments: --stps=5; did you mean --steps?"),
        ("train --phantom 2 --out x --steps 5 more", "unrecognized arguments: more"),
        ("train --phantom 2 --out x --steps 5 --setting fst", "did you mean fast?"),
        ("chek folder", "did you mean check?"),
    ],
)
def test_what_a_word_may_have_meant(words: str, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    usage, *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(ending)
    assert usage.startswith(f"usage: medddpm {'train ' if words.startswith('train') else ''}")


@pytest.mark.parametrize("command", [["train", "--out", ""], ["sample", "--out", "v.nii", "--mask", ""], ["check", ""]])
def test_an_empty_path_is_not_the_current_folder(command: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(": '' is no path")


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (["train", "--phantom", "--steps", "1"], 4096),
        (["profile"], 2**31 - 1),
    ],
)
def test_a_width_is_told_to_be_a_multiple(command: list[str], most: int, capsys) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--out", "o.csv", "--channels", "20"])
    groups = " or of --norm-groups" if command[0] == "train" else ""
    said = f"argument --channels: '20' is not a whole number from 32 to {most}, a multiple of 32{groups}"
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


@pytest.mark.parametrize("command", ["train", "sample", "release", "check", "compare", "profile", "parse"])
def test_help_shows_examples(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  medddpm {command}" in capsys.readouterr().out


def test_help_does_not_wait_for_pytorch() -> None:
    """Importing PyTorch takes seconds; nobody who asks for help should."""
    script = "import sys, medddpm.cli.main; medddpm.cli.main.parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_the_package_gives_what_the_readme_names() -> None:
    import medddpm

    assert {name: getattr(medddpm, name) for name in medddpm.__all__}
    from medddpm.fast.patch import FEATURES  # a module of the same name as the function

    assert FEATURES
    assert medddpm.accelerate(torch.nn.Identity(), report=None).acceleration
    with pytest.raises(AttributeError, match="no attribute 'UNet2D'"):
        _ = medddpm.UNet2D
    assert isinstance(medddpm.GaussianDiffusion(torch.nn.Identity()), torch.nn.Module)


def test_what_to_recompute_is_what_the_network_takes() -> None:
    assert RECOMPUTED == unet.RECOMPUTED


def test_the_samplers_to_choose_from_are_all_there_are() -> None:
    assert SAMPLERS == diffusion.SAMPLERS


COMPLETE = """
eval "$1"
declare -F _shtab_medddpm > /dev/null || exit 1
COMP_WORDS=(medddpm $2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_medddpm medddpm "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("sam", ["sample"]),
        ("sample --sampl", ["--sampler"]),
        ("sample --sampler d", ["ddpm", "ddim", "dpm++"]),
        ("train --setting opt", ["opt1", "opt2", "opt12"]),
        ("train --data he", ["head"]),
        ("comp", ["compare"]),
        ("compare --too", ["--tools"]),
    ],
)
def test_a_shell_completes_what_it_printed(words: str, completed: list[str], head_folder: Path, capsys) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 0
    script = ["bash", "-c", COMPLETE, "bash", capsys.readouterr().out, words]
    shell = subprocess.run(script, cwd=head_folder.parent, capture_output=True, text=True)
    assert shell.stdout.split() == completed, shell.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_without_shtab_a_line_says_how_to_install_it(shell: str, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", shell]) == 1
    assert complaint(capsys) == "medddpm: --print-completion needs shtab; pip install 'medddpm[completion]'"


@pytest.mark.parametrize("name", ["bench", "parity", "convnext", "book"])
def test_a_command_that_moved_answers_with_the_new_one(name: str, capsys) -> None:
    assert main([name, "--out", "somewhere"]) == 2
    said = f"{name} belongs to the book now; in a clone of its repository: python -m study {name}"
    assert complaint(capsys) == f"medddpm: {said}"
