"""Options from a TOML or from the run.json of a run; the command line counts more."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from medddpm.cli.main import main
from medddpm.data.heads import Heads
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.training import run
from medddpm.training.config import TrainConfig
from medddpm.training.run_folder import claim

TOML = """
phantom = 3
size = [8, 8, 16]
setting = "opt1"
learning-rate = 2e-4
warm_up = 5
flips = true
channel-mult = [1, 2]
channels = 32
steps = 7
seed = 4
quiet = true
device = "cpu"
"""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What `medddpm train` would train, without training."""
    runs: list[dict] = []

    def instead(config: TrainConfig, volumes, out: Path, steps: int, **how) -> list[float]:
        runs.append(asdict(config) | {"steps": steps, "names": volumes.names(), "size": volumes.size} | how)
        return [0.0] * steps

    monkeypatch.setattr(run, "train", instead)
    return runs


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (path := tmp_path / "run.toml").write_text(TOML)
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", *words]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_toml_has_the_options_by_their_names(begun: list[dict], toml: Path, tmp_path: Path) -> None:
    assert main(["train", "--config", str(toml), "--out", str(tmp_path / "r")]) == 0
    expected = {
        "setting": "OPT1", "learning_rate": 2e-4, "warm_up": 5, "flips": True, "channel_mult": [1, 2],
        "model_channels": 32, "steps": 7, "seed": 4, "size": (8, 8, 16), "bars": False, "image_size": 8,
    }  # fmt: skip
    assert begun[0].items() >= expected.items()
    assert begun[0]["names"] == Phantom(3).names()


@pytest.mark.parametrize("first", [True, False])
def test_the_command_line_counts_more_wherever_the_file_stands(
    begun: list[dict], toml: Path, tmp_path: Path, first: bool
) -> None:
    words = ["--steps", "9", "--heads", "2", "--no-flips", "--learning-rate=1e-3", "--size", "16", "--out", "r"]
    config = [f"--conf={toml}"]
    assert main(["train", *(config + words if first else words + config)]) == 0
    expected = {"steps": 9, "flips": False, "learning_rate": 1e-3, "size": (16, 16, 16), "warm_up": 5}
    assert begun[0].items() >= expected.items()
    assert begun[0]["names"] == Heads(2).names()


def test_data_on_the_command_line_leaves_out_what_belongs_to_the_file_s(
    begun: list[dict], tmp_path: Path, capsys
) -> None:
    write_phantom(tmp_path / "data", 2, (8, 8, 8))
    (tmp_path / "a.toml").write_text('heads = 2\ncontrast = "t2"\nsize = 8\nsteps = 1\n')
    (tmp_path / "b.toml").write_text(f'data = "{tmp_path}/data"\nno-check = true\nsize = 8\nsteps = 1\n')
    words = ["--out", str(tmp_path / "r"), "-q", "--device", "cpu"]
    assert main(["train", "--config", str(tmp_path / "a.toml"), "--data", str(tmp_path / "data"), *words]) == 0
    assert main(["train", "--config", str(tmp_path / "b.toml"), *words]) == 0
    assert main(["train", "--config", str(tmp_path / "b.toml"), "--phantom", *words]) == 0
    assert [len(each["names"]) for each in begun] == [2, 2, 64]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("learningrate = 1", "learningrate is no option of train; the nearest is learning-rate"),
        ("xyz = 1", "xyz is no option of train; the nearest is "),
        ("help = true", "help is no option of train"),
        ("config = 'b.toml'", "config is no option of train"),
        ("no-flips = true", "no-flips is no option of train; the nearest is flips"),
        ("warm-up = 1\nwarm_up = 2", "warm_up is there twice"),
        ("warm-up = -1", "warm-up: '-1' is not a whole number from 0"),
        ("warm-up = 1.5", "warm-up: '1.5' is not a whole number"),
        ("warm-up = true", "warm-up is True; give a number or a text"),
        ("warm-up = [1, 2]", "warm-up is [1, 2]; give a number or a text"),
        ("size = []", "size is []; give a number"),
        ("size = [8, 'x']", "size: 'x' is not a whole number"),
        ("flips = 1", "flips is 1; give true or false"),
        ("loss = 'l3'", "loss is 'l3'; choose one of l1, l2"),
        ("learning-rate = inf", "learning-rate: 'inf' is not a number above 0"),
        ("[train]\nsteps = 1", "train is no option of train"),
        ("steps = ", "it is no TOML: Invalid value (at"),
    ],
)
def test_what_a_file_has_wrong_is_a_line(tmp_path: Path, capsys, line: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(line)
    told = refused(capsys, "--phantom", "1", "--out", str(tmp_path / "r"), "--config", str(tmp_path / "a.toml"))
    assert told.startswith(f"medddpm: {tmp_path / 'a.toml'}: {said}")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.toml", "no such file or directory; give a TOML"),
        ("none.json", "it is missing; give the run.json of a run"),
        (".", "is a directory; give a TOML"),
        ("latin.toml", "it is no TOML: 'utf-8' codec"),
        ("list.json", "it is damaged: no JSON object"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, capsys, name: str, said: str) -> None:
    (tmp_path / "latin.toml").write_bytes(b"out = '\xe9'")
    (tmp_path / "list.json").write_text("[]")
    assert f": {said}" in refused(capsys, "--phantom", "--out", "r", "--steps", "1", "--config", str(tmp_path / name))


def test_an_option_without_its_value_or_without_what_is_required_is_a_wrong_argument(toml: Path, capsys) -> None:
    for words, said in (
        (["--config"], "argument --config: expected one argument"),
        (["--config", str(toml)], "the following arguments are required: --out"),
        (["--config", str(toml), "--out", "r", "--stps=5"], "unrecognized arguments: --stps=5; did you mean --steps?"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["train", *words])
        assert ended.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def a_run(out: Path, **changes: object) -> Path:
    """A run.json, of a configuration in which every field has another value than the default."""
    config = TrainConfig(
        setting="FAST", image_size=8, model_channels=48, num_res_blocks=2, channel_mult=(1, 2), norm_groups=16,
        prediction="velocity", loss="l2", weighting="min-snr", density="logit-normal", learning_rate=3e-4, warm_up=3,
        decay="cosine", length=11, batch_size=2, accumulation=3, offset_noise=0.1, clip_norm=1.0, ema_share=0.05,
        flips=True, deform=0.01, seed=5, holdout=2, save_every=0, sample_every=0, keep=3, read_every_loss=True,
        workers=0, recompute="all", gradient_dtype="bf16", bucket_mib=0,
    )  # fmt: skip
    claim(out, replace(config, **changes), Heads(4, (8, 8, 16), "flair"))
    return out / "run.json"


def test_a_run_json_gives_the_same_run(begun: list[dict], tmp_path: Path) -> None:
    record = a_run(tmp_path / "run")
    assert main(["train", "--config", str(record), "--out", str(tmp_path / "r"), "--device", "cpu"]) == 0
    known = json.loads(record.read_text())
    different = {name for name in asdict(TrainConfig()) if json.loads(json.dumps(begun[0][name])) != known[name]}
    assert different == set()
    assert (begun[0]["steps"], begun[0]["size"], begun[0]["names"]) == (11, (8, 8, 16), known["volumes"])


def test_a_run_json_of_joint_heads_gives_joint_heads(begun: list[dict], tmp_path: Path) -> None:
    claim(tmp_path / "run", TrainConfig(image_size=8), Heads(2, (8, 8, 8), "all"))
    words = ["--steps", "1", "--out", str(tmp_path / "r"), "--device", "cpu"]
    assert main(["train", "--config", str(tmp_path / "run" / "run.json"), *words]) == 0
    assert begun[0]["names"] == Heads(2, (8, 8, 8), "all").names()


def test_a_run_json_counts_more_than_a_recipe_and_less_than_an_option(begun: list[dict], tmp_path: Path) -> None:
    record = a_run(tmp_path / "run", warm_up=0, decay="none", length=0, flips=False)
    words = ["--recipe", "ours", "--seed", "9", "--steps", "2", "--out", str(tmp_path / "r"), "--device", "cpu"]
    assert main(["train", "--config", str(record), *words]) == 0
    assert (begun[0]["warm_up"], begun[0]["decay"], begun[0]["flips"], begun[0]["seed"]) == (0, "none", False, 9)
    assert begun[0]["learning_rate"] == 3e-4


def test_a_run_of_several_processes_has_the_same_steps_in_one(begun: list[dict], tmp_path: Path) -> None:
    record = a_run(tmp_path / "run")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"processes": 4}))
    assert main(["train", "--config", str(record), "--out", str(tmp_path / "r"), "--device", "cpu"]) == 0
    assert (begun[0]["batch_size"], begun[0]["accumulation"]) == (2, 12)


def test_what_no_option_gives_is_said(tmp_path: Path, capsys) -> None:
    words = ["--out", str(tmp_path / "r"), "--config"]
    assert "its run has ema_start 5, which no option sets" in refused(
        capsys, *words, str(a_run(tmp_path / "a", ema_start=5))
    )
    record = a_run(tmp_path / "b", init="x.pt, SHA-256 0")
    assert "its run started from x.pt, SHA-256 0; give that file by --init" in refused(capsys, *words, str(record))
    known = json.loads(record.read_text()) | {"init": "", "volumes": Heads(4, seed=7).names()}
    record.write_text(json.dumps(known))
    assert "its subjects have seed 7, which no option sets" in refused(capsys, *words, str(record))


def test_a_run_on_a_folder_asks_for_that_folder(begun: list[dict], tmp_path: Path, capsys) -> None:
    write_phantom(tmp_path / "data", 3, (8, 8, 8))
    first = ["train", "--data", str(tmp_path / "data"), "--size", "8", "--scaling", "slice", "--device", "cpu", "-q"]
    assert main([*first, "--out", str(tmp_path / "a"), "--steps", "1"]) == 0
    from medddpm.data.volumes import VolumeFolder

    record = tmp_path / "a" / "run.json"
    claim(tmp_path / "a", TrainConfig(image_size=8), VolumeFolder(tmp_path / "data", (8, 8, 8), "slice"))
    words = ["--config", str(record), "--steps", "1", "--out", str(tmp_path / "b"), "--device", "cpu", "-q"]
    with pytest.raises(SystemExit):
        main(["train", *words])
    assert "required" in capsys.readouterr().err
    assert main(["train", *words, "--data", str(tmp_path / "data")]) == 0
    assert begun[1]["names"] == begun[0]["names"]


def test_a_run_goes_on_by_its_own_run_json(tmp_path: Path) -> None:
    words = ["train", "--phantom", "1", "--size", "8", "--channel-mult", "1", "--sample-every", "0"]
    assert main([*words, "--out", str(tmp_path), "--steps", "1", "--device", "cpu", "-q"]) == 0
    again = ["train", "--config", str(tmp_path / "run.json"), "--out", str(tmp_path), "--steps", "2"]
    assert main([*again, "--device", "cpu", "-q"]) == 0
